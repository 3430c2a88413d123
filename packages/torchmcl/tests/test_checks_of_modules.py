"""Bad input to costs, steps, modules and metrics: each error has the house form and names the remedy."""

import numpy as np
import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl import metrics

COST = torch.rand(2, 3, 4)
MASK = torch.ones(2, 3, dtype=torch.bool)
POINTS = torch.rand(2, 3, 2)


def model(inputs):
    return mcl.Predictions(inputs.unsqueeze(-1).expand(-1, -1, 1) * torch.ones(3, 1), torch.zeros(len(inputs), 3))


def step(**changes):
    arguments = {"model": model, "batch": mcl.Batch(torch.rand(2, 1), torch.rand(2, 1, 1)), "rule": mcl.WTA()} | changes
    return mcl.mcl_step(arguments.pop("model"), arguments.pop("batch"), arguments.pop("rule"), **arguments)


def masked(mask):
    return mcl.Batch(torch.rand(2, 1), torch.rand(2, 1, 1), mask)


BAD_CALLS = {
    # costs
    "hypotheses as an array": (
        lambda: mcl.pairwise_l1(hypotheses=np.zeros((2, 2)), targets=POINTS),
        TypeError,
        r"pairwise_l1: `hypotheses` must be a torch\.Tensor, got ndarray",
    ),
    "targets of whole numbers": (
        lambda: mcl.pairwise_cosine(hypotheses=POINTS, targets=POINTS.long()),
        TypeError,
        r"pairwise_cosine: `targets` must be a floating tensor, got torch\.int64\. Convert it first: targets\.float",
    ),
    "targets of one axis": (
        lambda: mcl.pairwise_sq_euclidean(hypotheses=POINTS, targets=torch.rand(2)),
        ValueError,
        r"pairwise_sq_euclidean: `targets` must have shape \[\.\.\., targets, dim\], got \(2,\)\. Add the missing axis",
    ),
    "hypotheses of one axis": (
        lambda: mcl.pairwise_euclidean(hypotheses=torch.rand(2), targets=POINTS),
        ValueError,
        r"pairwise_euclidean: `hypotheses` must have shape \[\.\.\., hypotheses, dim\], got \(2,\)\.",
    ),
    "different dimensions": (
        lambda: mcl.pairwise_sq_euclidean(hypotheses=POINTS, targets=torch.rand(2, 3, 1)),
        ValueError,
        r"`targets` must have the same last axis as `hypotheses` \(2, 3, 2\), got \(2, 3, 1\)",
    ),
    "different batches": (
        lambda: mcl.pairwise_neg_si_sdr(hypotheses=torch.rand(8, 3, 2), targets=torch.rand(5, 1, 2)),
        ValueError,
        r"pairwise_neg_si_sdr: `targets` must have leading axes that broadcast with those of `hypotheses` "
        r"\(8, 3, 2\), got \(5, 1, 2\)\. A batch of single targets is \[batch, 1, dim\]",
    ),
    "snr of different batches": (
        lambda: mcl.pairwise_neg_snr(hypotheses=torch.rand(8, 3, 2), targets=torch.rand(5, 1, 2)),
        ValueError,
        "pairwise_neg_snr: `targets` must have leading axes",
    ),
    "huber delta zero": (
        lambda: mcl.pairwise_huber(hypotheses=POINTS, targets=POINTS, delta=0.0),
        ValueError,
        r"pairwise_huber: `delta` must be > 0, got 0\.0\. pairwise_l1 is its limit at 0",
    ),
    "huber delta word": (
        lambda: mcl.pairwise_huber(hypotheses=POINTS, targets=POINTS, delta="1"),
        TypeError,
        "pairwise_huber: `delta` must be a number, got '1'",
    ),
    "class ids as floats": (
        lambda: mcl.pairwise_cross_entropy(hypotheses=POINTS, targets=torch.zeros(2, 1)),
        TypeError,
        r"pairwise_cross_entropy: `targets` must hold integer class ids, got torch\.float32\. Convert them",
    ),
    "class ids as booleans": (
        lambda: mcl.pairwise_cross_entropy(hypotheses=POINTS, targets=torch.zeros(2, 1, dtype=torch.bool)),
        TypeError,
        r"must hold integer class ids, got torch\.bool",
    ),
    "class id alone": (
        lambda: mcl.pairwise_cross_entropy(hypotheses=POINTS, targets=torch.tensor(1)),
        ValueError,
        r"pairwise_cross_entropy: `targets` must have shape \[\.\.\., targets\], got \(\)",
    ),
    "logits of one axis": (
        lambda: mcl.pairwise_cross_entropy(hypotheses=torch.rand(3), targets=torch.tensor([1])),
        ValueError,
        r"pairwise_cross_entropy: `hypotheses` must have shape \[\.\.\., hypotheses, classes\], got \(3,\)",
    ),
    "class ids of another batch": (
        lambda: mcl.pairwise_cross_entropy(hypotheses=torch.rand(8, 3, 2), targets=torch.zeros(5, 1, dtype=torch.long)),
        ValueError,
        "pairwise_cross_entropy: `targets` must have leading axes that broadcast",
    ),
    "lifted nothing": (
        lambda: mcl.Pairwise(3),
        TypeError,
        r"Pairwise: `loss` must be callable, got 3\. For example torchmcl\.Pairwise\(",
    ),
    "lifted with a bad number of axes": (
        lambda: mcl.Pairwise(torch.dist, target_dims=-1),
        ValueError,
        "Pairwise: `target_dims` must be a small number of axes >= 0, got -1",
    ),
    "lifted loss that is no scalar": (
        lambda: mcl.Pairwise(lambda h, t: h - t)(hypotheses=POINTS, targets=POINTS),
        ValueError,
        r"Pairwise: `loss` must return a scalar tensor for one pair, got \(2,\)\. Sum or average",
    ),
    "lifted with too few axes": (
        lambda: mcl.Pairwise(torch.dist)(hypotheses=POINTS, targets=torch.rand(2)),
        ValueError,
        r"Pairwise: `targets` must have shape \[\.\.\., targets\] followed by 1 axes, got \(2,\)",
    ),
    "lifted of a list": (
        lambda: mcl.Pairwise(torch.dist)(hypotheses=[1.0], targets=POINTS),
        TypeError,
        r"Pairwise: `hypotheses` must be a torch\.Tensor, got list",
    ),
    # step
    "model that returns a tensor": (
        lambda: step(model=lambda inputs: inputs),
        TypeError,
        "mcl_step: `model` must return Predictions, got Tensor. End it with a MultiHypothesisHead",
    ),
    "model that returns a plain tuple": (
        lambda: step(model=lambda inputs: (inputs, None)),
        TypeError,
        "mcl_step: `model` must return Predictions, got tuple",
    ),
    "model that cannot be called": (lambda: step(model=3), TypeError, "mcl_step: `model` must be callable, got 3"),
    "negative score weight": (
        lambda: step(score_weight=-1.0),
        ValueError,
        r"mcl_step: `score_weight` must be >= 0, got -1\.0",
    ),
    "step with a schedule": (
        lambda: step(rule=mcl.Constant(1.0)),
        TypeError,
        "mcl_step: `rule` must be an assignment rule",
    ),
    "step with numbers as mask": (
        lambda: step(batch=masked(torch.ones(2, 1))),
        TypeError,
        "mcl_step: `mask` must be a boolean tensor",
    ),
    "step with a list as mask": (
        lambda: step(batch=masked([[True], [True]])),
        TypeError,
        r"mcl_step: `mask` must be a torch\.Tensor, got list",
    ),
    "step with a wrong mask": (
        lambda: step(batch=masked(torch.ones(2, 5, dtype=torch.bool))),
        ValueError,
        r"mcl_step: `mask` must have shape \(2, 1\)",
    ),
    # modules
    "no features": (
        lambda: mcl.MultiHypothesisHead(0, 1, 3),
        ValueError,
        "MultiHypothesisHead: `in_features` must be >= 1, got 0",
    ),
    "half a dimension": (
        lambda: mcl.MultiHypothesisHead(2, 1.5, 3),
        TypeError,
        r"MultiHypothesisHead: `out_features` must be an integer, got 1\.5",
    ),
    "no hypotheses in a head": (
        lambda: mcl.MultiHypothesisHead(2, 1, 0),
        ValueError,
        "MultiHypothesisHead: `n_hypotheses` must be >= 1, got 0",
    ),
    "activation by name": (
        lambda: mcl.MultiHypothesisHead(2, 1, 3, output_activation="tanh"),
        TypeError,
        r"MultiHypothesisHead: `output_activation` must be callable, got 'tanh'\. For example torch\.tanh",
    ),
    "features of another size": (
        lambda: mcl.MultiHypothesisHead(2, 1, 3)(torch.rand(5, 4)),
        ValueError,
        r"MultiHypothesisHead: `features` must have 2 entries on its last axis, got \(5, 4\)",
    ),
    "empty hidden layer": (
        lambda: mcl.MultiHypothesisMLP(2, 1, 3, hidden=(8, 0)),
        ValueError,
        "MultiHypothesisMLP: `hidden` must be >= 1, got 0",
    ),
    "hidden as a number": (
        lambda: mcl.MultiHypothesisMLP(2, 1, 3, hidden=50),
        TypeError,
        "MultiHypothesisMLP: `hidden` must be .*got 50",
    ),
    "no inputs of an MLP": (
        lambda: mcl.MultiHypothesisMLP(0, 1, 3),
        ValueError,
        "MultiHypothesisMLP: `in_features` must be >= 1, got 0",
    ),
    "MLP activation by name": (
        lambda: mcl.MultiHypothesisMLP(2, 1, 3, activation="relu"),
        TypeError,
        r"MultiHypothesisMLP: `activation` must be callable, got 'relu'\. For example torch\.nn\.ReLU",
    ),
    # metrics
    "calibration without scores": (
        lambda: metrics.score_calibration_error(mcl.Predictions(torch.rand(2, 4, 1)), mcl.assign(COST, mcl.WTA())),
        ValueError,
        r"score_calibration_error: `predictions` must have score logits, got none\. Use scores=True\.",
    ),
    "calibration without bins": (
        lambda: metrics.score_calibration_error(
            mcl.Predictions(torch.rand(2, 4, 1), torch.rand(2, 4)), mcl.assign(COST, mcl.WTA()), n_bins=0
        ),
        ValueError,
        "score_calibration_error: `n_bins` must be >= 1, got 0",
    ),
}


@for_each("call, error, words", BAD_CALLS.values())
def test_bad_input_is_refused_in_words(call, error, words):
    with pytest.raises(error, match=words):
        call()
