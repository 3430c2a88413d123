"""The metrics of trajectories as torchmetrics classes. All agents of a scene must come in the same batch."""

from typing import Any

from torch import Tensor

from torchmcl.metrics import _trajectory_parts as parts
from torchmcl.metrics.shells import MeanOfReal

__all__ = ["BrierMinFDE", "CollisionRate", "JointMinADE", "JointMinFDE", "MinADE", "MinFDE", "MissRate"]


class _OfTrajectories(MeanOfReal):
    higher_is_better = False
    is_differentiable = False


class _BestOf(_OfTrajectories):
    error: str
    joint = False

    def __init__(
        self,
        *,
        k: int | None = None,
        best_by: str | None = None,
        average_over: str | None = None,
        last_valid_step: bool = True,
        **kwargs: Any,
    ) -> None:
        best_by = self.error if best_by is None else best_by
        if average_over is None:
            average_over = "scenes" if self.joint else "agents"
        convention = parts.Convention(type(self).__name__, k, best_by, average_over, last_valid_step)
        super().__init__(**kwargs)
        self.convention = convention

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
        data = parts.forecast(self.convention.owner, hypotheses, targets, mask, scores, scene)
        self._add(parts.best_errors(self.convention, self.error, data, joint=self.joint))


class MinADE(_BestOf):
    """`torchmcl.metrics.min_ade` over batches, with its options."""

    error = "ade"


class MinFDE(_BestOf):
    """`torchmcl.metrics.min_fde` over batches, with its options."""

    error = "fde"


class JointMinADE(_BestOf):
    """`torchmcl.metrics.joint_min_ade` over batches of whole scenes, with its options."""

    error = "ade"
    joint = True


class JointMinFDE(_BestOf):
    """`torchmcl.metrics.joint_min_fde` over batches of whole scenes, with its options."""

    error = "fde"
    joint = True


class MissRate(_OfTrajectories):
    """`torchmcl.metrics.miss_rate` over batches, with its options."""

    def __init__(
        self,
        *,
        threshold: float = 2.0,
        distance: str = "final",
        k: int | None = None,
        average_over: str = "agents",
        last_valid_step: bool = True,
        **kwargs: Any,
    ) -> None:
        parts.check_miss("MissRate", threshold, distance)
        convention = parts.Convention("MissRate", k, "fde", average_over, last_valid_step)
        super().__init__(**kwargs)
        self.convention, self.threshold, self.distance = convention, threshold, distance

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
        data = parts.forecast("MissRate", hypotheses, targets, mask, scores, scene)
        self._add(parts.misses(self.convention, data, self.threshold, self.distance))


class BrierMinFDE(_OfTrajectories):
    """`torchmcl.metrics.brier_min_fde` over batches, with its options."""

    def __init__(
        self,
        *,
        k: int | None = None,
        renormalize: bool = False,
        average_over: str = "agents",
        last_valid_step: bool = True,
        **kwargs: Any,
    ) -> None:
        convention = parts.Convention("BrierMinFDE", k, "fde", average_over, last_valid_step)
        super().__init__(**kwargs)
        self.convention, self.renormalize = convention, renormalize

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
        data = parts.forecast("BrierMinFDE", hypotheses, targets, mask, probabilities, scene, "probabilities")
        self._add(parts.brier_errors(self.convention, data, self.renormalize))


class CollisionRate(_OfTrajectories):
    """`torchmcl.metrics.collision_rate` over batches of whole scenes, with its options."""

    def __init__(self, *, distance: float, count: str = "pairs", average_over: str = "agents", **kwargs: Any) -> None:
        parts.check_collision("CollisionRate", distance, count)
        convention = parts.Convention("CollisionRate", average_over=average_over)
        super().__init__(**kwargs)
        self.convention, self.distance, self.count = convention, distance, count

    def update(self, *, hypotheses: Tensor, scene: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        data = parts.forecast("CollisionRate", hypotheses, None, mask, scene=scene)
        self._add(parts.collisions(self.convention, data, self.distance, self.count))
