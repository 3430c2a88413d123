"""Folders of a model: one checkpoint of numbers that knows the checksums of the JSON files beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl._checks import bad_value
from torchmcl._limits import LimitError
from torchmcl._reading import read_json
from torchmcl.checkpoints.files import bad_file, digest_of_json, read_any, write_checkpoint

__all__ = ["check_beside", "read_description", "read_numbers", "write_numbers"]

Arrays = dict[str, NDArray[Any]]


def write_numbers(path: Path, kind: str, arrays: Arrays, beside: Mapping[str, Any]) -> None:
    """Write arrays as a checkpoint that knows the JSON files beside it.

    Args:
        path: of the file.
        kind: of the checkpoint.
        arrays: by name.
        beside: the contents of the JSON files in the same folder, by name.

    Raises:
        OSError: if it cannot be written.
    """
    tensors = {name: torch.from_numpy(a if a.flags.writeable else a.copy()) for name, a in arrays.items()}
    state = {"files": {name: digest_of_json(content) for name, content in beside.items()}}
    write_checkpoint(path, kind, state=state, tensors=tensors)


def read_numbers(path: Path, kind: str) -> tuple[Arrays, dict[str, str]]:
    """Return the arrays of `write_numbers`, and the checksums of the JSON files beside them for `check_beside`.

    Files from before there were checksums are read too; no checksums are known then.

    Raises:
        CheckpointError: if the file is damaged or something else.
    """
    checkpoint, tensors = read_any(path, kind)
    arrays: Arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    return arrays, {} if checkpoint is None else dict(checkpoint.state["files"])


def check_beside(folder: Path, checksums: Mapping[str, str], beside: Mapping[str, Any]) -> None:
    """Check that the JSON files of a folder are those that were saved with its numbers.

    Raises:
        CheckpointError: if one is missing or has changed.
    """
    for name, checksum in checksums.items():
        if name not in beside:
            raise bad_file(folder / name, "be there", "none", "The folder is not complete.")
        if digest_of_json(beside[name]) != checksum:
            got = "another one: the file has changed since it was written"
            raise bad_file(folder / name, "have the checksum that was saved with the numbers", got)


def read_description(owner: str, argument: str, path: Path, *, kind: str, newest: int, by: str) -> dict[str, Any]:
    """Return the JSON file that says what a folder holds.

    Args:
        owner: whom errors speak for.
        argument: what they call the folder.
        path: of the file.
        kind: what must stand under "kind".
        newest: the newest "format" that can be read.
        by: who writes such folders.

    Raises:
        ValueError: if it is not there, describes something else, or is of a newer version.
    """
    rule = f"be a folder that {by} wrote"
    if not path.is_file():
        got = f"{str(path.parent)!r}, which {f'has no {path.name}' if path.parent.exists() else 'does not exist'}"
        raise ValueError(bad_value(owner, argument, rule, got, f"It has a file {path.name} in it."))
    try:
        found = read_json(owner, path)
    except LimitError:
        raise
    except ValueError as error:
        raise ValueError(bad_value(owner, argument, rule, f"{str(path)!r}, which is not JSON")) from error
    if not isinstance(found, dict) or found.get("kind") != kind or not isinstance(found.get("format"), int):
        raise ValueError(bad_value(owner, argument, rule, f"{str(path)!r}, which describes something else"))
    if found["format"] > newest:
        rule = f"hold a model of format {newest} or older"
        got = f"format {found['format']} (written by torchmcl {found.get('torchmcl', 'of unknown version')})"
        raise ValueError(bad_value(owner, argument, rule, got, "Upgrade torchmcl: pip install -U torchmcl."))
    return found
