"""Checks of the folder of a saved model before torch is loaded."""

from pathlib import Path

from torchmcl import io
from torchmcl.errors import bad_value

MODEL_KIND = "torchmcl table model"
#: Version of the contents of a model's folder; increased when the schema of tables changes.
MODEL_FORMAT = 5


def check_model(folder: Path) -> None:
    """Check that a folder contains a model, by its header.

    Raises:
        ValueError: if it holds none, or one of another version.
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
        folder: may exist.
        overwrite: whether a model in it may be replaced.

    Raises:
        ValueError: if it exists and holds something else, or a model that must not be replaced.
        OSError: if it cannot be written.
    """
    if io.check_free("save_table_model", folder, "`torchmcl fit`") and not overwrite:
        rule, got = "be new or empty", f"{str(folder)!r}, which holds a model"
        advice = "Give another name, or add --overwrite to replace the model."
        raise ValueError(bad_value("save_table_model", "--out", rule, got, advice))
    io.check_writable(folder)
