"""Checksums of values, reproducible across processes, for checkpoints and for comparison of modules.

Numbers, strings, tensors and containers are compared by value. Functions are compared by name, code and closure
values; the code of installed libraries is excluded, so that their updates do not change checksums.
"""

import functools
import hashlib
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["contents_of", "described", "digest_of_tensors", "identity_of", "module_attributes"]

# Attributes of every module; parameters, children and hooks are described separately.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_AGAIN = {"_flat_weights", "_flat_weight_refs"}  # the parameters of recurrent layers
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LIBRARIES = frozenset({"torch", "torchmcl", "numpy", "scipy", "sklearn", "builtins", "math", "functools", "operator"})


def identity_of(value: Any) -> str:
    """Return a checksum of a value.

    Example:
        >>> def times(factor):
        ...     return lambda x: factor * x
        >>> identity_of(times(2)) == identity_of(times(2)), identity_of(times(2)) == identity_of(times(3))
        (True, False)
    """
    return hashlib.sha256(json.dumps(described(value)).encode()).hexdigest()


def digest_of_tensors(values: Mapping[str, Any]) -> str:
    """Return a checksum of the tensors among the given values, by name, shape, type and contents."""
    digest = hashlib.sha256()
    for name, tensor in values.items():
        if isinstance(tensor, Tensor):
            digest.update(json.dumps([name, *_of_tensor(tensor)]).encode())
    return digest.hexdigest()


