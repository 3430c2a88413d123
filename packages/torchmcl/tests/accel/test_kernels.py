"""Which way a definition is computed: by itself, by a function in torch or by a kernel; and that all agree."""

import math
import subprocess
import sys

import pytest
import torch

import torchmcl as mcl
from torchmcl import accel, scoring
from torchmcl.accel.eager import sequences
from torchmcl.accel.eager.sequences import weighted_distances
from torchmcl.costs import _parts, vector


def labelled(name):
    def function(values):
        function.calls.append(name)
        return values.square()

    function.calls = []
    return function


def test_the_first_way_that_serves_is_taken_and_forward_mode_follows_the_definition():
    kernel, lean, definition = labelled("kernel"), labelled("lean"), labelled("definition")
    unfit = accel.Way(lambda values: False, kernel)
    square = accel.accelerated(unfit, accel.in_torch(lean))(definition)
    assert square(torch.tensor(3.0)) == 9
    assert (kernel.calls, lean.calls, definition.calls) == ([], ["lean"], [])
    with torch.autograd.forward_ad.dual_level():
        square(torch.tensor(3.0))
    assert (kernel.calls, lean.calls, definition.calls) == ([], ["lean"], ["definition"])


def test_a_way_may_leave_arguments_beyond_its_limits_to_the_next():
    definition = labelled("definition")
    never = accel.Way(lambda values: True, lambda values: NotImplemented)
    assert accel.accelerated(never)(definition)(torch.tensor(3.0)) == 9
    assert definition.calls == ["definition"]


WEIGHTS = torch.rand(5, 3, 4, dtype=torch.float64)
POINTS = torch.randn(5, 4, 2, dtype=torch.float64), torch.randn(5, 3, 2, dtype=torch.float64)
PATHS = torch.randn(5, 4, 6, 2, dtype=torch.float64), torch.randn(5, 3, 6, 2, dtype=torch.float64)
WAYS_IN_TORCH = {
    "squares": (vector._sq_euclidean, POINTS),
    "long squares": (vector._sq_euclidean, [torch.cat(20 * [part], dim=-1) for part in POINTS]),
    "absolutes": (vector._l1, POINTS),
    "hubers": (vector._huber, (*POINTS, 0.5)),
    "products": (_parts._products, POINTS),
    "distances": (weighted_distances, (*PATHS, torch.rand(5, 3, 6, dtype=torch.float64))),
    "cross-entropy": (scoring._cross_entropy, (torch.randn(5, 4, dtype=torch.float64), torch.rand(5, 4).double())),
    "normal": (sequences._without_constants, (sequences.GAUSSIAN, *POINTS, POINTS[0].exp(), None)),
    "Laplace": (sequences._without_constants, (sequences.LAPLACE, *POINTS, POINTS[0].exp(), None)),
}


@pytest.mark.parametrize(("function", "arguments"), WAYS_IN_TORCH.values(), ids=WAYS_IN_TORCH)
def test_ways_in_torch_have_values_and_gradients_of_their_definition(function, arguments):
    leaves = [part.clone().requires_grad_() if isinstance(part, torch.Tensor) else part for part in arguments]
    inputs = [leaf for leaf in leaves[:3] if isinstance(leaf, torch.Tensor)][:2]
    inputs = inputs[:1] if function is scoring._cross_entropy else inputs
    ways = [way.compute for way in function.ways if way.serves(*leaves)]
    results = []
    for compute in (function.definition, *ways):
        computed = compute(*leaves)
        if computed is not NotImplemented:
            parts = computed if isinstance(computed, tuple) else (computed,)
            results.append([*parts, *torch.autograd.grad(sum(part.square().sum() for part in parts), inputs)])
    assert len(results) > 1, "no way supports these arguments: choose arguments within its limits"
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_the_decorated_function_keeps_its_name_and_docstring():
    from torchmcl.rules.winners import softmin

    assert softmin.__name__ == "softmin"
    assert softmin.__doc__.startswith("Return exp(-cost / T)")


@pytest.mark.slow
def test_the_step_is_imported_without_triton():
    program = "import sys, torchmcl.step; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


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
