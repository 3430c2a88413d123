"""Estimators in MLflow (the extra `mlflow`): logged in the safe format, with a signature.

A logged model is a folder in the format of `save_pretrained`, and can be used like any `mlflow.pyfunc` model.
"""

import importlib
import tempfile
from pathlib import Path
from typing import Any

from torchmcl._checks import bad_value
from torchmcl._optional import optional_import
from torchmcl.persistence.headers import MODEL_FILE, read_header

# Modules of the estimators that a file may name; others are not loaded.
_HOMES = {
    "MCLRegressor": "torchmcl.sklearn",
    "MCLClassifier": "torchmcl.sklearn",
    "DensityRegressor": "torchmcl_tables",
}


def log_model(estimator: Any, name: str, example: Any, **options: Any) -> Any:
    """Log a fitted estimator to the active MLflow run.

    Args:
        estimator: `MCLRegressor`, `MCLClassifier` or `DensityRegressor`.
        name: of the model in the run.
        example: some rows of X, an array or a data frame; the signature is inferred from them and their predictions.
        **options: further arguments of `mlflow.pyfunc.log_model`, such as `registered_model_name`.

    Returns:
        MLflow's record of the model; its `model_uri` is the argument of `load_model`.

    Raises:
        TypeError: for any other estimator.
    """
    kind = type(estimator).__name__
    if kind not in _HOMES:
        raise TypeError(bad_value("log_model", "estimator", f"be one of {sorted(_HOMES)}", kind))
    pyfunc = optional_import("mlflow.pyfunc", extra="mlflow", needed_by="torchmcl.mlflow")
    models = optional_import("mlflow.models", extra="mlflow", needed_by="torchmcl.mlflow")
    signature = models.infer_signature(example, estimator.predict(example))
    with tempfile.TemporaryDirectory() as folder:
        estimator.save_pretrained(folder)
        requirements = options.pop("pip_requirements", ["torchmcl[sklearn]", _HOMES[kind].partition(".")[0]])
        given = {"loader_module": __name__, "data_path": folder, "signature": signature}
        return pyfunc.log_model(name=name, pip_requirements=requirements, **given, **options)


def load_model(uri: str) -> Any:
    """Return the estimator that `log_model` logged, with all of its methods.

    Args:
        uri: of the model: "runs:/<run>/<name>", "models:/<name>/<version>" or a folder.
    """
    artifacts = optional_import("mlflow.artifacts", extra="mlflow", needed_by="torchmcl.mlflow")
    folder = Path(artifacts.download_artifacts(artifact_uri=uri))
    found = next(folder.rglob(MODEL_FILE), None)
    if found is None:
        raise ValueError(bad_value("load_model", "uri", "name a model that `log_model` logged", repr(uri)))
    return _read(found.parent)


def _read(folder: Path) -> Any:
    state = read_header(folder / MODEL_FILE).document["state"]
    name = state.get("estimator") if isinstance(state, dict) else None
    if name not in _HOMES:
        raise ValueError(bad_value("load_model", "uri", f"hold one of {sorted(_HOMES)}", repr(name)))
    return getattr(importlib.import_module(_HOMES[name]), name).load(folder)


def _load_pyfunc(path: str) -> Any:
    """Return the estimator in a folder; MLflow calls this function, and `predict` of the result."""
    return _read(Path(path))
