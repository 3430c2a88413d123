"""Baselines of the table benchmark that are networks of other packages; each is fitted to a standardized table.

RealMLP and TabM are the implementations in pytabkit with default settings, trained for 50 quantiles. They make all
choices on rows that they hold out themselves. `TORCHMCL_BASELINES_ON=cuda` trains them on a GPU. The mixture density
network of skpro has default settings, too, which hold out no rows.
"""

import contextlib
import io
import logging
import os
import warnings
from functools import partial
from typing import Any

import numpy as np

from benchmarks.tables._forecasts import (
    FINE_LEVELS,
    MID_LEVELS,
    Forecast,
    Mixture,
    Predict,
    best_points,
    of_density,
    one_interval,
)

# Middles of fifty equal shares.
LEVELS = (np.arange(50) + 0.5) / 50


def _of_quantiles(found: np.ndarray) -> Forecast:
    """Return the forecast of sorted quantiles [rows, 50]: equal atoms, and linear in between for other levels."""
    found = np.sort(found, axis=1)
    asked = np.concatenate([MID_LEVELS, [0.05, 0.95], FINE_LEVELS])
    at = np.stack([np.interp(asked, LEVELS, row) for row in found])
    interval = one_interval(at[:, 5], at[:, 6])
    fine = at[:, 7:]
    return Forecast(at[:, :5], best_points(fine), found.mean(axis=1), Mixture.of_atoms(found), interval, fine)


def _fitted(kind: str, inputs: np.ndarray, targets: np.ndarray, seed: int, n_folds: int) -> Predict:
    """Return a fitted estimator of pytabkit, the mean of `n_folds` networks if there are several."""
    from pytabkit.models.sklearn import sklearn_interfaces

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    metric = f"multi_pinball({','.join(f'{level:.2f}' for level in LEVELS)})"
    settings: dict[str, Any] = {"train_metric_name": metric, "val_metric_name": metric, "random_state": seed}
    device = os.environ.get("TORCHMCL_BASELINES_ON", "cpu")
    model = getattr(sklearn_interfaces, kind)(device=device, n_cv=n_folds, n_refit=0, **settings)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        model.fit(inputs.astype(np.float32), targets.astype(np.float32))

    def predict(rows: np.ndarray) -> Forecast:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return _of_quantiles(np.asarray(model.predict(rows.astype(np.float32)), dtype=np.float64))

    return predict


realmlp = partial(_fitted, "RealMLP_TD_Regressor", n_folds=1)
realmlp_folds = partial(_fitted, "RealMLP_TD_Regressor", n_folds=5)
tabm = partial(_fitted, "TabM_D_Regressor", n_folds=1)
tabm_folds = partial(_fitted, "TabM_D_Regressor", n_folds=5)


def skpro_mdn(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """The mixture density network of skpro with its defaults: 1000 steps of all rows at once."""
    import pandas as pd
    from skpro.regression.mdn import MDNRegressor

    model = MDNRegressor(device="cpu", random_state=seed).fit(pd.DataFrame(inputs), pd.DataFrame({"y": targets}))

    def predict(rows: np.ndarray) -> Forecast:
        found = model.predict_proba(pd.DataFrame(rows))
        weights, means, deviations = (np.asarray(part, dtype=np.float64) for part in (found.pi, found.mu, found.sigma))
        return of_density(Mixture(weights, means[..., 0], deviations[..., 0]))

    return predict
