"""The step of one target in one kernel is the step of the definition: in C, in Triton's interpreter, or on a GPU."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch.testing import assert_close

import torchmcl as mcl
from torchmcl.checks import debug_checks
from torchmcl.costs import NormFormula, declare_cost
from torchmcl.dispatch import faster
from torchmcl.step import StepProblem, step_output
from torchmcl_fleet import gpu, kernels, native
from torchmcl_fleet.kernels import fused_step, step_tensors
from torchmcl_fleet.native import available, one_target

HAS_GPU = torch.cuda.is_available()
# Triton's interpreter computes padded entries too, with NumPy, which warns of infinity - infinity.
pytestmark = [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

RULES = [mcl.WTA(), mcl.RelaxedWTA(0.2), mcl.AnnealedWTA(0.3), mcl.AnnealedWTA(0.0), mcl.AnnealedWTA(1e-40)]
# Every rule at one shape, and every shape with one rule: the interpreter takes seconds for each.
CASES = [(rule, (5, 4, 2)) for rule in RULES]
CASES += [(mcl.AnnealedWTA(0.3), shape) for shape in ((1, 1, 1), (70, 49, 2), (3, 7, 32))]


class Kernel(NamedTuple):
    """Whether a kernel supports tensors, the kernel, and the device of its tensors."""

    supports: Any
    losses: Any
    device: str


@pytest.fixture(params=["compiled", "triton"])
def kernel(request):
    """Each kernel; Triton's interpreter computes tensors on the CPU."""
    if request.param == "compiled":
        if not available():
            pytest.skip("the extension was not built")
        return Kernel(native.supports, one_target.one_target_losses, "cpu")
    pytest.importorskip("triton", reason="triton is not installed")
    from torchmcl_fleet.gpu.one_target import one_target_losses as triton_losses

    return Kernel(gpu.supports, triton_losses, "cuda" if HAS_GPU else "cpu")


only_in_c = pytest.mark.parametrize("kernel", ["compiled"], indirect=True)


def drawn(n, n_hypotheses, dim, device):
    leaves = [torch.randn(n, n_hypotheses, dim), torch.randn(n, n_hypotheses), torch.randn(n, 1, dim)]
    return [leaf.to(device).requires_grad_() for leaf in leaves]


def problem(leaves, rule, **options):
    hypotheses, logits, targets = leaves
    usual = {"cost_fn": mcl.pairwise_sq_euclidean, "scores": mcl.SigmoidScores(), "score_weight": 1.0}
    return StepProblem(mcl.Predictions(hypotheses, logits), mcl.Batch(None, targets), rule, **usual | options)


def step(kernel, leaves, rule, **options):
    return fused_step(kernel.losses, problem(leaves, rule, **options))


def defined(leaves, rule, **options):
    """Return the step by the definition, in float64."""
    twins = [leaf.detach().double().requires_grad_() for leaf in leaves]
    return twins, step_output(problem(twins, rule, **options))


def assert_same(actual, expected):
    assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rule", "shape"), CASES, ids=str)
def test_values_and_gradients_are_those_of_the_definition(rule, shape, kernel):
    leaves = drawn(*shape, kernel.device)
    for score_weight in (1.0, 0.3, 0.0):
        output = step(kernel, [leaves[0], leaves[1], leaves[2].detach()], rule, score_weight=score_weight)
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


def test_each_output_has_a_gradient_of_its_own(kernel):
    leaves = drawn(6, 5, 2, kernel.device)
    pick = {
        "scores alone": lambda output: output.score_loss,
        "assignment alone": lambda output: output.assignment_loss,
        "the cost too": lambda output: output.loss + output.matching.cost.square().mean(),
        "the cost alone": lambda output: output.matching.cost.amin(dim=-1).sum(),
    }
    for name, chosen in pick.items():
        twins, expected = defined(leaves, mcl.AnnealedWTA(0.5))
        right = torch.autograd.grad(chosen(expected), twins, allow_unused=True)
        actual = torch.autograd.grad(chosen(step(kernel, leaves, mcl.AnnealedWTA(0.5))), leaves, allow_unused=True)
        for ours, theirs in zip(actual, right, strict=True):
            assert (ours is None) == (theirs is None), name
            if ours is not None:
                assert_same(ours, theirs)


def test_gradients_can_be_differentiated_again(kernel):
    leaves = drawn(4, 3, 2, kernel.device)
    twins, expected = defined(leaves, mcl.AnnealedWTA(0.5))
    results = []
    for points, output in ((leaves, step(kernel, leaves, mcl.AnnealedWTA(0.5))), (twins, expected)):
        first = torch.autograd.grad(output.loss, points[:2], create_graph=True)
        results.append(torch.autograd.grad(sum(part.square().sum() for part in first), points[:2]))
    for actual, right in zip(*results, strict=True):
        assert_same(actual, right)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("rule", RULES[:3], ids=repr)
