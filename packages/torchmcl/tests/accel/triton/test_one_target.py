"""The step of one target in one kernel is the step of the definition: in C, in Triton's interpreter, or on a GPU."""

import importlib
import math

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import torchmcl as mcl
from torchmcl import accel
from torchmcl import fused_step as fused
from torchmcl.accel.native import compiled

HAS_GPU = torch.cuda.is_available()
# Triton's interpreter computes padded entries too, with NumPy, which warns of infinity - infinity.
pytestmark = [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

RULES = [mcl.WTA(), mcl.RelaxedWTA(0.2), mcl.AnnealedWTA(0.3), mcl.AnnealedWTA(0.0), mcl.AnnealedWTA(1e-40)]
SHAPES = [(5, 4, 2), (1, 1, 1), (70, 49, 2), (3, 7, 32)]


class Calls(list):
    """What a kernel returned, call by call, and where its tensors are."""

    device = "cpu"


@pytest.fixture(params=["compiled", "triton"])
def calls(request, monkeypatch):
    """Count the calls of a kernel, and let Triton's interpreter serve tensors on the CPU."""
    counted = Calls()
    if request.param == "compiled":
        if not compiled.available():
            pytest.skip("the extension was not built")
        module = importlib.import_module("torchmcl.accel.native.one_target")
    else:
        pytest.importorskip("triton", reason="triton is not installed")
        module = importlib.import_module("torchmcl.accel.triton.one_target")
        counted.device = "cuda" if HAS_GPU else "cpu"
        if not HAS_GPU:
            usable = lambda *tensors: all(t.dtype == torch.float32 and t.numel() > 0 for t in tensors)  # noqa: E731
            monkeypatch.setattr(fused, "usable", usable)
    losses = module.one_target_losses

    def count(*arguments):
        counted.append(losses(*arguments))
        return counted[-1]

    monkeypatch.setattr(module, "one_target_losses", count)
    counted.kernel = losses
    return counted


@pytest.fixture
def compiled_calls(calls):
    if calls.kernel.__module__ != "torchmcl.accel.native.one_target":
        pytest.skip("it is about the kernel in C")
    return calls


def drawn(n, n_hypotheses, dim, device):
    leaves = [torch.randn(n, n_hypotheses, dim), torch.randn(n, n_hypotheses), torch.randn(n, 1, dim)]
    return [leaf.to(device).requires_grad_() for leaf in leaves]


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
    leaves = drawn(*shape, calls.device)
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
    leaves = drawn(6, 5, 2, calls.device)
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
    leaves = drawn(4, 3, 2, calls.device)
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
    leaves = drawn(5, 4, 2, calls.device)
    with torch.no_grad():
        leaves[0][2, 1] = bad
        assert step(leaves, rule).loss.isnan()
    assert len(calls) == 1


def test_a_loss_may_be_changed_in_place(calls):
    leaves = drawn(5, 4, 2, calls.device)
    for score_weight in (0.0, 1.0):
        output = step(leaves, mcl.WTA(), score_weight=score_weight)
        loss = output.loss
        loss += 1
        loss.backward()
    assert len(calls) == 2


def test_everything_else_goes_by_the_definition(calls):
    hypotheses, logits, targets = leaves = drawn(6, 5, 2, calls.device)
    two = torch.randn(6, 2, 2, device=calls.device)
    steps = [
        lambda: step(leaves, mcl.TopK(2)),
        lambda: step(leaves, mcl.AnnealedWTA(torch.tensor(0.3, device=calls.device))),
        lambda: step(leaves, mcl.AnnealedWTA(math.inf)),
        lambda: step(leaves, mcl.WTA(), cost_fn=mcl.pairwise_l1),
        lambda: step(leaves, mcl.WTA(), loss_fn=mcl.pairwise_l1),
        lambda: step(leaves, mcl.WTA(), scores=mcl.SoftmaxScores()),
        lambda: step(leaves, mcl.WTA(), scores=mcl.SigmoidScores(None)),
        lambda: step(leaves, mcl.WTA(), sample_weights=torch.ones(6, device=calls.device)),
        lambda: step([hypotheses, logits, two], mcl.WTA()),
        lambda: step([hypotheses.double(), logits, targets], mcl.WTA()),
        lambda: mcl.mcl_step(
            lambda _: mcl.Predictions(hypotheses, logits),
            mcl.Batch(targets, targets, torch.ones(6, 1, dtype=torch.bool, device=calls.device)),
            mcl.WTA(),
        ),
    ]
    for each in steps:
        assert each().loss.isfinite()
    with mcl.debug_checks():
        step(leaves, mcl.WTA())
    assert not calls
    assert calls.kernel(torch.randn(1, 3, 33), torch.randn(1, 1, 33), None, 0.0, 0.0) is NotImplemented


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch.compile itself
@pytest.mark.slow
def test_a_step_is_fused_in_plain_eager_mode(calls):
    leaves = drawn(6, 5, 2, calls.device)
    if fused.usable is not accel.usable:
        pytest.skip("torch.compile does not follow Triton's interpreter")
    assert accel.usable(*leaves) == (calls.device == "cuda")
    step(leaves, mcl.WTA()).loss.backward()
    assert len(calls) == 1
    compiled = torch.compile(lambda *leaves: step(leaves, mcl.WTA()).loss, fullgraph=True)
    assert_close(compiled(*leaves), step(leaves, mcl.WTA()).loss)
    assert len(calls) == 2


def test_a_second_backward_pass_gives_the_same_gradients(calls):
    leaves = drawn(6, 5, 2, calls.device)
    loss = step(leaves, mcl.AnnealedWTA(0.5)).loss
    first = torch.autograd.grad(loss, leaves[:2], retain_graph=True)
    kept = [part.clone() for part in first]
    for part in first:
        part.zero_()  # what was handed out belongs to the caller
    for actual, right in zip(torch.autograd.grad(loss, leaves[:2]), kept, strict=True):
        assert_close(actual, right)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves[:2])


