"""Bad input: every error has the right type and names its owner and the argument."""

import math

import numpy as np
import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl import metrics
from torchmcl.schedules import JoinedSchedule

COST = torch.rand(2, 3, 4)
MASK = torch.ones(2, 3, dtype=torch.bool)
POINTS = torch.rand(2, 3, 2)
LOGITS = torch.zeros(2, 3)
CONSTANT = mcl.Constant(1.0)
BATCH = mcl.Batch(torch.rand(2, 1), torch.rand(2, 1, 1))
CLASSES = torch.zeros(2, 1, dtype=torch.long)


def model(inputs):
    return mcl.Predictions(inputs.unsqueeze(-1).expand(-1, -1, 1) * torch.ones(3, 1), torch.zeros(len(inputs), 3))


def step(model=model, batch=BATCH, rule=None, **options):
    return mcl.mcl_step(model, batch, rule or mcl.WTA(), **options)


def masked_step(mask):
    return step(batch=BATCH._replace(mask=mask))


def weighted_loss(weights):
    return mcl.mcl_loss(mcl.assign(COST, mcl.WTA()), sample_weights=weights)


def cost_of(fn, hypotheses=POINTS, targets=POINTS, **options):
    return fn(hypotheses=hypotheses, targets=targets, **options)


def class_cost(hypotheses=POINTS, targets=CLASSES):
    return mcl.pairwise_cross_entropy(hypotheses=hypotheses, targets=targets)


def head(*sizes, **options):
    return mcl.MultiHypothesisHead(*sizes, **options)


def calibration_error(score_logits, **options):
    predictions = mcl.Predictions(torch.rand(2, 4, 1), score_logits)
    return metrics.score_calibration_error(predictions, mcl.assign(COST, mcl.WTA()), **options)


