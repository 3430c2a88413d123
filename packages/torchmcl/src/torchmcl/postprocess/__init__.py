"""Postprocessing of predictions: fewer hypotheses, calibrated scores, regions, a diagnosis.

Imported from ``torchmcl.postprocess``. All functions accept `Predictions` of any model, as tensors or arrays.
"""

from torchmcl.postprocess._inputs import WeightedHypotheses
from torchmcl.postprocess._search import ExpectedCost, MissRate, ReductionObjective
from torchmcl.postprocess.calibration import (
    CalibrationMethod,
    IsotonicMap,
    IsotonicScaling,
    ScoreCalibration,
    ScoreMap,
    TemperatureMap,
    TemperatureScaling,
    VectorMap,
    VectorScaling,
    calibrate_scores,
)
from torchmcl.postprocess.diagnosis import Diagnosis, diagnose
from torchmcl.postprocess.levels import MixtureLevels
from torchmcl.postprocess.nonconformity import BallScore, DensityLevels, Nonconformity, TubeScore, union_volume
from torchmcl.postprocess.reducing import concatenate, expected_cost, reduce
from torchmcl.postprocess.regions import AdaptiveLevel, ConformalRegions, conformal, select_nonconformity

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
    "MixtureLevels",
    "Nonconformity",
    "ReductionObjective",
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
    "reduce",
    "select_nonconformity",
    "union_volume",
]
