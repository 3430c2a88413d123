"""Encoders of columns: bins, chosen on held-out rows, and missing values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tables import QUICK as USUAL
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


def test_tables_of_many_columns_have_no_bins_unless_the_columns_have_two_values():
    numbers = np.random.default_rng(0).normal(size=(20, 129))
    assert not binned(numbers, None).has_bins
    assert binned(numbers[:, 1:], None).has_bins
    assert binned(np.where(numbers > 0, 1.0, [1.0] + 128 * [0.0]), None).has_bins


@pytest.mark.parametrize("with_bins", [False, True])
def test_bins_are_chosen_by_the_likelihood_of_held_out_rows(with_bins):
    X, y = steps()
    if not with_bins:  # values repeat, but most of the target is noise
        y = X[:, 0] + 10 * np.random.default_rng(0).normal(size=len(X))
    settings = {**USUAL, "n_epochs": 30, "rule": Cooling(), "n_restarts": 2}
    chosen = MCLRegressor(**settings).fit(X, y)
    assert chosen.n_bins_ == 11 * with_bins
    alone = MCLRegressor(**settings, n_bins=32 * with_bins).fit(X, y)
    np.testing.assert_array_equal(chosen.predict(X), alone.predict(X))


def test_bins_can_be_set_and_need_held_out_rows_to_be_chosen():
    X, y = steps()
    assert [MCLRegressor(**QUICK, n_bins=n).fit(X, y).n_bins_ for n in (0, 3)] == [0, 3]
    assert MCLRegressor(**QUICK, validation_fraction=0.0).fit(X, y).n_bins_ == 0
    assert MCLRegressor(**QUICK).partial_fit(X, y).n_bins_ == 0


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
