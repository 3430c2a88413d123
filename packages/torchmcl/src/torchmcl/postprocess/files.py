"""Files of predictions and fitted objects, read without pickle."""

import zipfile
import zlib
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmcl import costs
from torchmcl._checks import bad_value
from torchmcl._optional import optional_import
from torchmcl.persistence.checkpoints import read_saved, write_checkpoint
from torchmcl.persistence.codec import FORMS, Codec, Form, record_form
from torchmcl.persistence.headers import MODEL_FILE, check_free
from torchmcl.persistence.reading import as_written, check_limit
from torchmcl.postprocess.calibration import IsotonicMap, ScoreCalibration, TemperatureMap, VectorMap
from torchmcl.postprocess.nonconformity import BallScore, DensityLevels, TubeScore
from torchmcl.postprocess.regions import ConformalRegions
from torchmcl.rules.winners import WTA
from torchmcl.scoring import SigmoidScores, SoftmaxScores
from torchmcl.types import Predictions

_OWNER = "read_predictions"
_NAMES = ("hypotheses", "scores", "score_logits", "targets", "mask")
# Errors of numpy and the standard library for bytes that are not an npz file.
_BROKEN = (ValueError, KeyError, EOFError, TypeError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


class SavedPredictions(NamedTuple):
    """The contents of a file of predictions.

    Attributes:
        predictions: hypotheses [rows, hypotheses, ...] and score logits, if there are any.
        targets: [rows, ...] or [rows, targets, ...]
        mask: [rows, targets], or None.
        probabilities: [rows, hypotheses], the array `scores`, or None.
    """

    predictions: Predictions
    targets: Tensor
    mask: Tensor | None
    probabilities: Tensor | None


def read_predictions(path: Path | str) -> SavedPredictions:
    """Return the arrays of a file: `hypotheses`, `targets`, and optionally `scores` or `score_logits`, and `mask`.

    Raises:
        ValueError: if it is not such a file, or exceeds the limit TORCHMCL_LIMIT_TABLE_BYTES.
        OSError: if it cannot be read.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile) or file.zip is None:
                raise ValueError("one array without a name")
            # No more bytes of a member are read than the zip directory states.
            n_bytes = sum(int(member.file_size) for member in file.zip.infolist())
            check_limit(_OWNER, path.name, "table_bytes", n_bytes)
            arrays = {name: file[name] for name in _NAMES if name in file.files}
    except OSError:
        raise
    except _BROKEN as error:
        if str(error).startswith(_OWNER):
            raise
        rule = "be an npz file of arrays, written by numpy.savez"
        raise ValueError(bad_value(_OWNER, path.name, rule, str(error)[:200].rstrip("."))) from error
    for name in ("hypotheses", "targets"):
        if name not in arrays:
            rule = f"hold an array `{name}`"
            raise ValueError(bad_value(_OWNER, path.name, rule, ", ".join(sorted(arrays)) or "none of the names"))
    for name, array in arrays.items():
        if array.dtype.kind not in ("b" if name == "mask" else "f"):
            rule = "be booleans" if name == "mask" else "be floating numbers"
            raise ValueError(bad_value(_OWNER, name, rule, array.dtype))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    predictions = Predictions(tensors["hypotheses"], tensors.get("score_logits"))
    return SavedPredictions(predictions, tensors["targets"], tensors.get("mask"), tensors.get("scores"))


_KIND = "torchmcl fitted"
_FITTED = (ConformalRegions, ScoreCalibration)
_PARTS: tuple[type[Any], ...] = (
    *(TemperatureMap, VectorMap, IsotonicMap, SigmoidScores, SoftmaxScores, WTA),
    *(BallScore, TubeScore, DensityLevels),
)
_COSTS: dict[str, Any] = {name: getattr(costs, name) for name in costs.__all__ if name.startswith("pairwise_")}


def _encode_cost(value: Any, part: Any) -> Any:
    name: str = value.__name__
    return {"$cost": name} if _COSTS.get(name) is value else NotImplemented


_CODEC = Codec(
    {
        **FORMS,
        **{kind: record_form(kind) for kind in (*_FITTED, *_PARTS)},
        FunctionType: Form(_encode_cost, {"cost": lambda contents, part: _COSTS[contents]}),
    }
)


def save_fitted(fitted: Any, folder: Path | str) -> None:
    """Write a fitted object into a folder that is new, empty or contains a saved model.

    Args:
        fitted: the result of `calibrate_scores` or `conformal`.
        folder: the destination.

    Raises:
        TypeError: if it has another type, or was fitted with a user-defined function, which only pickle can store.

    Example:
        >>> import tempfile, torch
        >>> from torchmcl.postprocess import calibrate_scores
        >>> folder = tempfile.mkdtemp()
        >>> save_fitted(calibrate_scores(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])), folder)
        >>> load_fitted(folder).n_targets
        4
    """
    optional_import("safetensors.torch", extra="checkpoint", needed_by="save_fitted")
    if not isinstance(fitted, _FITTED):
        rule = "be a ConformalRegions or a ScoreCalibration"
        raise TypeError(bad_value("save_fitted", "fitted", rule, type(fitted).__name__))
    folder = Path(folder)
    check_free("save_fitted", folder, "`save_fitted`")
    state, tensors = _CODEC.encode(fitted)
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder / MODEL_FILE, _KIND, state=state, tensors=tensors)


def load_fitted(folder: Path | str) -> Any:
    """Return the object written by `save_fitted`. Nothing from the file is executed.

    Raises:
        ValueError: if the folder contains no such object, or one that is damaged or of a newer version.
    """
    optional_import("safetensors.torch", extra="checkpoint", needed_by="load_fitted")
    checkpoint = read_saved("load_fitted", Path(folder), _KIND, "`save_fitted`")
    with as_written("load_fitted", "folder", "`save_fitted`"):
        fitted = _CODEC.decode(checkpoint.state, checkpoint.tensors)
        if not isinstance(fitted, _FITTED):
            raise ValueError(f"{type(fitted).__name__} is not fitted")
        return fitted