def test_the_gradient_of_a_scaled_loss_is_scaled(calls):
    leaves = drawn(6, 5, 2, calls.device)
    twins, expected = defined(leaves, mcl.WTA(), score_weight=0.3)
    actual = torch.autograd.grad(7 * step(leaves, mcl.WTA(), score_weight=0.3).loss, leaves[:2])
    for ours, theirs in zip(actual, torch.autograd.grad(7 * expected.loss, twins[:2]), strict=True):
        assert_same(ours, theirs)


def test_without_gradients_there_are_none(compiled_calls):
    leaves = drawn(40, 5, 2, "cpu")
    with torch.no_grad():
        output = step(leaves, mcl.WTA())
    assert not output.loss.requires_grad
    assert_same(output.loss, defined(leaves, mcl.WTA())[1].loss.detach())
    assert len(compiled_calls) == 1


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_large_batch_is_shared_among_threads_bit_for_bit(n_threads, compiled_calls):
    leaves = drawn(2100, 49, 2, "cpu")
    leaves[2].requires_grad_(False)  # the gradient of targets is left to torch, whose bits change with its threads
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        output = step(leaves, mcl.AnnealedWTA(0.3))
        gradients = torch.autograd.grad(output.loss, leaves[:2])
        torch.set_num_threads(2)
        other = step(leaves, mcl.AnnealedWTA(0.3))
        pairs = zip(gradients, torch.autograd.grad(other.loss, leaves[:2]), strict=True)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(output.loss, other.loss)
    assert all(torch.equal(one, another) for one, another in pairs)
    twins, expected = defined(leaves, mcl.AnnealedWTA(0.3))
    for actual, right in zip(gradients, torch.autograd.grad(expected.loss, twins[:2]), strict=True):
        assert_same(actual, right)


def test_strided_tensors_are_served(compiled_calls):
    hypotheses, logits, targets = drawn(6, 5, 2, "cpu")
    turned = [hypotheses.transpose(0, 1).contiguous().transpose(0, 1), logits.t().contiguous().t(), targets]
    assert_close(step(turned, mcl.WTA()).loss, step([hypotheses, logits, targets], mcl.WTA()).loss)
    assert len(compiled_calls) == 2


def test_many_hypotheses_and_modes_that_watch_operations_go_by_the_definition(compiled_calls):
    leaves = drawn(3, 101, 2, "cpu")
    assert step(leaves, mcl.WTA()).loss.isfinite()
    assert compiled_calls == [NotImplemented]
    with FlopCounterMode(display=False):
        assert step(drawn(3, 5, 2, "cpu"), mcl.WTA()).loss.isfinite()
    torch.func.grad(lambda hypotheses: step([hypotheses, *leaves[1:]], mcl.WTA()).loss)(leaves[0].detach())
    assert len(compiled_calls) == 1