BAD_CALLS = [
    # rules: parameters
    ("AnnealedWTA: `temperature`", ValueError, lambda: mcl.AnnealedWTA(-0.1)),
    ("AnnealedWTA: `temperature`", ValueError, lambda: mcl.AnnealedWTA(math.nan)),
    ("AnnealedWTA: `temperature`", TypeError, lambda: mcl.AnnealedWTA(True)),
    ("AnnealedWTA: `temperature`", TypeError, lambda: mcl.AnnealedWTA("hot")),
    ("AnnealedWTA: `temperature`", TypeError, lambda: mcl.AnnealedWTA(None)),
    ("RelaxedWTA: `epsilon`", ValueError, lambda: mcl.RelaxedWTA(-0.1)),
    ("RelaxedWTA: `epsilon`", ValueError, lambda: mcl.RelaxedWTA(1.5)),
    ("RelaxedWTA: `epsilon`", ValueError, lambda: mcl.RelaxedWTA(math.nan)),
    ("RelaxedWTA: `epsilon`", TypeError, lambda: mcl.RelaxedWTA(False)),
    ("TopK: `k`", ValueError, lambda: mcl.TopK(0)),
    ("TopK: `k`", TypeError, lambda: mcl.TopK("2")),
    ("TopK: `k`", ValueError, lambda: mcl.TopK(math.nan)),
    ("TopK: `k`", ValueError, lambda: mcl.TopK(5)(COST)),
    ("Sinkhorn: `temperature`", ValueError, lambda: mcl.Sinkhorn(-1.0)),
    ("Sinkhorn: `n_iters`", ValueError, lambda: mcl.Sinkhorn(1.0, n_iters=0)),
    ("Sinkhorn: `n_iters`", TypeError, lambda: mcl.Sinkhorn(1.0, n_iters="many")),
    # rules: cost and mask
    ("WTA: `cost`", TypeError, lambda: mcl.WTA()([[1.0]])),
    ("WTA: `cost`", TypeError, lambda: mcl.WTA()(torch.ones(2, 2, dtype=torch.long))),
    ("WTA: `cost`", ValueError, lambda: mcl.WTA()(torch.ones(4))),
    ("AnnealedWTA: `cost`", ValueError, lambda: mcl.AnnealedWTA(1.0)(torch.ones(4, 0))),
    ("WTA: `mask`", TypeError, lambda: mcl.WTA()(COST, MASK.float())),
    ("WTA: `mask`", TypeError, lambda: mcl.WTA()(COST, [True])),
    ("WTA: `mask`", ValueError, lambda: mcl.WTA()(COST, MASK[:, :2])),
    ("WTA: `mask`", ValueError, lambda: mcl.WTA()(COST, MASK[None])),
    ("PIT: `number of hypotheses`", ValueError, lambda: mcl.PIT()(torch.rand(1, 3, 2))),
    # schedules
    ("Linear: `n_steps`", ValueError, lambda: mcl.Linear(1.0, 0.0, 0)),
    ("Linear: `n_steps`", TypeError, lambda: mcl.Linear(1.0, 0.0, 2.5)),
    ("Linear: `n_steps`", TypeError, lambda: mcl.Linear(1.0, 0.0, True)),
    ("Linear: `start`", TypeError, lambda: mcl.Linear("1", 0.0, 4)),
    ("Linear: `start`", ValueError, lambda: mcl.Linear(math.nan, 0.0, 4)),
    ("Linear: `end`", TypeError, lambda: mcl.Linear(1.0, None, 4)),
    ("Cosine: `n_steps`", ValueError, lambda: mcl.Cosine(1.0, 0.0, 0)),
    ("Cosine: `end`", ValueError, lambda: mcl.Cosine(1.0, math.nan, 4)),
    ("Constant: `value`", TypeError, lambda: mcl.Constant(True)),
    ("Constant: `value`", ValueError, lambda: mcl.Constant(math.nan)),
    ("Exponential: `start`", ValueError, lambda: mcl.Exponential(-0.5, 0.9)),
    ("Exponential: `decay`", ValueError, lambda: mcl.Exponential(0.5, 1.1)),
    ("Exponential: `decay`", ValueError, lambda: mcl.Exponential(0.5, 0.0)),
    ("Exponential: `cutoff`", ValueError, lambda: mcl.Exponential(0.5, 0.9, cutoff=-1)),
    ("Exponential: `cutoff`", ValueError, lambda: mcl.Exponential(1.0, 0.01, cutoff=1.001)),
    ("CutoffAt: `schedule`", TypeError, lambda: mcl.CutoffAt(0.3, 10)),
    ("CutoffAt: `step`", ValueError, lambda: mcl.CutoffAt(CONSTANT, -1)),
    ("CutoffAt: `step`", TypeError, lambda: mcl.CutoffAt(CONSTANT, "9")),
    ("JoinedSchedule: `schedules`", TypeError, lambda: JoinedSchedule((1.0, CONSTANT), (3,))),
    ("JoinedSchedule: `boundaries`", ValueError, lambda: JoinedSchedule((CONSTANT,), (3,))),
    ("JoinedSchedule: `boundaries`", ValueError, lambda: JoinedSchedule((CONSTANT,) * 3, (5, 5))),
    ("JoinedSchedule: `boundaries`", ValueError, lambda: JoinedSchedule((CONSTANT,) * 2, (-5,))),
    ("annealed: .*temprature", ValueError, lambda: mcl.annealed(mcl.AnnealedWTA, temprature=CONSTANT)),
    ("annealed: .*temperature", ValueError, lambda: mcl.annealed(mcl.WTA(), temperature=CONSTANT)),
    ("annealed: .*temperature", TypeError, lambda: mcl.annealed(mcl.Sinkhorn, n_iters=CONSTANT)),
    ("annealed: `values`", ValueError, lambda: mcl.annealed(mcl.AnnealedWTA(1.0))),
    ("annealed: `values`", ValueError, lambda: mcl.annealed(mcl.AnnealedWTA, temperature=0.5)),
    ("annealed: `rule`", TypeError, lambda: mcl.annealed(mcl.Linear, start=CONSTANT)),
    ("annealed: `rule`", TypeError, lambda: mcl.annealed("wta", temperature=CONSTANT)),
    ("Sinkhorn: `n_iters`", ValueError, lambda: mcl.annealed(mcl.Sinkhorn, temperature=CONSTANT, n_iters=-1)),
    # assignment, loss and scores
    ("assign: `rule`", TypeError, lambda: mcl.assign(COST, mcl.annealed(mcl.AnnealedWTA, temperature=CONSTANT))),
    ("assign: `rule`", TypeError, lambda: mcl.assign(COST, mcl.WTA)),
    ("assign: `rule`", TypeError, lambda: mcl.assign(COST, "wta")),
    ("assign: `cost`", TypeError, lambda: mcl.assign([[1.0]], mcl.WTA())),
    ("assign: `cost`", ValueError, lambda: mcl.assign(torch.ones(3), mcl.WTA())),
    ("assign: `mask`", TypeError, lambda: mcl.assign(COST, mcl.WTA(), MASK.long())),
    ("assign: `mask`", TypeError, lambda: mcl.assign(COST, mcl.WTA(), [True])),
    ("assign: `mask`", ValueError, lambda: mcl.assign(COST, mcl.WTA(), MASK[:, :2])),
    ("mcl_loss: `reduction`", ValueError, lambda: mcl.mcl_loss(mcl.assign(COST, mcl.WTA()), reduction="sum")),
    ("SigmoidScores: `score_logits`", TypeError, lambda: mcl.SigmoidScores().loss(LOGITS.long(), LOGITS)),
    ("SigmoidScores: `labels`", ValueError, lambda: mcl.SigmoidScores().loss(LOGITS, torch.ones(2, 1, 3))),
    ("SigmoidScores: `mask`", TypeError, lambda: mcl.SigmoidScores().loss(LOGITS, LOGITS, torch.ones(2, 1))),
    ("SigmoidScores: `mask`", TypeError, lambda: mcl.SigmoidScores().loss(LOGITS, LOGITS, [[True], [True]])),
    ("SigmoidScores: `mask`", ValueError, lambda: mcl.SigmoidScores().loss(LOGITS, LOGITS, MASK.mT)),
    ("SoftmaxScores: `rule`", TypeError, lambda: mcl.SoftmaxScores(CONSTANT)),
    ("normalized_scores: `score_logits`", TypeError, lambda: mcl.normalized_scores([0.0])),
    ("mcl_loss: `sample_weights`", TypeError, lambda: weighted_loss([1.0, 1.0])),
    ("mcl_loss: `sample_weights`", TypeError, lambda: weighted_loss(torch.tensor([True, False]))),
    ("mcl_loss: `sample_weights`", ValueError, lambda: weighted_loss(torch.ones(3))),
    ("mcl_step: `sample_weights`", ValueError, lambda: step(sample_weights=torch.ones(2, 1))),
    # costs
    ("pairwise_l1: `hypotheses`", TypeError, lambda: cost_of(mcl.pairwise_l1, np.zeros((2, 2)))),
    ("pairwise_cosine: `targets`", TypeError, lambda: cost_of(mcl.pairwise_cosine, targets=POINTS.long())),
    ("pairwise_euclidean: `targets`", ValueError, lambda: cost_of(mcl.pairwise_euclidean, targets=torch.rand(2))),
    ("pairwise_euclidean: `hypotheses`", ValueError, lambda: cost_of(mcl.pairwise_euclidean, torch.rand(2))),
    ("pairwise_euclidean: `targets`", ValueError, lambda: cost_of(mcl.pairwise_euclidean, POINTS, POINTS[..., :1])),
    ("pairwise_neg_snr: `targets`", ValueError, lambda: cost_of(mcl.pairwise_neg_snr, targets=torch.rand(5, 1, 2))),
    ("pairwise_huber: `delta`", ValueError, lambda: cost_of(mcl.pairwise_huber, delta=0.0)),
    ("pairwise_huber: `delta`", TypeError, lambda: cost_of(mcl.pairwise_huber, delta="1")),
    ("pairwise_cross_entropy: `targets`", TypeError, lambda: class_cost(targets=POINTS)),
    ("pairwise_cross_entropy: `targets`", TypeError, lambda: class_cost(targets=MASK)),
    ("pairwise_cross_entropy: `targets`", ValueError, lambda: class_cost(targets=CLASSES[0, 0])),
    ("pairwise_cross_entropy: `targets`", ValueError, lambda: class_cost(targets=torch.zeros(5, 1).long())),
    ("pairwise_cross_entropy: `hypotheses`", ValueError, lambda: class_cost(torch.rand(3))),
    ("Pairwise: `loss`", TypeError, lambda: mcl.Pairwise(3)),
    ("Pairwise: `target_dims`", ValueError, lambda: mcl.Pairwise(torch.dist, target_dims=-1)),
    ("Pairwise: `loss`", ValueError, lambda: cost_of(mcl.Pairwise(lambda h, t: h - t))),
    ("Pairwise: `targets`", ValueError, lambda: cost_of(mcl.Pairwise(torch.dist), targets=torch.rand(2))),
    ("Pairwise: `hypotheses`", TypeError, lambda: cost_of(mcl.Pairwise(torch.dist), [1.0])),
    # step
    ("mcl_step: `model`", TypeError, lambda: step(lambda inputs: inputs)),
    ("mcl_step: `model`", TypeError, lambda: step(lambda inputs: (inputs, None))),
    ("mcl_step: `model`", TypeError, lambda: step(3)),
    ("mcl_step: `rule`", TypeError, lambda: step(rule=CONSTANT)),
    ("mcl_step: `score_weight`", ValueError, lambda: step(score_weight=-1.0)),
    ("mcl_step: `cost_fn`", TypeError, lambda: step(cost_fn=None)),
    ("mcl_step: `targets`", TypeError, lambda: step(batch=BATCH._replace(targets=None))),
    ("mcl_step: `loss_fn`", TypeError, lambda: step(loss_fn="l1")),
    ("mcl_step: `loss_fn`", ValueError, lambda: step(loss_fn=lambda *, hypotheses, targets: 1.0)),
    ("mcl_step: `cost_fn`", ValueError, lambda: step(cost_fn=lambda *, hypotheses, targets: hypotheses.mean(-1))),
    ("mcl_step: `scores`", TypeError, lambda: step(scores=None)),
    ("mcl_step: `scores`", TypeError, lambda: step(scores=mcl.SoftmaxScores)),
    ("mcl_step: `mask`", TypeError, lambda: masked_step(torch.ones(2, 1))),
    ("mcl_step: `mask`", TypeError, lambda: masked_step([[True], [True]])),
    ("mcl_step: `mask`", ValueError, lambda: masked_step(torch.ones(2, 5, dtype=torch.bool))),
    # modules and metrics
    ("MultiHypothesisHead: `in_features`", ValueError, lambda: head(0, 1, 3)),
    ("MultiHypothesisHead: `out_features`", TypeError, lambda: head(2, 1.5, 3)),
    ("MultiHypothesisHead: `n_hypotheses`", ValueError, lambda: head(2, 1, 0)),
    (
        "MultiHypothesisHead: `output_activation`",
        TypeError,
        lambda: head(2, 1, 3, output_activation="tanh"),
    ),
    ("MultiHypothesisHead: `features`", ValueError, lambda: head(2, 1, 3)(torch.rand(5, 4))),
    ("MultiHypothesisMLP: `hidden`", ValueError, lambda: mcl.MultiHypothesisMLP(2, 1, 3, hidden=(8, 0))),
    ("MultiHypothesisMLP: `hidden`", TypeError, lambda: mcl.MultiHypothesisMLP(2, 1, 3, hidden=50)),
    ("MultiHypothesisMLP: `in_features`", ValueError, lambda: mcl.MultiHypothesisMLP(0, 1, 3)),
    ("MultiHypothesisMLP: `activation`", TypeError, lambda: mcl.MultiHypothesisMLP(2, 1, 3, activation="relu")),
    ("score_calibration_error: `predictions`", ValueError, lambda: calibration_error(None)),
    ("score_calibration_error: `n_bins`", ValueError, lambda: calibration_error(torch.rand(2, 4), n_bins=0)),
]


