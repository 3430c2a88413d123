"""Forecasters on disk, as a checkpoint in a folder. No pickle."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmcl._messages import bad_value
from torchmcl.persistence.checkpoints import read_saved, write_checkpoint
from torchmcl.persistence.codec import Codec, Form, record_form
from torchmcl.persistence.headers import MODEL_FILE, check_free
from torchmcl.persistence.reading import as_written
from torchmcl.sklearn.saving import estimator_codec
from torchmcl_forecast.forecaster import Forecaster
from torchmcl_forecast.frames import Panel
from torchmcl_forecast.grids import Grid
from torchmcl_forecast.network import PathNetwork
from torchmcl_forecast.windows import Layout

__all__ = ["load_forecaster", "save_forecaster"]

_KIND = "torchmcl forecaster"
_FITTED = ("horizon_", "seasons_", "layout_", "least_", "tube_level_", "networks_", "_panel")
# No forecast has use for more numbers of a window than this; a file that asks for more is refused.
_MOST_NUMBERS = 10_000_000


def _encode_network(network: PathNetwork, part: Any) -> Any:
    hidden = [layer.out_features for layer in network.trunk if isinstance(layer, torch.nn.Linear)]
    sizes = {"n_hypotheses": network.head.n_hypotheses, "hidden": hidden}
    weights = {name: part(name, value) for name, value in network.state_dict().items()}
    return {"$paths": {"layout": part("layout", network.layout), "sizes": sizes, "weights": weights}}


def _decode_network(contents: Any, part: Any) -> PathNetwork:
    layout, weights = part(contents["layout"]), part(contents["weights"])
    hidden, n_hypotheses = tuple(contents["sizes"]["hidden"]), contents["sizes"]["n_hypotheses"]
    with torch.device("meta"):  # shapes only: no memory is allocated that the file does not justify
        expected = {name: value.shape for name, value in PathNetwork(layout, n_hypotheses, hidden).state_dict().items()}
    if expected != {name: value.shape for name, value in weights.items()}:
        raise ValueError("the weights of a network have other shapes than its description")
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise ValueError("the weights of a network are not finite")
    network = PathNetwork(layout, n_hypotheses, hidden)
    network.load_state_dict(weights)
    return network.eval()


def _encode_panel(panel: Panel, part: Any) -> Any:
    dates = panel.ends.dtype.kind == "M"
    ends = panel.ends.astype("datetime64[ns]").astype(np.int64) if dates else panel.ends
    names = panel.names if panel.names.dtype.kind in "iufb" else panel.names.astype(object)
    fields = {"names": names, "ends": ends, "values": panel.values, "grid": panel.grid, "like": panel.like}
    return {"$panel": {"dates": dates, **{name: part(name, value) for name, value in fields.items()}}}


def _decode_panel(contents: Any, part: Any) -> Panel:
    ends = part(contents["ends"])
    ends = ends.astype("datetime64[ns]") if contents["dates"] else ends
    names, values = part(contents["names"]), part(contents["values"])
    if values.ndim != 2 or not len(values) == len(names) == len(ends):
        raise ValueError("the series have other sizes than their names")
    return Panel(names, ends, values, part(contents["grid"]), contents["like"])


def _codec() -> Codec:
    rules = estimator_codec()
    forms = {
        **rules._forms,
        PathNetwork: Form(_encode_network, {"paths": _decode_network}),
        Panel: Form(_encode_panel, {"panel": _decode_panel}),
        **{kind: record_form(kind) for kind in (Grid, Layout)},
    }
    return Codec(forms)


def save_forecaster(forecaster: Forecaster, folder: Path) -> None:
    """Write a fitted forecaster into a folder, which must be new, empty or hold a saved model.

    Raises:
        ValueError: if it is not fitted, the folder holds something else, or a rule is not one of torchmcl's.
    """
    owner = "Forecaster.save"
    if not hasattr(forecaster, "networks_"):
        raise ValueError(bad_value(owner, "self", "be fitted", "an unfitted one", "fit(frame, horizon=28) first."))
    check_free(owner, folder, "`save`")
    parameters = forecaster.get_params(deep=False) | {"progress": False}
    try:
        state, tensors = _codec().encode(
            {"parameters": parameters, "fitted": {name: getattr(forecaster, name) for name in _FITTED}}
        )
    except TypeError as error:
        rule = "have parameters made of numbers, strings and torchmcl's own rules and schedules to be saved"
        raise ValueError(bad_value(owner, "self", rule, str(error).rstrip("."))) from error
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder / MODEL_FILE, _KIND, state=state, tensors=tensors)


def load_forecaster(folder: Path | str) -> Forecaster:
    """Return the forecaster that `Forecaster.save` wrote. Nothing from the file is executed.

    Raises:
        ValueError: if the folder holds nothing of the kind, or something damaged or of a newer version.
    """
    owner = "load_forecaster"
    checkpoint = read_saved(owner, Path(folder), _KIND, "`Forecaster.save`")
    with as_written(owner, "folder", "`Forecaster.save`"):
        return _restored(checkpoint.state, checkpoint.tensors)


def _restored(state: Any, tensors: dict[str, Tensor]) -> Forecaster:
    _check_sizes(state)
    content = _codec().decode(state, tensors)
    forecaster = Forecaster(**content["parameters"])
    fitted = content["fitted"]
    if set(fitted) != set(_FITTED) or not isinstance(fitted["layout_"], Layout):
        raise ValueError("a forecaster has other fitted attributes")
    if any(not isinstance(network, PathNetwork) or network.layout != fitted["layout_"] for network in fitted["networks_"]):
        raise ValueError("the networks read other windows than the forecaster")
    for name, value in fitted.items():
        setattr(forecaster, name, value)
    return forecaster


def _check_sizes(state: Any) -> None:
    """Refuse sizes that would ask for memory that no fit has use for, before anything is made of them."""
    layout = state["fitted"]["layout_"]["$Layout"]
    sizes = [layout[name] for name in ("horizon", "context", "lag", "n_channels", "n_calendar")]
    if not all(type(size) is int and 0 <= size for size in sizes):
        raise ValueError("the sizes of windows must be integers >= 0")
    horizon, context, lag, n_channels, _ = sizes
    if n_channels * (horizon + context + lag) > _MOST_NUMBERS:
        raise ValueError(f"windows hold more than {_MOST_NUMBERS:,} numbers")
