"""Hypotheses of any shape: masks of steps, distributions, two costs, kinds of scores, winners of scenes."""

import functools
import math

import pytest
import torch

import oracles
import torchmcl as mcl
from grids import for_each
from problems import score_labels
from torchmcl.checks import debug_checks
from torchmcl.costs import FullNormal, pairwise_token_cross_entropy
from torchmcl.costs import chunked as sequences
from torchmcl.rules import SceneWinners
from torchmcl.scoring import PresenceScores
from torchmcl.types import collate_batches

MASKED = [
    (mcl.pairwise_ade, oracles.ade),
    (mcl.pairwise_fde, oracles.fde),
    (mcl.pairwise_sq_ade, oracles.sq_ade),
]
LIKELIHOODS = [(mcl.pairwise_gaussian_nll, oracles.gaussian_nll), (mcl.pairwise_laplace_nll, oracles.laplace_nll)]


def paths(n_samples=3, n_targets=2, n_hypotheses=4, n_steps=5):
    """Return hypotheses, targets with NaN where masked, and masks with none, all and some steps."""
    hypotheses = torch.randn(n_samples, n_hypotheses, n_steps, 2, dtype=torch.float64)
    targets = torch.randn(n_samples, n_targets, n_steps, 2, dtype=torch.float64)
    mask = torch.rand(n_samples, n_targets, n_steps) > 0.4
    mask[0, 0], mask[1 % n_samples, 0] = False, True
    mask[-1, -1] = torch.tensor([True, False, True, False, False])
    return hypotheses, targets.masked_fill(~mask.unsqueeze(-1), math.nan), mask


def expected(oracle, hypotheses, targets, mask, *more):
    return torch.stack(
        [
            torch.stack(
                [
                    torch.stack([oracle(h, y, *(m[k] for m in extra), real) for k, h in enumerate(hs)])
                    for y, real in pairs
                ]
            )
            for hs, pairs, *extra in (
                (hypotheses[i], list(zip(targets[i], mask[i], strict=True)), *(m[i] for m in more))
                for i in range(len(hypotheses))
            )
        ]
    )


def compare(fn, oracle, hypotheses, targets, mask, *more, **options):
    """Check values and gradients of all inputs against the oracle."""
    leaves = [tensor.clone().requires_grad_() for tensor in (hypotheses, *more)]
    names = {"scale": leaves[1]} if more else {}
    actual = fn(hypotheses=leaves[0], targets=targets, mask=mask, **names, **options)
    wanted = expected(oracle, leaves[0], targets, mask, *leaves[1:])
    torch.testing.assert_close(actual, wanted)
    direction = torch.randn_like(wanted)
    pairs = [torch.autograd.grad((cost * direction).sum(), leaves) for cost in (actual, wanted)]
    torch.testing.assert_close(*pairs)


@pytest.mark.parametrize(("fn", "oracle"), MASKED)
@pytest.mark.parametrize("entries", [1 << 16, 16])  # whole, and in chunks
def test_masked_costs_agree_with_the_oracle(fn, oracle, entries, monkeypatch):
    monkeypatch.setattr(sequences, "_ENTRIES_ON_CPU", entries)
    compare(fn, oracle, *paths())


@pytest.mark.parametrize(("fn", "oracle"), LIKELIHOODS)
@pytest.mark.parametrize("entries", [1 << 16, 16])
def test_masked_likelihoods_agree_with_the_oracle(fn, oracle, entries, monkeypatch):
    monkeypatch.setattr(sequences, "_ENTRIES_ON_CPU", entries)
    hypotheses, targets, mask = paths()
    compare(fn, oracle, hypotheses, targets, mask, torch.rand_like(hypotheses) + 0.3, event_dims=2)


@pytest.mark.parametrize("fn", [mcl.pairwise_ade, functools.partial(mcl.pairwise_gaussian_nll, event_dims=2)])
def test_second_derivatives_in_chunks(fn, monkeypatch):
    monkeypatch.setattr(sequences, "_ENTRIES_ON_CPU", 8)
    hypotheses, targets, mask = paths(2, 1, 2)
    scale = {"scale": torch.full_like(hypotheses, 0.7)} if isinstance(fn, functools.partial) else {}
    targets = targets.nan_to_num()
    assert torch.autograd.gradgradcheck(
        lambda h: fn(hypotheses=h, targets=targets, mask=mask, **scale), hypotheses.requires_grad_()
    )


