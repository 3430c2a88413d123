"""The blend on disk, in the form of the other estimators."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchmcl.sklearn import saving
from torchmcl_tables.data.schema import RECORDS
from torchmcl_tables.estimators.atom_calibration import AtomCalibrator
from torchmcl_tables.estimators.blend import Blend
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.frames import FrameColumns
from torchmcl_tables.estimators.private import blurred

__all__ = ["CODEC", "read_estimator", "save_estimator", "without_rows"]

#: Of all estimators.
CODEC = saving.estimator_codec(AtomCalibrator, Blend, Forest, FrameColumns, *RECORDS)


def without_rows(estimator: Any) -> Any:
    """Return a copy of a fitted estimator without rows of the table: no held-out rows, and averaged leaves.

    Means, quantiles, bounds, categories and the values of targets with few of them stay.
    """
    bare = saving.without_rows(estimator)
    answers = getattr(estimator, "_answers", None)
    if answers is not None and isinstance(answers.predictive, Blend) and answers.predictive.forest is not None:
        blend = replace(answers.predictive, forest=blurred(answers.predictive.forest))
        bare._answers = replace(answers, predictive=blend)
    return bare


def save_estimator(estimator: Any, folder: Path, *, private: bool = False) -> None:
    """Write a fitted estimator into a folder that is new, empty or contains a saved model."""
    saving.save_estimator(without_rows(estimator) if private else estimator, folder, codec=CODEC)


def read_estimator(owner: str, folder: Path, kinds: Sequence[type[Any]]) -> Any:
    """Return the estimator in a folder, which must be of one of the classes."""
    return saving.read_estimator(owner, folder, kinds, CODEC)
