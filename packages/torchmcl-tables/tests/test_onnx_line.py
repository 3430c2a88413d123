"""Mixtures of normal kernels as ONNX graphs: points and sets are those of the compiled loops."""

import numpy as np
import pytest
import torch

from onnx_models import check_same_points, check_same_sets, run
from torchmcl.density import HighestDensitySet, Mixture, best_points
from torchmcl_fleet.native.extension import available
from torchmcl_tables.onnx import line, points
from torchmcl_tables.onnx.graph import Graph

pytest.importorskip("onnx")
pytestmark = pytest.mark.skipif(not available(), reason="the definition of the sets without the extension is a grid")


def mixtures(n_kernels, spread):
    """Return centers, shares and widths of kernels, [rows, kernels] each."""
    rng = np.random.default_rng(n_kernels)
    shares = rng.random((100, n_kernels))
    shares /= shares.sum(axis=1, keepdims=True)
    return spread * rng.normal(size=shares.shape), shares, rng.uniform(0.3, 1, shares.shape)


def as_density(kernels):
    centres, shares, widths = (torch.from_numpy(part) for part in kernels)
    return Mixture(centres.unsqueeze(-1), shares, widths.unsqueeze(-1))


def computed(path, kernels, names, compute):
    """Return what a graph computes from kernels, by name."""
    g = Graph("test")
    n = kernels[0].shape[1]
    values = [g.input(name, np.float64, ["rows", n]) for name in ("centres", "shares", "widths")]
    for name, value in zip(names, compute(line.LineKernels(*values, n)), strict=True):
        g.output(name, value, ["rows", "columns"])
    g.save(path, {})
    return run(path, dict(zip(("centres", "shares", "widths"), kernels, strict=True)))


@pytest.mark.parametrize(("n_points", "n_kernels", "spread"), [(1, 5, 2), (2, 1, 1), (5, 3, 2), (5, 60, 2), (9, 20, 9)])
def test_points_are_those_of_the_compiled_loops(tmp_path, n_points, n_kernels, spread):
    kernels, names = mixtures(n_kernels, spread), ("points", "masses", "deviations")
    found = computed(tmp_path / "points.onnx", kernels, names, lambda k: points.best_points(k, n_points))
    expected = best_points(as_density(kernels), n_points)
    wanted = expected.points[..., 0].numpy(), expected.masses.numpy()
    check_same_points((found["points"], found["masses"]), wanted, share=0.99)
    near = np.isclose(found["deviations"], expected.deviations.numpy(), rtol=1e-4)
    assert near.all(axis=1).mean() >= 0.99


@pytest.mark.parametrize("n_points", [3, 5])
def test_of_equally_good_points_both_choose_the_lowest(tmp_path, n_points):
    """Two equal branches have two best sets of an odd number of points."""
    centres = np.array([[-1.0, 1.0]]) * np.linspace(1, 8, 100)[:, None]
    kernels = centres, np.full_like(centres, 0.5), np.full_like(centres, 0.4)
    names = ("points", "masses", "deviations")
    found = computed(tmp_path / "points.onnx", kernels, names, lambda k: points.best_points(k, n_points))
    expected = best_points(as_density(kernels), n_points)
    assert ((expected.points[..., 0] < 0).sum(dim=-1) > n_points // 2).all()
    wanted = expected.points[..., 0].numpy(), expected.masses.numpy()
    check_same_points((found["points"], found["masses"]), wanted, share=1.0)


@pytest.mark.parametrize("shares", [[0.97, 0.01, 0.01, 0.005, 0.005], [0.2] * 5])
def test_points_of_far_and_light_kernels_are_those_of_the_compiled_loops(tmp_path, shares):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 3.0, -30.0, 100.0, -400.0]]) + rng.normal(size=(100, 5))
    kernels = centres, np.tile(shares, (100, 1)), rng.uniform(0.1, 2, (100, 5))
    names = ("points", "masses", "deviations")
    found = computed(tmp_path / "points.onnx", kernels, names, lambda k: points.best_points(k, 4))
    expected = best_points(as_density(kernels), 4)
    wanted = expected.points[..., 0].numpy(), expected.masses.numpy()
    check_same_points((found["points"], found["masses"]), wanted, share=0.99)


@pytest.mark.parametrize("fill", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("mass", [0.5, 0.9])
@pytest.mark.parametrize(("n_kernels", "spread"), [(1, 1.0), (5, 2.0), (20, 100.0), (90, 1.0)])
def test_sets_are_those_of_the_compiled_loops(tmp_path, n_kernels, spread, mass, fill):
    kernels = mixtures(n_kernels, spread)
    names = ("lower", "upper")
    found = computed(tmp_path / "sets.onnx", kernels, names, lambda k: line.highest_density(k, mass, fill))
    expected = as_density(kernels).highest_density(mass, fill)
    if n_kernels == 20 and fill == 1:
        assert expected.lower.shape[1] > 8
    found = {name: np.where(np.isinf(ends), np.nan, ends) for name, ends in found.items()}
    check_same_sets(found, HighestDensitySet(*(ends.numpy() for ends in expected)))
