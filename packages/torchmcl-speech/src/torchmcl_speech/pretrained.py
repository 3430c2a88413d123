"""Initial weights from another separator, possibly with another number of outputs."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl import io
from torchmcl.errors import bad_value, nearest_hint
from torchmcl_speech.config import SeparationConfig
from torchmcl_speech.nn.dprnn import DPRNN
from torchmcl_speech.nn.saving import load_model

__all__ = [
    "CARD_FILE",
    "DEFAULT_MODEL",
    "config_like",
    "copy_weights",
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
    return io.read_json("model_card", _MODELS / name / CARD_FILE)


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
    """Return the separator in a folder and its notes, after verifying the checksum in its card.

    Raises:
        ValueError: if it is damaged.
    """
    with io.as_written("load_separator", CARD_FILE, "the package"):
        wanted = str(io.read_json("load_separator", folder / CARD_FILE)["sha256"])
    path = folder / io.MODEL_FILE
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if found != wanted:
        rule, advice = f"have the sha256 {wanted}", "It is damaged: install torchmcl-speech again."
        raise ValueError(bad_value("load_separator", folder.name, rule, found, advice))
    return load_model(folder)


def _unknown(model: Path | str) -> ValueError:
    shipped = shipped_models()
    rule = f"be the folder of a saved model or one of {shipped}"
    return ValueError(
        bad_value("separation", "model", rule, repr(str(model)), nearest_hint(str(model), shipped).strip())
    )


# Parameters that depend on the number of outputs, output after output.
_OUTPUTS = ("outputs.weight", "outputs.bias", "decoder")
_MAY_BE_NEW = ("score.weight", "score.bias")


@torch.no_grad()
def copy_weights(model: DPRNN, start: Path | str) -> list[str]:
    """Copy the weights of a saved model into another model of the same sizes.

    Outputs of the saved model are copied; additional ones get random features, as in a new network, and the mean of its
    decoders. A score head missing in the saved model is newly initialized.

    Args:
        model: changed in place.
        start: name of a bundled separator, or folder of a saved model.

    Returns:
        The names of weights that are at least partly new.

    Raises:
        ValueError: if there is no such model, or its sizes differ.
    """
    saved, _ = load_separator(start)
    found, new = saved.state_dict(), []
    for name, weight in model.state_dict().items():
        if name in _MAY_BE_NEW and name not in found:
            new.append(name)
        elif name in found and found[name].shape == weight.shape:
            weight.copy_(found[name])
        elif name in found and name in _OUTPUTS and _fits(weight, found[name]):
            if len(weight) > len(found[name]):
                new.append(name)
            if name == "decoder":
                weight.copy_(found[name].mean(dim=0))
            n_shared = min(len(weight), len(found[name]))
            weight[:n_shared] = found[name][:n_shared]
        else:
            shape = tuple(found[name].shape) if name in found else "none"
            rule = f"hold `{name}` of shape {tuple(weight.shape)}"
            advice = "Train a network of the same sizes; the number of outputs may differ."
            raise ValueError(bad_value("separation train", "start", rule, f"{shape} in {str(start)!r}", advice))
    return new


def config_like(config: SeparationConfig, start: Path | str) -> SeparationConfig:
    """Return the configuration with unspecified options taken from the initial model.

    If it specifies no model sizes, then sizes, sample rate, numbers of speakers and rule are those of the saved model.
    """
    saved, notes = load_separator(start)
    if config.model:
        return config
    trained = SeparationConfig.from_dict(notes.get("configuration", {}))
    n_speakers, rate = trained.data.n_speakers, int(notes.get("sample_rate", trained.data.sample_rate))
    return replace(
        config,
        model=dict(saved.config),  # type: ignore[arg-type]
        data=replace(config.data, n_speakers=n_speakers, sample_rate=rate),
        objective=replace(config.objective, rule=trained.objective.rule),
    )


def _fits(weight: Tensor, found: Tensor) -> bool:
    return weight.shape[1:] == found.shape[1:]
