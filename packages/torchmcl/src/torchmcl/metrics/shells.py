"""The metrics as torchmetrics classes, which accumulate over batches and processes."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from torchmcl.checks import check_positive_int
from torchmcl.metrics import _parts
from torchmcl.metrics import _trajectory_parts as parts
from torchmcl.scoring import ScoreObjective
from torchmcl.types import Matching, Predictions


class MeanOverBatches(Metric):
    """The mean of one value per real target, over all batches; with `shape`, of several values."""

    is_differentiable = True
    higher_is_better: bool | None = False
    full_state_update = False
    part: ClassVar[Callable[..., _parts.RealValues]]
    total: Tensor
    n: Tensor

    def __init__(self, shape: tuple[int, ...] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("n", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def _add(self, total: Tensor, n: Tensor | int = 0) -> None:
        self.total = self.total + total
        self.n = self.n + n

    def compute(self) -> Tensor:
        """Return the mean over all batches so far."""
        return (self.total / self.n).float()


class _OfMatching(MeanOverBatches):
    def update(self, matching: Matching) -> None:
        """Add a batch."""
        self._add(*type(self).part(matching).sums())


class Distortion(_OfMatching):
    """`torchmcl.metrics.distortion` over batches."""

    part = staticmethod(_parts.hard_costs)


class SoftDistortion(_OfMatching):
    """`torchmcl.metrics.soft_distortion` over batches."""

    part = staticmethod(_parts.soft_costs)


class UsageEntropy(_OfMatching):
    """The mean of `torchmcl.metrics.usage_entropy` over samples with a real target."""

    higher_is_better = None
    part = staticmethod(_parts.sample_entropies)


class _OfPredictions(MeanOverBatches):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options: dict[str, Any] = {}

    def update(self, predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        self._add(*type(self).part(predictions, targets, mask, **self.options).sums())


class EnergyScore(_OfPredictions):
    """`torchmcl.metrics.energy_score` over batches."""

    part = staticmethod(_parts.energy_scores)

    def __init__(self, *, scores: ScoreObjective | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = {"scores": scores}


class OracleRMSE(_OfPredictions):
    """`torchmcl.metrics.oracle_rmse` over batches."""

    part = staticmethod(_parts.squared_errors_of_best)

    def compute(self) -> Tensor:
        """Return the root of the mean over all batches so far."""
        return super().compute().sqrt()


class RMSEOfMean(OracleRMSE):
    """`torchmcl.metrics.rmse_of_mean` over batches."""

    part = staticmethod(_parts.squared_errors_of_mean)

    def __init__(self, *, scores: ScoreObjective | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = {"scores": scores}


class WassersteinToSamples(_OfPredictions):
    """`torchmcl.metrics.wasserstein_to_samples` over batches; the targets are the samples."""

    is_differentiable = False
    part = staticmethod(_parts.wasserstein_distances)

    def __init__(self, order: int = 1, *, scores: ScoreObjective | None = None, **kwargs: Any) -> None:
        check_positive_int("WassersteinToSamples", "order", order)
        super().__init__(**kwargs)
        self.options = {"order": order, "scores": scores}


class HypothesisUsage(MeanOverBatches):
    """`torchmcl.metrics.hypothesis_usage` over batches, [hypotheses]."""

    is_differentiable = False
    higher_is_better: bool | None = None

    def __init__(self, n_hypotheses: int, **kwargs: Any) -> None:
        check_positive_int(type(self).__name__, "n_hypotheses", n_hypotheses)
        super().__init__((n_hypotheses,), **kwargs)

    def update(self, matching: Matching) -> None:
        """Add a batch."""
        self._add(*_parts.usage_sums(matching))


class DeadHypotheses(HypothesisUsage):
    """`torchmcl.metrics.n_dead_hypotheses` over batches: never the cheapest for any target."""

    higher_is_better = False

    def update(self, matching: Matching) -> None:
        """Add a batch."""
        self._add(_parts.win_counts(matching))

    def compute(self) -> Tensor:
        """Return the number of hypotheses that never won."""
        return (self.total == 0).sum()


class ScoreCalibrationError(MeanOverBatches):
    """`torchmcl.metrics.score_calibration_error` over batches."""

    is_differentiable = False

    def __init__(self, n_bins: int = 10, **kwargs: Any) -> None:
        check_positive_int("ScoreCalibrationError", "n_bins", n_bins)
        super().__init__((n_bins, 3), **kwargs)
        self.n_bins = n_bins

    def update(self, predictions: Predictions, matching: Matching) -> None:
        """Add a batch."""
        self._add(_parts.calibration_bins("ScoreCalibrationError", predictions, matching, self.n_bins))

    def compute(self) -> Tensor:
        """Return the calibration error over all batches so far."""
        return _parts.calibration_error(self.total).float()


class _OfTrajectories(MeanOverBatches):
    """Base class; takes the options of the function and those of torchmetrics."""

    is_differentiable = False
    metric: ClassVar[Callable[..., Any]]

    def __init__(self, **options: Any) -> None:
        names = {field.name for kind in parts.Convention.__subclasses__() for field in fields(kind)}
        own = {name: options.pop(name) for name in names & options.keys()}
        values = type(self).metric(type(self).__name__, **own)
        super().__init__(**options)
        self.values = values


class _OfTargets(_OfTrajectories):
    def update(
        self,
        *,
        hypotheses: Tensor,
        targets: Tensor,
        mask: Tensor | None = None,
        scores: Tensor | None = None,
        scene: Tensor | None = None,
    ) -> None:
        """Add a batch."""
        self._add(*self.values(parts.Trajectories(hypotheses, targets, mask, scores, scene)).sums())


class MinADE(_OfTargets):
    """`torchmcl.metrics.min_ade` over batches, with its options."""

    metric = parts.BestErrors


class MinFDE(_OfTargets):
    """`torchmcl.metrics.min_fde` over batches, with its options."""

    metric = partial(parts.BestErrors, error="fde", best_by="fde")


class JointMinADE(_OfTargets):
    """`torchmcl.metrics.joint_min_ade` over batches of whole scenes, with its options."""

    metric = partial(parts.BestErrors, joint=True, average_over="scenes")


class JointMinFDE(_OfTargets):
    """`torchmcl.metrics.joint_min_fde` over batches of whole scenes, with its options."""

    metric = partial(parts.BestErrors, error="fde", best_by="fde", joint=True, average_over="scenes")


class MissRate(_OfTargets):
    """`torchmcl.metrics.miss_rate` over batches, with its options."""

    metric = parts.Misses


class BrierMinFDE(_OfTrajectories):
    """`torchmcl.metrics.brier_min_fde` over batches, with its options."""

    metric = parts.BrierErrors

    def update(
        self,
        *,
        hypotheses: Tensor,
        targets: Tensor,
        probabilities: Tensor,
        mask: Tensor | None = None,
        scene: Tensor | None = None,
    ) -> None:
        """Add a batch."""
        self._add(*self.values(parts.Trajectories(hypotheses, targets, mask, probabilities, scene)).sums())


class CollisionRate(_OfTrajectories):
    """`torchmcl.metrics.collision_rate` over batches of whole scenes, with its options."""

    metric = parts.Collisions

    def update(self, *, hypotheses: Tensor, scene: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        self._add(*self.values(parts.Trajectories(hypotheses, None, mask, scene=scene)).sums())
