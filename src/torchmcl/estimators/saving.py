"""Estimators on disk: `model.json` says everything but the numbers, `model.safetensors` holds those. No pickle."""

import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl import assignment, density, schedules, transport
from torchmcl._checks import bad_value
from torchmcl._files import replaced_folder, write_atomically
from torchmcl._optional import optional_import
from torchmcl._reading import as_written
from torchmcl._version import __version__
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.checkpoints import CheckpointError
from torchmcl.checkpoints.folders import check_beside, read_description, read_numbers, write_numbers
from torchmcl.density import Bandwidth
from torchmcl.estimators._inputs import Bends, Scaler
from torchmcl.fleet.search import Candidate, FleetSearch
from torchmcl.nn import MultiHypothesisMLP

__all__ = ["FORMAT", "from_state", "read_estimator", "save_estimator", "to_state"]

# Counts up when an older version could not read what this one writes.
FORMAT = 1
_KIND = "torchmcl estimator"
_SETTINGS, _NUMBERS = "model.json", "model.safetensors"
# What may stand in a parameter: rules, schedules and densities, by name.
_KNOWN: dict[str, Any] = {
    name: getattr(module, name) for module in (assignment, transport, schedules, density) for name in module.__all__
} | {kind.__name__: kind for kind in (AutoAnnealing, Candidate, FleetSearch)}

Arrays = dict[str, NDArray[Any]]


def to_state(estimator: Any) -> tuple[dict[str, Any], Arrays]:
    """Return a fitted estimator as what JSON can hold, and arrays by name."""
    writer = _Writer(type(estimator).__name__)
    parameters = {name: writer.parameter(name, value) for name, value in estimator.get_params(deep=False).items()}
    names = [name for name in sorted(vars(estimator)) if name not in parameters]
    fitted = {name: writer.value(name, getattr(estimator, name)) for name in names if not name.startswith("_sklearn")}
    settings = {
        "kind": _KIND,
        "format": FORMAT,
        "torchmcl": __version__,
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "fitted": fitted,
    }
    return settings, writer.arrays


def from_state(settings: dict[str, Any], arrays: Arrays, kinds: dict[str, type[Any]]) -> Any:
    """Return the estimator of `to_state`; `kinds` are the classes it may be, by name."""
    estimator = kinds[settings["estimator"]](
        **{name: _read(value, arrays) for name, value in settings["parameters"].items()}
    )
    for name, value in settings["fitted"].items():
        if name.startswith("__") or hasattr(type(estimator), name):  # data never takes the place of a method
            raise ValueError(f"{name!r} is no fitted attribute")
        setattr(estimator, name, _read(value, arrays))
    return estimator


def save_estimator(estimator: Any, folder: Path) -> None:
    """Write a fitted estimator into a new folder that then takes the place of `folder`."""
    optional_import("safetensors.torch", extra="sklearn", needed_by=f"{type(estimator).__name__}.save")
    owner = f"{type(estimator).__name__}.save"
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / _SETTINGS).exists())):
        advice = "Give another name, or remove it first."
        rule = "be new, empty or hold a saved model"
        raise ValueError(bad_value(owner, "folder", rule, repr(str(folder)), advice))
    settings, arrays = to_state(estimator)
    with replaced_folder(folder) as new:
        write_numbers(new / _NUMBERS, _KIND, arrays, {_SETTINGS: settings})
        write_atomically(new / _SETTINGS, json.dumps(settings, indent=1, allow_nan=False))


def read_estimator(owner: str, folder: Path, kinds: dict[str, type[Any]]) -> Any:
    """Return the estimator in a folder, which must be one of `kinds` (by name).

    Raises:
        ValueError: if the folder holds no such model, a damaged one, or one of a newer version.
    """
    optional_import("safetensors.torch", extra="sklearn", needed_by=owner)
    settings = read_description(owner, "folder", folder / _SETTINGS, kind=_KIND, newest=FORMAT, by="`save`")
    name = settings.get("estimator")
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(bad_value(owner, "folder", f"hold a saved {' or '.join(kinds)}", repr(name)))
    if not (folder / _NUMBERS).exists():
        raise ValueError(bad_value(owner, "folder", f"hold {_NUMBERS}", "none", "The folder is not complete."))
    try:
        arrays, checksums = read_numbers(folder / _NUMBERS, _KIND)
        check_beside(folder, checksums, {_SETTINGS: settings})
    except CheckpointError as error:
        rule, advice = "hold a model as `save` wrote it", "Save it again from where it was fitted."
        raise ValueError(bad_value(owner, "folder", rule, str(error), advice)) from error
    with as_written(owner, "folder", "`save`"):
        return from_state(settings, arrays, kinds)


