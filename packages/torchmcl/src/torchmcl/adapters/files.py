"""Files of adapters: one safetensors file for a bank, or a folder per hypothesis in PEFT's format."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value
from torchmcl._optional import optional_import
from torchmcl.adapters.bank import AdapterBank
from torchmcl.persistence.writing import write_atomically

_FIELDS = ("n_hypotheses", "rank", "alpha", "dropout", "layers")
_PREFIX = "base_model.model."
# PEFT options that change what an adapter computes, with the values at which they have no effect.
_PLAIN = {
    "bias": "none",
    "use_dora": False,
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}


def save_adapters(bank: AdapterBank, path: str | Path) -> None:
    """Write all adapters of a bank, without the network, to a safetensors file.

    Example:
        >>> import tempfile
        >>> bank = AdapterBank(nn.Sequential(nn.Linear(3, 2)), 4, rank=2, targets=["0"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_adapters(bank, f"{folder}/bank.safetensors")
        ...     load_adapters(nn.Sequential(nn.Linear(3, 2)), f"{folder}/bank.safetensors").n_hypotheses
        4
    """
    named = {"down": bank.down, "up": bank.up}
    tensors = {f"{kind}/{key}": value.detach() for kind, part in named.items() for key, value in part.items()}
    settings = {field: getattr(bank, field) for field in _FIELDS}
    content = _safetensors().save(tensors, metadata={"torchmcl.adapters": json.dumps(settings)})
    write_atomically(Path(path), content)


def load_adapters(model: nn.Module, path: str | Path) -> AdapterBank:
    """Return a bank on `model` with the adapters from a file written by `save_adapters`.

    Raises:
        ValueError: if it is a different kind of file, or the layers do not fit.
    """
    with _module().safe_open(path, framework="pt") as file:
        settings = json.loads((file.metadata() or {}).get("torchmcl.adapters", "{}"))
        if settings.keys() != set(_FIELDS):
            raise ValueError(bad_value("load_adapters", "path", "be a file of save_adapters", str(path)))
        bank = AdapterBank(model, targets=_exactly(settings.pop("layers")), **settings)
        _fill(bank, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a dictionary)
    return bank


def save_peft(bank: AdapterBank, folder: str | Path, base_model: str = "") -> list[Path]:
    """Write each adapter to a folder that PEFT can load, `hypothesis_0` and so on, and return the folders.

    Args:
        bank: without a merged adapter.
        folder: created if needed.
        base_model: name of the network, for PEFT's model card.
    """
    config = {
        **{"peft_type": "LORA", "task_type": None, "base_model_name_or_path": base_model, "inference_mode": True},
        **{"r": bank.rank, "lora_alpha": bank.alpha, "lora_dropout": bank.dropout, "bias": "none"},
        "target_modules": _exactly(bank.layers),
        "fan_in_fan_out": not isinstance(bank.model.get_submodule(bank.layers[0]), nn.Linear),
    }
    folders = []
    for number in range(bank.n_hypotheses):
        place = Path(folder) / f"hypothesis_{number}"
        place.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, down, up in zip(bank.layers, bank.down.values(), bank.up.values(), strict=True):
            tensors[f"{_PREFIX}{name}.lora_A.weight"] = down[number].detach().clone()
            tensors[f"{_PREFIX}{name}.lora_B.weight"] = up[number].detach().clone()
        content = _safetensors().save(tensors, metadata={"format": "pt"})
        write_atomically(place / "adapter_model.safetensors", content)
        write_atomically(place / "adapter_config.json", json.dumps(config, indent=2))
        folders.append(place)
    return folders


def load_peft(model: nn.Module, folders: Sequence[str | Path]) -> AdapterBank:
    """Return a bank on `model` with one adapter from each of PEFT's folders.

    Args:
        model: the network, without PEFT's wrapper.
        folders: with adapter_config.json and adapter_model.safetensors; all of the same rank, scale and layers.

    Raises:
        ValueError: if the folders differ, or use options of PEFT other than plain LoRA.
    """
    configs = [json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8")) for folder in folders]
    for config, folder in zip(configs, folders, strict=True):
        special = [name for name, plain in _PLAIN.items() if config.get(name, plain) not in (plain, None, [], {})]
        if config.get("peft_type") != "LORA" or special:
            rule = "hold plain LoRA adapters"
            raise ValueError(
                bad_value("load_peft", "folders", rule, f"{config.get('peft_type')} {special} in {folder}")
            )
    states = [_safetensors().load_file(Path(folder) / "adapter_model.safetensors") for folder in folders]
    settings = {(config["r"], config["lora_alpha"], bool(config.get("use_rslora"))) for config in configs}
    names = {tuple(sorted(state)) for state in states}
    if len(settings) != 1 or len(names) != 1:
        rule = "have the same rank, scale and layers"
        raise ValueError(bad_value("load_peft", "folders", rule, sorted(settings)))
    ((rank, alpha, by_root),), dropout = settings, configs[0].get("lora_dropout", 0.0)
    (keys,) = names
    layers = [key.removeprefix(_PREFIX).removesuffix(".lora_A.weight") for key in keys if key.endswith("lora_A.weight")]
    alpha = alpha * math.sqrt(rank) if by_root else alpha
    bank = AdapterBank(model, len(states), rank, targets=_exactly(layers), alpha=alpha, dropout=dropout)
    kinds = {"down": "lora_A", "up": "lora_B"}
    tensors = {
        f"{kind}/{name.replace('.', '/')}": torch.stack([state[f"{_PREFIX}{name}.{part}.weight"] for state in states])
        for kind, part in kinds.items()
        for name in layers
    }
    _fill(bank, tensors)
    return bank


def _exactly(layers: Sequence[str]) -> str:
    """Return a regular expression for complete names; a list would also match names that end in them."""
    return "|".join(map(re.escape, layers))


@torch.no_grad()
def _fill(bank: AdapterBank, tensors: dict[str, Tensor]) -> None:
    """Set the adapters of a bank."""
    for name, value in tensors.items():
        kind, _, key = name.partition("/")
        parameter = getattr(bank, kind)[key]
        if parameter.shape != value.shape:
            rule = f"fit the layer {key.replace('/', '.')} of the model, {tuple(parameter.shape)}"
            raise ValueError(bad_value("load_adapters", name, rule, tuple(value.shape)))
        parameter.copy_(value)


def _safetensors() -> Any:
    return optional_import("safetensors.torch", extra="checkpoint", needed_by="torchmcl.adapters")


def _module() -> Any:
    return optional_import("safetensors", extra="checkpoint", needed_by="torchmcl.adapters")