def test_what_is_not_finite_gives_nan(rule, bad, kernel):
    leaves = drawn(5, 4, 2, kernel.device)
    with torch.no_grad():
        leaves[0][2, 1] = bad
        assert step(kernel, leaves, rule).loss.isnan()


def test_a_loss_may_be_changed_in_place(kernel):
    leaves = drawn(5, 4, 2, kernel.device)
    for score_weight in (0.0, 1.0):
        first, changed = (step(kernel, leaves, mcl.WTA(), score_weight=score_weight).loss for _ in range(2))
        expected = torch.autograd.grad(first, leaves[0])
        changed += 1
        assert_close(changed.detach(), first.detach() + 1)
        assert_close(torch.autograd.grad(changed, leaves[0]), expected)


def test_everything_else_is_left_to_the_definition(kernel):
    hypotheses, logits, targets = leaves = drawn(6, 5, 2, kernel.device)
    two = torch.randn(6, 2, 2, device=kernel.device)
    others = [
        problem(leaves, mcl.TopK(2)),
        problem(leaves, mcl.AnnealedWTA(torch.tensor(0.3, device=kernel.device))),
        problem(leaves, mcl.AnnealedWTA(math.inf)),
        problem(leaves, mcl.WTA(), cost_fn=mcl.pairwise_l1),
        problem(leaves, mcl.WTA(), scores=mcl.SoftmaxScores()),
        problem(leaves, mcl.WTA(), scores=mcl.SigmoidScores(None)),
        problem(leaves, mcl.WTA(), sample_weights=torch.ones(6, device=kernel.device)),
        problem([hypotheses, logits, two], mcl.WTA()),
    ]
    for each in others:
        assert fused_step(kernel.losses, each) is NotImplemented
        assert step_output(each).loss.isfinite()
    for options in ({"loss_fn": mcl.pairwise_l1}, {"mask": torch.ones(6, 1, dtype=torch.bool)}, {"stacked": True}):
        assert kernels.step(problem(leaves, mcl.WTA(), **options)) is NotImplemented
    with debug_checks():
        assert step(kernel, leaves, mcl.WTA()) is NotImplemented
    assert not kernel.supports(*step_tensors(problem([hypotheses.double(), logits, targets], mcl.WTA())))
    assert kernel.losses(torch.randn(1, 3, 33), torch.randn(1, 1, 33), None, 0.0, 0.0) is NotImplemented


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch.compile itself
@pytest.mark.slow
def test_a_step_is_fused_in_plain_eager_mode():
    device = "cuda" if HAS_GPU else "cpu"
    leaves = drawn(6, 5, 2, device)
    assert (faster("step", problem(leaves, mcl.WTA())) is not NotImplemented) == (HAS_GPU or available())

    def loss(hypotheses, logits, targets):
        model = lambda _: mcl.Predictions(hypotheses, logits)  # noqa: E731
        return mcl.mcl_step(model, mcl.Batch(targets, targets), mcl.WTA()).loss

    assert_close(torch.compile(loss, fullgraph=True)(*leaves), loss(*leaves))


@only_in_c
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_large_batch_is_shared_among_threads_bit_for_bit(n_threads, kernel):
    leaves = drawn(2100, 49, 2, "cpu")
    leaves[2].requires_grad_(False)  # the gradient of targets is left to torch, whose bits change with its threads
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        output = step(kernel, leaves, mcl.AnnealedWTA(0.3))
        gradients = torch.autograd.grad(output.loss, leaves[:2])
        torch.set_num_threads(2)
        other = step(kernel, leaves, mcl.AnnealedWTA(0.3))
        pairs = zip(gradients, torch.autograd.grad(other.loss, leaves[:2]), strict=True)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(output.loss, other.loss)
    assert all(torch.equal(one, another) for one, another in pairs)
    twins, expected = defined(leaves, mcl.AnnealedWTA(0.3))
    for actual, right in zip(gradients, torch.autograd.grad(expected.loss, twins[:2]), strict=True):
        assert_same(actual, right)


def test_a_cost_declared_as_the_squared_distance_is_served(kernel):
    @declare_cost(event_dims=1, formula=NormFormula(order=2, power=2))
    def own(*, hypotheses, targets):
        raise AssertionError("the kernel replaces it")

    leaves = drawn(6, 5, 2, kernel.device)
    assert_close(step(kernel, leaves, mcl.WTA(), cost_fn=own).loss, step(kernel, leaves, mcl.WTA()).loss)
