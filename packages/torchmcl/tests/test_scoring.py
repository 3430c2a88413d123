import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from families import SCORE_OBJECTIVES
from grids import for_each
from problems import score_labels


def make_problem(n_targets=3, n_hypotheses=4):
    cost = torch.rand(6, n_targets, n_hypotheses, dtype=torch.float64)
    mask = torch.arange(n_targets) < (torch.arange(6) % (n_targets + 1)).unsqueeze(-1)
    return cost, mask


# ------------------------------------------------------------------ score_targets


@for_each("n_targets", [1, 3])
def test_labels_agree_with_the_oracle(n_targets):
    cost, mask = make_problem(n_targets)
    for m in (None, mask):
        full = torch.ones(6, n_targets, dtype=torch.bool) if m is None else m
        expected = [oracles.score_targets(c, r) for c, r in zip(cost.tolist(), full.tolist(), strict=True)]
        torch.testing.assert_close(score_labels(cost, m), torch.tensor(expected, dtype=torch.float64))


def test_labels_are_detached_and_sum_to_one_where_there_is_a_target():
    cost, mask = make_problem()
    labels = score_labels(cost.requires_grad_(), mask)
    assert not labels.requires_grad
    torch.testing.assert_close(labels.sum(-1), mask.any(-1).double())


def test_labels_do_not_see_padded_rows():
    cost, mask = make_problem()
    spoiled = cost.masked_fill(~mask.unsqueeze(-1), math.nan)
    assert torch.equal(score_labels(spoiled, mask), score_labels(cost, mask))


def test_labels_may_come_from_another_hard_rule():
    cost, mask = make_problem()
    labels = score_labels(cost, mask, rule=mcl.PIT())
    expected = mcl.PIT()(cost, mask).sum(-2) / mask.sum(-1, keepdim=True).clamp_min(1)
    torch.testing.assert_close(labels, expected)


def test_without_targets_all_labels_are_zero():
    assert torch.equal(score_labels(torch.zeros(2, 0, 3)), torch.zeros(2, 3))
    assert torch.equal(score_labels(torch.rand(2, 1, 3), torch.zeros(2, 1, dtype=torch.bool)), torch.zeros(2, 3))


# ------------------------------------------------------------------ score_loss


@for_each("n_hypotheses", [1, 5, 64, 65, 200])
def test_score_loss_agrees_with_the_oracle_and_with_torch(n_hypotheses):
    logits = 4 * torch.randn(3, n_hypotheses, dtype=torch.float64, requires_grad=True)
    labels = torch.rand(3, n_hypotheses, dtype=torch.float64)
    loss = mcl.SigmoidScores().loss(logits, labels)
    assert loss.item() == pytest.approx(oracles.score_loss(logits.tolist(), labels.tolist()), rel=1e-12)
    reference = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(reference, logits))


def test_score_loss_leaves_out_samples_without_a_target():
    cost, mask = make_problem()
    logits, labels = torch.randn(6, 4, dtype=torch.float64), score_labels(cost, mask)
    counts = mask.any(-1)
    expected = oracles.score_loss(logits.tolist(), labels.tolist(), counts.tolist())
    assert mcl.SigmoidScores().loss(logits, labels, mask).item() == pytest.approx(expected)
    torch.testing.assert_close(
        mcl.SigmoidScores().loss(logits, labels, mask), mcl.SigmoidScores().loss(logits[counts], labels[counts])
    )


def test_score_loss_of_left_out_samples_has_no_gradient():
    logits = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([[True], [False]])
    mcl.SigmoidScores().loss(logits, torch.zeros(2, 3), mask).backward()
    assert (logits.grad[0] != 0).all()
    assert (logits.grad[1] == 0).all()


def test_score_loss_without_any_sample_that_counts_is_zero():
    logits = torch.randn(2, 3, requires_grad=True)
    loss = mcl.SigmoidScores().loss(logits, torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(2, 3))


def test_score_loss_of_an_empty_batch_is_zero():
    logits = torch.zeros(0, 3, requires_grad=True)
    loss = mcl.SigmoidScores().loss(logits, torch.zeros(0, 3))
    loss.backward()
    assert loss.item() == 0


@for_each("dtype", [torch.float32, torch.float64])
def test_score_loss_and_gradient_are_finite_for_extreme_logits(dtype):
    logits = torch.tensor([[-1e30, -200.0, -30.0, 0.0, 30.0, 200.0, 1e30]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([[0.0, 1.0, 1.0, 0.5, 0.0, 0.0, 1.0]], dtype=dtype)
    loss = mcl.SigmoidScores().loss(logits, labels)
    loss.backward()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits.detach(), labels)
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(logits.grad, (logits.detach().sigmoid() - labels) / 7)


def test_a_nan_logit_gives_a_nan_score_loss():
    assert mcl.SigmoidScores().loss(torch.tensor([[0.0, math.nan]]), torch.zeros(1, 2)).isnan()


def test_derivatives_of_the_score_loss_agree_with_finite_differences():
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mcl.SigmoidScores().loss, (logits, labels))
    assert torch.autograd.gradgradcheck(mcl.SigmoidScores().loss, (logits, labels))


def test_score_loss_of_a_large_batch_agrees_with_torch():
    logits = torch.randn(45_000, 49, requires_grad=True)
    labels = torch.rand(45_000, 49)
    loss = mcl.SigmoidScores().loss(logits, labels)
    (gradient,) = torch.autograd.grad(loss, logits)
    reference = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double())
    torch.testing.assert_close(loss.double(), reference, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, (logits.sigmoid() - labels).detach() / logits.numel(), rtol=1e-4, atol=1e-10)


