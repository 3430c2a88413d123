"""Conformal regions: coverage by simulation, volumes against formulas, masks and weights."""

import math
import pickle
import warnings

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.costs import FullNormal
from torchmcl.postprocess import (
    BallNonconformity,
    Conformal,
    MixtureNonconformity,
    TubeNonconformity,
    WeightedHypotheses,
    calibrate_scores,
    diagnose,
    expected_cost,
    quantile,
    reduce,
)

KINDS = [BallNonconformity(), BallNonconformity(mcl.pairwise_sq_euclidean, power=0.5), TubeNonconformity((1.0, 2.0))]
FOR_ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=["balls", "grown balls", "tubes"])


def rows(n, seed=0, noise=0.3, event=(2,)):
    """Return predictions of three hypotheses, and targets near one of them, drawn by the scores."""
    generator = torch.Generator().manual_seed(seed)
    hypotheses = torch.randn(n, 3, *event, generator=generator)
    logits = torch.randn(n, 3, generator=generator)
    drawn = torch.multinomial(mcl.normalized_scores(logits), 1, generator=generator).squeeze(-1)
    targets = hypotheses[torch.arange(n), drawn] + noise * torch.randn(n, *event, generator=generator)
    return mcl.Predictions(hypotheses, logits), targets


def some(predictions, index):
    return mcl.Predictions(*(None if part is None else part[index] for part in predictions))


@FOR_ALL_KINDS
def test_a_new_target_is_covered_as_promised_over_many_draws(kind):
    n_draws, n_rows, coverage = 400, 25, 0.9
    predictions, targets = rows(n_draws * n_rows)
    new, new_targets = rows(n_draws, seed=1)
    n_covered = 0
    for draw in range(n_draws):
        index = slice(draw * n_rows, (draw + 1) * n_rows)
        regions = Conformal.calibrate(kind, some(predictions, index), targets[index], coverage=coverage)
        index = slice(draw, draw + 1)
        n_covered += bool(regions.contains(some(new, index), new_targets[index]))
    exact = math.ceil(coverage * (n_rows + 1)) / (n_rows + 1)  # for values without ties
    assert abs(n_covered / n_draws - exact) < 4 * math.sqrt(exact * (1 - exact) / n_draws)


def test_coverage_is_joint_over_steps_and_holds_with_masks():
    kind = TubeNonconformity.fit(*rows(300, seed=5, event=(4, 2)))
    predictions, targets = rows(20_000, event=(4, 2))
    mask = torch.rand(20_000, 4, generator=torch.Generator().manual_seed(2)) < 0.8
    mask[:, 0] = True
    held_out, new = slice(2000), slice(2000, None)
    regions = Conformal.calibrate(kind, some(predictions, held_out), targets[held_out], mask=mask[held_out])
    inside = regions.contains(some(predictions, new), targets[new], mask=mask[new])
    assert inside.double().mean() == pytest.approx(0.9, abs=0.02)
    # Inside a tube means inside the tube of one hypothesis at all steps.
    radii = regions.level * torch.tensor(kind.scales)
    distances = (predictions.hypotheses[new] - targets[new].unsqueeze(1)).square().sum(-1).sqrt()
    expected = ((distances <= radii * (1 + 1e-6)) | ~mask[new].unsqueeze(1)).all(-1).any(-1)
    assert (inside == expected).double().mean() > 0.9999


def test_weights_correct_a_shift_of_the_inputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40_000, 1, generator=generator).double()
    noise = (0.1 + x) * torch.randn(40_000, 1, generator=generator)
    predictions, targets = mcl.Predictions(torch.zeros(40_000, 1, 1).double()), noise
    weights = (5 * x.squeeze(-1) - 5).exp()  # new rows have large x, and large noise
    kept = torch.rand(40_000, generator=generator) < weights
    plain, weighted = (
        Conformal.calibrate(BallNonconformity(), predictions, targets, sample_weights=w)
        .contains(some(predictions, kept), targets[kept])
        .double()
        .mean()
        for w in (None, weights)
    )
    assert plain < 0.8
    assert weighted == pytest.approx(0.9, abs=0.01)


