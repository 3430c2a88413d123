"""Which way a definition is computed: by itself, by its lean function or by its kernel."""

import math

import pytest
import torch

import torchmcl as mcl
from torchmcl import accel


def labelled(name):
    def function(values):
        function.calls.append(name)
        return values.square()

    function.calls = []
    return function


def test_the_lean_function_is_used_and_forward_mode_follows_the_definition():
    lean, definition = labelled("lean"), labelled("definition")
    square = accel.accelerated(lean, triton="rows.no_such_kernel")(definition)
    assert square(torch.tensor(3.0)) == 9
    assert (lean.calls, definition.calls) == (["lean"], [])
    with torch.autograd.forward_ad.dual_level():
        square(torch.tensor(3.0))
    assert (lean.calls, definition.calls) == (["lean"], ["definition"])


def test_without_a_lean_function_the_definition_is_used():
    definition = labelled("definition")
    assert accel.accelerated(triton="rows.no_such_kernel")(definition)(torch.tensor(3.0)) == 9
    assert definition.calls == ["definition"]


def test_the_decorated_function_keeps_its_name_and_docstring():
    from torchmcl.rules.winners import softmin

    assert softmin.__name__ == "softmin"
    assert softmin.__doc__.startswith("Return exp(-cost / T)")


def test_kernels_are_not_usable_on_the_cpu():
    assert not accel.usable(torch.ones(3))
    assert not accel.runs_triton(torch.ones(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dim", [2, 40])
@pytest.mark.parametrize("rule", [mcl.WTA(), mcl.RelaxedWTA(0.1), mcl.AnnealedWTA(0.5), mcl.AnnealedWTA(math.inf)])
def test_a_step_on_the_gpu_equals_that_on_the_cpu(rule, dim):
    hypotheses, logits, targets = torch.randn(6, 5, dim), torch.randn(6, 5), torch.randn(6, 3, dim)

    def step(device):
        leaves = [part.to(device).requires_grad_() for part in (hypotheses, logits)]
        batch = mcl.Batch(targets.to(device), targets.to(device))
        loss = mcl.mcl_step(lambda _: mcl.Predictions(*leaves), batch, rule).loss
        return [part.cpu() for part in (loss.detach(), *torch.autograd.grad(loss, leaves))]

    torch.testing.assert_close(step("cuda"), step("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("dtype", "n_targets", "name"),
    [
        (torch.float32, 3, "_SquaredDistancesBackward"),
        (torch.float64, 3, "_LongSquaresBackward"),
        (torch.float32, 65, "_LongSquaresBackward"),  # more targets than the kernel holds
    ],
)
def test_kernels_serve_float32_on_the_gpu_within_their_limits(dtype, n_targets, name):
    hypotheses = torch.randn(6, 5, 40, device="cuda", dtype=dtype, requires_grad=True)
    targets = torch.randn(6, n_targets, 40, device="cuda", dtype=dtype)
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
    assert type(cost.grad_fn).__name__ == name
