"""The step of one target in one kernel is the step of the definition: in Triton's interpreter, or on a GPU."""

import math

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("triton", reason="triton is not installed")

import torchmcl as mcl
from torchmcl import kernels
from torchmcl.kernels import one_target
from torchmcl.training import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter computes padded entries too, with NumPy, which warns of infinity - infinity.
pytestmark = pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.filterwarnings("ignore::RuntimeWarning")

RULES = [mcl.WTA(), mcl.RelaxedWTA(0.2), mcl.AnnealedWTA(0.3), mcl.AnnealedWTA(0.0), mcl.AnnealedWTA(1e-40)]
SHAPES = [(5, 4, 2), (1, 1, 1), (70, 49, 2), (3, 7, 32)]


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the kernel, and let the interpreter serve tensors on the CPU."""
    counted = []

    def count(*arguments):
        counted.append(one_target_losses(*arguments))
        return counted[-1]

    one_target_losses = one_target.one_target_losses
    monkeypatch.setattr(one_target, "one_target_losses", count)
    if DEVICE == "cpu":
        usable = lambda *tensors: all(t.dtype == torch.float32 and t.numel() > 0 for t in tensors)  # noqa: E731
        monkeypatch.setattr(fused, "usable", usable)
    return counted


def drawn(n, n_hypotheses, dim):
    leaves = [torch.randn(n, n_hypotheses, dim), torch.randn(n, n_hypotheses), torch.randn(n, 1, dim)]
    return [leaf.to(DEVICE).requires_grad_() for leaf in leaves]


def step(leaves, rule, **options):
    hypotheses, logits, targets = leaves
    batch = mcl.Batch(targets, targets)
    return mcl.mcl_step(lambda _: mcl.Predictions(hypotheses, logits), batch, rule, **options)


def defined(leaves, rule, **options):
    """Return the step by the definition, in float64, which no kernel serves."""
    twins = [leaf.detach().double().requires_grad_() for leaf in leaves]
    return twins, step(twins, rule, **options)


def assert_same(actual, expected):
    assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_values_and_gradients_are_those_of_the_definition(rule, shape, calls):
    leaves = drawn(*shape)
    for score_weight in (1.0, 0.3, 0.0):
        output = step([leaves[0], leaves[1], leaves[2].detach()], rule, score_weight=score_weight)
        twins, expected = defined(leaves, rule, score_weight=score_weight)
        for name in ("loss", "assignment_loss", "score_loss"):
            if getattr(expected, name) is None:
                assert getattr(output, name) is None
            else:
                assert_same(getattr(output, name), getattr(expected, name))
        assert_same(output.matching.cost, expected.matching.cost)
        assert_same(output.matching.weights, expected.matching.weights)
        assert torch.equal(output.matching.mask, expected.matching.mask)
        assert not output.matching.weights.requires_grad
        n_leaves = 1 if score_weight == 0 else 2
        gradients = torch.autograd.grad(output.loss, leaves[:n_leaves])
        for actual, right in zip(gradients, torch.autograd.grad(expected.loss, twins[:n_leaves]), strict=True):
            assert_same(actual, right)
    assert len(calls) == 3


def test_each_output_has_a_gradient_of_its_own(calls):
    leaves = drawn(6, 5, 2)
    pick = {
        "scores alone": lambda output: output.score_loss,
        "assignment alone": lambda output: output.assignment_loss,
        "the cost too": lambda output: output.loss + output.matching.cost.square().mean(),
        "the cost alone": lambda output: output.matching.cost.amin(dim=-1).sum(),
    }
    for name, chosen in pick.items():
        twins, expected = defined(leaves, mcl.AnnealedWTA(0.5))
        right = torch.autograd.grad(chosen(expected), twins, allow_unused=True)
        actual = torch.autograd.grad(chosen(step(leaves, mcl.AnnealedWTA(0.5))), leaves, allow_unused=True)
        for ours, theirs in zip(actual, right, strict=True):
            assert (ours is None) == (theirs is None), name
            if ours is not None:
                assert_same(ours, theirs)
    assert len(calls) == 4


def test_gradients_can_be_differentiated_again(calls):
    leaves = drawn(4, 3, 2)
    twins, expected = defined(leaves, mcl.AnnealedWTA(0.5))
    results = []
    for points, output in ((leaves, step(leaves, mcl.AnnealedWTA(0.5))), (twins, expected)):
        first = torch.autograd.grad(output.loss, points[:2], create_graph=True)
        results.append(torch.autograd.grad(sum(part.square().sum() for part in first), points[:2]))
    for actual, right in zip(*results, strict=True):
        assert_same(actual, right)
    assert len(calls) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("rule", RULES[:3], ids=repr)
def test_what_is_not_finite_gives_nan(rule, bad, calls):
    leaves = drawn(5, 4, 2)
    with torch.no_grad():
        leaves[0][2, 1] = bad
        assert step(leaves, rule).loss.isnan()
    assert len(calls) == 1


def test_a_loss_may_be_changed_in_place(calls):
    leaves = drawn(5, 4, 2)
    for score_weight in (0.0, 1.0):
        output = step(leaves, mcl.WTA(), score_weight=score_weight)
        loss = output.loss
        loss += 1
        loss.backward()
    assert len(calls) == 2


def test_everything_else_goes_by_the_definition(calls):
    hypotheses, logits, targets = leaves = drawn(6, 5, 2)
    two = torch.randn(6, 2, 2, device=DEVICE)
    steps = [
        lambda: step(leaves, mcl.TopN(2)),
        lambda: step(leaves, mcl.AnnealedWTA(torch.tensor(0.3, device=DEVICE))),
        lambda: step(leaves, mcl.AnnealedWTA(math.inf)),
        lambda: step(leaves, mcl.WTA(), cost_fn=mcl.pairwise_l1),
        lambda: step(leaves, mcl.WTA(), loss_fn=mcl.pairwise_l1),
        lambda: step(leaves, mcl.WTA(), scores=mcl.SoftmaxScores()),
        lambda: step(leaves, mcl.WTA(), scores=mcl.SigmoidScores(None)),
        lambda: step(leaves, mcl.WTA(), sample_weights=torch.ones(6, device=DEVICE)),
        lambda: step([hypotheses, logits, two], mcl.WTA()),
        lambda: step([hypotheses.double(), logits, targets], mcl.WTA()),
        lambda: mcl.mcl_step(
            lambda _: mcl.Predictions(hypotheses, logits),
            mcl.Batch(targets, targets, torch.ones(6, 1, dtype=torch.bool, device=DEVICE)),
            mcl.WTA(),
        ),
    ]
    for each in steps:
        assert each().loss.isfinite()
    with mcl.value_checks():
        step(leaves, mcl.WTA())
    assert not calls
    assert one_target.one_target_losses(torch.randn(1, 3, 33), torch.randn(1, 1, 33), None, 0.0, 0.0) is NotImplemented


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch.compile itself
def test_a_step_on_the_gpu_is_fused_in_plain_eager_mode(calls):
    leaves = drawn(6, 5, 2)
    assert kernels.usable(*leaves)
    step(leaves, mcl.WTA()).loss.backward()
    assert len(calls) == 1
    compiled = torch.compile(lambda *leaves: step(leaves, mcl.WTA()).loss, fullgraph=True)
    assert_close(compiled(*leaves), step(leaves, mcl.WTA()).loss)
    assert len(calls) == 2
