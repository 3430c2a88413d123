"""Initial weights from another separator, possibly with another number of outputs."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl_speech.config import SeparationConfig
from torchmcl_speech.nn.dprnn import DPRNN
from torchmcl_speech.pretrained import load_separator

__all__ = ["config_like", "copy_weights"]

# What depends on the number of outputs, output after output.
_OUTPUTS = ("outputs.weight", "outputs.bias", "decoder")
_MAY_BE_NEW = ("score.weight", "score.bias")


@torch.no_grad()
def copy_weights(model: DPRNN, start: Path | str) -> list[str]:
    """Copy the weights of a saved model into another of the same sizes.

    Outputs that the saved model has are copied; more of them get features at random, as a new network has, and the mean
    of its decoders. A score head that it lacks stays new.

    Args:
        model: changed in place.
        start: name of a bundled separator, or folder of a saved model.

    Returns:
        The names of weights that are, in part at least, new.

    Raises:
        ValueError: if there is no such model, or its sizes are others.
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
    """Return the configuration with open options filled from the initial model.

    If it names no sizes of a model, sizes, sample rate, numbers of speakers and rule are those of the saved one.
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
