"""The metrics as torchmetrics classes: they add up over batches and processes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from torchmcl._checks import check_positive_int
from torchmcl.metrics import _parts
from torchmcl.scoring import ScoreObjective
from torchmcl.types import Matching, Predictions

__all__ = [
    "DeadHypotheses",
    "Distortion",
    "EnergyScore",
    "HypothesisUsage",
    "OracleRMSE",
    "RMSEOfMean",
    "ScoreCalibrationError",
    "SoftDistortion",
    "UsageEntropy",
    "WassersteinToSamples",
]


class MeanOfReal(Metric):
    """The mean of one value per real target, over all batches."""

    is_differentiable = True
    full_state_update = False
    total: Tensor
    n: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("n", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def _add(self, real: _parts.RealValues) -> None:
        total, n = real.sums()
        self.total = self.total + total
        self.n = self.n + n

    def compute(self) -> Tensor:
        """Return the mean over everything seen."""
        return (self.total / self.n).float()


class _OfMatching(MeanOfReal):
    part: Any

    def update(self, matching: Matching) -> None:
        """Add a batch."""
        self._add(type(self).part(matching))


class Distortion(_OfMatching):
    """`torchmcl.metrics.distortion` over batches."""

    higher_is_better = False
    part = staticmethod(_parts.hard_costs)


class SoftDistortion(_OfMatching):
    """`torchmcl.metrics.soft_distortion` over batches."""

    higher_is_better = False
    part = staticmethod(_parts.soft_costs)


class UsageEntropy(_OfMatching):
    """The mean of `torchmcl.metrics.usage_entropy` over samples with a real target."""

    part = staticmethod(_parts.sample_entropies)


class _OfScores(MeanOfReal):
    part: Any
    higher_is_better = False

    def __init__(self, *, scores: ScoreObjective | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scores = scores

    def update(self, predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        self._add(type(self).part(predictions, targets, mask, self.scores))


class EnergyScore(_OfScores):
    """`torchmcl.metrics.energy_score` over batches."""

    part = staticmethod(_parts.energy_scores)


class RMSEOfMean(_OfScores):
    """`torchmcl.metrics.rmse_of_mean` over batches."""

    part = staticmethod(_parts.squared_errors_of_mean)

    def compute(self) -> Tensor:
        """Return the root of the mean over everything seen."""
        return super().compute().sqrt()


class OracleRMSE(MeanOfReal):
    """`torchmcl.metrics.oracle_rmse` over batches."""

    higher_is_better = False

    def update(self, predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        self._add(_parts.squared_errors_of_best(predictions, targets, mask))

    def compute(self) -> Tensor:
        """Return the root of the mean over everything seen."""
        return super().compute().sqrt()


class WassersteinToSamples(MeanOfReal):
    """`torchmcl.metrics.wasserstein_to_samples` over batches."""

    higher_is_better = False
    is_differentiable = False

    def __init__(self, order: int = 1, *, scores: ScoreObjective | None = None, **kwargs: Any) -> None:
        check_positive_int("WassersteinToSamples", "order", order)
        super().__init__(**kwargs)
        self.order, self.scores = order, scores

    def update(self, predictions: Predictions, samples: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        self._add(_parts.wasserstein_distances(predictions, samples, mask, self.order, self.scores))


class HypothesisUsage(Metric):
    """`torchmcl.metrics.hypothesis_usage` over batches."""

    full_state_update = False
    weight: Tensor
    n: Tensor

    def __init__(self, n_hypotheses: int, **kwargs: Any) -> None:
        check_positive_int("HypothesisUsage", "n_hypotheses", n_hypotheses)
        super().__init__(**kwargs)
        self.add_state("weight", torch.zeros(n_hypotheses, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("n", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, matching: Matching) -> None:
        """Add a batch."""
        weight, n = _parts.usage_sums(matching)
        self.weight = self.weight + weight
        self.n = self.n + n

    def compute(self) -> Tensor:
        """Return the share of each hypothesis, [hypotheses]."""
        return (self.weight / self.n).float()


class DeadHypotheses(Metric):
    """`torchmcl.metrics.n_dead_hypotheses` over batches: cheapest for no target of any of them."""

    full_state_update = False
    higher_is_better = False
    wins: Tensor

    def __init__(self, n_hypotheses: int, **kwargs: Any) -> None:
        check_positive_int("DeadHypotheses", "n_hypotheses", n_hypotheses)
        super().__init__(**kwargs)
        self.add_state("wins", torch.zeros(n_hypotheses, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, matching: Matching) -> None:
        """Add a batch."""
        self.wins = self.wins + _parts.win_counts(matching)

    def compute(self) -> Tensor:
        """Return how many hypotheses never won."""
        return (self.wins == 0).sum()


class ScoreCalibrationError(Metric):
    """`torchmcl.metrics.score_calibration_error` over batches."""

    full_state_update = False
    higher_is_better = False
    bins: Tensor

    def __init__(self, n_bins: int = 10, **kwargs: Any) -> None:
        check_positive_int("ScoreCalibrationError", "n_bins", n_bins)
        super().__init__(**kwargs)
        self.n_bins = n_bins
        self.add_state("bins", torch.zeros(n_bins, 3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Predictions, matching: Matching) -> None:
        """Add a batch."""
        if predictions.score_logits is None:
            raise ValueError("ScoreCalibrationError: `predictions` must have score logits, got none. Use scores=True.")
        self.bins = self.bins + _parts.calibration_bins(predictions.score_logits, matching, self.n_bins)

    def compute(self) -> Tensor:
        """Return the calibration error of everything seen."""
        return _parts.calibration_error(self.bins).float()
