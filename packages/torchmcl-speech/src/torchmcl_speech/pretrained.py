"""Separators by name: bundled ones, checked against their cards, and folders of saved models."""

import hashlib
from pathlib import Path
from typing import Any

from torch import nn

from torchmcl._checks import bad_value, nearest_hint
from torchmcl.persistence.headers import MODEL_FILE
from torchmcl.persistence.reading import as_written, read_json
from torchmcl_speech.nn.saving import load_model

__all__ = [
    "CARD_FILE",
    "DEFAULT_MODEL",
    "is_shipped",
    "load_separator",
    "load_with_card",
    "model_card",
    "shipped_models",
]

DEFAULT_MODEL = "two-speakers"
CARD_FILE = "card.json"
_MODELS = Path(__file__).parent / "models"


def shipped_models() -> list[str]:
    """Return the names of the bundled separators."""
    return sorted(path.parent.name for path in _MODELS.glob(f"*/{CARD_FILE}"))


def is_shipped(model: Path | str) -> bool:
    """Return whether this is the name of a bundled separator, not a folder."""
    return str(model) in shipped_models()


def model_card(name: str) -> dict[str, Any]:
    """Return the card of a bundled separator: data, training, measurements, limits, license.

    Raises:
        ValueError: if there is none of this name.

    Example:
        >>> model_card("two-speakers")["n_outputs"]
        2
    """
    if not is_shipped(name):
        raise _unknown(name)
    card: dict[str, Any] = read_json("model_card", _MODELS / name / CARD_FILE)
    return card


def load_separator(model: Path | str = DEFAULT_MODEL) -> tuple[nn.Module, dict[str, Any]]:
    """Return a separator, on the CPU and in evaluation mode, and the notes saved with it.

    Args:
        model: a name among `shipped_models`, or a folder that `save_model` wrote; `./name` is a folder.

    Returns:
        A module that takes waveforms [batch, length] at `notes["sample_rate"]`, and the notes.

    Raises:
        ValueError: if there is no such model, or its file is damaged.

    Example:
        >>> separator, notes = load_separator("two-speakers")
        >>> notes["sample_rate"]
        8000
    """
    if is_shipped(model):
        return load_with_card(_MODELS / str(model))
    if not Path(model).exists():
        raise _unknown(model)
    return load_model(model)


def load_with_card(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the separator of a folder and its notes, after a comparison with the checksum of its card.

    Raises:
        ValueError: if it is damaged.
    """
    with as_written("load_separator", CARD_FILE, "the package"):
        wanted = str(read_json("load_separator", folder / CARD_FILE)["sha256"])
    path = folder / MODEL_FILE
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if found != wanted:
        rule, advice = f"have the sha256 {wanted}", "It is damaged: install torchmcl-speech again."
        raise ValueError(bad_value("load_separator", folder.name, rule, found, advice))
    return load_model(folder)


def _unknown(model: Path | str) -> ValueError:
    shipped = shipped_models()
    rule = f"be the folder of a saved model or one of {shipped}"
    return ValueError(bad_value("separation", "model", rule, repr(str(model)), nearest_hint(str(model), shipped)))
