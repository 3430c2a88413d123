"""Metrics: pure functions of a matching, of predictions or of trajectories.

`Metric(function)` accumulates any of them over batches and processes; it needs torchmetrics and is loaded when it is
first used.
"""

import importlib
from typing import Any

from torchmcl.metrics.functions import (
    average_pairwise_distance,
    crps,
    distortion,
    energy_score,
    generalized_energy_distance,
    hypothesis_usage,
    matched_dice,
    mode_coverage,
    mpjpe,
    n_dead_hypotheses,
    oracle_rmse,
    pa_mpjpe,
    rmse_of_mean,
    score_calibration_error,
    usage_entropy,
    variogram_score,
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
    "usage_entropy",
    "variogram_score",
]


def __getattr__(name: str) -> Any:
    """Load the torchmetrics class on first use."""
    if name != "Metric":
        raise AttributeError(f"module 'torchmcl.metrics' has no attribute {name!r}")
    optional_import("torchmetrics", extra="metrics", needed_by="torchmcl.metrics.Metric")
    return importlib.import_module("torchmcl.metrics.accumulated").Metric
