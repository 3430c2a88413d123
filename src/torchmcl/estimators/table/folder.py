"""Models of tables on disk: a folder that describes itself, of JSON and safetensors. No pickle."""

import json
from pathlib import Path
from typing import Any

from torchmcl._checks import bad_value
from torchmcl._files import replaced_folder, write_atomically
from torchmcl._optional import optional_import
from torchmcl._reading import read_json
from torchmcl._version import __version__
from torchmcl.checkpoints.folders import check_beside, read_numbers, write_numbers
from torchmcl.data.table import ColumnEncoder, TableSchema
from torchmcl.data.table.places import MODEL_CONFIG, MODEL_FORMAT, MODEL_KIND, check_folder, model_config
from torchmcl.estimators.regressor import MCLRegressor
from torchmcl.estimators.saving import from_state, to_state
from torchmcl.estimators.table.model import TableModel

__all__ = ["load_table_model", "save_table_model"]

_SCHEMA, _METRICS, _EVALUATION = "schema.json", "metrics.json", "evaluation.json"
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
    config = {"kind": MODEL_KIND, "format": MODEL_FORMAT, "torchmcl": __version__, "source": model.source}
    files = {MODEL_CONFIG: config | {"regressor": settings}, _SCHEMA: model.schema.to_json(), _METRICS: model.metrics}
    if model.evaluation is not None:
        files[_EVALUATION] = model.evaluation
    texts = {name: _json(content) for name, content in files.items()}
    with replaced_folder(folder) as new:
        beside = {name: json.loads(text) for name, text in texts.items()}
        write_numbers(new / _WEIGHTS, MODEL_KIND, {**arrays, **model.encoder.state()}, beside)
        for name, text in texts.items():
            write_atomically(new / name, text)


def load_table_model(owner: str, folder: Path) -> TableModel:
    """Return the model in a folder.

    Raises:
        ValueError: if the folder holds none, an incomplete one, or one of a newer version.
    """
    config = model_config(owner, folder)
    optional_import("safetensors.torch", extra="table", needed_by=owner)
    for name in (_SCHEMA, _METRICS, _WEIGHTS):
        if not (folder / name).is_file():
            advice = "The folder is not complete; fit it again."
            raise ValueError(bad_value(owner, "model folder", f"hold {name}", "none", advice))
    try:
        arrays, checksums = read_numbers(folder / _WEIGHTS, MODEL_KIND)
        files = {name: _read(folder / name) for name in (_SCHEMA, _METRICS)} | {MODEL_CONFIG: config}
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
