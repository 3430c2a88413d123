"""Bad input: each error has the house form and says what to do. Values inside tensors: `value_checks`."""

import math
import threading

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
    "no winners": (lambda: mcl.TopN(0), ValueError, r"TopN: `n` must be >= 1, got 0\. 1 is winner-takes-all\."),
    "word n": (lambda: mcl.TopN("2"), TypeError, "TopN: `n` must be a number, got '2'"),
    "nan n": (lambda: mcl.TopN(math.nan), ValueError, "TopN: `n` must be a number, got nan"),
    "too many winners": (
        lambda: mcl.TopN(5)(COST),
        ValueError,
        "TopN: `n` must be at most the number of hypotheses 4, got 5",
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
    # match and loss
    "match with a schedule": (
        lambda: mcl.match(COST, mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Constant(1.0))),
        TypeError,
        r"match: `rule` must be an assignment rule, got AnnealedRule.*An annealed rule is called with the step first",
    ),
    "match with a class": (
        lambda: mcl.match(COST, mcl.WTA),
        TypeError,
        "match: `rule` must be an assignment rule, got <class",
    ),
    "match with a word": (
        lambda: mcl.match(COST, "wta"),
        TypeError,
        "match: `rule` must be an assignment rule, got 'wta'",
    ),
    "match of a list": (
        lambda: mcl.match([[1.0]], mcl.WTA()),
        TypeError,
        r"match: `cost` must be a torch\.Tensor, got list",
    ),
    "match of a vector": (lambda: mcl.match(torch.ones(3), mcl.WTA()), ValueError, "match: `cost` must have shape"),
    "match with numbers as mask": (
        lambda: mcl.match(COST, mcl.WTA(), MASK.long()),
        TypeError,
        r"match: `mask` must be a boolean tensor, got torch\.int64",
    ),
    "match with a list as mask": (
        lambda: mcl.match(COST, mcl.WTA(), [True]),
        TypeError,
        r"match: `mask` must be a torch\.Tensor, got list",
    ),
    "match with a wrong mask": (
        lambda: mcl.match(COST, mcl.WTA(), MASK[:, :2]),
        ValueError,
        r"match: `mask` must have shape \(2, 3\)",
    ),
    "unknown reduction": (
        lambda: mcl.mcl_loss(mcl.match(COST, mcl.WTA()), reduction="sum"),
        ValueError,
        "mcl_loss: `reduction` must be one of 'mean', 'sample_mean', 'none', got 'sum'",
    ),
    # scores
    "labels of a list": (
        lambda: mcl.score_targets([[1.0]]),
        TypeError,
        r"score_targets: `cost` must be a torch\.Tensor",
    ),
    "labels of a vector": (
        lambda: mcl.score_targets(torch.ones(3)),
        ValueError,
        "score_targets: `cost` must have shape",
    ),
    "labels with numbers as mask": (
        lambda: mcl.score_targets(COST, MASK.float()),
        TypeError,
        "`mask` must be a boolean",
    ),
    "logits of whole numbers": (
        lambda: mcl.score_loss(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3)),
        TypeError,
        "score_loss: `score_logits` must be a floating tensor",
    ),
    "labels of whole numbers": (
        lambda: mcl.score_loss(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long)),
        TypeError,
        r"score_loss: `targets` must be a floating tensor, got torch\.int64\. Convert it first: targets\.float\(\)",
    ),
    "labels of another shape": (
        lambda: mcl.score_loss(torch.ones(2, 3), torch.ones(2, 1, 3)),
        ValueError,
        r"score_loss: `targets` must have the shape of `score_logits` \(2, 3\), got \(2, 1, 3\)\. score_targets",
    ),
    "score mask of numbers": (
        lambda: mcl.score_loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1)),
        TypeError,
        "score_loss: `mask` must be a boolean tensor",
    ),
    "score mask is a list": (
        lambda: mcl.score_loss(torch.ones(2, 3), torch.ones(2, 3), [[True], [True]]),
        TypeError,
        r"score_loss: `mask` must be a torch\.Tensor, got list",
    ),
    "score mask of another shape": (
        lambda: mcl.score_loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(5, 1, dtype=torch.bool)),
        ValueError,
        r"score_loss: `mask` must have shape \(2, 1\)",
    ),
    "normalised list": (
        lambda: mcl.normalized_scores([0.0]),
        TypeError,
        r"normalized_scores: `score_logits` must be a torch\.Tensor, got list",
    ),
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
        lambda: mcl.pairwise(3),
        TypeError,
        r"pairwise: `loss` must be callable, got 3\. For example torchmcl\.pairwise\(",
    ),
    "lifted with a bad number of axes": (
        lambda: mcl.pairwise(torch.dist, target_dims=-1),
        ValueError,
        "pairwise: `target_dims` must be a small number of axes >= 0, got -1",
    ),
    "lifted loss that is no scalar": (
        lambda: mcl.pairwise(lambda h, t: h - t)(hypotheses=POINTS, targets=POINTS),
        ValueError,
        r"pairwise: `loss` must return a scalar tensor for one pair, got \(2,\)\. Sum or average",
    ),
    "lifted with too few axes": (
        lambda: mcl.pairwise(torch.dist)(hypotheses=POINTS, targets=torch.rand(2)),
        ValueError,
        r"pairwise: `targets` must have shape \[\.\.\., targets\] followed by 1 axes, got \(2,\)",
    ),
    "lifted of a list": (
        lambda: mcl.pairwise(torch.dist)(hypotheses=[1.0], targets=POINTS),
        TypeError,
        r"pairwise: `hypotheses` must be a torch\.Tensor, got list",
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
        "match: `rule` must be an assignment rule",
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
        lambda: metrics.score_calibration_error(mcl.Predictions(torch.rand(2, 4, 1)), mcl.match(COST, mcl.WTA())),
        ValueError,
        r"score_calibration_error: `predictions` must have score logits, got none\. Use scores=True\.",
    ),
    "calibration without bins": (
        lambda: metrics.score_calibration_error(
            mcl.Predictions(torch.rand(2, 4, 1), torch.rand(2, 4)), mcl.match(COST, mcl.WTA()), n_bins=0
        ),
        ValueError,
        "score_calibration_error: `n_bins` must be >= 1, got 0",
    ),
    "metric of a tensor": (
        lambda: metrics.rmse_of_mean(POINTS, POINTS),
        TypeError,
        "rmse_of_mean: `predictions` must be Predictions, got Tensor",
    ),
    "metric of different dimensions": (
        lambda: metrics.oracle_rmse(mcl.Predictions(POINTS), torch.rand(2, 3, 1)),
        ValueError,
        r"oracle_rmse: `targets` must have shape \[..., targets, 2\]",
    ),
    "metric with numbers as mask": (
        lambda: metrics.energy_score(mcl.Predictions(POINTS), POINTS, MASK.float()),
        TypeError,
        "energy_score: `mask` must be a boolean tensor",
    ),
    "wasserstein of order zero": (
        lambda: metrics.wasserstein_to_samples(mcl.Predictions(POINTS), POINTS, order=0),
        ValueError,
        "wasserstein_to_samples: `order` must be >= 1, got 0",
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
    assert torch.equal(mcl.TopN(np.int64(2))(cost), mcl.TopN(2)(cost))


# ------------------------------------------------------------------ value_checks


def test_value_checks_name_the_first_offending_index_of_the_cost():
    cost = torch.rand(2, 3, 4)
    cost[1, 0, 2] = math.nan
    cost[1, 2, 1] = math.inf
    with (
        mcl.value_checks(),
        pytest.raises(
            ValueError, match=r"match: `cost` must be finite, got nan at index \(1, 0, 2\)\. Look at the step"
        ),
    ):
        mcl.match(cost, mcl.WTA())
    mask = torch.ones(2, 3, dtype=torch.bool)
    mask[1, 0] = False
    with (
        mcl.value_checks(),
        pytest.raises(ValueError, match=r"must be finite where the target is real, got inf at index \(1, 2, 1\)"),
    ):
        mcl.match(cost, mcl.WTA(), mask)


def test_value_checks_name_a_target_that_is_missing_without_a_mask():
    targets = torch.zeros(2, 1, 1)
    targets[1] = math.nan
    model, batch = mcl.MultiHypothesisMLP(1, 1, 2), mcl.Batch(torch.zeros(2, 1), targets)
    assert mcl.mcl_step(model, batch, mcl.WTA()).loss.isnan()
    with mcl.value_checks(), pytest.raises(ValueError, match=r"`targets` must be finite, got nan at index \(1, 0, 0\)"):
        mcl.mcl_step(model, batch, mcl.WTA())
    with mcl.value_checks():
        mcl.mcl_step(model, batch._replace(mask=torch.tensor([[True], [False]])), mcl.WTA())


def test_value_checks_ignore_padded_targets():
    cost = torch.rand(2, 3, 4)
    cost[:, 1] = math.nan
    with mcl.value_checks():
        loss = mcl.mcl_loss(mcl.match(cost, mcl.WTA(), torch.tensor([True, False, True])))
    assert loss.isfinite()


@for_each(
    "make, words",
    [
        (
            lambda: mcl.AnnealedWTA(torch.tensor([[0.1], [-2.0]])),
            r"AnnealedWTA: `temperature` must be >= 0, got -2\.0 at index \(1, 0\)",
        ),
        (
            lambda: mcl.AnnealedWTA(torch.tensor(math.nan)),
            r"AnnealedWTA: `temperature` must be >= 0, got nan at index \(\)",
        ),
        (
            lambda: mcl.Sinkhorn(torch.tensor([-1.0])),
            r"Sinkhorn: `temperature` must be >= 0, got -1\.0 at index \(0,\)",
        ),
        (
            lambda: mcl.RelaxedWTA(torch.tensor([0.5, 1.5])),
            r"RelaxedWTA: `epsilon` must lie in \[0, 1\], got 1\.5 at index \(1,\)",
        ),
        (lambda: mcl.TopN(torch.tensor([2.0, 0.0])), r"TopN: `n` must be >= 1, got 0\.0 at index \(1,\)"),
    ],
)
def test_value_checks_read_tensor_parameters(make, words):
    make()
    with mcl.value_checks(), pytest.raises(ValueError, match=words):
        make()


def test_value_checks_compare_a_tensor_n_with_the_number_of_hypotheses():
    with mcl.value_checks(), pytest.raises(ValueError, match="TopN: `n` must be at most the number of hypotheses 4"):
        mcl.TopN(torch.tensor(5.0))(torch.rand(2, 3, 4))


@for_each("ids, bad", [([[0, 3]], "3"), ([[-100, 1]], "-100")])
def test_value_checks_read_class_ids(ids, bad):
    with (
        mcl.value_checks(),
        pytest.raises(ValueError, match=f"pairwise_cross_entropy: `targets` must lie between 0 and 2, got {bad}"),
    ):
        mcl.pairwise_cross_entropy(hypotheses=torch.rand(1, 4, 3), targets=torch.tensor(ids))


def test_value_checks_accept_good_values():
    with mcl.value_checks():
        cost = mcl.pairwise_cross_entropy(hypotheses=torch.rand(2, 4, 3), targets=torch.tensor([[0], [2]]))
        rule = mcl.AnnealedWTA(torch.tensor([0.0, 1.0]).view(2, 1, 1))
        assert mcl.mcl_loss(mcl.match(cost, rule)).isfinite()


def bad_values_are_noticed():
    try:
        mcl.match(torch.tensor([[math.nan]]), mcl.WTA())
    except ValueError:
        return True
    return False


def test_value_checks_are_off_unless_asked_for():
    assert not bad_values_are_noticed()
    with mcl.value_checks():
        assert bad_values_are_noticed()
    assert not bad_values_are_noticed()


def test_value_checks_nest():
    with mcl.value_checks():
        with mcl.value_checks():
            assert bad_values_are_noticed()
        assert bad_values_are_noticed()
    assert not bad_values_are_noticed()


def test_value_checks_of_several_threads_end_in_any_order():
    first_is_open, first_may_end = threading.Event(), threading.Event()

    def first():
        with mcl.value_checks():
            first_is_open.set()
            first_may_end.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    first_is_open.wait(60)
    with mcl.value_checks():
        first_may_end.set()
        thread.join()
        assert bad_values_are_noticed()
    assert not bad_values_are_noticed()


def test_value_checks_end_after_an_exception():
    with pytest.raises(RuntimeError, match="boom"), mcl.value_checks():
        raise RuntimeError("boom")
    assert not bad_values_are_noticed()


def test_value_checks_are_silent_where_values_cannot_be_read():
    torch.compiler.reset()
    cost = torch.tensor([[[math.nan, 1.0]]])
    with mcl.value_checks():
        mapped = torch.vmap(lambda cost: mcl.mcl_loss(mcl.match(cost, mcl.AnnealedWTA(0.5))))(cost)
        compiled = torch.compile(
            lambda cost: mcl.mcl_loss(mcl.match(cost, mcl.AnnealedWTA(0.5))), fullgraph=True, backend="aot_eager"
        )(cost)
    assert mapped.isnan().all()
    assert compiled.isnan()


def test_a_missing_optional_package_is_named_with_its_extra():
    from torchmcl._optional import optional_import

    with pytest.raises(ImportError, match=r"PIT needs no_such_package: pip install 'torchmcl\[transport\]'"):
        optional_import("no_such_package.sub", extra="transport", needed_by="PIT")
