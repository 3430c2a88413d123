"""Models of tables on disk: a folder with a checkpoint, and metrics and evaluation as JSON. No pickle.

The evaluation holds rows of the table, and the forest of a model nearly all of its targets: a model for people who may
not see them is saved with `private`.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchmcl.persistence.checkpoints import digest_of_json, read_saved, write_checkpoint
from torchmcl.persistence.headers import MODEL_FILE
from torchmcl.persistence.reading import as_written, read_json
from torchmcl.persistence.writing import write_atomically
from torchmcl.sklearn import MCLClassifier, MCLRegressor
from torchmcl.sklearn.saving import from_state, to_state
from torchmcl_tables.data import ColumnEncoder, TableSchema
from torchmcl_tables.estimators import DensityRegressor
from torchmcl_tables.estimators.density import CODEC, without_rows
from torchmcl_tables.model.model import ClassModel, TableModel
from torchmcl_tables.saved_model import MODEL_FORMAT, MODEL_KIND, check_folder, check_model

_METRICS, _EVALUATION = "metrics.json", "evaluation.json"
_WITHOUT = "the model works without it: remove it, and report with --data"
_KINDS = (DensityRegressor, MCLRegressor, MCLClassifier)


def save_table_model(model: TableModel | ClassModel, folder: Path, *, private: bool = False) -> None:
    """Write the model to a folder: `model.safetensors`, `metrics.json` and `evaluation.json`.

    Args:
        model: to write.
        folder: new, empty or with a model.
        private: write no row of the table: no `evaluation.json`, and a forest whose leaves are means of several rows.

    Raises:
        ValueError: if the folder exists and holds something else.
        OSError: if it cannot be written.
    """
    check_folder(folder)
    estimator, weights = to_state(without_rows(model.estimator) if private else model.estimator, CODEC)
    model = replace(model, evaluation=None) if private else model
    evaluation, metrics = _json(model.evaluation), _json(model.metrics)
    content = {
        "format": MODEL_FORMAT,
        "source": model.source,
        "schema": model.schema,
        "encoder": model.encoder.state(),
        "metrics": model.metrics,
        "evaluation": digest_of_json(json.loads(evaluation)),
    }
    state, tensors = CODEC.encode(content)
    write_checkpoint(
        folder / MODEL_FILE, MODEL_KIND, state=state | {_word(model): estimator}, tensors=weights | tensors
    )
    if model.evaluation is None:
        (folder / _EVALUATION).unlink(missing_ok=True)
    else:
        write_atomically(folder / _EVALUATION, evaluation)
    write_atomically(folder / _METRICS, metrics)


def load_table_model(folder: Path, *, records: bool = True) -> TableModel | ClassModel:
    """Return the model in a folder.

    Args:
        folder: of `torchmcl fit`.
        records: read the records for a report, too; answers need none, so that a damaged file does not matter to them.

    Raises:
        ValueError: if the folder holds none, a damaged one, or one of another version.
    """
    check_model(folder)
    _, state, tensors, _ = read_saved("load_table_model", folder, MODEL_KIND, "`torchmcl fit`")
    kept = records and (folder / _EVALUATION).is_file()
    evaluation = _read_evaluation(folder) if kept else None
    with as_written("load_table_model", "folder", "`torchmcl fit`"):
        estimator = from_state(
            state.pop("classifier" if "classifier" in state else "regressor"), tensors, _KINDS, CODEC
        )
        content = CODEC.decode(state, tensors)
        schema, metrics = content["schema"], content["metrics"]
        if not isinstance(schema, TableSchema) or not isinstance(metrics, dict):
            raise TypeError("the schema or the metrics are missing")
        if evaluation is not None and digest_of_json(evaluation) != content["evaluation"]:
            raise ValueError(f"{_EVALUATION} has changed since it was written; {_WITHOUT}")
        encoder = ColumnEncoder.from_state(schema, content["encoder"])
        if isinstance(estimator, MCLClassifier) != bool(schema.classes):
            raise TypeError("the estimator does not fit the targets")
        kind = ClassModel if schema.classes else TableModel
        return kind(schema, encoder, estimator, content["source"], metrics, evaluation)


def _read_evaluation(folder: Path) -> Any:
    try:
        return read_json("load_table_model", folder / _EVALUATION)
    except ValueError as error:
        raise ValueError(f"{error} It is damaged; {_WITHOUT}.") from error


def _word(model: TableModel | ClassModel) -> str:
    return "classifier" if isinstance(model, ClassModel) else "regressor"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
