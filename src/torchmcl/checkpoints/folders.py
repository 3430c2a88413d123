"""Folders of a model: one checkpoint of numbers that knows the checksums of the JSON files beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl._reading import read_description
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
