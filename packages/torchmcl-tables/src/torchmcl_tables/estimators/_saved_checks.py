"""Checks of fitted parts from a file: their numbers are finite, and no size asks for more memory than a fit needs.

A file may have been written by others. What would only fail, or never end, when rows are answered for is found when the
file is read.
"""

from typing import Any

import numpy as np
import torch

from torchmcl._checks import bad_value
from torchmcl_tables.estimators._blend import Blend
from torchmcl_tables.estimators._forest import Forest
from torchmcl_tables.estimators._inputs import Gaps, Scaler

__all__ = ["check_estimator", "check_record"]

# Every row asks for memory in proportion to these. Fits use 50 trees; answers beyond thousands stand for nothing.
_MOST_TREES, _MOST_POINTS = 1000, 10_000


def check_record(record: Any) -> Any:
    """Return a part of a fitted estimator after checking it.

    Raises:
        ValueError: if its numbers are not finite or positive where they must be, or its sizes are too large.
    """
    if isinstance(record, Scaler):
        _check_numbers("the means of a scaler", record.mean)
        _check_numbers("the scales of a scaler", record.scale, positive=True)
        if record.mean.shape != record.scale.shape:
            raise ValueError("the means and scales of a scaler have different lengths")
    elif isinstance(record, Gaps):
        _check_numbers("the means of missing numbers", record.means)
    elif isinstance(record, Forest):
        _check_numbers("the values of a forest", record.values)
        _check_numbers("the spreads of a forest", record.spreads)
        if record.n_trees > _MOST_TREES:
            raise ValueError(bad_value("forest", "roots", f"be at most {_MOST_TREES:,}", f"{record.n_trees:,}"))
    elif isinstance(record, Blend):
        _check_blend(record)
    return record


def check_estimator(estimator: Any) -> None:
    """Check the numbers of a fitted estimator that decide on memory, and those that answers are multiplied by.

    Raises:
        ValueError: if they are impossible.
    """
    for name in ("n_hypotheses", "_n_points"):
        count = getattr(estimator, name, 1)
        if not isinstance(count, int) or not 1 <= count <= _MOST_POINTS:
            raise ValueError(bad_value("estimator", name, f"be an integer from 1 to {_MOST_POINTS:,}", repr(count)))
    if (bandwidth := getattr(estimator, "bandwidth_", None)) is not None:
        _check_numbers("the numbers of the bandwidth", np.array([bandwidth.floor, bandwidth.spread], dtype=np.float64))
    if (temperature := getattr(estimator, "temperature_", None)) is not None:
        _check_numbers("the temperatures", np.asarray(temperature, dtype=np.float64), positive=True)
    for module in getattr(estimator, "modules_", ()):
        if not all(bool(torch.isfinite(weight).all()) for weight in module.state_dict().values()):
            raise ValueError("the weights of a network are not finite")
    blend = getattr(estimator, "_blend", None)
    if blend is not None and sum(blend.n_networks) != len(estimator.modules_):
        raise ValueError("a blend has another number of networks than the estimator")


def _check_blend(blend: Blend) -> None:
    shares = np.asarray(blend.shares, dtype=np.float64)
    _check_numbers("the shares of a blend", shares)
    n_members = len(blend.encoders) + (blend.forest is not None) + 1
    if shares.shape != (n_members,) or (shares < 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"the shares of a blend of {n_members} members are not {n_members} that sum to 1")
    counts = blend.n_networks
    if len(counts) != len(blend.encoders) or not all(isinstance(count, int) and count > 0 for count in counts):
        raise ValueError("the numbers of networks of a blend are impossible")
    _check_numbers("the widths of a blend", np.array([blend.factor, blend.floor], dtype=np.float64), positive=True)
    if blend.stretches is not None:
        _check_numbers("the stretches of a blend", blend.stretches, positive=True)
    if not 0 <= blend.trim < 0.5:
        raise ValueError(bad_value("blend", "trim", "lie in [0, 0.5)", repr(blend.trim)))
    if blend.atoms is not None:
        _check_numbers("the atoms of a blend", blend.atoms)


def _check_numbers(what: str, numbers: Any, *, positive: bool = False) -> None:
    numbers = np.asarray(numbers, dtype=np.float64)
    if not np.isfinite(numbers).all() or (positive and not (numbers > 0).all()):
        raise ValueError(f"{what} are not finite{' and positive' if positive else ''}")