class _Writer:
    """Turns values into JSON, with arrays put aside under a name."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.arrays: Arrays = {}

    def parameter(self, name: str, value: Any) -> Any:
        """Return a constructor parameter; a random generator cannot be stored, and is not needed any more."""
        if isinstance(value, (np.random.RandomState, np.random.Generator)):
            return None
        return self.value(name, value)

    def value(self, name: str, value: Any) -> Any:
        """Return any parameter or fitted attribute."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, torch.device):
            return str(value)
        if isinstance(value, np.ndarray):
            return self._array(name, value)
        if isinstance(value, Scaler):
            return {"$scaler": [self._array(f"{name}.mean", value.mean), self._array(f"{name}.scale", value.scale)]}
        if isinstance(value, Bends):
            knots = [self._array(f"{name}.knots.{i}", each) for i, each in enumerate(value.knots)]
            return {"$bends": [self.value(name, value.scaler), knots]}
        if isinstance(value, Bandwidth):
            return {"$bandwidth": list(value)}
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._array(name, value.detach().cpu().numpy())}
        if isinstance(value, dict):
            return {"$dict": {key: self.value(f"{name}.{key}", item) for key, item in value.items()}}
        if isinstance(value, list) and value and isinstance(value[0], MultiHypothesisMLP):
            return {"$modules": [self._module(f"{name}.{i}", module) for i, module in enumerate(value)]}
        if isinstance(value, (list, tuple)):
            items = [self.value(f"{name}.{i}", item) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if (known := next((word for word, item in _KNOWN.items() if item is value), None)) is not None:
            return {"$class": known}
        kind: type[Any] = type(value)
        if is_dataclass(kind) and _KNOWN.get(kind.__name__) is kind:
            made = {f.name: self.value(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)}
            return {"$object": kind.__name__, "fields": made}
        rule = "be made of numbers, texts and torchmcl's own rules and schedules to be saved"
        advice = "Pickle can hold more, but should be loaded only from people you trust."
        raise ValueError(bad_value(f"{self.owner}.save", name, rule, repr(value), advice))

    def _array(self, name: str, array: NDArray[Any]) -> Any:
        if array.dtype.kind in "OU":
            return {"$words": [self.value(name, item) for item in array.tolist()], "dtype": array.dtype.kind}
        self.arrays[name] = np.ascontiguousarray(array)
        return {"$array": name}

    def _module(self, name: str, module: MultiHypothesisMLP) -> dict[str, Any]:
        for key, parameter in module.state_dict().items():
            self.arrays[f"{name}.{key}"] = parameter.cpu().contiguous().numpy()
        linear = [layer for layer in module.trunk if isinstance(layer, torch.nn.Linear)]
        head = module.head
        return {
            "name": name,
            "in_features": linear[0].in_features if linear else head.in_features,
            "out_features": head.out_features,
            "n_hypotheses": head.n_hypotheses,
            "hidden": [layer.out_features for layer in linear],
            "detach_scores": head.detach_scores,
        }


def _read(value: Any, arrays: Arrays) -> Any:
    """Return what `_Writer.value` wrote."""
    if isinstance(value, list):
        return [_read(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$array" in value:
        return arrays[value["$array"]]
    if "$words" in value:
        return np.array(value["$words"], dtype=object if value["dtype"] == "O" else None)
    if "$tensor" in value:
        return torch.from_numpy(_read(value["$tensor"], arrays))
    if "$scaler" in value:
        return Scaler(*(_read(part, arrays) for part in value["$scaler"]))
    if "$bends" in value:
        scaler, knots = (_read(part, arrays) for part in value["$bends"])
        return Bends(scaler, knots)
    if "$bandwidth" in value:
        return Bandwidth(*value["$bandwidth"])
    if "$dict" in value:
        return {key: _read(item, arrays) for key, item in value["$dict"].items()}
    if "$modules" in value:
        return [_module(dict(part), arrays) for part in value["$modules"]]
    if "$tuple" in value:
        return tuple(_read(item, arrays) for item in value["$tuple"])
    if "$class" in value:
        return _KNOWN[value["$class"]]
    if not is_dataclass(_KNOWN[value["$object"]]):  # a value is built of a rule or a schedule, never by a call
        raise ValueError(f"{value['$object']!r} is no rule or schedule")
    return _KNOWN[value["$object"]](**{key: _read(item, arrays) for key, item in value["fields"].items()})


def _module(shape: dict[str, Any], arrays: Arrays) -> MultiHypothesisMLP:
    prefix = shape.pop("name") + "."
    own = {key[len(prefix) :]: torch.from_numpy(array) for key, array in arrays.items() if key.startswith(prefix)}
    with torch.device("meta"):  # shapes alone: no memory is taken that the file does not bear out
        wanted = {key: value.shape for key, value in MultiHypothesisMLP(**shape).state_dict().items()}
    if wanted != {key: value.shape for key, value in own.items()}:
        raise ValueError(f"the weights of {prefix[:-1]} have other shapes than its description")
    module = MultiHypothesisMLP(**shape)
    module.load_state_dict(own)
    return module.eval()
