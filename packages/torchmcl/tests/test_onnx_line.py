"""Mixtures of normal kernels as ONNX graphs: the sets are those of the compiled loops."""

import numpy as np
import pytest
import torch

from onnx_models import check_same_sets, run
from torchmcl._onnx import line
from torchmcl._onnx.graph import Graph
from torchmcl.accel.native.extension import available
from torchmcl.density import KernelMixture
from torchmcl.density.on_line import HighestDensitySet

pytest.importorskip("onnx")
pytestmark = pytest.mark.skipif(not available(), reason="the definition of the sets without the extension is a grid")


def sets_of(path, kernels, mass, fill):
    g = Graph("test")
    n = kernels[0].shape[1]
    values = [g.input(name, np.float64, ["rows", n]) for name in ("centres", "shares", "widths")]
    lower, upper = line.highest_density(line.LineKernels(*values, n), mass, fill)
    g.output("lower", lower, ["rows", "pieces"])
    g.output("upper", upper, ["rows", "pieces"])
    g.save(path, {})
    return run(path, dict(zip(("centres", "shares", "widths"), kernels, strict=True)))


@pytest.mark.parametrize("fill", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("mass", [0.5, 0.9])
@pytest.mark.parametrize(("n_kernels", "spread"), [(1, 1.0), (5, 2.0), (20, 100.0), (90, 1.0)])
def test_sets_are_those_of_the_compiled_loops(tmp_path, n_kernels, spread, mass, fill):
    rng = np.random.default_rng(n_kernels)
    shares = rng.random((200, n_kernels))
    kernels = [
        spread * rng.normal(size=shares.shape),
        shares / shares.sum(axis=1, keepdims=True),
        rng.uniform(0.3, 1, shares.shape),
    ]
    found = sets_of(tmp_path / "sets.onnx", kernels, mass, fill)
    centres, probabilities, widths = (torch.from_numpy(part) for part in kernels)
    expected = KernelMixture(centres.unsqueeze(-1), probabilities, widths).highest_density(mass, fill)
    if n_kernels == 20 and fill == 1:
        assert expected.lower.shape[1] > 8
    found = {name: np.where(np.isinf(ends), np.nan, ends) for name, ends in found.items()}
    check_same_sets(found, HighestDensitySet(*(ends.numpy() for ends in expected)))
