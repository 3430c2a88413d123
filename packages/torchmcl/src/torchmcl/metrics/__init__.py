"""Metrics: pure functions of a Matching or of Predictions, and thin torchmetrics shells around them.

The shells (`Distortion`, `HypothesisUsage`, ...) need torchmetrics and are loaded when first used.
"""

import importlib
from typing import Any

from torchmcl.metrics.events import (
    average_pairwise_distance,
    crps,
    generalized_energy_distance,
    matched_dice,
    mode_coverage,
    mpjpe,
    pa_mpjpe,
    variogram_score,
)
from torchmcl.metrics.functions import (
    distortion,
    energy_score,
    hypothesis_usage,
    n_dead_hypotheses,
    oracle_rmse,
    rmse_of_mean,
    score_calibration_error,
    soft_distortion,
    usage_entropy,
    wasserstein_to_samples,
)
from torchmcl.metrics.trajectories import (
    brier_min_fde,
    collision_rate,
    joint_min_ade,
    joint_min_fde,
    min_ade,
    min_fde,
    miss_rate,
)
from torchmcl.optional import optional_import

__all__ = [
    "average_pairwise_distance",
    "brier_min_fde",
    "collision_rate",
    "crps",
    "distortion",
    "energy_score",
    "generalized_energy_distance",
    "hypothesis_usage",
    "joint_min_ade",
    "joint_min_fde",
    "matched_dice",
    "min_ade",
    "min_fde",
    "miss_rate",
    "mode_coverage",
    "mpjpe",
    "n_dead_hypotheses",
    "oracle_rmse",
    "pa_mpjpe",
    "rmse_of_mean",
    "score_calibration_error",
    "soft_distortion",
    "usage_entropy",
    "variogram_score",
    "wasserstein_to_samples",
]

_SHELLS = (
    *("DeadHypotheses", "Distortion", "EnergyScore", "HypothesisUsage", "OracleRMSE", "RMSEOfMean"),
    *("ScoreCalibrationError", "SoftDistortion", "UsageEntropy", "WassersteinToSamples"),
    *("BrierMinFDE", "CollisionRate", "JointMinADE", "JointMinFDE", "MinADE", "MinFDE", "MissRate"),
)
_EVENT_SHELLS = (
    *("AveragePairwiseDistance", "CRPS", "GeneralizedEnergyDistance", "MPJPE", "MatchedDice", "ModeCoverage"),
    *("PAMPJPE", "VariogramScore"),
)


def __getattr__(name: str) -> Any:
    """Load the torchmetrics classes on first use."""
    for names, module in ((_SHELLS, "shells"), (_EVENT_SHELLS, "event_shells")):
        if name in names:
            optional_import("torchmetrics", extra="metrics", needed_by=f"torchmcl.metrics.{name}")
            return getattr(importlib.import_module(f"torchmcl.metrics.{module}"), name)
    raise AttributeError(f"module 'torchmcl.metrics' has no attribute {name!r}")
