"""Saving and loading of estimators as checkpoints in folders, without pickle."""

from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from torchmcl import AutoAnnealing, MultiHypothesisMLP, checks, density, io, rules, schedules
from torchmcl.errors import bad_value
from torchmcl_fleet import Candidate, FleetSearch
from torchmcl_tables.data.schema import RECORDS
from torchmcl_tables.estimators.blend import AtomCalibrator, Blend
from torchmcl_tables.estimators.calibration import Calibrator, FittedDensity
from torchmcl_tables.estimators.classes import ClassMixture
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.predictive import Predictive
from torchmcl_tables.estimators.preprocessing import Encoder, Scaler, check_n_answers
from torchmcl_tables.estimators.rows import Rows
from torchmcl_tables.estimators.tables import FrameColumns, Targets
from torchmcl_tables.estimators.training import Continuation, Cooling

__all__ = ["CODEC", "SavedEstimator", "estimator_codec", "from_state", "read_estimator", "to_state"]

_KIND = "torchmcl estimator"
# Classes and functions that are saved by name: rules, schedules, and the dataclasses of densities.
_KNOWN: dict[str, Any] = {
    name: getattr(module, name) for module in (rules, schedules, density) for name in module.__all__
}


def estimator_codec(*records: type[Any]) -> io.Codec:
    """Return the codec of fitted estimators, including additional dataclasses."""
    known = [kind for kind in _KNOWN.values() if is_dataclass(kind) or hasattr(kind, "_fields")]
    fitted = (AutoAnnealing, Calibrator, Candidate, ClassMixture, Continuation, Cooling, FittedDensity, FleetSearch)
    parts = (Encoder, Predictive, Rows, Scaler, Targets)
    network = io.Form("network", _encode_network, _decode_network)
    forms = {MultiHypothesisMLP: network, type: _BY_NAME, FunctionType: _BY_NAME}
    return io.Codec(*known, *fitted, *parts, *records, forms=forms)


def to_state(estimator: Any) -> tuple[Any, dict[str, Tensor]]:
    """Convert a fitted estimator to JSON values and named tensors.

    Raises:
        ValueError: If a parameter contains anything except plain values and rules and schedules of torchmcl.
    """
    kind = type(estimator).__name__
    # A random generator cannot be stored, and a fitted estimator does not need it.
    parameters = {
        name: None if isinstance(value, (np.random.RandomState, np.random.Generator)) else value
        for name, value in estimator.get_params(deep=False).items()
    }
    fitted = {
        name: value
        for name, value in sorted(vars(estimator).items())
        if name not in parameters and not name.startswith("_sklearn")
    }
    try:
        return CODEC.encode({"estimator": kind, "parameters": parameters, "fitted": fitted})
    except TypeError as error:
        rule = "have parameters that consist of numbers, strings and torchmcl's own rules and schedules"
        advice = "Pickle supports other parameters, but load pickles only from trusted sources."
        raise ValueError(bad_value(f"{kind}.save", "self", rule, str(error).rstrip("."), advice)) from error


def from_state(state: Any, tensors: dict[str, Tensor], kinds: Sequence[type[Any]]) -> Any:
    """Restore an estimator from the result of `to_state`; it must be an instance of one of the classes `kinds`."""
    content = CODEC.decode(state, tensors)
    estimator = {kind.__name__: kind for kind in kinds}[content["estimator"]](**content["parameters"])
    check_n_answers(estimator.n_hypotheses)
    for name, value in content["fitted"].items():
        if name.startswith("__") or hasattr(type(estimator), name):  # data must not replace a method
            raise ValueError(f"{name!r} is not a fitted attribute")
        setattr(estimator, name, value)
    _rehearse(estimator)
    return estimator


def _rehearse(estimator: Any) -> None:
    """Predict one row with a loaded model to detect inconsistent contents early.

    Raises:
        Exception: If contents are inconsistent (any type of exception), or a prediction is not finite (ValueError).
    """
    torch.device(estimator.device)
    checks.check_positive_int(type(estimator).__name__, "n_features_in_", estimator.n_features_in_)
    predictions = estimator._first_predictions()
    if not all(np.isfinite(prediction).all() for prediction in predictions):
        raise ValueError("the predictions of the model are not finite")