def test_token_cross_entropy_with_a_mask():
    logits = torch.randn(2, 3, 4, 6, dtype=torch.float64, requires_grad=True)
    ids, mask = torch.randint(0, 6, (2, 2, 4)), torch.rand(2, 2, 4) > 0.3
    mask[0, 0] = False
    padded = ids.masked_fill(~mask, -100)
    actual = pairwise_token_cross_entropy(hypotheses=logits, targets=padded, mask=mask)
    torch.testing.assert_close(actual, expected(oracles.token_cross_entropy, logits, ids, mask))
    total = pairwise_token_cross_entropy(hypotheses=logits, targets=padded, mask=mask, reduction="sum")
    torch.testing.assert_close(total, actual * mask.sum(-1, keepdim=True))
    assert torch.autograd.grad(total.sum(), logits)[0].isfinite().all()


def test_dice_with_a_mask_of_pixels():
    logits = torch.randn(2, 3, 3, 2, dtype=torch.float64)
    targets, mask = torch.rand(2, 1, 3, 2, dtype=torch.float64).round(), torch.rand(2, 1, 3, 2) > 0.3
    actual = mcl.pairwise_dice(hypotheses=logits, targets=targets.masked_fill(~mask, math.nan), mask=mask)
    torch.testing.assert_close(actual, expected(oracles.dice, logits, targets, mask))


def test_per_step_divides_by_the_real_steps():
    hypotheses, targets, mask = paths()
    options = {"hypotheses": hypotheses, "targets": targets, "scale": torch.ones_like(hypotheses), "event_dims": 2}
    whole = mcl.pairwise_laplace_nll(mask=mask, **options)
    mean = mcl.pairwise_laplace_nll(mask=mask, per_step=True, **options)
    torch.testing.assert_close(mean * mask.sum(-1, keepdim=True).clamp_min(1), whole)


@for_each("event", [(2,), (4, 2), (4, 5, 2)])
@for_each("per_step", [False, True])
def test_a_full_mask_changes_no_likelihood(event, per_step):
    torch.manual_seed(0)
    hypotheses, targets = torch.randn(2, 3, *event), torch.randn(2, 1, *event)
    options = {"hypotheses": hypotheses, "targets": targets, "event_dims": len(event), "per_step": per_step}
    normal = mcl.pairwise_gaussian_nll(**options, scale=torch.ones_like(hypotheses))
    scales = {
        mcl.pairwise_gaussian_nll: torch.ones_like(hypotheses),
        mcl.pairwise_laplace_nll: torch.ones_like(hypotheses),
        FullNormal(): torch.eye(2).expand(*hypotheses.shape, 2),
    }
    for cost_fn, scale in scales.items():
        cost = cost_fn(**options, scale=scale)
        for n_axes in range(1, len(event) + 1):
            if n_axes == 1 < len(event) or not isinstance(cost_fn, FullNormal):
                mask = torch.ones(2, 1, *event[:n_axes], dtype=torch.bool)
                torch.testing.assert_close(cost_fn(**options, scale=scale, mask=mask), cost)
    torch.testing.assert_close(cost, normal)  # unit covariances


# ------------------------------------------------------------------ the step


def network(**options):
    torch.manual_seed(0)
    return mcl.MultiHypothesisMLP(4, (5, 2), 6, hidden=(16,), **options)


def batch(n_samples=12):
    _, targets, mask = paths(n_samples, 1, 1)
    return mcl.Batch(torch.randn(n_samples, 4), targets.float(), mask)


EVERY_STEP = {
    "ade": {"cost_fn": mcl.pairwise_ade},
    "two costs": {"cost_fn": mcl.pairwise_ade, "loss_fn": mcl.pairwise_laplace_nll},
    "softmax": {"cost_fn": mcl.pairwise_fde, "scores": mcl.SoftmaxScores()},
    "soft labels": {"cost_fn": mcl.pairwise_ade, "scores": mcl.SoftmaxScores(None)},
    "soft sigmoid": {"cost_fn": mcl.pairwise_ade, "scores": mcl.SigmoidScores(None)},
    "mixture": {"cost_fn": mcl.MixtureNLL(mcl.pairwise_gaussian_nll), "score_weight": 0.0},
    "per step": {
        "cost_fn": mcl.pairwise_sq_ade,
        "loss_fn": functools.partial(mcl.pairwise_gaussian_nll, per_step=True),
    },
}