@for_each("dtype", [torch.float16, torch.float32, torch.float64])
@for_each("kind", [BallNonconformity(), TubeNonconformity((0.3,))])
def test_targets_tied_at_the_level_are_covered_in_every_dtype(kind, dtype):
    predictions, targets = mcl.Predictions(torch.zeros(100, 1, 1, dtype=dtype)), torch.full((100, 1), 0.7, dtype=dtype)
    assert Conformal.calibrate(kind, predictions, targets).contains(predictions, targets).all()


@for_each("content", [0.0, 1e9, math.nan])
def test_contents_of_masked_steps_are_ignored(content):
    predictions, targets = rows(60, event=(6, 2))
    mask = torch.arange(6) < torch.randint(1, 7, (60, 1), generator=torch.Generator().manual_seed(0))
    other = targets.masked_fill(~mask.unsqueeze(-1), content)
    assert TubeNonconformity.fit(predictions, other, mask) == TubeNonconformity.fit(predictions, targets, mask)
    for kind in (TubeNonconformity(), BallNonconformity(mcl.pairwise_ade), BallNonconformity(mcl.pairwise_fde)):
        regions, expected = (Conformal.calibrate(kind, predictions, part, mask=mask) for part in (other, targets))
        assert regions == expected
        inside = regions.contains(predictions, other, mask=mask)
        assert torch.equal(inside, expected.contains(predictions, targets, mask=mask))
    with pytest.raises(ValueError, match="mask"):
        Conformal.calibrate(BallNonconformity(), predictions, targets, mask=mask)


def test_scales_are_means_over_the_rows_that_have_a_step():
    index = torch.arange(100)
    hypotheses = torch.tensor([[[0.0], [0.0]], [[1.0], [1.2]]]).expand(100, 2, 2, 1)
    targets = torch.tensor([[0.4], [0.7]]).expand(100, 2, 1)
    mask = torch.stack([index >= 0, index < 50], dim=1)
    assert TubeNonconformity.fit(mcl.Predictions(hypotheses), targets, mask) == TubeNonconformity.fit(
        mcl.Predictions(hypotheses[:50]), targets[:50]
    )


def test_too_few_rows_are_refused_with_the_number_that_is_needed():
    Conformal.calibrate(BallNonconformity(), *rows(19), coverage=0.95)
    with pytest.raises(ValueError, match="`targets`"):
        Conformal.calibrate(BallNonconformity(), *rows(18), coverage=0.95)


def test_the_quantile_of_equal_weights_is_an_order_statistic():
    values = torch.arange(1.0, 20.0).double().numpy()
    assert quantile(values, 0 * values + 1, 0.1) == 18
    assert quantile(values, 0 * values + 1, 0.01) == math.inf


def test_volumes_agree_with_formulas():
    """The length of intervals is exact; the volume of two overlapping balls and of an ellipse is estimated."""
    draws = {"n_samples": 200_000, "generator": torch.Generator().manual_seed(0)}
    line = WeightedHypotheses(torch.tensor([[[0.0], [1.0], [5.0]]]), torch.full((1, 3), 1 / 3))
    assert BallNonconformity().volume(line, 1.0, **draws).item() == pytest.approx(5)
    lens = math.pi * (4 + 1) * (2 - 1) ** 2 / 12  # of unit balls at distance 1
    balls = WeightedHypotheses(torch.tensor([[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]]), torch.full((1, 2), 0.5))
    assert BallNonconformity().volume(balls, 1.0, **draws).item() == pytest.approx(8 / 3 * math.pi - lens, rel=0.01)
    paths = WeightedHypotheses(torch.zeros(1, 1, 3, 2), torch.ones(1, 1))
    expected = 4 * math.pi * (1 + 4 + 9) / 3
    assert TubeNonconformity((1.0, 2.0, 3.0)).volume(paths, 2.0, **draws).item() == pytest.approx(expected, rel=1e-4)
    ellipse = WeightedHypotheses(
        torch.zeros(1, 1, 2), torch.ones(1, 1), torch.diag(torch.tensor([2.0, 3.0]))[None, None]
    )
    level = 0.5 * 1.5**2 + math.log(2 * math.pi * 6)  # within 1.5 standard deviations
    area = MixtureNonconformity(FullNormal()).volume(ellipse, level, **draws).item()
    assert area == pytest.approx(math.pi * 1.5**2 * 6, rel=0.01)


