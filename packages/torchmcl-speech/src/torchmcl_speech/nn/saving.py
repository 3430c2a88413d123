"""Saving and loading of separators in folders with `model.safetensors`. Loading executes nothing from the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchmcl import io
from torchmcl_speech.nn.dprnn import DPRNN

__all__ = ["load_model", "save_model"]


def save_model(folder: Path | str, model: DPRNN, notes: Mapping[str, Any] | None = None, *, half: bool = False) -> None:
    """Write `model.safetensors` into a folder: the weights, the arguments of the model, and notes.

    Args:
        folder: New or empty folder, or one with a saved model, which is replaced.
        model: Separator.
        notes: Values returned by `load_model`; the sample rate, for example.
        half: Whether to write float16, for half the size; `load_model` returns float32, exact to three digits.
    """
    weights = {name: weight.half() if half else weight for name, weight in model.state_dict().items()}
    contents = {"config": model.config, "notes": dict(notes or {}), "weights": weights}
    io.save_model("save_model", folder, contents, kind="DPRNN")


def load_model(folder: Path | str) -> tuple[DPRNN, dict[str, Any]]:
    """Load the separator in a folder, in float32, on the CPU and in evaluation mode, and the notes saved with it.

    Args:
        folder: Folder that `save_model` wrote.

    Raises:
        ValueError: If the folder contains no model, a damaged model, or a model that does not match its description.
    """

    def made(contents: Any) -> tuple[DPRNN, dict[str, Any]]:
        return DPRNN._from_contents(contents).float(), dict(contents["notes"])

    separator: tuple[DPRNN, dict[str, Any]] = io.load_model("load_model", folder, made, kind="DPRNN")
    return separator
