"""Hypotheses of any shape at their edges: empty axes, all kinds of masks, partial costs, scenes of models, messages."""

import functools
import math
import pickle
from types import SimpleNamespace

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.loop import Recorder, RuleScheduler
from torchmcl.rules import SceneWinners
from torchmcl.scoring import PresenceScores

NLL = functools.partial(mcl.pairwise_gaussian_nll, event_dims=2)
COSTS = {
    "ade": mcl.pairwise_ade,
    "fde": mcl.pairwise_fde,
    "squared ade": mcl.pairwise_sq_ade,
    "dice": mcl.pairwise_dice,
    "gaussian": NLL,
    "laplace": functools.partial(mcl.pairwise_laplace_nll, event_dims=2),
    "per step": functools.partial(NLL, per_step=True),
}
SIZES = {"samples": (0, 2, 3, 4, 2), "targets": (2, 0, 3, 4, 2), "steps": (2, 2, 3, 0, 2), "dim": (2, 2, 3, 4, 0)}


def arguments(fn, n_samples, n_targets, n_hypotheses, n_steps, dim, masked=True, **options):
    hypotheses = torch.randn(n_samples, n_hypotheses, n_steps, dim, requires_grad=True, **options)
    given = {"hypotheses": hypotheses, "targets": torch.rand(n_samples, n_targets, n_steps, dim, **options)}
    if masked:
        given["mask"] = torch.rand(n_samples, n_targets, n_steps) > 0.3
    if isinstance(fn, functools.partial):
        given["scale"] = torch.rand_like(hypotheses) + 0.3
    return given


@for_each("fn", COSTS.values())
@for_each("sizes", SIZES.values())
@for_each("masked", [False, True])
def test_an_axis_of_length_zero_costs_nothing(fn, sizes, masked):
    given = arguments(fn, *sizes, masked)
    cost = fn(**given)
    assert cost.shape == (sizes[0], sizes[1], sizes[2])
    assert cost.isfinite().all()
    (gradient,) = torch.autograd.grad(cost.sum(), given["hypotheses"])
    assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch itself, in forward mode
@for_each("fn", COSTS.values())
def test_every_mode_of_torch_follows_the_costs(fn):
    given = arguments(fn, 2, 2, 3, 4, 2, dtype=torch.float64)
    hypotheses = given.pop("hypotheses").detach()
    shared = {name: value.detach() for name, value in given.items()}

    def total(points):
        return fn(hypotheses=points, **shared).square().sum()

    torch.testing.assert_close(
        torch.func.jacfwd(total)(hypotheses), torch.autograd.functional.jacobian(total, hypotheses)
    )
    second = torch.autograd.functional.hessian(total, hypotheses)
    torch.testing.assert_close(torch.func.hessian(total)(hypotheses), second)
    names = list(shared)
    mapped = torch.vmap(lambda h, *rest: fn(hypotheses=h, **dict(zip(names, rest, strict=True))))
    torch.testing.assert_close(mapped(hypotheses, *shared.values()), fn(hypotheses=hypotheses, **shared))
    assert pickle.loads(pickle.dumps(fn))(hypotheses=hypotheses, **shared).shape == (2, 2, 3)


# ------------------------------------------------------------------ masks

PATHS = mcl.Predictions(torch.randn(6, 3, 5, 2), torch.randn(6, 3))
POINTS = mcl.Predictions(torch.randn(6, 3, 2), torch.randn(6, 3))


def loss(predictions, targets, mask, **options):
    return mcl.mcl_step(lambda _: predictions, mcl.Batch(targets, targets, mask), mcl.WTA(), **options).loss


@for_each("shape", [(6,), (6, 1), (6, 5), (6, 1, 5), (1, 5)])
def test_a_mask_of_single_targets_may_lack_their_axis(shape):
    targets, mask = torch.randn(6, 5, 2), torch.rand(shape) > 0.3
    whole = mask.view(*shape, *[1] * (2 - len(shape))) if len(shape) < 3 else mask.squeeze(1)
    expected = loss(PATHS, targets.unsqueeze(1), whole.expand(6, 5).unsqueeze(1), cost_fn=mcl.pairwise_ade)
    torch.testing.assert_close(loss(PATHS, targets, mask, cost_fn=mcl.pairwise_ade), expected)


@for_each("shape", [(6,), (6, 1)])
def test_a_mask_of_single_vectors_may_lack_the_axis_of_targets(shape):
    targets, mask = torch.randn(6, 2), torch.tensor([True, False, True, True, False, True])
    expected = loss(POINTS, targets.unsqueeze(1), mask.unsqueeze(1))
    torch.testing.assert_close(loss(POINTS, targets, mask.view(shape)), expected)


def test_a_mask_of_targets_broadcasts_over_the_batch():
    targets = torch.randn(6, 2, 5, 2)
    mask = torch.tensor([[True, False]])
    expected = loss(PATHS, targets, mask.expand(6, 2), cost_fn=mcl.pairwise_ade)
    torch.testing.assert_close(loss(PATHS, targets, mask, cost_fn=mcl.pairwise_ade), expected)


