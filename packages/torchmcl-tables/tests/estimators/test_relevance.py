"""Columns without relevance are made small for the networks without bins."""

import numpy as np
import pytest

from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators.preprocessing import MissingIndicators, Scaler, fit_encoder
from torchmcl_tables.estimators.relevance import relevance_of, scaled
from torchmcl_tables.estimators.rows import Rows


def rows(n, weights=None, missing=False):
    inputs = np.random.default_rng(0).normal(size=(n, 4))
    targets = inputs[:, 1:2] + 0.5 * inputs[:, 3:]
    if missing:
        inputs[::5, 0] = np.nan
    return Rows(inputs, targets, np.ones(n) if weights is None else weights, np.arange(n))


@pytest.mark.parametrize("missing", [False, True])
def test_columns_that_explain_the_target_are_relevant(missing):
    given = rows(400, missing=missing)
    encoder = fit_encoder(given, 0)
    assert isinstance(encoder, MissingIndicators if missing else Scaler)
    found = relevance_of(encoder, given, given.targets, 0)
    assert found.shape == (4,)
    assert found[1] == 1
    assert found[3] == pytest.approx(0.5, abs=0.15)  # the square root of its share
    assert (found[[0, 2]] < 0.25).all()
    smaller, plain = scaled(encoder, found)(given.inputs), encoder(given.inputs)
    assert smaller[:, -4:] == pytest.approx(plain[:, -4:] * found, rel=1e-5, abs=1e-6)
    assert np.array_equal(smaller[:, :-4], plain[:, :-4])


def test_several_outputs_and_weights_of_any_unit():
    given, twice = rows(200), rows(200, weights=np.full(200, 2.0))
    encoder, both = fit_encoder(given, 0), np.concatenate([given.targets, -given.targets], axis=1)
    first, second = (relevance_of(encoder, each, both, 0) for each in (given, twice))
    assert np.array_equal(first, second)
    assert first.argmax() == 1


def test_a_column_that_tells_nothing_is_kept_small():
    given = rows(50)  # just enough
    given.inputs[:, 2] = 7.0
    found = relevance_of(fit_encoder(given, 0), given, given.targets, 0)
    assert found[1] == 1
    assert found[2] == 0.01


def test_a_few_rows_or_a_constant_target_tell_nothing():
    few, flat = rows(49), rows(100)
    assert (relevance_of(fit_encoder(few, 0), few, few.targets, 0) == 1).all()
    assert (relevance_of(fit_encoder(flat, 0), flat, np.zeros((100, 1)), 0) == 1).all()


def test_irrelevant_columns_disturb_less():
    X = np.random.default_rng(0).normal(size=(500, 20))
    y = np.sin(2 * X[:, 0]) * X[:, 1]
    quick = {"n_epochs": 60, "n_restarts": 2, "random_state": 0}
    errors = [
        np.abs(DensityRegressor(**quick | options).fit(X[:300], y[:300]).predict(X[300:]) - y[300:]).mean()
        for options in ({"n_bins": 0}, {})
    ]
    assert errors[1] < 0.9 * errors[0]
