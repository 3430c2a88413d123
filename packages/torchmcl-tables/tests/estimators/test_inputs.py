"""How columns become inputs: knots where values repeat."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tables import QUICK as USUAL
from tables import forked
from torchmcl_tables.estimators import MCLClassifier, MCLRegressor, _base
from torchmcl_tables.estimators._inputs import Bends, Scaler, values_repeat

# What is asked here is which inputs there are, not how well they were learnt.
QUICK = {**USUAL, "n_epochs": 2, "n_restarts": 1}
RULED = {**QUICK, "rule": "annealed"}


def bends(rows, n_knots, weights=None):
    weights = np.ones(len(rows)) if weights is None else weights
    return Bends.of(Scaler.of(rows, weights), rows, weights, n_knots)


def steps(n=400, seed=0):
    """Return a table of levels whose answer jumps from level to level."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 12, size=(n, 2)).astype(float)
    heights = np.random.default_rng(9).normal(size=(2, 12))
    return X, heights[0, X[:, 0].astype(int)] + heights[1, X[:, 1].astype(int)]


def test_inputs_are_the_column_and_its_way_between_the_knots():
    rows = np.array([[0.0], [1.0], [2.0], [4.0]])
    encoded = bends(rows, 10)(np.array([[-5.0], [0.0], [0.5], [3.0], [9.0]]), np.float64)
    np.testing.assert_allclose(encoded[:, 0], (np.array([-5, 0, 0.5, 3, 9]) - 1.75) / rows.std())
    np.testing.assert_allclose(encoded[:, 1:], [[0, 0, 0], [0, 0, 0], [0.5, 0, 0], [1, 1, 0.5], [1, 1, 1]])


def test_many_values_have_knots_at_their_quantiles():
    rows = np.random.default_rng(0).exponential(size=(1001, 1))
    (knots,) = bends(rows, 5).knots
    np.testing.assert_allclose(knots, np.quantile(rows, [0, 0.25, 0.5, 0.75, 1]), atol=0.02)


def test_a_weight_of_two_is_a_row_that_stands_twice():
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(300, 2)), rng.integers(1, 4, size=300)
    once, often = bends(rows, 7, weights.astype(float)), bends(rows.repeat(weights, axis=0), 7)
    for mine, theirs in zip(once.knots, often.knots, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_columns_of_two_values_or_one_add_nothing():
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    encoder = bends(rows, 33)
    assert encoder.n_columns == 2
    np.testing.assert_array_equal(encoder(rows), encoder.scaler(rows))


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.integers(1, 12),
    st.lists(st.floats(-1e7, 1e7, width=32), min_size=1, max_size=10),
)
def test_places_between_knots_rise_from_0_to_1(column, n_knots, asked):
    encoder = bends(np.array(column)[:, None], n_knots)
    assert all((np.diff(knots) > 0).all() for knots in encoder.knots)
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
    assert values_repeat(levels)
    assert values_repeat(np.hstack([levels, numbers]))
    assert not values_repeat(np.hstack([levels, numbers, -numbers]))


def test_rows_that_stand_twice_are_no_values_that_repeat():
    X, y = forked(200)
    assert isinstance(MCLRegressor(**RULED).fit(X.repeat(3, axis=0), y.repeat(3))._inputs, Scaler)


def test_networks_of_a_rule_have_knots_by_default_where_values_repeat():
    X, y = steps()
    model = MCLRegressor(**RULED).fit(X, y)
    assert isinstance(model._inputs, Bends)
    assert model.modules_[0].trunk[0].in_features == 2 + 2 * 11
    smooth = MCLRegressor(**RULED).fit(*forked())
    assert isinstance(smooth._inputs, Scaler)
    assert isinstance(MCLRegressor(**RULED, n_knots=0).fit(X, y)._inputs, Scaler)
    assert [len(knots) for knots in MCLRegressor(**RULED, n_knots=4).fit(*forked())._inputs.knots] == [4, 4]
    assert isinstance(MCLRegressor(**RULED).partial_fit(X, y)._inputs, Scaler)


def test_large_tables_go_without_knots(monkeypatch):
    X, y = steps()
    monkeypatch.setattr(_base, "MANY_ROWS", 100)
    assert isinstance(MCLRegressor(**RULED).fit(X, y)._inputs, Scaler)


def test_steps_are_learnt_with_knots():
    X, y = steps()
    fresh, truth = steps(seed=1)
    errors = [
        np.mean(
            (
                MCLRegressor(n_hypotheses=1, rule="annealed", n_knots=n, n_restarts=1, n_epochs=60, random_state=0)
                .fit(X, y)
                .predict(fresh)
                - truth
            )
            ** 2
        )
        for n in (None, 0)
    ]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("n_knots", [0, 5])
def test_a_value_that_is_missing_in_no_other_row_is_a_mean_one(n_knots):
    rows = np.random.default_rng(0).normal(size=(30, 2))
    encoder = bends(rows, n_knots) if n_knots else Scaler.of(rows, np.ones(30))
    mean = rows[:1].copy()
    mean[0, 1] = rows[:, 1].mean()
    missing = np.where([[False, True]], np.nan, mean)
    np.testing.assert_allclose(encoder(missing, np.float64), encoder(mean, np.float64), atol=1e-12)
    for one, two in zip(encoder.places(missing), encoder.places(mean), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("rule", [None, "annealed"])
def test_a_value_that_is_missing_in_a_held_out_row_only_does_no_harm(rule):
    X, y = forked(40)
    for row in range(0, 40, 5):  # in whatever share it is
        gappy = X.copy()
        gappy[row, 0] = np.nan
        model = MCLRegressor(**{**QUICK, "n_epochs": 1, "n_knots": None, "rule": rule}).fit(gappy, y)
        assert np.isfinite(model.transform(gappy)).all()
    whole = MCLRegressor(**QUICK, rule=rule).fit(X, y)
    assert np.isfinite(whole.predict([[np.nan, 0.5], [np.nan, np.nan]])).all()


def test_knots_are_saved(tmp_path):
    X, y = steps()
    model = MCLRegressor(**{**QUICK, "n_restarts": 2}).fit(X, y)
    model.save(tmp_path / "model")
    loaded = MCLRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.n_knots is None
    loaded.partial_fit(X, y)


def test_the_classifier_takes_knots_when_told():
    X, y = steps()
    labels = (y > 0).astype(int)
    assert isinstance(MCLClassifier(**QUICK).fit(X, labels)._inputs, Scaler)
    model = MCLClassifier(**USUAL, n_knots=8).fit(X, labels)
    assert isinstance(model._inputs, Bends)
    assert model.oracle_score(X, labels) > 0.9


@pytest.mark.parametrize("value", [-1, 2.5, True, "many"])
def test_a_number_of_knots_that_is_none_is_refused(value):
    with pytest.raises((TypeError, ValueError), match="`n_knots` must"):
        MCLRegressor(n_knots=value).fit(*forked())
