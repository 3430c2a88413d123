"""Columns without relevance are made small for the networks without bins."""

import numpy as np
import pytest

from torchmcl_tables.estimators.density import relevance_of
from torchmcl_tables.estimators.rows import Encoder, Rows


def rows(n, weights=None, missing=False):
    inputs = np.random.default_rng(0).normal(size=(n, 4))
    targets = inputs[:, 1:2] + 0.5 * inputs[:, 3:]
    if missing:
        inputs[::5, 0] = np.nan
    return Rows(inputs, targets, np.ones(n) if weights is None else weights, np.arange(n))


@pytest.mark.parametrize("missing", [False, True])
def test_columns_that_explain_the_target_are_relevant(missing):
    train = rows(400, missing=missing)
    encoder = Encoder.fit(train, 0)
    relevance = relevance_of(encoder, train, train.targets, 0)
    assert relevance[1] == 1
    assert relevance[3] == pytest.approx(0.5, abs=0.15)
    assert (relevance[[0, 2]] < 0.25).all()
    smaller, plain = encoder.scaled(relevance)(train.inputs), encoder(train.inputs)
    assert smaller == pytest.approx(plain * encoder.repeated(relevance), rel=1e-5, abs=1e-6)
    assert encoder.n_columns == 4 + missing


def test_relevance_does_not_depend_on_the_unit_of_weights():
    train, twice = rows(200), rows(200, weights=np.full(200, 2.0))
    encoder, both = Encoder.fit(train, 0), np.concatenate([train.targets, -train.targets], axis=1)
    assert np.array_equal(relevance_of(encoder, train, both, 0), relevance_of(encoder, twice, both, 0))


def test_all_columns_are_relevant_with_few_rows_or_a_constant_target():
    few, flat = rows(49), rows(100)
    assert (relevance_of(Encoder.fit(few, 0), few, few.targets, 0) == 1).all()
    assert (relevance_of(Encoder.fit(flat, 0), flat, np.zeros((100, 1)), 0) == 1).all()
