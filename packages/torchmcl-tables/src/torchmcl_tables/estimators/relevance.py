"""Relevance of columns: inputs of little relevance are made small, so that networks cannot memorize rows by them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from torchmcl_tables.estimators.kernels import dense_inputs
from torchmcl_tables.estimators.preprocessing import Encoder, MissingIndicators, Scaler
from torchmcl_tables.estimators.rows import Rows

# The forest that measures the relevance of columns, its maximum number of rows, and the minimum: with fewer rows, all
# columns count as relevant.
_N_TREES, _SMALLEST_LEAF, _MAX_ROWS, _MIN_ROWS = 20, 5, 2_000, 50
_LEAST = 0.01


def relevance_of(encoder: Encoder, rows: Rows, targets: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the relevance of each column in (0, 1], 1 for the most relevant one.

    It is the square root of the share of the variance that a small forest explains by splits at the column.

    Args:
        encoder: of the rows.
        rows: to measure on.
        targets: [rows, outputs], standardized.
        seed: of the forest.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> rows = Rows(rng.normal(size=(200, 3)), np.zeros((200, 1)), np.ones(200), np.arange(200))
        >>> found = relevance_of(Scaler.fit(rows.inputs, rows.weights), rows, rows.inputs[:, 1:2], 0)
        >>> found.argmax(), bool(found[[0, 2]].max() < 0.5)
        (np.int64(1), True)
    """
    if len(rows) < _MIN_ROWS:
        return np.ones(encoder.n_inputs)
    rows, targets = rows.head(_MAX_ROWS), targets[:_MAX_ROWS]
    inputs = dense_inputs(encoder, rows.inputs)
    kinds: dict[str, Any] = {"min_samples_leaf": _SMALLEST_LEAF, "max_features": 0.5, "random_state": seed % 2**32}
    forest = RandomForestRegressor(_N_TREES, **kinds)
    known = targets[:, 0] if targets.shape[1] == 1 else targets
    forest.fit(inputs, known, sample_weight=rows.weights / rows.weights.max())
    shares = forest.feature_importances_[-encoder.n_inputs :]
    if not shares.max() > 0:
        return np.ones(encoder.n_inputs)
    return np.maximum(np.sqrt(shares / shares.max()), _LEAST)


def scaled(encoder: Encoder, relevance: NDArray[np.float64]) -> Encoder:
    """Return an encoder without bins whose columns are multiplied by their relevance.

    Example:
        >>> scaled(Scaler(np.zeros(2), np.ones(2)), np.array([1.0, 0.5]))(np.ones((1, 2)))
        array([[1. , 0.5]], dtype=float32)
    """
    if isinstance(encoder, MissingIndicators):
        inner = scaled(encoder.encoder, relevance)
        assert isinstance(inner, Scaler)
        return replace(encoder, encoder=inner)
    assert isinstance(encoder, Scaler)
    return replace(encoder, scale=encoder.scale / relevance)


def of_encoded(encoder: Encoder, relevance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the relevance of each encoded column: bins have that of their column, indicators of missing values 1.

    Example:
        >>> from torchmcl_tables.estimators.preprocessing import PiecewiseLinear
        >>> bins = PiecewiseLinear(Scaler(np.zeros(2), np.ones(2)), [np.array([0.0, 1.0]), np.arange(4.0)])
        >>> of_encoded(bins, np.array([1.0, 0.5]))
        array([1. , 0.5, 0.5, 0.5, 0.5])
    """
    if isinstance(encoder, MissingIndicators):
        return np.concatenate([np.ones(len(encoder.columns)), of_encoded(encoder.encoder, relevance)])
    if isinstance(encoder, Scaler):
        return relevance
    n_bins = [len(edges) - 1 if len(edges) > 2 else 0 for edges in encoder.edges]
    return np.concatenate([relevance, np.repeat(relevance, n_bins)])
