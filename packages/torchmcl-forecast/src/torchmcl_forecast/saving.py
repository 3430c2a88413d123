"""Saving and loading of forecasters in a folder, without pickle."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchmcl import io
from torchmcl_forecast.frames import Panel
from torchmcl_forecast.grids import Grid
from torchmcl_forecast.network import Codebook, LinearMap, PathNetwork
from torchmcl_forecast.windows import Layout
from torchmcl_tables.estimators.base import estimator_codec

__all__ = ["FITTED", "read_fitted", "write_fitted"]

#: Attributes of a fitted forecaster.
FITTED = (
    *("horizon_", "seasons_", "layout_", "least_", "tube_level_", "shares_"),
    *("spread_", "correlation_", "tube_scores_"),
    *("networks_", "codebooks_", "scaling_", "_panel"),
)
_Forecaster = TypeVar("_Forecaster")
_Module = TypeVar("_Module", bound=torch.nn.Module)
# No forecast needs more values per window than this; a file that requests more is rejected.
_MOST_VALUES = 10_000_000


# Codec for the parameters, which may contain rules and schedules, and for these two types.
_CODEC = estimator_codec(Grid, Layout)


def _network_parts(network: PathNetwork) -> dict[str, Any]:
    hidden = [layer.out_features for layer in network.trunk if isinstance(layer, torch.nn.Linear)]
    return {"n_hypotheses": network.head.n_hypotheses, "hidden": hidden, "weights": dict(network.state_dict())}


def _loaded(module: _Module, tensors: dict[str, Tensor]) -> _Module:
    """Fill a module that was created on the device "meta", without memory of its own, with the tensors of a file."""
    if {name: value.shape for name, value in module.state_dict().items()} != {n: t.shape for n, t in tensors.items()}:
        raise ValueError(f"the tensor shapes of a {type(module).__name__} differ from its description")
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise ValueError(f"the values of a {type(module).__name__} are not finite")
    module.load_state_dict(tensors, assign=True)
    return module.eval().requires_grad_(False)


def _network(layout: Layout, n_hypotheses: int, hidden: list[int], weights: dict[str, Tensor]) -> PathNetwork:
    with torch.device("meta"):
        return _loaded(PathNetwork(layout, n_hypotheses, tuple(hidden)), weights)


def _codebook(layout: Layout, tensors: dict[str, Tensor]) -> Codebook:
    with torch.device("meta"):
        base = LinearMap(layout) if any(name.startswith("base.") for name in tensors) else None
        return _loaded(Codebook(len(tensors["logits"]), layout.n_channels, layout.horizon, base), tensors)


def _panel_parts(panel: Panel) -> dict[str, Any]:
    dates = panel.ends.dtype.kind == "M"
    ends = panel.ends.astype("datetime64[ns]").astype(np.int64) if dates else panel.ends
    names = panel.names if panel.names.dtype.kind in "iufb" else panel.names.astype(object)
    parts = {"values": panel.values, "grid": panel.grid, "like": panel.like, "covariates": panel.covariates}
    return {"names": names, "ends": ends, "dates": dates, **parts}


def _panel(names: Any, ends: Any, dates: bool, values: Any, grid: Grid, like: str, covariates: Any) -> Panel:
    if values.ndim != 2 or not len(values) == len(names) == len(ends) or not isinstance(grid, Grid):
        raise ValueError("the numbers of series, ends and names differ")
    if covariates is not None and covariates.shape[:-1] != values.shape:
        raise ValueError("the sizes of covariates and series differ")
    return Panel(names, ends.astype("datetime64[ns]") if dates else ends, values, grid, like, covariates)


def write_fitted(folder: Path, parameters: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Write the parameters and the fitted attributes of a forecaster into a folder.

    Raises:
        ValueError: If the folder contains other files, or a rule is not defined in torchmcl.
    """
    parts = fitted | {
        "networks_": [_network_parts(network) for network in fitted["networks_"]],
        "codebooks_": [dict(codebook.state_dict()) for codebook in fitted["codebooks_"]],
        "_panel": _panel_parts(fitted["_panel"]),
    }
    contents = {"parameters": parameters, "fitted": parts}
    io.save_model("Forecaster.save", folder, contents, kind="Forecaster", codec=_CODEC)


def read_fitted(owner: str, folder: Path, make: Callable[[dict[str, Any], dict[str, Any]], _Forecaster]) -> _Forecaster:
    """Load a forecaster, constructed by `make`. Nothing from the file is executed.

    Args:
        owner: Function name at the beginning of messages.
        folder: Folder of the forecaster.
        make: Function that maps parameters and fitted attributes to a forecaster.

    Raises:
        ValueError: If the folder contains no forecaster, a damaged one, or one of another version.
    """

    def made(content: dict[str, Any]) -> _Forecaster:
        fitted = content["fitted"]
        _check_sizes(fitted["layout_"])
        if set(fitted) != set(FITTED) or not fitted["networks_"]:
            raise ValueError("the fitted attributes of the forecaster are not the expected ones")
        fitted["networks_"] = [_network(fitted["layout_"], **parts) for parts in fitted["networks_"]]
        fitted["codebooks_"] = [_codebook(fitted["layout_"], tensors) for tensors in fitted["codebooks_"]]
        weights = fitted["shares_"]
        if len(weights) != 1 + len(fitted["codebooks_"]) or min(weights) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise ValueError("`shares_` is not a probability for the networks and for each codebook")
        fitted["_panel"] = _panel(**fitted["_panel"])
        return make(content["parameters"], fitted)

    forecaster: _Forecaster = io.load_model(owner, folder, made, kind="Forecaster", codec=_CODEC)
    return forecaster


def _check_sizes(layout: Layout) -> None:
    """Reject sizes that require more memory than any fit needs, before memory is allocated."""
    names = ("horizon", "context", "n_channels", "n_calendar", "n_known", "n_past")
    sizes = [*(getattr(layout, name) for name in names), *layout.lags, *layout.periods, *layout.means]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("the window sizes must be integers >= 0")
    if not all(0 <= value < math.inf for value in (layout.usual_change, layout.usual_size)):
        raise ValueError("the usual changes and sizes must be finite numbers >= 0")
    n_covariates = layout.n_known + layout.n_past
    n_inputs = len(layout.lags) + len(layout.periods) + len(layout.means) + n_covariates
    if layout.n_channels * (layout.horizon * n_inputs + sum(sizes) + layout.context * n_covariates) > _MOST_VALUES:
        raise ValueError(f"windows contain more than {_MOST_VALUES:,} values")
