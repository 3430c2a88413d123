"""Postprocessing of predictions: fewer hypotheses, calibrated scores, regions, a diagnosis.

Imported from ``torchmcl.postprocess``. All functions accept `Predictions` of any model, as tensors or arrays.
"""

from torchmcl.postprocess.calibration import ScoreCalibration, calibrate_scores
from torchmcl.postprocess.conformal import (
    BallNonconformity,
    Conformal,
    MixtureNonconformity,
    Nonconformity,
    TubeNonconformity,
    effective_counts,
    quantile,
    rows_needed,
)
from torchmcl.postprocess.diagnosis import Diagnosis, diagnose
from torchmcl.postprocess.inputs import WeightedHypotheses
from torchmcl.postprocess.reducing import expected_cost, greedy_medoids, reduce

__all__ = [
    "BallNonconformity",
    "Conformal",
    "Diagnosis",
    "MixtureNonconformity",
    "Nonconformity",
    "ScoreCalibration",
    "TubeNonconformity",
    "WeightedHypotheses",
    "calibrate_scores",
    "diagnose",
    "effective_counts",
    "expected_cost",
    "greedy_medoids",
    "quantile",
    "reduce",
    "rows_needed",
]
