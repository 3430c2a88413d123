"""Fitted objects on disk, as a checkpoint in a folder. No pickle."""

from pathlib import Path
from types import FunctionType
from typing import Any

from torchmcl import costs
from torchmcl._checks import bad_value
from torchmcl._optional import optional_import
from torchmcl.persistence.checkpoints import read_saved, write_checkpoint
from torchmcl.persistence.codec import FORMS, Codec, Form, record_form
from torchmcl.persistence.headers import MODEL_FILE, check_free
from torchmcl.persistence.reading import as_written
from torchmcl.postprocess.calibration import ScoreCalibration
from torchmcl.postprocess.nonconformity import BallScore, DensityLevels, TubeScore
from torchmcl.postprocess.regions import ConformalRegions
from torchmcl.postprocess.score_maps import IsotonicMap, TemperatureMap, VectorMap
from torchmcl.rules.winners import WTA
from torchmcl.scoring import SigmoidScores, SoftmaxScores

__all__ = ["load_fitted", "save_fitted"]

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
        fitted: what `calibrate_scores` or `conformal` returned.
        folder: where to.

    Raises:
        TypeError: if it is something else, or was fitted with a function of yours, which only pickle can hold.

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
        ValueError: if the folder holds nothing of the kind, or something damaged or of a newer version.
    """
    optional_import("safetensors.torch", extra="checkpoint", needed_by="load_fitted")
    checkpoint = read_saved("load_fitted", Path(folder), _KIND, "`save_fitted`")
    with as_written("load_fitted", "folder", "`save_fitted`"):
        fitted = _CODEC.decode(checkpoint.state, checkpoint.tensors)
        if not isinstance(fitted, _FITTED):
            raise ValueError(f"{type(fitted).__name__} is not fitted")
        return fitted
