"""Models on disk: weights as safetensors, how to build them as JSON. Loading runs nothing from the folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchmcl._checks import bad_value, nearest_hint
from torchmcl._files import single_writer, write_atomically
from torchmcl._optional import optional_import
from torchmcl._reading import read_json
from torchmcl.nn.dprnn import DPRNN

__all__ = ["load_model", "save_model"]

_KINDS: dict[str, type[DPRNN]] = {"DPRNN": DPRNN}
_SIZES = ("n_outputs", "n_filters", "kernel_size", "stride", "segment_size", "hidden_size", "width", "n_blocks")
# No filter, segment or layer is larger.
_LARGEST_SIZE = 1_000_000


def save_model(folder: Path | str, model: DPRNN, notes: Mapping[str, Any] | None = None) -> None:
    """Write `model.safetensors` and `model.json` into a folder.

    Args:
        folder: made if it is not there.
        model: a module of this package with a `config`.
        notes: anything that JSON can hold, given back by `load_model`; the sample rate, for example.
    """
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by="save_model")
    kind = type(model).__name__
    if kind not in _KINDS:
        raise TypeError(bad_value("save_model", "model", f"be one of {sorted(_KINDS)}", kind))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    description = {"kind": kind, "config": model.config, "notes": dict(notes or {})}
    text = json.dumps(description, indent=1) + "\n"
    with single_writer(Path(folder)):
        write_atomically(Path(folder) / "model.safetensors", io.save(tensors))
        write_atomically(Path(folder) / "model.json", text)


def load_model(folder: Path | str, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model of a folder, on the CPU and in evaluation mode, and the notes saved with it.

    Args:
        folder: written by `save_model`.
        **options: arguments that are not in the configuration, `bilstm` of `DPRNN` for example.

    Raises:
        ValueError: if the folder holds no model, or one that does not fit its description.
    """
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by="load_model")
    unreadable: type[Exception] = optional_import(
        "safetensors", extra="checkpoint", needed_by="load_model"
    ).SafetensorError
    description_path, weights_path = Path(folder) / "model.json", Path(folder) / "model.safetensors"
    for path in (description_path, weights_path):
        if not path.is_file():
            advice = f"{path.name} is missing."
            raise ValueError(bad_value("load_model", "folder", "hold a saved model", str(folder), advice))
    try:
        description = read_json("load_model", description_path)
        kind, config, notes = str(description["kind"]), dict(description["config"]), dict(description["notes"])
    except (ValueError, KeyError, TypeError) as error:
        rule = "describe a model in JSON"
        raise ValueError(bad_value("load_model", str(description_path), rule, repr(error)[:300])) from error
    if kind not in _KINDS:
        raise ValueError(
            bad_value("load_model", "kind", f"be one of {sorted(_KINDS)}", kind[:80], nearest_hint(kind[:80], _KINDS))
        )
    try:
        weights = io.load_file(weights_path)
        _check_sizes(config, weights)
        model = _KINDS[kind](**config, **options)
        model.load_state_dict(weights)
    except (TypeError, ValueError, LookupError, RuntimeError, unreadable) as error:
        rule = f"hold the weights of {kind} as {description_path.name} describes it"
        first_line = str(error).partition("\n")[0]
        raise ValueError(bad_value("load_model", str(weights_path), rule, first_line)) from error
    return model.eval(), notes


def _check_sizes(config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Refuse a description that asks for more memory than its weights take, before any is taken."""
    for name in _SIZES:
        value = config[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} is {str(value)[:80]!r}, which is no whole number")
        if not 1 <= value <= _LARGEST_SIZE:
            raise ValueError(f"{name} is {str(value)[:80]}, which no model has")
    width, hidden, n_filters = config["width"], config["hidden_size"], config["n_filters"]
    needed = 16 * config["n_blocks"] * hidden * (width + hidden) + config["n_outputs"] * width**2 + n_filters * width
    if needed + n_filters * config["kernel_size"] > sum(value.numel() for value in weights.values()):
        raise ValueError("it describes a larger model")