@FOR_ALL_KINDS
def test_regions_can_be_pickled(kind):
    regions = Conformal.calibrate(kind, *rows(60))
    assert pickle.loads(pickle.dumps(regions)) == regions


@for_each(
    "change, error, message",
    [
        ({"coverage": 1.0}, ValueError, "`coverage`"),
        ({"nonconformity": "balls"}, TypeError, "be a Nonconformity, got str"),
        ({"targets": torch.zeros(20, 3)}, ValueError, "`targets`"),
        ({"targets": torch.full((20, 2), torch.inf)}, ValueError, "be finite, got inf"),
        ({"sample_weights": -torch.ones(20)}, ValueError, "`sample_weights`"),
        ({"mask": torch.ones(20, 3, dtype=torch.bool)}, ValueError, "`mask`"),
        ({"mask": torch.zeros(20, 2, dtype=torch.bool)}, ValueError, "at least one valid step in each row"),
        ({"nonconformity": MixtureNonconformity(FullNormal())}, ValueError, "`predictions`"),
        ({"nonconformity": TubeNonconformity((1.0,))}, ValueError, "one number for each of 2 steps"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    predictions, targets = rows(20)
    arguments = {"nonconformity": BallNonconformity(), "targets": targets, **change}
    with pytest.raises(error, match=message):
        Conformal.calibrate(arguments.pop("nonconformity"), predictions, arguments.pop("targets"), **arguments)


def test_regions_calibrated_with_probabilities_require_them_again():
    predictions, targets = rows(40)
    probabilities = torch.full((40, 3), 1 / 3)
    regions = Conformal.calibrate(BallNonconformity(power=0.5), predictions, targets, scores=probabilities)
    with pytest.raises(ValueError, match="`scores`"):
        regions.contains(predictions, targets)
    assert regions.contains(predictions, targets, scores=probabilities).float().mean() >= 0.9
    with pytest.raises(ValueError, match="power of the Euclidean distance"):
        Conformal.calibrate(BallNonconformity(mcl.pairwise_l1), predictions, targets).volume(predictions)


MATCHING = mcl.assign(torch.rand(40, 1, 3), mcl.WTA())
READERS = {
    "Conformal.calibrate": lambda given, **options: Conformal.calibrate(
        BallNonconformity(), given, torch.zeros(40, 1), **options
    ),
    "diagnose": lambda given, **options: diagnose(given, torch.zeros(40, 1), **options),
    "reduce": lambda given, **options: reduce(given, 2, **options),
    "expected_cost": lambda given, **options: expected_cost(given, given, **options),
    "calibrate_scores": lambda given, **options: calibrate_scores(given, MATCHING, **options),
}


@for_each("name", READERS)
def test_logits_of_a_softmax_are_not_silently_read_as_sigmoids(name):
    probabilities = torch.tensor([0.5, 0.3, 0.2]).expand(40, 3)
    hypotheses, read = torch.randn(40, 3, 1), READERS[name]
    with pytest.warns(UserWarning, match=f"{name}: .* sum to 2.9 on average, not to 1"):
        read(mcl.Predictions(hypotheses, probabilities.log() + 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(mcl.Predictions(hypotheses, probabilities.log() + 5), scores=mcl.SoftmaxScores())
        read(mcl.Predictions(hypotheses, probabilities.logit()))