@for_each("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_give_a_float32_score_loss(dtype):
    logits, labels = torch.randn(4, 3, dtype=dtype, requires_grad=True), torch.rand(4, 3)
    loss = mcl.SigmoidScores().loss(logits, labels)
    loss.backward()
    assert loss.dtype == torch.float32
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(loss, mcl.SigmoidScores().loss(logits.float(), labels))
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(mcl.SigmoidScores().loss(logits.float(), labels), loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by torch.compile itself
def test_score_loss_compiles_and_maps():
    torch.compiler.reset()
    logits, labels = torch.randn(4, 3), torch.rand(4, 3)
    loss = mcl.SigmoidScores().loss
    compiled = torch.compile(lambda x, y: loss(x, y), fullgraph=True, backend="aot_eager")

    def run(fn):
        leaf = logits.clone().requires_grad_()
        loss = fn(leaf, labels)
        return loss.detach(), *torch.autograd.grad(loss, leaf)

    torch.testing.assert_close(run(compiled), run(mcl.SigmoidScores().loss))
    one_by_one = torch.stack([mcl.SigmoidScores().loss(x, y) for x, y in zip(logits, labels, strict=True)])
    torch.testing.assert_close(torch.vmap(mcl.SigmoidScores().loss)(logits, labels), one_by_one)
    per_sample = torch.func.vmap(torch.func.grad(mcl.SigmoidScores().loss))(logits, labels)
    torch.testing.assert_close(per_sample, (logits.sigmoid() - labels) / 3)


def test_scores_learn_the_mass_of_each_cell():
    torch.manual_seed(0)
    hypotheses = torch.tensor([[-1.0], [0.0], [1.0]])
    targets = torch.tensor([-1.0, 0.0, 1.0])[torch.multinomial(torch.tensor([0.2, 0.5, 0.3]), 5000, replacement=True)]
    labels = score_labels(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets.view(-1, 1, 1)))
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = mcl.SigmoidScores().loss(logits.expand(5000, 3), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(logits.detach().sigmoid(), labels.mean(0), rtol=0, atol=1e-3)


@for_each("scores", SCORE_OBJECTIVES)
@for_each("dtype", [torch.float32, torch.float64])
def test_every_objective_reads_the_logits_that_it_writes(scores, dtype):
    probabilities = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.7, 0.2, 0.1]], dtype=dtype)
    logits = scores.logits(probabilities)
    assert logits.isfinite().all()
    torch.testing.assert_close(scores.probabilities(logits), probabilities)


# ------------------------------------------------------------------ normalized_scores


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=6))
def test_normalized_scores_agree_with_the_oracle(logits):
    actual = mcl.normalized_scores(torch.tensor(logits, dtype=torch.float64))
    torch.testing.assert_close(actual, torch.tensor(oracles.normalized_scores(logits), dtype=torch.float64))


def test_normalized_scores_are_sigmoids_over_their_sum():
    logits = torch.randn(5, 4, dtype=torch.float64)
    scores = logits.sigmoid()
    torch.testing.assert_close(mcl.normalized_scores(logits), scores / scores.sum(-1, keepdim=True))


def test_normalized_scores_sum_to_one_when_every_sigmoid_underflows():
    for logits in (torch.full((3,), -1e4), torch.full((3,), 1e4), torch.tensor([-1e4, -2e4, -3e4])):
        torch.testing.assert_close(mcl.normalized_scores(logits).sum(), torch.tensor(1.0))


def test_sample_weights_multiply_the_score_loss_of_each_sample():
    logits, labels = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64)
    weights = torch.rand(5, dtype=torch.float64)
    each = torch.stack([mcl.SigmoidScores().loss(x, y) for x, y in zip(logits, labels, strict=True)])
    torch.testing.assert_close(
        mcl.SigmoidScores().loss(logits, labels, sample_weights=weights), (weights * each).mean()
    )
    mask = torch.tensor([True, True, False, True, False]).unsqueeze(-1)
    expected = (weights * each)[mask.squeeze(-1)].mean()
    torch.testing.assert_close(mcl.SigmoidScores().loss(logits, labels, mask, sample_weights=weights), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # forward mode in torch makes use of it
@for_each("n_hypotheses", [3, 70])
def test_score_loss_has_derivatives_in_forward_mode(n_hypotheses):
    logits = 30 * torch.randn(2, n_hypotheses, dtype=torch.float64)
    logits[0, 0] = 0  # where the parts of the formula have kinks and their sum has none
    labels = torch.rand(2, n_hypotheses, dtype=torch.float64)
    loss = mcl.SigmoidScores().loss
    backward = torch.func.jacrev(loss, (0, 1))
    torch.testing.assert_close(torch.func.jacfwd(loss, (0, 1))(logits, labels), backward(logits, labels))
    hessian = torch.func.jacrev(torch.func.jacrev(loss))(logits, labels)
    torch.testing.assert_close(torch.func.hessian(loss)(logits, labels), hessian)
    torch.testing.assert_close(torch.func.jacfwd(torch.func.jacfwd(loss))(logits, labels), hessian)
    inputs = (logits.requires_grad_(), labels.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs, check_forward_ad=True)