@for_each("options", EVERY_STEP.values())
@for_each("detach_scores", [False, True])
def test_padding_never_reaches_loss_or_gradient(options, detach_scores):
    model, padded = network(scales=True, detach_scores=detach_scores), batch()
    outputs = []
    for value in (math.nan, 3.0):
        targets = padded.targets.masked_fill(~padded.mask.unsqueeze(-1), value)
        single = mcl.Batch(padded.inputs, targets.squeeze(1), padded.mask.squeeze(1))  # without the axis of targets
        for form in (padded._replace(targets=targets), single):
            output = mcl.mcl_step(model, form, mcl.AnnealedWTA(0.5), **options)
            outputs.append(
                [output.loss, *torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)]
            )
    for other in outputs[1:]:
        for left, right in zip(outputs[0], other, strict=True):
            assert (left is None and right is None) or torch.equal(left, right)
            assert left is None or left.isfinite().all()


def test_the_matched_cost_chooses_and_the_trained_cost_trains():
    model, data = network(scales=True), batch()
    options = {"cost_fn": mcl.pairwise_ade, "loss_fn": mcl.pairwise_laplace_nll, "score_weight": 0.0}
    output = mcl.mcl_step(model, data, mcl.WTA(), **options)
    predictions = model(data.inputs)
    winner = mcl.pairwise_ade(hypotheses=predictions.hypotheses, targets=data.targets, mask=data.mask).argmin(-1)
    rows = torch.arange(12)
    nll = mcl.pairwise_laplace_nll(
        hypotheses=predictions.hypotheses[rows, winner[:, 0]].unsqueeze(1),
        targets=data.targets,
        scale=predictions.scale[rows, winner[:, 0]].unsqueeze(1),
        mask=data.mask,
        event_dims=2,
    )
    torch.testing.assert_close(output.loss, nll.sum() / data.mask.any(-1).sum())
    assert not output.matching.cost.requires_grad


def test_a_training_cost_equal_to_the_matched_one_changes_nothing():
    model, data = network(), batch()
    losses = [
        mcl.mcl_step(model, data, mcl.WTA(), cost_fn=mcl.pairwise_ade, loss_fn=fn).loss
        for fn in (None, mcl.pairwise_ade)
    ]
    torch.testing.assert_close(*losses)


def test_at_temperature_one_the_gradient_is_that_of_a_mixture_density_network():
    model = network(scales=True).double()
    inputs, targets = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 1, 5, 2, dtype=torch.float64)
    cost_fn = mcl.MixtureNLL(mcl.pairwise_gaussian_nll)
    step = mcl.mcl_step(model, mcl.Batch(inputs, targets), mcl.AnnealedWTA(1.0), cost_fn=cost_fn, score_weight=0)
    predictions = model(inputs)
    components = torch.distributions.Independent(
        torch.distributions.Normal(predictions.hypotheses, predictions.scale), 2
    )
    weights = torch.distributions.Categorical(logits=predictions.score_logits)
    mixture = torch.distributions.MixtureSameFamily(weights, components)
    likelihood = -mixture.log_prob(targets.squeeze(1)).mean()
    parameters = list(model.parameters())
    torch.testing.assert_close(torch.autograd.grad(step.loss, parameters), torch.autograd.grad(likelihood, parameters))


def _mixture_on_a_ring(annealed, n_steps=400, n_components=8):
    """Fit a mixture to eight clusters from a start in which all components are almost the same; return its NLL."""
    generator = torch.Generator().manual_seed(0)
    angles = torch.arange(8) * math.pi / 4
    centers = 10 * torch.stack([angles.cos(), angles.sin()], dim=-1)
    targets = centers.repeat(32, 1) + 0.3 * torch.randn(256, 2, generator=generator)
    location = (0.01 * torch.randn(n_components, 2, generator=generator)).requires_grad_()
    width, logits = torch.zeros(n_components, 2, requires_grad=True), torch.zeros(n_components, requires_grad=True)
    optimizer = torch.optim.Adam([location, width, logits], lr=0.2)

    def model(inputs):
        parts = (location, logits, torch.nn.functional.softplus(width) + 0.05)
        return mcl.Distributions(*(part.expand(len(inputs), *part.shape) for part in parts))

    data, mixture = mcl.Batch(torch.zeros(256, 1), targets), mcl.MixtureNLL(mcl.pairwise_gaussian_nll)
    # Widths that are free to grow hide the clusters from the likelihood, so the distance decides while it is warm.
    by_distance = {"loss_fn": mcl.pairwise_gaussian_nll, "scores": mcl.SoftmaxScores(None)}
    by_likelihood = {"cost_fn": mixture, "score_weight": 0}
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(150.0, 0.97))
    for step in range(n_steps):
        warm = annealed and step < 0.6 * n_steps
        optimizer.zero_grad()
        options = by_distance if warm else by_likelihood
        mcl.mcl_step(model, data, rule(step) if warm else mcl.AnnealedWTA(1.0), **options).loss.backward()
        optimizer.step()
    with torch.no_grad():
        output = mcl.mcl_step(model, data, mcl.AnnealedWTA(1.0), **by_likelihood)
        return float(-torch.logsumexp(-output.matching.cost, dim=-1).mean())


