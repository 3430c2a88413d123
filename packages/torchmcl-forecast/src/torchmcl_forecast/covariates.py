"""Covariates as inputs of the network: columns other than the values, with known or unknown future."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl_forecast.frames import Panel

__all__ = ["find_scaling", "padded_covariates", "scaled", "standardized", "windows_of_covariates"]

# Standardized covariates are clipped to this magnitude.
_FARTHEST = 10.0


def find_scaling(panel: Panel) -> NDArray[np.float64]:
    """Return the mean and the standard deviation of each covariate over all series, [covariates, 2]."""
    if panel.covariates is None:
        return np.zeros((0, 2))
    rows = panel.covariates.reshape(-1, panel.covariates.shape[-1])
    known = [row[~np.isnan(row)] for row in rows.T]
    return np.array([(row.mean(), row.std() or 1.0) if len(row) else (0.0, 1.0) for row in known])


def scaled(panel: Panel, scaling: NDArray[np.float64]) -> Panel:
    """Standardize the covariates of a panel, and fill missing ones with the last known value, or with the mean.

    Example:
        >>> from torchmcl_forecast.grids import Grid
        >>> covariates = np.array([[[np.nan], [3.0], [np.nan]]])
        >>> panel = Panel(np.array(["a"]), np.array([3]), np.zeros((1, 3)), Grid("number", 1.0), covariates=covariates)
        >>> scaled(panel, np.array([[1.0, 2.0]])).covariates[0, :, 0]
        array([0., 1., 1.])
    """
    if panel.covariates is None:
        return panel
    values = standardized(panel.covariates, scaling)
    known = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(known, np.arange(values.shape[1])[:, None], 0), axis=1)
    values = np.nan_to_num(np.take_along_axis(values, last, axis=1))
    return replace(panel, covariates=values)


def standardized(values: NDArray[np.float64], scaling: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standardize values [..., covariates] as in the fit."""
    return np.clip((values - scaling[:, 0]) / scaling[:, 1], -_FARTHEST, _FARTHEST)


def padded_covariates(panel: Panel, past: int, horizon: int) -> Tensor:
    """Return covariates padded at both ends, [series, past + times + horizon, covariates]."""
    if panel.covariates is None:
        return torch.zeros(len(panel.names), past + panel.values.shape[1] + horizon, 0)
    padded = np.pad(panel.covariates, ((0, 0), (past, horizon), (0, 0)))
    if panel.future is not None:
        padded[:, -horizon:, : panel.future.shape[-1]] = panel.future
    return torch.from_numpy(padded.astype(np.float32))


def windows_of_covariates(values: Tensor, n_known: int, n_recent: int) -> Tensor:
    """Flatten the covariates of windows: the known covariates over the horizon, and all covariates over recent steps.

    Args:
        values: Covariates [..., recent + horizon, covariates].
        n_known: Number of covariates with known future values, which come first.
        n_recent: Number of steps before the horizon.
    """
    return torch.cat([values[..., n_recent:, :n_known].flatten(-2), values[..., :n_recent, :].flatten(-2)], dim=-1)
