"""Where models and answers go: checked before work is done for them, and before torch is loaded."""

import os
from pathlib import Path

from torchmcl._headers import check_free, read_header, saved_contents
from torchmcl._messages import bad_value

__all__ = ["MODEL_FORMAT", "MODEL_KIND", "check_file", "check_folder", "check_model"]

MODEL_KIND = "torchmcl table model"
#: Of what is in a model's folder; increased when the schema of tables changes.
MODEL_FORMAT = 3


def check_model(owner: str, folder: Path) -> None:
    """Check that a folder holds a model, by its header.

    Raises:
        ValueError: if it holds none, or one of another version.
    """
    header = saved_contents(owner, folder, MODEL_KIND, "`torchmcl fit`", read_header)
    state = header.document.get("state")
    written = state.get("format", 1) if isinstance(state, dict) else None
    if written != MODEL_FORMAT:
        rule, got = f"hold a model of format {MODEL_FORMAT}", f"{str(folder)!r} with format {written!r}"
        raise ValueError(bad_value(owner, "folder", rule, got, "Fit it again with this version of torchmcl."))


def check_folder(owner: str, folder: Path, *, overwrite: bool = True) -> None:
    """Check that a model can be written to a folder.

    Args:
        owner: named in error messages.
        folder: that may exist.
        overwrite: whether a model in it may be replaced.

    Raises:
        ValueError: if it exists and holds something else, or a model that must not be replaced.
        OSError: if it cannot be written.
    """
    if check_free(owner, folder, "`torchmcl fit`") and not overwrite:
        advice = "Give another name, or add --overwrite to replace the model."
        raise ValueError(bad_value(owner, "--out", "be new or empty", f"{str(folder)!r}, which holds a model", advice))
    _check_writable(folder)


def check_file(owner: str, path: Path, *inputs: Path | None) -> None:
    """Check that a file can be written.

    Args:
        owner: named in error messages.
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
    _check_writable(path)


def _check_writable(path: Path) -> None:
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise NotADirectoryError(f"{str(path)!r} cannot be written: {str(above)!r} is not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"{str(path)!r} cannot be written: no permission to write in {str(above)!r}.")
