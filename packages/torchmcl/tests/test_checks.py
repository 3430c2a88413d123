"""Bad input: each error has the house form and says what to do. Values inside tensors: `debug_checks`."""

import math

import numpy as np
import pytest
import torch

import torchmcl as mcl
from grids import for_each

COST = torch.rand(2, 3, 4)
MASK = torch.ones(2, 3, dtype=torch.bool)


def model(inputs):
    return mcl.Predictions(inputs.unsqueeze(-1).expand(-1, -1, 1) * torch.ones(3, 1), torch.zeros(len(inputs), 3))


def step(**changes):
    arguments = {"model": model, "batch": mcl.Batch(torch.rand(2, 1), torch.rand(2, 1, 1)), "rule": mcl.WTA()} | changes
    return mcl.mcl_step(arguments.pop("model"), arguments.pop("batch"), arguments.pop("rule"), **arguments)


BAD_CALLS = {
    # rules: parameters
    "negative temperature": (
        lambda: mcl.AnnealedWTA(-0.1),
        ValueError,
        r"AnnealedWTA: `temperature` must be >= 0, got -0\.1\. 0 is hard winner-takes-all\.",
    ),
    "nan temperature": (lambda: mcl.AnnealedWTA(math.nan), ValueError, "AnnealedWTA: `temperature` must be .*got nan"),
    "bool temperature": (
        lambda: mcl.AnnealedWTA(True),
        TypeError,
        "AnnealedWTA: `temperature` must be a number, got True",
    ),
    "word temperature": (
        lambda: mcl.AnnealedWTA("hot"),
        TypeError,
        "AnnealedWTA: `temperature` must be a number, got 'hot'",
    ),
    "no temperature": (
        lambda: mcl.AnnealedWTA(None),
        TypeError,
        "AnnealedWTA: `temperature` must be a number, got None",
    ),
    "negative epsilon": (
        lambda: mcl.RelaxedWTA(-0.1),
        ValueError,
        r"RelaxedWTA: `epsilon` must lie in \[0, 1\], got -0\.1",
    ),
    "large epsilon": (lambda: mcl.RelaxedWTA(1.5), ValueError, r"RelaxedWTA: `epsilon` must lie in \[0, 1\], got 1\.5"),
    "nan epsilon": (lambda: mcl.RelaxedWTA(math.nan), ValueError, "RelaxedWTA: `epsilon` must be a number, got nan"),
    "bool epsilon": (lambda: mcl.RelaxedWTA(False), TypeError, "RelaxedWTA: `epsilon` must be a number, got False"),
    "no winners": (lambda: mcl.TopK(0), ValueError, r"TopK: `k` must be >= 1, got 0\. 1 is winner-takes-all\."),
    "word k": (lambda: mcl.TopK("2"), TypeError, "TopK: `k` must be a number, got '2'"),
    "nan k": (lambda: mcl.TopK(math.nan), ValueError, "TopK: `k` must be a number, got nan"),
    "too many winners": (
        lambda: mcl.TopK(5)(COST),
        ValueError,
        "TopK: `k` must be at most the number of hypotheses, 4, got 5",
    ),
    "negative Sinkhorn": (lambda: mcl.Sinkhorn(-1.0), ValueError, r"Sinkhorn: `temperature` must be >= 0, got -1\.0"),
    "Sinkhorn without loops": (
        lambda: mcl.Sinkhorn(1.0, n_iters=0),
        ValueError,
        "Sinkhorn: `n_iters` must be >= 1, got 0",
    ),
    "Sinkhorn loop in words": (
        lambda: mcl.Sinkhorn(1.0, n_iters="many"),
        TypeError,
        r"Sinkhorn: `n_iters` must be an integer, got 'many'",
    ),
    # rules: cost and mask
    "cost is a list": (lambda: mcl.WTA()([[1.0]]), TypeError, r"WTA: `cost` must be a torch\.Tensor, got list"),
    "cost of whole numbers": (
        lambda: mcl.WTA()(torch.ones(2, 2, dtype=torch.long)),
        TypeError,
        r"WTA: `cost` must be a floating tensor, got torch\.int64\. Convert it first: cost\.float\(\)\.",
    ),
    "cost of one axis": (
        lambda: mcl.WTA()(torch.ones(4)),
        ValueError,
        r"WTA: `cost` must have shape \[\.\.\., targets, hypotheses\] with at least one hypothesis, got \(4,\)\. Any",
    ),
    "no hypotheses": (
        lambda: mcl.AnnealedWTA(1.0)(torch.ones(4, 0)),
        ValueError,
        r"AnnealedWTA: `cost` must have shape .* with at least one hypothesis, got \(4, 0\)",
    ),
    "mask of numbers": (
        lambda: mcl.WTA()(COST, MASK.float()),
        TypeError,
        r"WTA: `mask` must be a boolean tensor, got torch\.float32\. True marks a real target; convert it first",
    ),
    "mask is a list": (lambda: mcl.WTA()(COST, [True]), TypeError, r"WTA: `mask` must be a torch\.Tensor, got list"),
    "mask of another shape": (
        lambda: mcl.WTA()(COST, MASK[:, :2]),
        ValueError,
        r"WTA: `mask` must have shape \(2, 3\) \(\[\.\.\., targets\]\) or broadcast to it, got \(2, 2\)",
    ),
    "mask with more axes": (
        lambda: mcl.WTA()(COST, MASK[None]),
        ValueError,
        r"WTA: `mask` must have shape \(2, 3\) .* got \(1, 2, 3\)",
    ),
    "too few hypotheses for PIT": (
        lambda: mcl.PIT()(torch.rand(1, 3, 2)),
        ValueError,
        "PIT: `number of hypotheses` must be at least the number of real targets 3, got 2. Give the model more outputs",
    ),
    # assign and loss
    "assign with a schedule": (
        lambda: mcl.assign(COST, mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Constant(1.0))),
        TypeError,
        r"assign: `rule` must be an assignment rule, got AnnealedRule.*An annealed rule is called with the step first",
    ),
    "assign with a class": (
        lambda: mcl.assign(COST, mcl.WTA),
        TypeError,
        "assign: `rule` must be an assignment rule, got <class",
    ),
    "assign with a word": (
        lambda: mcl.assign(COST, "wta"),
        TypeError,
        "assign: `rule` must be an assignment rule, got 'wta'",
    ),
    "assign of a list": (
        lambda: mcl.assign([[1.0]], mcl.WTA()),
        TypeError,
        r"assign: `cost` must be a torch\.Tensor, got list",
    ),
    "assign of a vector": (lambda: mcl.assign(torch.ones(3), mcl.WTA()), ValueError, "assign: `cost` must have shape"),
    "assign with numbers as mask": (
        lambda: mcl.assign(COST, mcl.WTA(), MASK.long()),
        TypeError,
        r"assign: `mask` must be a boolean tensor, got torch\.int64",
    ),
    "assign with a list as mask": (
        lambda: mcl.assign(COST, mcl.WTA(), [True]),
        TypeError,
        r"assign: `mask` must be a torch\.Tensor, got list",
    ),
    "assign with a wrong mask": (
        lambda: mcl.assign(COST, mcl.WTA(), MASK[:, :2]),
        ValueError,
        r"assign: `mask` must have shape \(2, 3\)",
    ),
    "unknown reduction": (
        lambda: mcl.mcl_loss(mcl.assign(COST, mcl.WTA()), reduction="sum"),
        ValueError,
        "mcl_loss: `reduction` must be one of 'mean', 'sample_mean', 'none', got 'sum'",
    ),
    # scores
    "logits of whole numbers": (
        lambda: mcl.SigmoidScores().loss(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3)),
        TypeError,
        "SigmoidScores: `score_logits` must be a floating tensor",
    ),
    "labels of another shape": (
        lambda: mcl.SigmoidScores().loss(torch.ones(2, 3), torch.ones(2, 1, 3)),
        ValueError,
        r"SigmoidScores: `labels` must be a tensor of the shape of `score_logits` \(2, 3\), got \(2, 1, 3\)",
    ),
    "score mask of numbers": (
        lambda: mcl.SigmoidScores().loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1)),
        TypeError,
        "SigmoidScores: `mask` must be a boolean tensor",
    ),
    "score mask is a list": (
        lambda: mcl.SigmoidScores().loss(torch.ones(2, 3), torch.ones(2, 3), [[True], [True]]),
        TypeError,
        r"SigmoidScores: `mask` must be a torch\.Tensor, got list",
    ),
    "score mask of another shape": (
        lambda: mcl.SigmoidScores().loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(5, 1, dtype=torch.bool)),
        ValueError,
        r"SigmoidScores: `mask` must have shape \(2, 1\)",
    ),
    "normalised list": (
        lambda: mcl.normalized_scores([0.0]),
        TypeError,
        r"normalized_scores: `score_logits` must be a torch\.Tensor, got list",
    ),
}


@for_each("call, error, words", BAD_CALLS.values())
def test_bad_input_is_refused_in_words(call, error, words):
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
