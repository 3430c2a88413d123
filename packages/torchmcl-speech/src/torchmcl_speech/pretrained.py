"""Bundled and saved separators, and initial weights for training from another separator."""

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
    """Return whether `model` is the name of a bundled separator instead of a folder."""
    return str(model) in shipped_models()


def model_card(name: str) -> dict[str, Any]:
    """Return the model card of a bundled separator: data, training, results, limitations and license.

    Raises:
        ValueError: If there is no bundled separator of this name.

    Example:
        >>> model_card("two-speakers")["n_outputs"]
        2
    """
    if not is_shipped(name):
        raise _unknown(name)
    return io.read_json("model_card", _MODELS / name / CARD_FILE)


def load_separator(model: Path | str = DEFAULT_MODEL) -> tuple[nn.Module, dict[str, Any]]:
    """Load a separator, on the CPU and in evaluation mode, and the notes saved with it.

    Args:
        model: Name among `shipped_models`, or folder that `save_model` wrote; `./name` is a folder.

    Returns:
        Module that takes waveforms [batch, length] at `notes["sample_rate"]`, and the notes.

    Raises:
        ValueError: If the model does not exist or its file is damaged.

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
    """Load the separator in a folder and its notes after verifying the checksum of its model card.

    Raises:
        ValueError: If the file is damaged.
    """
    with io.as_written("load_separator", CARD_FILE, "the package"):
        expected = str(io.read_json("load_separator", folder / CARD_FILE)["sha256"])
    path = folder / io.MODEL_FILE
    checksum = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if checksum != expected:
        rule, advice = f"have the SHA-256 checksum {expected}", "The file is damaged: install torchmcl-speech again."
        raise ValueError(bad_value("load_separator", folder.name, rule, checksum, advice))
    return load_model(folder)


def _unknown(model: Path | str) -> ValueError:
    shipped = shipped_models()
    rule = f"be the folder of a saved model or one of {shipped}"
    return ValueError(
        bad_value("separation", "model", rule, repr(str(model)), nearest_hint(str(model), shipped).strip())
    )


# Parameters whose size depends on the number of outputs, concatenated over the outputs.
_OUTPUTS = ("outputs.weight", "outputs.bias", "decoder")
_MAY_BE_NEW = ("score.weight", "score.bias")


@torch.no_grad()
def copy_weights(model: DPRNN, start: Path | str) -> list[str]:
    """Copy the weights of a saved model into another model of the same sizes.

    The outputs of the saved model are copied. Additional outputs get random features, as in a new network, and the mean
    of the saved decoders. If the saved model has no score head, the score head is newly initialized.

    Args:
        model: Separator whose weights are changed in place.
        start: Name of a bundled separator, or folder of a saved model.

    Returns:
        Names of the weights that are at least partly new.

    Raises:
        ValueError: If the saved model does not exist or its sizes differ.
    """
    saved, _ = load_separator(start)
    saved_weights, new = saved.state_dict(), []
    for name, weight in model.state_dict().items():
        if name in _MAY_BE_NEW and name not in saved_weights:
            new.append(name)
        elif name in saved_weights and saved_weights[name].shape == weight.shape:
            weight.copy_(saved_weights[name])
        elif name in saved_weights and name in _OUTPUTS and _fits(weight, saved_weights[name]):
            if len(weight) > len(saved_weights[name]):
                new.append(name)
            if name == "decoder":
                weight.copy_(saved_weights[name].mean(dim=0))
            n_shared = min(len(weight), len(saved_weights[name]))
            weight[:n_shared] = saved_weights[name][:n_shared]
        else:
            shape = tuple(saved_weights[name].shape) if name in saved_weights else "none"
            rule = f"contain `{name}` of shape {tuple(weight.shape)}"
            advice = "Train a network of the same sizes; the number of outputs may differ."
            raise ValueError(bad_value("separation train", "start", rule, f"{shape} in {str(start)!r}", advice))
    return new


def config_like(config: SeparationConfig, start: Path | str) -> SeparationConfig:
    """Fill in unspecified options of a configuration from the initial model.

    If the configuration specifies no model sizes, then model sizes, sample rate, numbers of speakers and rule are taken
    from the saved model.
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


def _fits(weight: Tensor, saved_weights: Tensor) -> bool:
    return weight.shape[1:] == saved_weights.shape[1:]
