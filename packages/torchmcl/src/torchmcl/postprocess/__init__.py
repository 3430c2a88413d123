"""Postprocessing of predictions: fewer hypotheses, calibrated scores, regions, a diagnosis.

Imported from ``torchmcl.postprocess``. Everything takes `Predictions` of any model, as tensors or arrays.
"""

from torchmcl.postprocess._inputs import WeightedHypotheses
from torchmcl.postprocess.calibration import ScoreCalibration, calibrate_scores
from torchmcl.postprocess.diagnosis import Diagnosis, diagnose
from torchmcl.postprocess.files import SavedPredictions, read_predictions
from torchmcl.postprocess.nonconformity import BallScore, DensityLevels, Nonconformity, TubeScore
from torchmcl.postprocess.objectives import ExpectedCost, MissRate, ReductionObjective
from torchmcl.postprocess.reducing import concatenate, expected_cost, reduce
from torchmcl.postprocess.regions import ConformalRegions, conformal, select_nonconformity
from torchmcl.postprocess.saving import load_fitted, save_fitted
from torchmcl.postprocess.score_maps import (
    CalibrationMethod,
    IsotonicMap,
    IsotonicScaling,
    ScoreMap,
    TemperatureMap,
    TemperatureScaling,
    VectorMap,
    VectorScaling,
)
from torchmcl.postprocess.streams import AdaptiveLevel
from torchmcl.postprocess.volumes import union_volume

__all__ = [
    "AdaptiveLevel",
    "BallScore",
    "CalibrationMethod",
    "ConformalRegions",
    "DensityLevels",
    "Diagnosis",
    "ExpectedCost",
    "IsotonicMap",
    "IsotonicScaling",
    "MissRate",
    "Nonconformity",
    "ReductionObjective",
    "SavedPredictions",
    "ScoreCalibration",
    "ScoreMap",
    "TemperatureMap",
    "TemperatureScaling",
    "TubeScore",
    "VectorMap",
    "VectorScaling",
    "WeightedHypotheses",
    "calibrate_scores",
    "concatenate",
    "conformal",
    "diagnose",
    "expected_cost",
    "load_fitted",
    "read_predictions",
    "reduce",
    "save_fitted",
    "select_nonconformity",
    "union_volume",
]
