"""Functions that save memory have the values and gradients of their definitions, and kernels are optional."""

import math
import subprocess
import sys

import pytest
import torch

import torchmcl as mcl
from torchmcl.costs import chunked as sequences
from torchmcl.costs import distances
from torchmcl.costs.chunked import weighted_distances

POINTS = torch.randn(5, 4, 2, dtype=torch.float64), torch.randn(5, 3, 2, dtype=torch.float64)
PATHS = torch.randn(5, 4, 6, 2, dtype=torch.float64), torch.randn(5, 3, 6, 2, dtype=torch.float64)
LEAN = {
    "squares": (distances.squared_distances, POINTS),
    "long squares": (distances.squared_distances, [torch.cat(20 * [part], dim=-1) for part in POINTS]),
    "absolutes": (distances.sum_of_absolutes, POINTS),
    "hubers": (distances.sum_of_hubers, (*POINTS, 0.5)),
    "products": (distances.inner_products, POINTS),
    "distances": (weighted_distances, (*PATHS, torch.rand(5, 3, 6, dtype=torch.float64))),
    "normal": (sequences._without_constants, (sequences.GAUSSIAN, *POINTS, POINTS[0].exp(), None)),
    "Laplace": (sequences._without_constants, (sequences.LAPLACE, *POINTS, POINTS[0].exp(), None)),
}


@pytest.mark.parametrize(("function", "arguments"), LEAN.values(), ids=LEAN)
def test_lean_functions_have_values_and_gradients_of_their_definition(function, arguments, monkeypatch):
    monkeypatch.setattr(distances, "_FEW_ENTRIES", 0)
    leaves = [part.clone().requires_grad_() if isinstance(part, torch.Tensor) else part for part in arguments]
    inputs = [leaf for leaf in leaves[:3] if isinstance(leaf, torch.Tensor)][:2]

    def values_and_gradients():
        computed = function(*leaves)
        parts = computed if isinstance(computed, tuple) else (computed,)
        return [*parts, *torch.autograd.grad(sum(part.square().sum() for part in parts), inputs)]

    lean = values_and_gradients()
    with torch.autograd.forward_ad.dual_level():  # forward mode follows the definition
        defined = values_and_gradients()
    torch.testing.assert_close(lean, defined)


def test_without_kernels_everything_is_plain_torch():
    program = """
import os
os.environ["TORCHMCL_PURE"] = "1"
import sys, torch, torchmcl
from torchmcl import dispatch
assert dispatch.active_kernels() == "none: plain torch"
torchmcl.assign(torch.rand(2, 3, 3), torchmcl.PIT())
assert "torchmcl_fleet.kernels" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.slow
def test_the_step_is_imported_without_triton():
    program = "import sys, torchmcl.step; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


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
