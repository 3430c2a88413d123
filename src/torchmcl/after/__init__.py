"""What to do with the predictions of a trained network: fewer hypotheses, calibrated scores, regions, a diagnosis.

Imported from ``torchmcl.after``. Everything takes `Predictions` of any model, as tensors or arrays.
"""

from torchmcl.after._inputs import Scored
from torchmcl.after.calibration import ScoreCalibration, calibrate_scores
from torchmcl.after.counts import HypothesisCounts, choose_n_hypotheses
from torchmcl.after.diagnosis import Diagnosis, diagnose
from torchmcl.after.files import SavedPredictions, read_predictions
from torchmcl.after.nonconformity import Balls, DensityLevels, Nonconformity, Tubes
from torchmcl.after.objectives import ExpectedCost, MissRate, ReductionObjective
from torchmcl.after.reducing import concatenate, expected_cost, reduce
from torchmcl.after.regions import ConformalRegions, conformal, smallest_regions
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
from torchmcl.after.streams import AdaptiveLevel
from torchmcl.after.volumes import union_volume

__all__ = [
    "AdaptiveLevel",
    "Balls",
    "CalibrationMethod",
    "ConformalRegions",
    "DensityLevels",
    "Diagnosis",
    "ExpectedCost",
    "HypothesisCounts",
    "IsotonicMap",
    "IsotonicScaling",
    "MissRate",
    "Nonconformity",
    "ReductionObjective",
    "SavedPredictions",
    "ScoreCalibration",
    "ScoreMap",
    "Scored",
    "TemperatureMap",
    "TemperatureScaling",
    "Tubes",
    "VectorMap",
    "VectorScaling",
    "calibrate_scores",
    "choose_n_hypotheses",
    "concatenate",
    "conformal",
    "diagnose",
    "expected_cost",
    "load_fitted",
    "read_predictions",
    "reduce",
    "save_fitted",
    "smallest_regions",
    "union_volume",
]
