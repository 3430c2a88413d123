"""Where models and answers go: checked before work is done for them, and before torch is loaded."""

import os
from pathlib import Path
from typing import Any

from torchmcl._messages import bad_value
from torchmcl._reading import read_description

__all__ = ["MODEL_CONFIG", "MODEL_FORMAT", "MODEL_KIND", "check_file", "check_folder", "model_config"]

# The file that says what a model's folder holds. The format counts up when an older version could not read it.
MODEL_CONFIG, MODEL_KIND, MODEL_FORMAT = "config.json", "torchmcl table model", 1


def model_config(owner: str, folder: Path) -> dict[str, Any]:
    """Return what the folder of a model says of it.

    Raises:
        ValueError: if it holds none, or one of a newer version.
    """
    path = folder / MODEL_CONFIG
    return read_description(owner, "model folder", path, kind=MODEL_KIND, newest=MODEL_FORMAT, by="`torchmcl fit`")


def check_folder(owner: str, folder: Path, *, overwrite: bool = True) -> None:
    """Check that a model can be written to a folder.

    Args:
        owner: who asks.
        folder: that may exist.
        overwrite: whether it may hold a model, which is then replaced.

    Raises:
        ValueError: if it exists and holds something else, or a model that must not be replaced.
        OSError: if its place cannot be written.
    """
    holds_model = (folder / MODEL_CONFIG).exists()
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or holds_model)):
        rule, advice = "be new, empty or hold a model of `torchmcl fit`", "Give another name, or remove it first."
        raise ValueError(bad_value(owner, "folder", rule, repr(str(folder)), advice))
    if holds_model and not overwrite:
        advice = "Give another name, or add --overwrite to replace the model."
        raise ValueError(bad_value(owner, "--out", "be new or empty", f"{str(folder)!r}, which holds a model", advice))
    _check_place(folder)


def check_file(owner: str, path: Path, *inputs: Path | None) -> None:
    """Check that a file can be written.

    Args:
        owner: who asks.
        path: of the file.
        *inputs: what the command reads, which it must not overwrite.

    Raises:
        ValueError: if it is one of the inputs.
        OSError: if it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} cannot be written: it is a folder.")
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            rule, got = "differ from the file that is read", repr(str(path))
            raise ValueError(bad_value(owner, "--out", rule, got, "Give another name."))
    _check_place(path)


def _check_place(path: Path) -> None:
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise NotADirectoryError(f"{str(path)!r} cannot be written: {str(above)!r} is not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"{str(path)!r} cannot be written: no permission to write in {str(above)!r}.")