def test_annealing_saves_a_mixture_that_collapses_without_it():
    assert _mixture_on_a_ring(annealed=False) > _mixture_on_a_ring(annealed=True) + 1.5


# ------------------------------------------------------------------ scores


def test_scores_by_softmax():
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    winner = torch.tensor([0, 2, 1, 1, 0])
    labels = torch.nn.functional.one_hot(winner, 3).double()
    torch.testing.assert_close(
        mcl.SoftmaxScores().loss(logits, labels), torch.nn.functional.cross_entropy(logits, winner)
    )
    mask = torch.tensor([[True], [False], [True], [True], [True]])
    counted = torch.nn.functional.cross_entropy(logits[mask[:, 0]], winner[mask[:, 0]])
    torch.testing.assert_close(mcl.SoftmaxScores().loss(logits, labels, mask), counted)
    torch.testing.assert_close(mcl.SoftmaxScores().probabilities(logits).sum(-1), torch.ones(5, dtype=torch.float64))


def test_soft_labels_are_the_weights_of_the_training_rule():
    cost = torch.rand(4, 2, 3)
    weights = mcl.AnnealedWTA(0.2)(cost)
    torch.testing.assert_close(mcl.SoftmaxScores(None).labels(cost, weights), weights.mean(-2))
    torch.testing.assert_close(mcl.SigmoidScores(mcl.PIT()).labels(cost, weights), score_labels(cost, rule=mcl.PIT()))


# ------------------------------------------------------------------ scenes


@for_each("rule", [mcl.WTA(), mcl.AnnealedWTA(0.3), mcl.RelaxedWTA(0.2), mcl.TopK(2)])
def test_winners_of_scenes_agree_with_the_oracle(rule):
    cost, scene = torch.rand(7, 2, 3, dtype=torch.float64), torch.tensor([40, -1, 40, 2, 2, 40, 9])
    mask = torch.tensor([[True, True]] * 7)
    mask[2, 0] = mask[3, 1] = mask[6] = False
    torch.testing.assert_close(SceneWinners(rule, scene)(cost, mask), oracles.scene_weights(rule, cost, scene, mask))
    whole = torch.ones(7, 2, dtype=torch.bool)
    torch.testing.assert_close(SceneWinners(rule, scene)(cost), oracles.scene_weights(rule, cost, scene, whole))


def test_a_scene_of_one_agent_is_the_rule_itself():
    cost = torch.rand(5, 1, 4)
    assert torch.equal(SceneWinners(mcl.WTA(), torch.arange(5))(cost), mcl.WTA()(cost))


