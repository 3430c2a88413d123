"""The compiled loops of `reduce` against their definition in torch."""

import subprocess
import sys

import pytest
import torch

import torchmcl as mcl
from torchmcl.accel.native.extension import available
from torchmcl.postprocess import ExpectedCost, WeightedHypotheses, expected_cost, reduce
from torchmcl.postprocess import _search as search
from torchmcl.postprocess.reducing import solved

needs_extension = pytest.mark.skipif(not available(), reason="the extension was not built")
SHAPES = [(1, 9, 1, 1), (3, 9, 1, 9), (5, 10, 3, 4), (4, 33, 5, 7), (2, 64, 2, 16), (3, 121, 24, 20), (2, 17, 31, 3)]


def problem(rows, n, dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(rows, n, dim, generator=generator)
    weights = torch.rand(rows, n, generator=generator).softmax(dim=-1)
    return points, weights


@needs_extension
@pytest.mark.parametrize(("rows", "n", "dim", "k"), SHAPES)
@pytest.mark.parametrize("exchanged", [False, True])
def test_the_same_hypotheses_are_chosen(rows, n, dim, k, exchanged):
    points, weights = problem(rows, n, dim)
    loss = torch.cdist(points, points)
    assert search.chosen.ways[0].serves(loss, weights, k)
    compiled = search.chosen(loss, weights, k, exchanged=exchanged)
    plain = search.chosen.definition(loss, weights, k, exchanged=exchanged)
    torch.testing.assert_close(compiled.sort().values, plain.sort().values)


@needs_extension
@pytest.mark.parametrize(("rows", "n", "dim", "k"), SHAPES)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_means_are_the_same(rows, n, dim, k, offset):
    points, weights = problem(rows, n, dim)
    given = WeightedHypotheses(points + offset, weights), k, mcl.pairwise_sq_euclidean, ExpectedCost(), True
    assert solved.ways[0].serves(*given)
    for compiled, plain, rtol in zip(solved(*given), solved.definition(*given), (1e-5, 1e-4), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=rtol, atol=1e-4)


@needs_extension
def test_a_row_does_not_depend_on_the_threads():
    points, weights = problem(11, 40, 3)
    n_threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(reduce(mcl.Predictions(points), 5, scores=weights).hypotheses)
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_extension
def test_weights_of_zero_and_equal_hypotheses_are_no_trouble():
    points = torch.ones(2, 20, 3)
    points[1, 10:] = 5.0
    weights = torch.zeros(2, 20)
    weights[:, [0, 19]] = 0.5
    few = reduce(mcl.Predictions(points), 4, scores=weights)
    assert few.hypotheses.isfinite().all()
    torch.testing.assert_close(expected_cost(few, mcl.Predictions(points), scores=weights), torch.zeros(2))


@needs_extension
def test_numbers_whose_squares_overflow_stay_in_range():
    points = torch.linspace(-3e30, 3e30, 20).view(1, 20, 1)
    few = reduce(mcl.Predictions(points), 3)
    assert few.hypotheses.shape == (1, 3, 1)


WITHOUT_EXTENSION = """
import sys
sys.modules["torchmcl.accel.native._native"] = None
import torch, torchmcl as mcl
from torchmcl.postprocess import expected_cost, reduce
from torchmcl.accel.native.extension import available
assert not available()
given = mcl.Predictions(torch.randn(3, 30, 2, generator=torch.Generator().manual_seed(0)))
for moved in (True, False):
    print(f"{expected_cost(reduce(given, 5, moved=moved), given).mean().item():.4f}")
"""


def test_without_the_extension_the_result_is_as_good():
    run = subprocess.run([sys.executable, "-c", WITHOUT_EXTENSION], capture_output=True, text=True, timeout=300)
    given = mcl.Predictions(torch.randn(3, 30, 2, generator=torch.Generator().manual_seed(0)))
    losses = [expected_cost(reduce(given, 5, moved=moved), given).mean().item() for moved in (True, False)]
    assert [float(x) for x in run.stdout.split()] == pytest.approx(losses, abs=1e-4), run.stderr
