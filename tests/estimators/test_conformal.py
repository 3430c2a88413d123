"""Conformal quantiles and the sets they stand for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchmcl.density import KernelMixture
from torchmcl.estimators import PredictionIntervals
from torchmcl.estimators._conformal import conformity, quantile, region


@given(n=st.integers(1, 200), alpha=st.floats(0.01, 0.99))
def test_quantile_is_the_score_of_rank_n_plus_one_times_one_minus_alpha(n, alpha):
    scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    rank = math.ceil((n + 1) * (1 - alpha) - 1e-9)
    assert quantile(scores, np.ones(n), alpha) == (math.inf if rank > n else max(rank, 1))


def test_whole_weights_count_as_copies_and_others_by_their_effective_number():
    scores, counts = np.array([0.3, 0.1, 0.2]), np.array([1.0, 5.0, 4.0])
    assert quantile(scores, counts, 0.2) == quantile(scores.repeat([1, 5, 4]), np.ones(10), 0.2)
    assert quantile(scores, np.full(3, 1e-3), 0.5) == quantile(scores, np.ones(3), 0.5)
    assert quantile(np.zeros(0), np.zeros(0), 0.1) == math.inf


@pytest.mark.parametrize("level", [0.2, 0.7, 0.95, 7.0, 12.0])
def test_a_value_is_in_the_set_exactly_if_its_score_is_at_most_the_level(level):
    points = torch.tensor([[[-1.0], [1.0], [1.1]]], dtype=torch.float64)
    density = KernelMixture(points, torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64), 0.1)
    y = torch.linspace(-4, 4, 3001, dtype=torch.float64).unsqueeze(-1)
    many = density.expand((3001,))
    scores = conformity(many, y)
    inside = PredictionIntervals(*(end.numpy() for end in region(density, level))).contains(y[:, 0].numpy())
    assert (inside == (scores <= level).numpy()).mean() > 0.999  # all but values on an edge of the grid


def test_an_infinite_level_is_the_whole_line():
    density = KernelMixture(torch.zeros(2, 1, 1), torch.ones(2, 1), 0.1)
    intervals = PredictionIntervals(*(end.numpy() for end in region(density, math.inf)))
    assert intervals.contains([1e30, -1e30]).all()
    assert np.isinf(intervals.width).all()


def test_intervals_know_their_hull_their_width_and_their_pieces():
    intervals = PredictionIntervals(np.array([[0.0, 2.0], [1.0, np.nan]]), np.array([[1.0, 5.0], [1.5, np.nan]]))
    assert [end.tolist() for end in intervals.hull] == [[0.0, 1.0], [5.0, 1.5]]
    assert intervals.width.tolist() == [4.0, 0.5]
    assert intervals.n_pieces.tolist() == [2, 1]
    assert intervals.contains([1.5, 1.2]).tolist() == [False, True]
