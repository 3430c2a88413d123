"""Values as files: nested values become JSON and named tensors in one safetensors file with a checksum. No pickle.

JSON can represent None, booleans, numbers, strings, lists and dictionaries with string keys. A value of another type
becomes a dictionary with a single key that begins with "$". The checksum covers the JSON, and the name, type, shape and
bytes of every tensor. Equal values produce identical files, and nothing from a file is executed.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmcl._version import __version__
from torchmcl.errors import bad_value
from torchmcl.io.files import (
    HEADER,
    MODEL_FILE,
    VERSION,
    as_written,
    bad_file,
    check_free,
    read_header,
    saved_contents,
    write_atomically,
)
from torchmcl.optional import optional_import

__all__ = [
    "Codec",
    "Form",
    "SavedState",
    "load",
    "load_model",
    "read_checkpoint",
    "save",
    "save_model",
    "write_checkpoint",
]


class Form(NamedTuple):
    """Encoding of the values of one type.

    Attributes:
        name: Name in the file, after "$".
        encode: Function of value and part, where `part(key, inner)` encodes a part of the value; it returns
            NotImplemented for a value that cannot be saved.
        decode: Function of contents and part, where `part(contents)` decodes a part.
    """

    name: str
    encode: Callable[[Any, Callable[[object, Any], Any]], Any]
    decode: Callable[[Any, Callable[[Any], Any]], Any]


class Codec:
    """Registry of the types that can be saved, beside Python's and NumPy's own types and tensors.

    Args:
        *records: Dataclasses and named tuples, saved as their fields under the name of the class.
        forms: Encodings of other types; the first base class with an encoding counts.

    Example:
        >>> Pair = NamedTuple("Pair", [("left", float), ("right", float)])
        >>> Codec(Pair).encode(Pair(1.0, math.inf))[0]
        {'$Pair': {'left': 1.0, 'right': {'$float': 'inf'}}}
        >>> state, tensors = Codec().encode({"epoch": 3, "weights": {0: (torch.ones(1), math.inf)}})
        >>> state["weights"], list(tensors)
        ({'$items': [[0, {'$tuple': [{'$tensor': 'weights.0.0'}, {'$float': 'inf'}]}]]}, ['weights.0.0'])
        >>> Codec().decode(state, tensors)
        {'epoch': 3, 'weights': {0: (tensor([1.]), inf)}}
    """

    def __init__(self, *records: type[Any], forms: Mapping[type[Any], Form] = MappingProxyType({})) -> None:
        self._forms = {record: _record_form(record) for record in records} | dict(forms)
        self._by_name = {form.name: form for form in self._forms.values()}

    def encode(self, value: Any) -> tuple[Any, dict[str, Tensor]]:
        """Return the JSON part of a nested value, and its tensors by name.

        Raises:
            TypeError: If a part has a type without an encoding; the message names the part.
        """
        tensors: dict[str, Tensor] = {}
        return self._encoded(value, "", tensors), tensors

    def decode(self, state: Any, tensors: Mapping[str, Tensor]) -> Any:
        """Return the value that was passed to `encode`.

        Raises:
            ValueError: If `state` and `tensors` do not fit together.
        """
        try:
            return self._decoded(state, tensors)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            got = f"{type(error).__name__}: {error}"
            raise ValueError(bad_value("decode", "state", "be as `encode` returned it", got)) from error

    def _encoded(self, value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
        def part(key: object, inner: Any) -> Any:
            return self._encoded(inner, ".".join(step for step in (path, str(key)) if step), tensors)

        form = next((self._forms[kind] for kind in type(value).__mro__ if kind in self._forms), None)
        if form is not None and (contents := form.encode(value, part)) is not NotImplemented:
            return {f"${form.name}": contents}
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, np.generic):
            return part("", value.item())
        if isinstance(value, list):
            return [part(i, item) for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": [part(i, item) for i, item in enumerate(value)]}
        if isinstance(value, dict):
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {key: part(key, item) for key, item in value.items()}
            # JSON keys are strings: dictionaries with other keys are stored as pairs.
            return {"$items": [[part("key", key), part(key, item)] for key, item in value.items()]}
        if isinstance(value, np.ndarray):
            if value.dtype.kind in "OU":
                return {"$words": [value.dtype.kind, part("", value.tolist())]}
            return {"$array": part("", torch.from_numpy(np.array(value)))}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if isinstance(value, Tensor):
            name = path or "value"
            while name in tensors:  # "a.b" may be the key "b" in "a", or the key "a.b"
                name += "'"
            tensors[name] = value
            return {"$tensor": name}
        rule = "be made of dictionaries, lists, tensors, numbers and strings"
        advice = "Save its parts, or its `state_dict()`, instead."
        raise TypeError(bad_value("checkpoint", path or "value", rule, type(value).__name__, advice))

    def _decoded(self, state: Any, tensors: Mapping[str, Tensor]) -> Any:
        def part(contents: Any) -> Any:
            return self._decoded(contents, tensors)

        if isinstance(state, list):
            return [part(item) for item in state]
        if not isinstance(state, dict):
            return state
        name = next(iter(state), "")
        if not name.startswith("$"):
            return {key: part(item) for key, item in state.items()}
        if name == "$tensor":
            return tensors[state[name]]
        decode = _DECODERS.get(name)
        return (self._by_name[name[1:]].decode if decode is None else decode)(state[name], part)


def _decode_words(contents: Any, part: Callable[[Any], Any]) -> Any:
    kind, words = contents
    return np.array(part(words), dtype=object if kind == "O" else str)


_DECODERS: Mapping[str, Callable[[Any, Callable[[Any], Any]], Any]] = MappingProxyType(
    {
        "$float": lambda contents, part: float(contents),
        "$tuple": lambda contents, part: tuple(part(contents)),
        "$items": lambda contents, part: {part(key): part(item) for key, item in contents},
        "$array": lambda contents, part: part(contents).numpy(),
        "$words": _decode_words,
        "$device": lambda contents, part: torch.device(contents),
    }
)


def _record_form(record: type[Any]) -> Form:
    names: Any = getattr(record, "_fields", None) or [field.name for field in fields(record)]
    return Form(
        record.__name__,
        lambda value, part: {name: part(name, getattr(value, name)) for name in names},
        lambda contents, part: record(**{name: part(item) for name, item in contents.items()}),
    )


_BUILT_IN = Codec()


# ---------------------------------------------------------------------------- files


def save(path: Path | str, value: Any, *, kind: str = "", codec: Codec = _BUILT_IN) -> None:
    """Write a nested value to a file, completely or not at all.

    Args:
        path: Path of the file.
        value: Nested dictionaries, lists, tuples, tensors, arrays, strings, numbers, booleans and None.
        kind: Kind of the contents, which `load` can require.
        codec: Registry of further types.

    Raises:
        TypeError: If a part of the value cannot be saved; the message names the part.
        OSError: If the disk is full or the folder cannot be written; the old file, if any, is untouched.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "mine.safetensors"
        >>> save(path, {"epoch": 3, "weight": torch.ones(2)}, kind="my loop")
        >>> load(path, kind="my loop")
        {'epoch': 3, 'weight': tensor([1., 1.])}
    """
    state, tensors = codec.encode(value)
    write_checkpoint(path, kind, state=state, tensors=tensors)


def load(path: Path | str, *, kind: str | None = None, codec: Codec = _BUILT_IN) -> Any:
    """Return the value that `save` wrote, with tensors on the CPU. Nothing from the file is executed.

    Args:
        path: Path of the file.
        kind: Required kind; any by default.
        codec: Registry of further types.

    Raises:
        CheckpointError: If it is not an intact file of this kind, or was written in another version of the format.
        ValueError: If its values do not fit together.
        FileNotFoundError: If the file does not exist.
    """
    saved = read_checkpoint(path, kind)
    return codec.decode(saved.state, saved.tensors)


def save_model(owner: str, folder: Path | str, value: Any, *, kind: str, codec: Codec = _BUILT_IN) -> None:
    """Write a model to the file `model.safetensors` in a folder.

    Args:
        owner: Function named in errors.
        folder: New or empty folder, or one with a saved model, which is replaced.
        value: Nested value that describes the model.
        kind: Kind of the model.
        codec: Registry of further types.

    Raises:
        ValueError: If the folder contains something else, or the value cannot be saved.
    """
    check_free(owner, Path(folder), "`save`")
    try:
        save(Path(folder) / MODEL_FILE, value, kind=kind, codec=codec)
    except TypeError as error:
        rule = "have parameters made of numbers, strings and torchmcl's own rules and schedules to be saved"
        raise ValueError(bad_value(owner, "self", rule, str(error).rstrip("."))) from error


def load_model(
    owner: str, folder: Path | str, make: Callable[[Any], Any], *, kind: str, codec: Codec = _BUILT_IN
) -> Any:
    """Return the model that `make` constructs from the value in a folder, which `save_model` wrote.

    Args:
        owner: Function named in errors.
        folder: Folder of the model.
        make: Function of the saved value. Its errors are reported as a damaged file.
        kind: Kind of the model.
        codec: Registry of further types.

    Raises:
        ValueError: If there is no such model, or it is damaged, of another kind or another version.
    """
    saved = saved_contents(owner, Path(folder), kind, "`save`", read_checkpoint)
    with as_written(owner, "folder", "`save`"):
        return make(codec.decode(saved.state, saved.tensors))


class SavedState(NamedTuple):
    """Encoded contents of a file.

    Attributes:
        kind: Kind of the contents, "fleet" for example.
        state: JSON values.
        tensors: Tensors by name, on the CPU.
        torchmcl: Version of torchmcl that wrote the file.
    """

    kind: str
    state: Any
    tensors: dict[str, Tensor]
    torchmcl: str


def write_checkpoint(path: Path | str, kind: str, *, state: Any, tensors: Mapping[str, Tensor]) -> None:
    """Write the result of `Codec.encode` to a file; see `save`."""
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by="write_checkpoint")
    separate = _separate(tensors)
    document = {"version": VERSION, "torchmcl": __version__, "kind": kind, "state": state}
    text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    write_atomically(Path(path), io.save(separate, metadata={HEADER: f"{_digest(text, separate)} {text}"}))


def read_checkpoint(path: Path | str, kind: str | None = None) -> SavedState:
    """Return the encoded contents of a file after verifying its checksum; see `load`."""
    path = Path(path)
    broken = optional_import("safetensors", extra="checkpoint", needed_by="read_checkpoint").SafetensorError
    io = optional_import("safetensors.torch", extra="checkpoint", needed_by="read_checkpoint")
    if not path.is_file():
        raise FileNotFoundError(f"read_checkpoint: there is no file {str(path)!r}. Check the path.")
    checksum, text, document = read_header(path, kind)
    try:
        tensors: dict[str, Tensor] = io.load(path.read_bytes())
    except (broken, ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise bad_file(path, "be a complete safetensors file", got, "It is damaged.") from error
    if checksum != _digest(text, tensors):
        got = "another one: the file has changed since it was written"
        raise bad_file(path, "have the checksum in its header", got, "Restore it from a copy.")
    return SavedState(document.get("kind", ""), document.get("state"), tensors, str(document.get("torchmcl")))


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU that share no memory, as safetensors requires."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():  # an empty tensor has no bytes, and a single element may have any stride
            flat = tensor.as_strided((tensor.numel(),), (1,))
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
