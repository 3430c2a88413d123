"""What to do with the predictions of a trained network: fewer hypotheses, calibrated scores, regions, a diagnosis.

Imported from ``torchmcl.after``. Everything takes `Predictions` of any model, as tensors or arrays.
"""

from torchmcl.after.calibration import ScoreCalibration, calibrate_scores
from torchmcl.after.objectives import ExpectedCost, MissRate, ReductionObjective
from torchmcl.after.reducing import concatenate, expected_cost, reduce
from torchmcl.after.saving import load_fitted, save_fitted
from torchmcl.after.score_maps import (
    CalibrationMethod,
    IsotonicMap,
    IsotonicScaling,
    ScoreMap,
    TemperatureMap,
    TemperatureScaling,
    VectorMap,
    VectorScaling,
)

__all__ = [
    "CalibrationMethod",
    "ExpectedCost",
    "IsotonicMap",
    "IsotonicScaling",
    "MissRate",
    "ReductionObjective",
    "ScoreCalibration",
    "ScoreMap",
    "TemperatureMap",
    "TemperatureScaling",
    "VectorMap",
    "VectorScaling",
    "calibrate_scores",
    "concatenate",
    "expected_cost",
    "load_fitted",
    "reduce",
    "save_fitted",
]