@for_each("words, error, call", BAD_CALLS)
def test_an_error_has_the_right_type_and_names_the_argument(words, error, call):
    with pytest.raises(error, match=words) as caught:
        call()
    assert type(caught.value) is error


def test_pit_counts_only_real_targets_against_the_hypotheses():
    mask = torch.tensor([[True, True, False]])
    assert mcl.PIT()(torch.rand(1, 3, 2), mask).sum() == 2


def test_a_step_never_takes_a_mask_of_targets_for_one_of_samples():
    # As many samples as targets: a mask [targets] has the length of the batch by accident.
    inputs, targets = torch.rand(2, 1), torch.rand(2, 2, 1)
    mask = torch.tensor([True, False])
    expected = step(batch=mcl.Batch(inputs, targets, mask.expand(2, 2)))
    try:
        output = step(batch=mcl.Batch(inputs, targets, mask))
    except ValueError:
        return
    torch.testing.assert_close(output.loss, expected.loss)


def test_whole_numbers_and_numpy_numbers_are_numbers():
    cost = torch.rand(2, 3, 4)
    assert torch.equal(mcl.AnnealedWTA(1)(cost), mcl.AnnealedWTA(1.0)(cost))
    assert torch.equal(mcl.AnnealedWTA(np.float64(0.5))(cost), mcl.AnnealedWTA(0.5)(cost))
    assert torch.equal(mcl.RelaxedWTA(np.float32(0.5))(cost), mcl.RelaxedWTA(0.5)(cost))
    assert torch.equal(mcl.TopK(np.int64(2))(cost), mcl.TopK(2)(cost))
