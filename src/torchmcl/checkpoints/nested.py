"""Nested dictionaries, lists and tuples with tensors in them, as JSON and tensors by name; and back."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from torchmcl._checks import bad_value

__all__ = ["joined", "parted"]

_MARKS = ("$tensor", "$float", "$tuple", "$items")


def parted(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return what JSON can hold of a nested value, and its tensors by name.

    Args:
        value: of dictionaries, lists, tuples, tensors, texts, numbers, truth values and None.

    Raises:
        TypeError: for anything else, with the way to it.

    Example:
        >>> import torch
        >>> state, tensors = parted({"epoch": 3, "moments": {0: (torch.ones(1), math.inf)}})
        >>> state["moments"], list(tensors)
        ({'$items': [[0, {'$tuple': [{'$tensor': 'moments.0.0'}, {'$float': 'inf'}]}]]}, ['moments.0.0'])
        >>> joined(state, tensors)
        {'epoch': 3, 'moments': {0: (tensor([1.]), inf)}}
    """
    tensors: dict[str, Tensor] = {}
    return _parted(value, "", tensors), tensors


def joined(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that `parted` took apart.

    Raises:
        ValueError: if the parts do not fit together.
    """
    try:
        return _joined(state, tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(bad_value("joined", "state", "name tensors that are there", repr(error))) from error


def _parted(value: Any, way: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Tensor):
        name = way or "value"
        while name in tensors:  # "a.b" may be reached as a, b and as "a.b"
            name += "'"
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, Mapping):
        return _parted_mapping(value, way, tensors)
    if isinstance(value, (list, tuple)):
        items = [_parted(item, _further(way, i), tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    rule = "be made of dictionaries, lists, tensors, numbers and texts"
    advice = "Save its parts, or its `state_dict()`, instead."
    raise TypeError(bad_value("checkpoint", way or "value", rule, type(value).__name__, advice))


def _parted_mapping(value: Mapping[Any, Any], way: str, tensors: dict[str, Tensor]) -> Any:
    made = [(key, _parted(item, _further(way, key), tensors)) for key, item in value.items()]
    if all(type(key) is str and key not in _MARKS for key, _ in made):
        return dict(made)
    # The keys of JSON are texts: others are kept in pairs.
    return {"$items": [[_parted(key, _further(way, "key"), tensors), item] for key, item in made]}


def _further(way: str, key: object) -> str:
    return f"{way}.{key}" if way else str(key)


def _joined(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(state, list):
        return [_joined(item, tensors) for item in state]
    if not isinstance(state, dict):
        return state
    if len(state) == 1:
        ((mark, inside),) = state.items()
        if mark == "$tensor":
            return tensors[inside]
        if mark == "$float":
            return float(inside)
        if mark == "$tuple":
            return tuple(_joined(item, tensors) for item in inside)
        if mark == "$items":
            return {_joined(key, tensors): _joined(item, tensors) for key, item in inside}
    return {key: _joined(item, tensors) for key, item in state.items()}