class SavedEstimator(io.Shareable, BaseEstimator):
    """Base class of estimators that can be saved to a folder and exported."""

    def __sklearn_tags__(self) -> Any:
        """Return the capabilities of the estimator."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def _exported(self) -> Any:
        """Predictive distribution that `export` writes: a `Predictive`, `Blend` or `ClassMixture`."""
        raise NotImplementedError

    def _first_predictions(self) -> list[NDArray[Any]]:
        """Return predictions for one row, which are used to check a loaded model."""
        raise NotImplementedError

    def without_rows(self) -> Self:
        """Return a copy that contains no rows of the table."""
        return self

    def save(self, folder: str | Path, *, private: bool = False) -> None:
        """Write the fitted estimator to `model.safetensors` in a folder.

        Args:
            folder: Folder that is new or empty, or contains a saved model, which is replaced atomically.
            private: Whether to exclude rows of the table: held-out rows for `partial_fit`, and targets in the leaves of
                a forest, which are averaged. Means, quantiles, bounds and categories remain.

        Raises:
            ValueError: If the folder contains other files, or a parameter cannot be saved.
        """
        check_is_fitted(self)
        folder = Path(folder)
        io.check_free(f"{type(self).__name__}.save", folder, "`save`")
        state, tensors = to_state(self.without_rows() if private else self)
        io.write_checkpoint(folder / io.MODEL_FILE, _KIND, state=state, tensors=tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load an estimator that was written by `save`; a folder without an estimator raises a ValueError."""
        return read_estimator(f"{cls.__name__}.load", Path(folder), [cls])

    def export(self, path: str | Path) -> Path:
        """Write an ONNX file, which requires only onnxruntime and NumPy.

        The file computes the "mean" of each row, or the class "probabilities" of an `MCLClassifier`; the metadata entry
        "classes" is the JSON list of labels. A single network of `MCLRegressor` also has the outputs "hypotheses" and
        "probabilities".

        A model fitted to an array has the input "X", [rows, columns] in double precision, with NaN for missing values.
        A model fitted to a data frame has one input [rows] for each column: numbers in double precision; dates as days
        since 1970 in double precision; categories as text, with "" for missing values. The metadata entry "dates" is
        the JSON list of the date columns.

        Args:
            path: Path that ends with ".onnx".

        Returns:
            The path.

        Raises:
            ImportError: If the packages of the extra `export` are missing.
            ValueError: If the path has another suffix.
        """
        from torchmcl_tables.estimators.exporting import export

        return export(self, path)


def read_estimator(owner: str, folder: Path, kinds: Sequence[Any]) -> Any:
    """Read the estimator in a folder; it must be an instance of one of the classes `kinds`.

    Raises:
        ValueError: If the folder contains no such model, or the model is damaged or has an unsupported version.
    """
    checkpoint = io.saved_contents(owner, folder, _KIND, "`save`", io.read_checkpoint)
    name = checkpoint.state.get("estimator") if isinstance(checkpoint.state, dict) else None
    names = [kind.__name__ for kind in kinds]
    if name not in names:
        advice = f"Use {name}.load." if isinstance(name, str) else ""
        raise ValueError(bad_value(owner, "folder", f"hold a saved {' or '.join(names)}", repr(name), advice))
    with io.as_written(owner, "folder", "`save`"):
        return from_state(checkpoint.state, checkpoint.tensors, kinds)


def _encode_network(module: MultiHypothesisMLP, part: Any) -> Any:
    linear = [layer for layer in module.trunk if isinstance(layer, torch.nn.Linear)]
    head = module.head
    sizes = {
        "in_features": linear[0].in_features if linear else head.in_features,
        "out_features": head.out_features,
        "n_hypotheses": head.n_hypotheses,
        "hidden": [layer.out_features for layer in linear],
        "detach_scores": head.detach_scores,
        "scales": head.scales,
    }
    weights = dict(module.state_dict())
    return {"sizes": sizes, "weights": {name: part(name, value) for name, value in weights.items()}}


def _decode_network(contents: Any, part: Any) -> MultiHypothesisMLP:
    sizes, weights = contents["sizes"], part(contents["weights"])
    with torch.device("meta"):  # shapes only: a small file must not cause a large allocation
        expected = {name: value.shape for name, value in MultiHypothesisMLP(**sizes).state_dict().items()}
    if expected != {name: value.shape for name, value in weights.items()}:
        raise ValueError("the shapes of the weights of a network differ from its description")
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise ValueError("the weights of a network are not finite")
    module = MultiHypothesisMLP(**sizes)
    module.load_state_dict(weights)
    return module.eval()


def _encode_known(value: Any, part: Any) -> Any:
    name: str = value.__name__
    return name if _KNOWN.get(name) is value else NotImplemented


_BY_NAME = io.Form("known", _encode_known, lambda contents, part: _KNOWN[contents])
#: Codec of all estimators of tables.
CODEC = estimator_codec(AtomCalibrator, Blend, Forest, FrameColumns, *RECORDS)