@for_each("fn", [mcl.pairwise_ade, mcl.pairwise_fde, mcl.pairwise_sq_ade])
def test_distances_refuse_a_mask_of_coordinates(fn):
    with pytest.raises(ValueError, match="`mask`"):
        loss(PATHS, torch.randn(6, 1, 5, 2), torch.ones(6, 1, 5, 2).bool(), cost_fn=fn)


def blind(*, hypotheses, targets):
    return (hypotheses.unsqueeze(1) - targets.unsqueeze(2)).abs().sum((-1, -2))


@for_each("cost_fn", [blind, mcl.MixtureNLL(blind), mcl.Pairwise(torch.dist, 2, 2)])
def test_a_mask_of_steps_is_never_ignored(cost_fn):
    with pytest.raises(ValueError, match="must accept `mask`"):
        loss(PATHS, torch.randn(6, 1, 5, 2), torch.ones(6, 1, 5).bool(), cost_fn=cost_fn)


# ------------------------------------------------------------------ lifted losses


def mean_distance(hypothesis, target, mask=None):
    distances = torch.linalg.vector_norm(hypothesis - target, dim=-1)
    return distances.mean() if mask is None else (distances * mask).sum() / mask.sum().clamp_min(1)


def test_a_lifted_loss_takes_the_mask_of_its_target():
    targets, mask = torch.randn(6, 2, 5, 2), torch.rand(6, 2, 5) > 0.4
    padded = targets.masked_fill(~mask.unsqueeze(-1), math.nan)
    lifted = mcl.Pairwise(mean_distance, hypothesis_dims=2, target_dims=2)
    given = {"hypotheses": PATHS.hypotheses, "targets": padded, "mask": mask}
    expected = mcl.pairwise_ade(**given)
    torch.testing.assert_close(lifted(**given), expected)
    mapped = torch.vmap(lambda h, y, m: lifted(hypotheses=h, targets=y, mask=m))
    torch.testing.assert_close(mapped(*given.values()), expected)
    compiled = torch.compile(lifted.__call__, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**given), expected)
    torch.testing.assert_close(
        loss(PATHS, padded, mask, cost_fn=lifted), loss(PATHS, padded, mask, cost_fn=mcl.pairwise_ade)
    )
    whole = {"hypotheses": PATHS.hypotheses, "targets": targets}
    torch.testing.assert_close(lifted(**whole), mcl.pairwise_ade(**whole))
    with pytest.raises(ValueError, match="Pairwise: `mask`"):
        lifted(**whole, mask=mask[..., 0])


# ------------------------------------------------------------------ what a cost is given


def test_what_a_partial_has_given_stays():
    targets = torch.randn(6, 1, 2)
    fixed = functools.partial(mcl.pairwise_gaussian_nll, scale=torch.tensor(2.0))
    expected = mcl.pairwise_gaussian_nll(hypotheses=POINTS.hypotheses, targets=targets, scale=torch.tensor(2.0))
    for cost_fn, extra in ((fixed, 0), (mcl.MixtureNLL(fixed), POINTS.score_logits.log_softmax(-1).unsqueeze(1))):
        output = mcl.mcl_step(lambda _: POINTS, mcl.Batch(targets, targets), mcl.WTA(), cost_fn=cost_fn)
        torch.testing.assert_close(output.matching.cost, expected - extra)


@for_each("cost_fn", [mcl.pairwise_sq_euclidean, mcl.pairwise_euclidean, mcl.pairwise_l1])
@for_each("n_hypotheses, n_steps", [(5, 5), (3, 5), (1, 5)])
@for_each("batch", [5, 4])
def test_a_cost_of_vectors_is_refused_for_paths(cost_fn, n_hypotheses, n_steps, batch):
    paths = mcl.Predictions(torch.randn(batch, n_hypotheses, n_steps, 2))
    for targets in (torch.randn(batch, n_steps, 2), torch.randn(batch, 1, n_steps, 2)):
        with pytest.raises(ValueError, match="`cost_fn`"):
            mcl.mcl_step(lambda _: paths, mcl.Batch(torch.zeros(batch, 1), targets), mcl.WTA(), cost_fn=cost_fn)


@for_each("fn", COSTS.values())
def test_a_mask_of_real_steps_changes_no_digit_in_float64(fn):
    given = arguments(fn, 2, 3, 4, 50, 2, dtype=torch.float64)
    given["mask"] = torch.ones(2, 3, 50, dtype=torch.bool)
    without = {name: value for name, value in given.items() if name != "mask"}
    torch.testing.assert_close(fn(**given), fn(**without), rtol=1e-14, atol=0)


# ------------------------------------------------------------------ scenes

