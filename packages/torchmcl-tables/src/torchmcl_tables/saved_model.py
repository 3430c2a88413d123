"""Checks of the folder of a saved model that do not import torch."""

from pathlib import Path

from torchmcl import io
from torchmcl.errors import bad_value

MODEL_KIND = "torchmcl table model"
#: Version of the contents of a model folder; it is increased when the schema of tables changes.
MODEL_FORMAT = 5


def check_model(folder: Path) -> None:
    """Check that a folder contains a model of this version, by reading its header.

    Raises:
        ValueError: If the folder contains no model, or a model of another version.
    """
    header = io.saved_contents("load_table_model", folder, MODEL_KIND, "`torchmcl fit`", io.read_header)
    state = header.document.get("state")
    written = state.get("format", 1) if isinstance(state, dict) else None
    if written != MODEL_FORMAT:
        rule, got = f"hold a model of format {MODEL_FORMAT}", f"{str(folder)!r} with format {written!r}"
        raise ValueError(
            bad_value("load_table_model", "folder", rule, got, "Fit it again with this version of torchmcl.")
        )


def check_folder(folder: Path, *, overwrite: bool = True) -> None:
    """Check that a model can be written to a folder.

    Args:
        folder: Folder of the model, which may exist.
        overwrite: Whether an existing model may be replaced.

    Raises:
        ValueError: If the folder contains other files, or a model that must not be replaced.
        OSError: If the folder cannot be written.
    """
    if io.check_free("save_table_model", folder, "`torchmcl fit`") and not overwrite:
        rule, got = "be new or empty", f"{str(folder)!r}, which holds a model"
        advice = "Give another name, or add --overwrite to replace the model."
        raise ValueError(bad_value("save_table_model", "--out", rule, got, advice))
    io.check_writable(folder)
