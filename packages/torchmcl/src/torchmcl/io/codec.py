"""Conversion of nested values to JSON and named tensors, and back, by one table of types.

JSON can represent None, booleans, numbers, strings, lists and dictionaries with string keys. A value of another type
becomes a dictionary with a single key that begins with "$".
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmcl.checks import bad_value

Encode = Callable[[Any, Callable[[object, Any], Any]], Any]
Decode = Callable[[Any, Callable[[Any], Any]], Any]


class Form(NamedTuple):
    """The encoding of values of one type.

    Attributes:
        encode: value, part -> JSON, where `part(key, value)` encodes a part of the value; NotImplemented for a value of
            the type that cannot be saved.
        decoders: by the name after "$"; contents, part -> value, where `part(contents)` decodes a part.
    """

    encode: Encode
    decoders: Mapping[str, Decode] = MappingProxyType({})


class Codec:
    """Encodes and decodes nested values.

    Args:
        forms: by type; the first base class of a value with a form determines its encoding.
    """

    def __init__(self, forms: Mapping[type[Any], Form]) -> None:
        self._forms = dict(forms)
        self._decoders = {name: decode for form in forms.values() for name, decode in form.decoders.items()}

    def encode(self, value: Any) -> tuple[Any, dict[str, Tensor]]:
        """Return the JSON part of a nested value, and its tensors by name.

        Raises:
            TypeError: if a part has a type without a form; the message names the part.
        """
        tensors: dict[str, Tensor] = {}
        return self._encoded(value, "", tensors), tensors

    def decode(self, state: Any, tensors: Mapping[str, Tensor]) -> Any:
        """Return the value that was passed to `encode`.

        Raises:
            ValueError: if `state` and `tensors` do not fit together.
        """
        try:
            return self._decoded(state, tensors)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            got = f"{type(error).__name__}: {error}"
            raise ValueError(bad_value("decode", "state", "be as `encode` returned it", got)) from error

    def _encoded(self, value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
        def part(key: object, inner: Any) -> Any:
            return self._encoded(inner, ".".join(step for step in (path, str(key)) if step), tensors)

        if isinstance(value, Tensor):
            name = path or "value"
            while name in tensors:  # "a.b" may be the key "b" in "a", or the key "a.b"
                name += "'"
            tensors[name] = value
            return {"$tensor": name}
        form = next((self._forms[kind] for kind in type(value).__mro__ if kind in self._forms), None)
        encoded = NotImplemented if form is None else form.encode(value, part)
        if encoded is NotImplemented:
            rule = "be made of dictionaries, lists, tensors, numbers and strings"
            advice = "Save its parts, or its `state_dict()`, instead."
            raise TypeError(bad_value("checkpoint", path or "value", rule, type(value).__name__, advice))
        return encoded

    def _decoded(self, state: Any, tensors: Mapping[str, Tensor]) -> Any:
        if isinstance(state, list):
            return [self._decoded(item, tensors) for item in state]
        if not isinstance(state, dict):
            return state
        name = next(iter(state), "")
        if not name.startswith("$"):
            return {key: self._decoded(item, tensors) for key, item in state.items()}
        if name == "$tensor":
            return tensors[state[name]]
        return self._decoders[name[1:]](state[name], lambda contents: self._decoded(contents, tensors))


def record_form(kind: type[Any]) -> Form:
    """Return the form of a dataclass or a named tuple: its fields, under the name of the class.

    Example:
        >>> Pair = NamedTuple("Pair", [("left", float), ("right", float)])
        >>> Codec({**FORMS, Pair: record_form(Pair)}).encode(Pair(1.0, 2.0))[0]
        {'$Pair': {'left': 1.0, 'right': 2.0}}
    """
    names: Any = getattr(kind, "_fields", None) or [field.name for field in fields(kind)]
    return Form(
        lambda value, part: {f"${kind.__name__}": {name: part(name, getattr(value, name)) for name in names}},
        {kind.__name__: lambda contents, part: kind(**{name: part(item) for name, item in contents.items()})},
    )


def _encode_float(value: float, part: Callable[[object, Any], Any]) -> Any:
    return float(value) if math.isfinite(value) else {"$float": repr(float(value))}


def _encode_dictionary(value: dict[Any, Any], part: Callable[[object, Any], Any]) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: part(key, item) for key, item in value.items()}
    # JSON keys are strings: dictionaries with other keys are stored as pairs.
    return {"$items": [[part("key", key), part(key, item)] for key, item in value.items()]}


def _encode_array(value: Any, part: Callable[[object, Any], Any]) -> Any:
    if value.dtype.kind in "OU":
        return {"$words": [value.dtype.kind, part("", value.tolist())]}
    return {"$array": part("", torch.from_numpy(np.array(value)))}


def _decode_words(contents: Any, part: Callable[[Any], Any]) -> Any:
    kind, words = part(contents)
    return np.array(words, dtype=object if kind == "O" else None)


_SAME = Form(lambda value, part: value)
#: The forms of Python, NumPy and torch types; tensors are stored separately.
FORMS: dict[type[Any], Form] = {
    type(None): _SAME,
    bool: _SAME,
    str: _SAME,
    int: Form(lambda value, part: int(value)),
    float: Form(_encode_float, {"float": lambda contents, part: float(contents)}),
    list: Form(lambda value, part: [part(i, item) for i, item in enumerate(value)]),
    tuple: Form(
        lambda value, part: {"$tuple": [part(i, item) for i, item in enumerate(value)]},
        {"tuple": lambda contents, part: tuple(part(contents))},
    ),
    dict: Form(_encode_dictionary, {"items": lambda contents, part: {part(key): part(item) for key, item in contents}}),
    np.generic: Form(lambda value, part: part("", value.item())),
    np.ndarray: Form(_encode_array, {"array": lambda contents, part: part(contents).numpy(), "words": _decode_words}),
    torch.device: Form(
        lambda value, part: {"$device": str(value)}, {"device": lambda contents, part: torch.device(contents)}
    ),
}
_CODEC = Codec(FORMS)


def encode(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the JSON part of a nested value, and its tensors by name.

    Args:
        value: nested dictionaries, lists, tuples, tensors, arrays, strings, numbers, booleans and None.

    Raises:
        TypeError: for anything else; the message names the part.

    Example:
        >>> state, tensors = encode({"epoch": 3, "moments": {0: (torch.ones(1), math.inf)}})
        >>> state["moments"], list(tensors)
        ({'$items': [[0, {'$tuple': [{'$tensor': 'moments.0.0'}, {'$float': 'inf'}]}]]}, ['moments.0.0'])
        >>> decode(state, tensors)
        {'epoch': 3, 'moments': {0: (tensor([1.]), inf)}}
    """
    return _CODEC.encode(value)


def decode(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that was passed to `encode`.

    Raises:
        ValueError: if `state` and `tensors` do not fit together.
    """
    return _CODEC.decode(state, tensors)
