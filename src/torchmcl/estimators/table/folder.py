"""Models of tables on disk: a folder that describes itself, of JSON and safetensors. No pickle."""

import json
import os
from pathlib import Path
from typing import Any

from torchmcl._checks import bad_value
from torchmcl._files import replaced_folder, write_atomically
from torchmcl._optional import optional_import
from torchmcl._reading import read_json
from torchmcl._version import __version__
from torchmcl.checkpoints.folders import check_beside, read_description, read_numbers, write_numbers
from torchmcl.data.table import ColumnEncoder, TableSchema
from torchmcl.estimators.regressor import MCLRegressor
from torchmcl.estimators.saving import from_state, to_state
from torchmcl.estimators.table.model import TableModel

__all__ = ["FORMAT", "check_file", "check_folder", "load_table_model", "save_table_model"]

# Counts up when an older version could not read what this one writes.
FORMAT = 1
_KIND = "torchmcl table model"
_CONFIG, _SCHEMA, _METRICS, _EVALUATION = "config.json", "schema.json", "metrics.json", "evaluation.json"
_WEIGHTS = "weights.safetensors"


def save_table_model(model: TableModel, folder: Path) -> None:
    """Write the model to a folder, which is replaced at once: config, schema, metrics, evaluation and weights.

    Raises:
        ValueError: if the folder exists and holds something else.
        OSError: if it cannot be written.
    """
    optional_import("safetensors.torch", extra="table", needed_by="torchmcl fit")
    check_folder("torchmcl fit", folder)
    settings, arrays = to_state(model.regressor)
    config = {"kind": _KIND, "format": FORMAT, "torchmcl": __version__, "source": model.source}
    files = {_CONFIG: config | {"regressor": settings}, _SCHEMA: model.schema.to_json(), _METRICS: model.metrics}
    if model.evaluation is not None:
        files[_EVALUATION] = model.evaluation
    texts = {name: _json(content) for name, content in files.items()}
    with replaced_folder(folder) as new:
        beside = {name: json.loads(text) for name, text in texts.items()}
        write_numbers(new / _WEIGHTS, _KIND, {**arrays, **model.encoder.state()}, beside)
        for name, text in texts.items():
            write_atomically(new / name, text)


def check_folder(owner: str, folder: Path) -> None:
    """Check that a model can be written to a folder, before work is done for it.

    Raises:
        ValueError: if it exists and holds something else than a model.
        OSError: if its place cannot be written.
    """
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / _CONFIG).exists())):
        rule, advice = "be new, empty or hold a model of `torchmcl fit`", "Give another name, or remove it first."
        raise ValueError(bad_value(owner, "folder", rule, repr(str(folder)), advice))
    _check_place(folder)


def check_file(path: Path) -> None:
    """Check that a file can be written, before work is done for it.

    Raises:
        OSError: if not.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} cannot be written: it is a folder.")
    _check_place(path)


def _check_place(path: Path) -> None:
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise NotADirectoryError(f"{str(path)!r} cannot be written: {str(above)!r} is not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"{str(path)!r} cannot be written: no permission to write in {str(above)!r}.")


def load_table_model(owner: str, folder: Path) -> TableModel:
    """Return the model in a folder.

    Raises:
        ValueError: if the folder holds none, an incomplete one, or one of a newer version.
    """
    config = read_description(owner, "model folder", folder / _CONFIG, kind=_KIND, newest=FORMAT, by="`torchmcl fit`")
    optional_import("safetensors.torch", extra="table", needed_by=owner)
    for name in (_SCHEMA, _METRICS, _WEIGHTS):
        if not (folder / name).is_file():
            advice = "The folder is not complete; fit it again."
            raise ValueError(bad_value(owner, "model folder", f"hold {name}", "none", advice))
    try:
        arrays, checksums = read_numbers(folder / _WEIGHTS, _KIND)
        files = {name: _read(folder / name) for name in (_SCHEMA, _METRICS)} | {_CONFIG: config}
        if (folder / _EVALUATION).is_file():
            files[_EVALUATION] = _read(folder / _EVALUATION)
        schema = TableSchema.from_json(files[_SCHEMA])
        regressor = from_state(config["regressor"], arrays, {"MCLRegressor": MCLRegressor})
        encoder = ColumnEncoder.from_state(schema, arrays)
        check_beside(folder, checksums, files)
        if not isinstance(files[_METRICS], dict) or not isinstance(files.get(_EVALUATION), dict | None):
            raise TypeError("metrics and evaluation are not named values")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        rule, advice = "be as `torchmcl fit` wrote it", "Fit it again."
        raise ValueError(bad_value(owner, "model folder", rule, f"{type(error).__name__}: {error}", advice)) from error
    return TableModel(schema, encoder, regressor, config.get("source", ""), files[_METRICS], files.get(_EVALUATION))


def _read(path: Path) -> Any:
    return read_json("model folder", path)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