def described(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Return a description as lists, strings and numbers; `seen` contains values described before."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex | bytes | torch.dtype | torch.device | torch.Size | slice | range):
        return repr(value)
    if isinstance(value, np.generic):
        return described(value.item())
    seen = {} if seen is None else seen
    if not isinstance(value, _BY_VALUE) and (place := _again(value, seen)) is not None:
        return ["again", place]
    for kinds, describe in _KINDS:
        if isinstance(value, kinds):
            return describe(value, seen)
    if is_dataclass(value):
        entries = {field.name: getattr(value, field.name) for field in fields(value)}
        return [described(type(value), seen), _of_attributes(entries, seen)]
    return [described(type(value), seen), _of_attributes(getattr(value, "__dict__", {}), seen)]


def _of_tensor(tensor: Tensor) -> list[Any]:
    plain = tensor.detach().cpu().contiguous()
    contents = plain.view(-1).view(torch.uint8) if plain.numel() else plain  # NumPy has no bfloat16
    return [list(plain.shape), str(plain.dtype), hashlib.sha256(contents.numpy().tobytes()).hexdigest()]


def _of_array(array: np.ndarray[Any, Any], _: dict[int, Any]) -> list[Any]:
    return [list(array.shape), str(array.dtype), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]


def _of_mapping(value: Mapping[Any, Any], seen: dict[int, Any]) -> list[Any]:
    return ["mapping", *([described(key, seen), described(entry, seen)] for key, entry in value.items())]


def _of_set(value: Any, seen: dict[int, Any]) -> list[Any]:
    return ["set", *sorted(json.dumps(described(entry, seen)) for entry in value)]


def _of_sequence(value: Any, seen: dict[int, Any]) -> list[Any]:
    return [_name(type(value)), *(described(entry, seen) for entry in value)]


def _of_partial(value: "functools.partial[Any]", seen: dict[int, Any]) -> list[Any]:
    return ["partial", *(described(part, seen) for part in (value.func, value.args, value.keywords))]


def _of_method(value: types.MethodType, seen: dict[int, Any]) -> list[Any]:
    return ["method", described(value.__func__, seen), described(value.__self__, seen)]


def _of_function(value: types.FunctionType, seen: dict[int, Any]) -> list[Any]:
    if _is_of_library(value) and "<" not in value.__qualname__:  # a nested function has a closure
        return [_name(value)]
    cells = [contents_of(cell) for cell in value.__closure__ or ()]
    code = [] if _is_of_library(value) else _of_code(value.__code__, value.__globals__, seen)
    return [_name(value), code, *(described(part, seen) for part in (value.__defaults__, value.__kwdefaults__, cells))]


def _of_code(code: types.CodeType, names: Mapping[str, Any], seen: dict[int, Any]) -> list[Any]:
    """Return bytecode, constants and names, with the values of globals outside of libraries."""
    constants = [
        _of_code(entry, names, seen) if isinstance(entry, types.CodeType) else described(entry, seen)
        for entry in code.co_consts
    ]
    own = {name: names[name] for name in code.co_names if name in names and _is_own(names[name])}
    return [code.co_code.hex(), constants, list(code.co_names), _of_mapping(own, seen)]


def _is_own(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return not _is_of_library(value)
    return isinstance(value, bool | int | float | complex | str | tuple | list | dict | Tensor | np.ndarray)


def contents_of(cell: types.CellType) -> Any:
    """Return the value of a closure cell, or None if it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _of_class(value: type, seen: dict[int, Any]) -> list[Any]:
    """Return the name of a class, with the code of its methods unless it is from a library."""
    own = [part for part in value.__mro__ if not _is_of_library(part)]
    methods = {
        f"{part.__qualname__}.{name}": member
        for part in own
        for name, member in vars(part).items()
        if isinstance(member, types.FunctionType)
    }
    return [_name(value), _of_mapping(methods, seen)]


def _of_module(module: nn.Module, seen: dict[int, Any]) -> list[Any]:
    """Return the structure of a module: everything but the values of its parameters and buffers."""
    tensors = [
        [name, _again(tensor, seen), list(tensor.shape), str(tensor.dtype), tensor.requires_grad]
        for named in (module._parameters, module._buffers)
        for name, tensor in named.items()
        if tensor is not None
    ]
    attributes = module_attributes(module)
    hooks = [[name, *(described(hook, seen) for hook in getattr(module, name).values())] for name in _HOOKS]
    children = [[name, described(child, seen)] for name, child in module._modules.items()]
    return [
        described(type(module), seen),
        module.training,
        tensors,
        _of_attributes(attributes, seen),
        [hook for hook in hooks if len(hook) > 1],
        children,
    ]


def module_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module other than those of every `nn.Module`."""
    known = _OF_EVERY_MODULE | _AGAIN if isinstance(module, nn.RNNBase) else _OF_EVERY_MODULE
    return {name: value for name, value in vars(module).items() if name not in known}


def _again(value: Any, seen: dict[int, Any]) -> int | None:
    """Return the index of an object that was seen before, None for a new one."""
    place = list(seen).index(id(value)) if id(value) in seen else None
    seen[id(value)] = value  # kept alive, so that no other object gets its id
    return place


def _of_attributes(attributes: Mapping[str, Any], seen: dict[int, Any]) -> list[Any]:
    return [[name, described(value, seen)] for name, value in sorted(attributes.items())]


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _is_of_library(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _LIBRARIES


# Whether equal constants are the same object is an implementation detail of Python.
_BY_VALUE = (Tensor, np.ndarray, Mapping, set, frozenset, tuple, list)
_KINDS: tuple[tuple[Any, Callable[[Any, dict[int, Any]], Any]], ...] = (
    (Tensor, lambda value, _: _of_tensor(value)),
    (np.ndarray, _of_array),
    (nn.Module, _of_module),
    (Enum, lambda value, _: str(value)),
    (type, _of_class),
    (functools.partial, _of_partial),
    (types.MethodType, _of_method),
    (types.FunctionType, _of_function),
    (types.BuiltinFunctionType, lambda value, _: _name(value)),
    (types.ModuleType, lambda value, _: value.__name__),
    (torch.Generator, lambda value, _: "generator"),
    (Mapping, _of_mapping),
    ((set, frozenset), _of_set),
    ((tuple, list), _of_sequence),
)
