"""Models on disk, as a checkpoint in a folder. Loading executes nothing from the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from torchmcl.checks import bad_value, nearest_hint
from torchmcl.io.checkpoints import read_saved, write_checkpoint
from torchmcl.io.headers import MODEL_FILE
from torchmcl.io.reading import as_written
from torchmcl_speech.nn.dprnn import DPRNN
from torchmcl_speech.nn.sizes import check_sizes

_FILE_KIND = "torchmcl network"
_KINDS: dict[str, type[DPRNN]] = {"DPRNN": DPRNN}


def save_model(folder: Path | str, model: DPRNN, notes: Mapping[str, Any] | None = None, *, half: bool = False) -> None:
    """Write `model.safetensors` into a folder: the weights, the arguments of the model, and notes.

    Args:
        folder: created if it does not exist.
        model: a module of this package with a `config`.
        notes: anything that JSON can hold, returned by `load_model`; the sample rate, for example.
        half: write float16, for half the size; `load_model` returns float32, with a precision of three digits.
    """
    kind = type(model).__name__
    if kind not in _KINDS:
        raise TypeError(bad_value("save_model", "model", f"be one of {sorted(_KINDS)}", kind))
    state = {"model": kind, "config": model.config, "notes": dict(notes or {})}
    weights = {name: weight.half() if half else weight for name, weight in model.state_dict().items()}
    write_checkpoint(Path(folder) / MODEL_FILE, _FILE_KIND, state=state, tensors=weights)


def load_model(folder: Path | str, **options: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model saved in a folder, on the CPU and in evaluation mode, and the notes saved with it.

    Args:
        folder: written by `save_model`.
        **options: arguments that are not in the configuration, `bilstm` of `DPRNN` for example.

    Raises:
        ValueError: if the folder holds no model, a damaged one, or one that does not fit its description.
    """
    checkpoint = read_saved("load_model", Path(folder), _FILE_KIND, "`save_model`")
    with as_written("load_model", "folder", "`save_model`"):
        state, weights = checkpoint.state, checkpoint.tensors
        kind, config, notes = str(state["model"])[:80], dict(state["config"]), dict(state["notes"])
        if kind not in _KINDS:
            raise ValueError(f"a model {kind!r}, which is not one of {sorted(_KINDS)}.{nearest_hint(kind, _KINDS)}")
        check_sizes(config, weights)
        model = _KINDS[kind](**config, **options)
        model.load_state_dict(weights)
    return model.eval(), notes