COUPLED = [mcl.PIT(), mcl.Sinkhorn(0.3), mcl.AnnealedWTA(torch.tensor(0.3))]


@for_each("rule", COUPLED)
def test_scenes_under_rules_that_couple_targets(rule):
    cost, mask = torch.rand(6, 2, 3), torch.rand(6, 2) > 0.4
    winners = SceneWinners(rule, torch.tensor([3, 3, 1, 1, 9, 9]))
    weights = winners(cost, mask)
    torch.testing.assert_close(weights.sum(-1), mask.float())
    torch.testing.assert_close(winners(cost.masked_fill(~mask.unsqueeze(-1), math.nan), mask), weights)
    assert pickle.loads(pickle.dumps(winners)) == winners


def test_each_sample_of_a_scene_keeps_its_own_temperature():
    cost, temperature = torch.rand(3, 1, 4), torch.tensor([0.1, 10.0, 1.0]).view(3, 1, 1)
    means = torch.stack([cost[[0, 2]].mean(dim=0), cost[1], cost[[0, 2]].mean(dim=0)])
    weights = SceneWinners(mcl.AnnealedWTA(temperature), torch.tensor([7, 3, 7]))(cost)
    torch.testing.assert_close(weights, mcl.AnnealedWTA(temperature)(means))


def test_every_model_of_a_stack_may_have_scenes_of_its_own():
    cost, scene = torch.rand(2, 6, 1, 3), torch.tensor([[0, 0, 1, 1, 2, 2], [5, 4, 5, 4, 5, 4]])
    weights = SceneWinners(mcl.WTA(), scene)(cost)
    alone = torch.stack([SceneWinners(mcl.WTA(), s)(c) for s, c in zip(scene, cost, strict=True)])
    assert torch.equal(weights, alone)
    assert torch.equal(SceneWinners(mcl.WTA(), scene[0])(cost)[0], alone[0])
    with pytest.raises(ValueError, match="`scene`"):
        SceneWinners(mcl.WTA(), scene[:, :3])(cost)


# ------------------------------------------------------------------ longer loops


def test_automatic_annealing_of_a_likelihood_that_becomes_negative():
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(2, (4, 1), 4, hidden=(16,), scales=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = RuleScheduler(mcl.AutoAnnealing(), optimizer, n_epochs=40)
    inputs = torch.randn(64, 2)
    side = torch.where(torch.rand(64, 1, 1, 1) > 0.5, 1.0, -1.0)
    batch = mcl.Batch(inputs, side + 0.02 * torch.randn(64, 1, 4, 1), torch.rand(64, 1, 4) > 0.2)
    recorder = Recorder(every=10, scores=mcl.SoftmaxScores())
    for epoch in range(40):
        output = mcl.mcl_step(model, batch, scheduler.rule, cost_fn=mcl.pairwise_gaussian_nll)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        scheduler.observe(output)
        recorder(epoch, output, scheduler.rule)
        scheduler.step()
    assert output.matching.cost.amin() < 0
    assert float(scheduler.rule.temperature) == 0
    records = recorder.records()
    assert records.hypotheses.shape == (4, 4, 4, 4)  # records, rows, hypotheses, steps
    expected = mcl.SoftmaxScores().probabilities(output.predictions.score_logits)
    assert records.scores.shape == (4, *expected[:4].shape)
    torch.testing.assert_close(records.scores.sum(-1), torch.ones(4, 4))


@for_each("scores", [mcl.SigmoidScores(), PresenceScores(), mcl.SoftmaxScores(), mcl.SoftmaxScores(None)])
def test_the_mean_over_processes_is_the_loss_of_the_joint_batch(scores):
    pytest.importorskip("lightning.pytorch")
    from torchmcl.lightning import MCLModule

    torch.manual_seed(0)
    network = mcl.MultiHypothesisMLP(3, (5, 2), 4, hidden=(8,), scales=True)
    options = {"cost_fn": mcl.pairwise_ade, "loss_fn": mcl.pairwise_laplace_nll, "scores": scores, "score_weight": 0.7}
    module = MCLModule(network, mcl.AnnealedWTA(0.5), **options)
    mask = torch.rand(10, 2, 5) > 0.3
    mask[:4], mask[7, 0] = False, False  # the first process has few samples with targets
    joint = mcl.Batch(torch.randn(10, 3), torch.randn(10, 2, 5, 2), mask)
    expected = module.step(joint, module.rule).loss
    outputs = [
        module.step(mcl.Batch(*(p if p is None else p[part] for p in joint)), module.rule)
        for part in (slice(5), slice(5, 10))
    ]
    real = mask.any(-1)
    total = torch.stack([real.sum(), real.any(-1).sum()]).float()
    strategy = SimpleNamespace(reduce=lambda counts, reduce_op: total)
    module._trainer = SimpleNamespace(world_size=2, strategy=strategy)
    torch.testing.assert_close(sum(module._joint_loss(output) for output in outputs) / 2, expected)