def test_agents_of_a_scene_share_winner_and_labels_in_a_step():
    data = batch()._replace(scene=torch.arange(12) // 3)
    output = mcl.mcl_step(network(), data, mcl.WTA(), cost_fn=mcl.pairwise_ade)
    weights = output.matching.weights.squeeze(1)
    for number in range(4):
        real = weights[3 * number : 3 * number + 3][data.mask.any(-1)[3 * number : 3 * number + 3, 0]]
        assert (real == real[:1]).all()
    compiled = torch.compile(
        lambda cost, scene: SceneWinners(mcl.WTA(), scene)(cost), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(
        compiled(output.matching.cost.detach(), data.scene),
        SceneWinners(mcl.WTA(), data.scene)(output.matching.cost),
    )


def test_batches_of_scenes_are_collated():
    samples = [mcl.Batch(torch.rand(3), torch.rand(1, 2), scene=number) for number in (4, 4, 7)]
    loader = torch.utils.data.DataLoader(samples, batch_size=3)
    assert next(iter(loader)).scene.tolist() == [4, 4, 7]
    with pytest.raises(ValueError, match="`scene`"):
        collate_batches([samples[0], mcl.Batch(torch.rand(3), torch.rand(1, 2))])


# ------------------------------------------------------------------ bad input

STEPS = {"hypotheses": torch.zeros(2, 3, 5, 2), "targets": torch.zeros(2, 1, 5, 2)}
BAD = {
    "too few axes": (mcl.pairwise_ade, {"hypotheses": torch.zeros(3, 2), "targets": torch.zeros(3, 2)}, "have shape"),
    "other steps": (mcl.pairwise_fde, STEPS | {"targets": torch.zeros(2, 1, 4, 2)}, "end with the shape of one event"),
    "other batch": (mcl.pairwise_sq_ade, STEPS | {"targets": torch.zeros(4, 1, 5, 2)}, "leading axes"),
    "mask of floats": (mcl.pairwise_ade, STEPS | {"mask": torch.ones(2, 1, 5)}, "boolean"),
    "mask of targets": (mcl.pairwise_ade, STEPS | {"mask": torch.ones(2, 1).bool()}, "steps"),
    "no scale": (mcl.pairwise_gaussian_nll, STEPS | {"scale": None, "event_dims": 2}, "`scale` is required"),
    "narrow scale": (
        mcl.pairwise_laplace_nll,
        STEPS | {"scale": torch.ones(4), "event_dims": 2},
        "broadcast to the shape of `hypotheses`",
    ),
    "reduction": (
        pairwise_token_cross_entropy,
        {"hypotheses": torch.zeros(2, 3, 4), "targets": torch.zeros(1, 3).long(), "reduction": "max"},
        "`reduction`",
    ),
    "floating ids": (
        pairwise_token_cross_entropy,
        {"hypotheses": torch.zeros(2, 3, 4), "targets": torch.zeros(1, 3).bool()},
        "integer class ids",
    ),
    "fractional ids": (
        pairwise_token_cross_entropy,
        {"hypotheses": torch.zeros(2, 3, 4), "targets": torch.full((1, 3), 0.5)},
        "integer class ids",
    ),
    "smooth": (mcl.pairwise_dice, STEPS | {"smooth": 0.0}, "`smooth`"),
}


@for_each("fn, arguments, message", BAD.values())
def test_bad_input_of_a_cost(fn, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fn(**arguments)


def test_a_negative_scale_is_named_where_values_are_checked():
    arguments = {"hypotheses": torch.zeros(1, 2, 1), "targets": torch.zeros(1, 1, 1), "scale": -torch.ones(1, 2, 1)}
    with debug_checks(), pytest.raises(ValueError, match="`scale`"):
        mcl.pairwise_gaussian_nll(**arguments)
    assert mcl.pairwise_gaussian_nll(**arguments).isnan().all()


def test_bad_input_of_a_step():
    data = batch()
    with pytest.raises(ValueError, match="`cost_fn`"):
        mcl.mcl_step(network(), data, mcl.WTA(), cost_fn=lambda *, hypotheses, targets: hypotheses.sum())
    with pytest.raises(ValueError, match="must return score logits"):
        mcl.mcl_step(network(scores=False), data, mcl.WTA(), cost_fn=mcl.MixtureNLL(mcl.pairwise_ade))
    with pytest.raises(ValueError, match="`scene`"):
        mcl.mcl_step(network(), data._replace(scene=torch.zeros(3).long()), mcl.WTA(), cost_fn=mcl.pairwise_ade)
    with pytest.raises(TypeError, match="`scene`"):
        SceneWinners(mcl.WTA(), torch.zeros(3))
    with pytest.raises(TypeError, match="`rule`"):
        SceneWinners(mcl.WTA, torch.zeros(3).long())
    with pytest.raises(ValueError, match="trained_cost"):
        mcl.mcl_loss(mcl.assign(torch.rand(2, 1, 3), mcl.WTA()), trained_cost=torch.rand(2, 1, 4))
    with pytest.raises(ValueError, match="`out_features`"):
        mcl.MultiHypothesisHead(4, (5, 0), 3)


def test_presence_scores_add_up_to_the_number_of_targets():
    cost = torch.rand(20, 3, 5)
    mask = torch.arange(3) < torch.randint(1, 4, (20, 1))
    labels = PresenceScores(mcl.PIT()).labels(cost, mcl.WTA()(cost, mask), mask)
    assert set(labels.unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(labels.sum(dim=-1), mask.sum(dim=-1).float())
    shared = PresenceScores().labels(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.eye(2))
    assert shared.tolist() == [1.0, 0.0]  # two targets take the same hypothesis: it is there once
