"""Saving and loading of forecasters in a folder, without pickle."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchmcl import io
from torchmcl_forecast.frames import Panel
from torchmcl_forecast.grids import Grid
from torchmcl_forecast.network import Codebook, LinearMap, PathNetwork
from torchmcl_forecast.windows import Layout, choose_layout
from torchmcl_tables.estimators.base import estimator_codec

__all__ = ["CODEC", "FITTED", "restored", "write_fitted"]

#: Attributes of a fitted forecaster.
FITTED = (
    *("horizon_", "seasons_", "layout_", "least_", "shares_"),
    *("spread_", "correlation_", "tube_scores_"),
    *("networks_", "codebooks_", "scaling_", "_panel"),
)
_Module = TypeVar("_Module", bound=torch.nn.Module)
# Values of a file are finite, and smaller than this.
_LARGEST = 1e100

#: Codec for the parameters, which may contain rules and schedules, and for these types.
CODEC = estimator_codec(Grid, Layout, Panel)


def _network_parts(network: PathNetwork) -> dict[str, Any]:
    hidden = [layer.out_features for layer in network.trunk if isinstance(layer, torch.nn.Linear)]
    return {"n_hypotheses": network.head.n_hypotheses, "hidden": hidden, "weights": dict(network.state_dict())}


def _loaded(module: _Module, tensors: dict[str, Tensor]) -> _Module:
    """Fill a module that was created on the device "meta", without memory of its own, with the tensors of a file."""
    forms, saved = ({name: (t.shape, t.dtype) for name, t in of.items()} for of in (module.state_dict(), tensors))
    if forms != saved:
        raise ValueError(f"the tensor shapes of a {type(module).__name__} differ from its description")
    if not all(_between(-_LARGEST, value) for value in tensors.values()):
        raise ValueError(f"the values of a {type(module).__name__} are not finite")
    module.load_state_dict(tensors, assign=True)
    return module.eval().requires_grad_(False)


def _network(layout: Layout, n_hypotheses: int, hidden: list[int], weights: dict[str, Tensor]) -> PathNetwork:
    with torch.device("meta"):
        return _loaded(PathNetwork(layout, n_hypotheses, tuple(hidden)), weights)


def _codebook(layout: Layout, tensors: dict[str, Tensor]) -> Codebook:
    with torch.device("meta"):
        base = LinearMap(layout) if any(name.startswith("base.") for name in tensors) else None
        book = _loaded(Codebook(len(tensors["logits"]), layout.n_channels, layout.horizon, base), tensors)
    if not all(_between(1e-100, tensors[name]) for name in ("scales", "usual")):
        raise ValueError("the scales of a codebook are not positive")
    return book


def _between(low: Any, values: Any, high: float = _LARGEST) -> bool:
    """Return whether all values lie between two limits; NaN does not."""
    numbers = np.asarray(values, dtype=float)
    return bool(((numbers >= low) & (numbers <= high)).all())


def _checked(panel: Panel) -> Panel:
    """Return a panel from a file with its dates, which are saved as integers."""
    names, grid, values, beside = panel.names, panel.grid, panel.values, panel.covariates
    known = ~np.isnan(values)
    ends = panel.ends.astype("datetime64[ns]") if grid.is_calendar else panel.ends
    panel = replace(panel, ends=ends)
    rules = {
        "names": len(names) == len(ends) == len(values) == pd.Series(names).nunique() > 0,
        "ends": np.isfinite(ends).all() and np.allclose(grid.places(panel.times_after(1)) - grid.places(ends), 1),
        "grid": isinstance(grid.zone, str) and len(grid.shown(ends)) > 0,  # in a time zone that exists
        "like": panel.like in ("pandas", "polars", "polars.Date"),
        "values": values.dtype == float and known.any(axis=1).all() and _between(-_LARGEST, values[known]),
        "covariates": beside is None or (beside.shape[:-1] == values.shape and _between(-_LARGEST, beside)),
        "future": panel.future is None,
    }
    _check(rules, vars(panel))
    return panel


def _check(rules: dict[str, Any], values: dict[str, Any]) -> None:
    """Raise an error that names the first entry whose rule does not hold."""
    for name, holds in rules.items():
        if not holds:
            raise ValueError(f"`{name}` has an impossible value: {values[name]!r}")


def write_fitted(folder: Path, parameters: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Write the parameters and the fitted attributes of a forecaster into a folder.

    Raises:
        ValueError: If the folder contains other files, or a rule is not defined in torchmcl.
    """
    panel = fitted["_panel"]
    parts = fitted | {
        "networks_": [_network_parts(network) for network in fitted["networks_"]],
        "codebooks_": [dict(codebook.state_dict()) for codebook in fitted["codebooks_"]],
        "_panel": replace(panel, ends=panel.ends.astype(np.int64) if panel.grid.is_calendar else panel.ends),
    }
    contents = {"parameters": parameters, "fitted": parts}
    io.save_model("Forecaster.save", folder, contents, kind="Forecaster", codec=CODEC)


def restored(fitted: dict[str, Any], n_known: int, n_past: int) -> dict[str, Any]:
    """Return the fitted attributes that `write_fitted` wrote, as decoded by `CODEC`; every value is checked.

    Args:
        fitted: Saved attributes.
        n_known: Number of covariates with known future values.
        n_past: Number of covariates with unknown future values.

    Raises:
        ValueError: If a value is impossible. Errors of other types are possible for values of other types.
    """
    panel, saved, scores = _checked(fitted["_panel"]), fitted["layout_"], fitted["tube_scores_"]
    sizes = (fitted["horizon_"], fitted["seasons_"], saved.context, saved.n_channels > 1, n_known, n_past)
    usual = {"usual_change": saved.usual_change, "usual_size": saved.usual_size}
    layout = replace(choose_layout(panel, *sizes), **usual)
    networks = [_network(layout, **parts) for parts in fitted["networks_"]]
    codebooks = [_codebook(layout, tensors) for tensors in fitted["codebooks_"]]
    weights, scaling = np.array(fitted["shares_"]), fitted["scaling_"]
    width = 0 if panel.covariates is None else panel.covariates.shape[-1]
    rules = {
        "layout_": saved == layout and _between(0, np.array([*usual.values()])),
        "seasons_": all(type(season) is int and season > 1 for season in fitted["seasons_"]),
        "least_": fitted["least_"] in (0.0, -math.inf),
        "shares_": len(weights) == 1 + len(codebooks) and _between(0, weights) and abs(weights.sum() - 1) < 1e-6,
        "spread_": 0 < fitted["spread_"] < 10,
        "correlation_": 0 <= fitted["correlation_"] < 1,
        "tube_scores_": scores is None or (len(scores) > 0 and _between(0, scores)),
        "networks_": len(networks) > 0,
        "scaling_": scaling.shape == (n_known + n_past, 2) == (width, 2) and _between([-_LARGEST, 1e-100], scaling),
    }
    _check(rules, fitted)
    modules = {"layout_": layout, "networks_": networks, "codebooks_": codebooks, "_panel": panel}
    return {name: fitted[name] for name in FITTED} | modules
