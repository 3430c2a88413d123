"""Encoders of columns: bins where values repeat, and missing values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tables import QUICK as USUAL
from tables import forked
from torchmcl_tables import Cooling, MCLClassifier, MCLRegressor
from torchmcl_tables.estimators.rows import Encoder, Rows

# What is asked here is which inputs there are, not how well they were learnt.
QUICK = {**USUAL, "n_epochs": 2, "n_restarts": 1}


def binned(rows, n_bins, weights=None):
    weights = np.ones(len(rows)) if weights is None else weights
    return Encoder.fit(Rows(rows, rows, weights, np.arange(len(rows))), n_bins)


def encoder_of(model):
    return model._fitted.predictive.encoder if isinstance(model, MCLRegressor) else model._mixture.encoder


def steps(n=400, seed=0):
    """Return a table of levels whose answer jumps from level to level."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 12, size=(n, 2)).astype(float)
    heights = np.random.default_rng(9).normal(size=(2, 12))
    return X, heights[0, X[:, 0].astype(int)] + heights[1, X[:, 1].astype(int)]


def test_inputs_are_the_column_and_its_way_between_the_bins():
    rows = np.array([[0.0], [1.0], [2.0], [4.0]])
    encoded = binned(rows, 9)(np.array([[-5.0], [0.0], [0.5], [3.0], [9.0]]), np.float64)
    np.testing.assert_allclose(encoded[:, 0], (np.array([-5, 0, 0.5, 3, 9]) - 1.75) / rows.std())
    np.testing.assert_allclose(encoded[:, 1:], [[0, 0, 0], [0, 0, 0], [0.5, 0, 0], [1, 1, 0.5], [1, 1, 1]])


def test_many_values_have_bins_at_their_quantiles():
    rows = np.random.default_rng(0).exponential(size=(1001, 1))
    (edges,) = binned(rows, 4).edges
    np.testing.assert_allclose(edges, np.quantile(rows, [0, 0.25, 0.5, 0.75, 1]), atol=0.02)


def test_a_weight_of_two_is_a_row_that_stands_twice():
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(300, 2)), rng.integers(1, 4, size=300)
    once, often = binned(rows, 6, weights.astype(float)), binned(rows.repeat(weights, axis=0), 6)
    for mine, theirs in zip(once.edges, often.edges, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_columns_of_two_values_or_one_add_nothing():
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    encoder = binned(rows, 32)
    assert encoder.n_columns == 2
    np.testing.assert_array_equal(encoder(rows), encoder.dense(rows))


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.integers(1, 12),
    st.lists(st.floats(-1e7, 1e7, width=32), min_size=1, max_size=10),
)
def test_places_between_bins_rise_from_0_to_1(column, n_bins, asked):
    encoder = binned(np.array(column)[:, None], n_bins)
    assert all((np.diff(edges) > 0).all() for edges in encoder.edges)
    encoded = encoder(np.sort(np.array(asked))[:, None], np.float64)
    assert encoded.shape == (len(asked), encoder.n_columns)
    assert np.isfinite(encoded).all()
    places = encoded[:, 1:]
    assert ((places >= 0) & (places <= 1)).all()
    assert (np.diff(places, axis=0) >= 0).all()
    assert (np.diff(places, axis=1) <= 0).all()  # a knot is reached after those before it


def test_values_repeat_in_half_of_the_columns():
    rng = np.random.default_rng(0)
    levels, numbers = rng.integers(0, 9, size=(100, 1)), rng.normal(size=(100, 1))

    def has_bins(X):
        return binned(X, None).has_bins

    assert has_bins(levels)
    assert has_bins(np.hstack([levels, numbers]))
    assert not has_bins(np.hstack([levels, numbers, -numbers]))


def test_networks_of_a_rule_have_bins_by_default_where_values_repeat():
    X, y = steps()
    model = MCLRegressor(**QUICK).fit(X, y)
    assert encoder_of(model).has_bins
    assert model.modules_[0].trunk[0].in_features == 2 + 2 * 11
    assert not encoder_of(MCLRegressor(**QUICK).fit(*forked())).has_bins
    assert not encoder_of(MCLRegressor(**QUICK, n_bins=0).fit(X, y)).has_bins
    assert [len(edges) for edges in encoder_of(MCLRegressor(**QUICK, n_bins=3).fit(*forked())).edges] == [4, 4]
    assert not encoder_of(MCLRegressor(**QUICK).partial_fit(X, y)).has_bins


def test_steps_are_learnt_with_bins():
    X, y = steps()
    fresh, truth = steps(seed=1)
    errors = [
        np.mean(
            (
                MCLRegressor(n_hypotheses=1, rule=Cooling(), n_bins=n, n_restarts=1, n_epochs=60, random_state=0)
                .fit(X, y)
                .predict(fresh)
                - truth
            )
            ** 2
        )
        for n in (None, 0)
    ]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("n_bins", [0, 4])
def test_a_value_that_is_missing_in_no_other_row_is_a_mean_one(n_bins):
    rows = np.random.default_rng(0).normal(size=(30, 2))
    encoder = binned(rows, n_bins)
    mean = rows[:1].copy()
    mean[0, 1] = rows[:, 1].mean()
    missing = np.where([[False, True]], np.nan, mean)
    np.testing.assert_allclose(encoder(missing, np.float64), encoder(mean, np.float64), atol=1e-12)


def test_the_classifier_takes_bins_when_told():
    X, y = steps()
    labels = (y > 0).astype(int)
    assert not encoder_of(MCLClassifier(**QUICK).fit(X, labels)).has_bins
    model = MCLClassifier(**USUAL, n_bins=7).fit(X, labels)
    assert encoder_of(model).has_bins
    assert model.oracle_score(X, labels) > 0.9
