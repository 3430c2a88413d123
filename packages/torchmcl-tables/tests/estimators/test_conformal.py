"""Conformal quantiles and the sets they stand for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchmcl.density import Mixture
from torchmcl.postprocess import effective_counts, quantile
from torchmcl_tables import PredictionIntervals
from torchmcl_tables.estimators.calibration import conformity, reaching, region, supported_fill


@given(n=st.integers(1, 200), alpha=st.floats(0.01, 0.99))
def test_quantile_is_the_score_of_rank_n_plus_one_times_one_minus_alpha(n, alpha):
    scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    rank = math.ceil((n + 1) * (1 - alpha) - 1e-9)
    assert quantile(scores, np.ones(n), alpha) == (math.inf if rank > n else max(rank, 1))


def test_without_rows_nothing_is_known():
    assert quantile(np.zeros(0), effective_counts(np.zeros(0), np.zeros(0, dtype=int)), 0.1) == math.inf


@pytest.mark.parametrize("weight", [1.0, 5.0, 1 / 3])
def test_rows_of_equal_weight_count_one_each(weight):
    np.testing.assert_allclose(effective_counts(np.full(7, weight), np.arange(7)), 1.0)


def test_rows_of_a_group_count_as_one_together():
    np.testing.assert_allclose(effective_counts(np.ones(6), np.array([4, 4, 9, 9, 1, 1])), 0.5)


@pytest.mark.parametrize("weights", [[1.0, 5.0, 4.0], [0.1, 0.5, 0.4]])
def test_unequal_weights_have_the_effective_number_of_kish(weights):
    counts = effective_counts(np.array(weights), np.arange(3))
    np.testing.assert_allclose(counts / counts.sum(), [0.1, 0.5, 0.4])
    assert counts.sum() == pytest.approx(100 / 42)


def population(rng, kind, n):
    """Return scores, weights and units of n rows whose score depends on their weight or their group."""
    if kind == "groups":
        sizes = rng.integers(1, 8, size=n // 4)
        units = np.repeat(np.arange(len(sizes)), sizes)
        scores = (rng.normal(size=len(sizes)) + 0.2 * sizes)[units] + 0.1 * rng.normal(size=len(units))
        return scores, np.ones(len(units)), units
    draw = {
        "equal": lambda: np.full(n, 5.0),
        "integer": lambda: rng.integers(1, 6, n),
        "uniform": lambda: rng.uniform(0, 2, n),
    }
    weights = draw[kind]().astype(float)
    return rng.normal(size=n) + 0.3 * weights, weights, np.arange(n)


@pytest.mark.parametrize("kind", ["equal", "integer", "uniform", "groups"])
@pytest.mark.parametrize(("n", "alpha"), [(25, 0.2), (60, 0.1)])
def test_the_quantile_holds_for_rows_of_the_weighted_population(kind, n, alpha):
    rng = np.random.default_rng(0)
    covered, weighed = [], []
    for _ in range(4000):
        scores, weights, units = population(rng, kind, n)
        fresh, of_fresh, _ = population(rng, kind, 100)
        covered.append(of_fresh @ (fresh <= quantile(scores, effective_counts(weights, units), alpha)))
        weighed.append(of_fresh.sum())
    # Never below by more than the noise of 4000 tables, and above by at most what a row more or less makes.
    coverage = np.sum(covered) / np.sum(weighed)
    n_effective = {"groups": n / 5}.get(kind, n / 1.4)
    assert 1 - alpha - 0.012 < coverage < 1 - alpha + 1 / n_effective


@pytest.mark.parametrize("level", [0.2, 0.7, 0.95, 7.0, 12.0])
def test_a_value_is_in_the_set_exactly_if_its_score_is_at_most_the_level(level):
    points = torch.tensor([[[-1.0], [1.0], [1.1]]], dtype=torch.float64)
    density = Mixture(points, torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64), 0.1)
    y = torch.linspace(-4, 4, 3001, dtype=torch.float64).unsqueeze(-1)
    many = density.expand((3001,))
    scores = conformity(many, y)
    inside = PredictionIntervals(*(end.numpy() for end in region(density, level))).contains(y[:, 0].numpy())
    assert (inside == (scores <= level).numpy()).mean() > 0.999  # all but values on an edge of the grid


@pytest.mark.parametrize("fill", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("bandwidth", [0.03, 0.5])
def test_scores_and_sets_agree_where_gaps_are_closed(fill, bandwidth):
    torch.manual_seed(0)
    y = torch.linspace(-7, 7, 701, dtype=torch.float64).unsqueeze(-1)
    for _ in range(6):
        points = 2 * torch.randn(1, 4, 1, dtype=torch.float64)
        density = Mixture(points, torch.rand(1, 4, dtype=torch.float64).softmax(dim=-1), bandwidth)
        scores = conformity(density.expand((701,)), y, fill)
        for level in (0.3, 0.9, 7.0):
            sets = PredictionIntervals(*(end.numpy() for end in region(density, level, fill)))
            inside, conforms = sets.contains(y[:, 0].numpy()), (scores <= level).numpy()
            assert (conforms & ~inside).sum() <= 3  # on an edge of the grid
            if fill in (0, 1):  # else gaps that open again make sets a little larger
                assert (inside & ~conforms).sum() <= 3
            if fill == 0:
                assert sets.n_pieces.tolist() == [1]


def two_branches(n, bandwidth):
    points = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).expand(n, 2, 1)
    return Mixture(points, torch.full((n, 2), 0.5, dtype=torch.float64), bandwidth)


@pytest.mark.parametrize("bandwidth", [0.05, 0.2, 0.35])
def test_gaps_that_held_out_values_keep_out_of_are_believed(bandwidth):
    density = two_branches(400, bandwidth)
    values = density.sample(generator=torch.Generator().manual_seed(0))
    fill = supported_fill(density, values)
    assert fill > 0
    assert (density.highest_density(0.9, fill).lower.isfinite().sum(dim=-1) == 2).all()


@pytest.mark.parametrize("bandwidth", [0.2, 0.35])
def test_gaps_in_which_held_out_values_lie_are_not_believed(bandwidth):
    density = two_branches(400, bandwidth)
    between = torch.randn(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fill = supported_fill(density, between)
    assert fill == 0
    assert (density.highest_density(0.9, fill).lower.isfinite().sum(dim=-1) == 1).all()


def test_a_few_rows_support_no_gap():
    density = two_branches(3, 0.2)
    assert supported_fill(density, density.sample(generator=torch.Generator().manual_seed(0))) == 0


def test_deep_gaps_may_be_believed_and_shallow_ones_not():
    deep, shallow = two_branches(300, 0.1), two_branches(300, 0.45)
    generator = torch.Generator().manual_seed(0)
    rest = torch.randn(300, 1, dtype=torch.float64, generator=generator) * 0.9
    both = Mixture(
        torch.cat([deep.hypotheses, shallow.hypotheses]),
        torch.cat([deep.probabilities, shallow.probabilities]),
        torch.cat([deep.widths, shallow.widths]),
    )
    fill = supported_fill(both, torch.cat([deep.sample(generator=generator), rest]))
    pieces = both.highest_density(0.9, fill).lower.isfinite().sum(dim=-1)
    assert (pieces[:300] == 2).all()
    assert (pieces[300:] == 1).all()


def test_an_infinite_level_is_the_whole_line():
    density = Mixture(torch.zeros(2, 1, 1), torch.ones(2, 1), 0.1)
    intervals = PredictionIntervals(*(end.numpy() for end in region(density, math.inf)))
    assert intervals.contains([1e30, -1e30]).all()
    assert np.isinf(intervals.width).all()


def test_intervals_know_their_hull_their_width_and_their_pieces():
    intervals = PredictionIntervals(np.array([[0.0, 2.0], [1.0, np.nan]]), np.array([[1.0, 5.0], [1.5, np.nan]]))
    assert [end.tolist() for end in intervals.hull] == [[0.0, 1.0], [5.0, 1.5]]
    assert intervals.width.tolist() == [4.0, 0.5]
    assert intervals.n_pieces.tolist() == [2, 1]
    assert intervals.contains([1.5, 1.2]).tolist() == [False, True]
    assert intervals.contains([[1.5], [1.2]]).tolist() == [False, True]  # a column, not every target in every set


def test_sets_reach_the_mean_across_little_mass_only():
    nan = math.nan
    lower = torch.tensor([[0.0, 4.0], [0.0, nan], [0.0, 4.0], [0.0, nan], [0.0, 4.0]])
    upper = torch.tensor([[1.0, 5.0], [1.0, nan], [1.0, 5.0], [1.0, nan], [1.0, 5.0]])
    means = torch.tensor([[-0.5], [1.5], [6.0], [-0.5], [2.0]])
    mass = torch.tensor([0.01, 0.02, 0.0, 0.03, 0.0])  # of each row, between its set and its mean
    asked = []

    def between(rows, low, high):
        assert (low < high).all()
        asked.extend(rows.tolist())
        return mass[rows]

    found = reaching((lower, upper), means, between)
    reached = torch.tensor([[-0.5, 4.0], [0.0, nan], [0.0, 4.0], [0.0, nan], [0.0, 4.0]])
    torch.testing.assert_close(found[0], reached, equal_nan=True)
    reached = torch.tensor([[1.0, 5.0], [1.5, nan], [1.0, 6.0], [1.0, nan], [1.0, 5.0]])
    torch.testing.assert_close(found[1], reached, equal_nan=True)
    assert sorted(asked) == [0, 1, 2, 3]  # the mean of the last row lies inside of its hull
    assert (lower[0, 0], upper[2, 1]) == (0.0, 5.0)  # the given ends are kept


@pytest.mark.parametrize("y", [1.5, [1.5], [[1.5, 1.2]], [1.5, 1.2, 1.0], [[1.5, 1.2], [1.0, 1.0]]])
def test_targets_of_another_shape_are_refused(y):
    intervals = PredictionIntervals(np.zeros((2, 3)), np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"contains: `y` must have the shape \(2,\), got"):
        intervals.contains(y)
