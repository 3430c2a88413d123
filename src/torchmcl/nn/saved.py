"""Models on disk: weights as safetensors, how to build them as JSON. Loading runs nothing from the folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from torchmcl._checks import bad_value, nearest_hint
from torchmcl._files import write_atomically
from torchmcl._optional import optional_import
from torchmcl.nn.dprnn import DPRNN

__all__ = ["load_model", "save_model"]

_KINDS: dict[str, type[DPRNN]] = {"DPRNN": DPRNN}


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
    write_atomically(Path(folder) / "model.safetensors", io.save(tensors))
    description = {"kind": kind, "config": model.config, "notes": dict(notes or {})}
    write_atomically(Path(folder) / "model.json", json.dumps(description, indent=1) + "\n")


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
        description = json.loads(description_path.read_text())
        kind, config, notes = description["kind"], description["config"], description["notes"]
    except (ValueError, KeyError, TypeError) as error:
        rule = "describe a model in JSON"
        raise ValueError(bad_value("load_model", str(description_path), rule, repr(error))) from error
    if kind not in _KINDS:
        raise ValueError(
            bad_value("load_model", "kind", f"be one of {sorted(_KINDS)}", kind, nearest_hint(kind, _KINDS))
        )
    try:
        model = _KINDS[kind](**config, **options)
        model.load_state_dict(io.load_file(weights_path))
    except (TypeError, RuntimeError, unreadable) as error:
        rule = f"hold the weights of {kind} as {description_path.name} describes it"
        first_line = str(error).partition("\n")[0]
        raise ValueError(bad_value("load_model", str(weights_path), rule, first_line)) from error
    return model.eval(), notes
