"""Correlated normals and angles from the head to the region: one object, the same density everywhere."""

import math

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.costs import BivariateNormal, FullNormal
from torchmcl.density import mixture_distribution
from torchmcl.postprocess import Conformal, MixtureNonconformity

FAMILIES = [FullNormal(), BivariateNormal()]
for_all_families = for_each("family", FAMILIES)


def predictions_of(family, event=2, n_rows=5):
    torch.manual_seed(0)
    head = mcl.MultiHypothesisHead(4, event, n_hypotheses=3, scales=family).double()
    return head(torch.randn(n_rows, 4, dtype=torch.float64))


@for_all_families
@for_each("event", [2, (4, 2)])
def test_cost_of_a_head_is_the_density_of_its_mixture(family, event):
    predictions = predictions_of(family, event)
    targets = torch.randn(5, *([event] if isinstance(event, int) else event), dtype=torch.float64)
    cost = mcl.mcl_step(
        lambda _: predictions,
        mcl.Batch(targets, targets),
        mcl.AnnealedWTA(1.0),
        cost_fn=mcl.MixtureNLL(family),
        score_weight=0,
    ).matching.cost.squeeze(1)
    mixture = mixture_distribution(predictions, family)
    torch.testing.assert_close(torch.logsumexp(-cost, dim=-1), mixture.log_prob(targets), rtol=1e-5, atol=1e-6)
    assert mixture.sample((7,)).shape == (7, *targets.shape)
    equal, without = (
        mixture_distribution(predictions._replace(score_logits=logits), family).log_prob(targets)
        for logits in (torch.zeros(5, 3, dtype=torch.float64), None)
    )
    torch.testing.assert_close(without, equal)


@for_all_families
def test_masked_steps_do_not_count(family):
    predictions = predictions_of(family, (4, 2))
    targets, mask = torch.randn(5, 1, 4, 2, dtype=torch.float64), torch.ones(5, 1, 4, dtype=torch.bool)
    mask[:, :, 2:] = False
    targets[~mask] = torch.nan
    given = {"hypotheses": predictions.hypotheses, "scale": predictions.scale, "event_dims": 2}
    cost = family(**given, targets=targets, mask=mask)
    short = {"hypotheses": predictions.hypotheses[:, :, :2], "scale": predictions.scale[:, :, :2], "event_dims": 2}
    torch.testing.assert_close(cost, family(**short, targets=targets[:, :, :2]))
    torch.testing.assert_close(family(**given, targets=targets, mask=mask, per_step=True), cost / 2)


def test_all_normals_are_one_where_their_covariances_are():
    h, t = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.7, -1.3]], dtype=torch.float64)
    plane = torch.tensor([[1.5, 0.5, 0.6]], dtype=torch.float64)
    covariance = torch.tensor([[2.25, 0.45], [0.45, 0.25]], dtype=torch.float64)
    full = FullNormal()(hypotheses=h, targets=t, scale=torch.linalg.cholesky(covariance)[None])
    torch.testing.assert_close(BivariateNormal()(hypotheses=h, targets=t, scale=plane), full)


def test_training_finds_the_correlation():
    torch.manual_seed(0)
    x = torch.zeros(512, 1)
    y = torch.randn(512, 2) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]])
    model = mcl.MultiHypothesisMLP(1, 2, n_hypotheses=1, hidden=(), scales=FullNormal())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        mcl.mcl_step(model, mcl.Batch(x, y), mcl.WTA(), cost_fn=FullNormal(), score_weight=0).loss.backward()
        optimizer.step()
    factor = model(x[:1]).scale[0, 0]
    covariance = factor @ factor.mT
    assert abs(covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt() - 0.8) < 0.05


def test_regions_cover_and_have_the_volume_of_an_ellipse():
    torch.manual_seed(0)
    factor = torch.tensor([[2.0, 0.0], [0.5, 0.3]])
    predictions = mcl.Distributions(torch.zeros(400, 1, 2), None, factor.expand(400, 1, 2, 2))
    targets = torch.randn(800, 2) @ factor.T
    regions = Conformal.calibrate(MixtureNonconformity(FullNormal()), predictions, targets[:400], coverage=0.8)
    assert 0.74 < regions.contains(predictions, targets[400:]).float().mean() < 0.86
    first = mcl.Distributions(*(None if part is None else part[:1] for part in predictions))
    draw = {"n_samples": 20_000, "generator": torch.Generator().manual_seed(1)}
    level = regions.level - math.log(2 * math.pi) - math.log(0.6)  # half the squared radius
    torch.testing.assert_close(regions.volume(first, **draw).item(), 2 * math.pi * 0.6 * level, rtol=0.05, atol=0)
    volumes = [regions.volume(first, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*volumes)


@for_each(
    "call, words",
    [
        (lambda: mcl.MultiHypothesisHead(2, 3, 2, scales=BivariateNormal()), "must have two coordinates, got 3"),
        (
            lambda: FullNormal()(hypotheses=torch.zeros(1, 2), targets=torch.zeros(1, 2), scale=torch.ones(1, 2)),
            "FullNormal: `scale`",
        ),
        (  # as many standard deviations as entries of one Cholesky factor
            lambda: FullNormal()(hypotheses=torch.zeros(2, 2), targets=torch.zeros(1, 2), scale=torch.ones(2, 2)),
            "FullNormal: `scale`",
        ),
        (
            lambda: mixture_distribution(
                mcl.Distributions(torch.zeros(2, 2, 2), None, torch.ones(2, 2, 2)), FullNormal()
            ),
            "mixture_distribution: `scale`",
        ),
        (
            lambda: FullNormal()(hypotheses=torch.zeros(1, 2), targets=torch.zeros(1, 2), scale=None),
            "FullNormal: `scale`",
        ),
        (
            lambda: FullNormal()(
                hypotheses=torch.zeros(1, 2),
                targets=torch.zeros(1, 2),
                scale=torch.eye(2)[None],
                mask=torch.ones(1, 2) > 0,
            ),
            "FullNormal: `mask`",
        ),
    ],
)
def test_bad_input_is_refused_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="`scales`"):
        mcl.MultiHypothesisHead(2, 2, 2, scales="full")
    with pytest.raises(TypeError, match="`predictions`"):
        mixture_distribution(mcl.Predictions(torch.zeros(1, 1, 2)), FullNormal())
    given = mcl.Distributions(torch.zeros(1, 1, 2), None, torch.ones(1, 1, 2))
    with pytest.raises(TypeError, match="`family`"):
        mixture_distribution(given, "full")
