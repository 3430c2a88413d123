"""The metrics of trajectories as torchmetrics classes. All agents of a scene must be in the same batch."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from torchmcl.metrics import _trajectory_parts as parts
from torchmcl.metrics.shells import MeanOverBatches

__all__ = ["BrierMinFDE", "CollisionRate", "JointMinADE", "JointMinFDE", "MinADE", "MinFDE", "MissRate"]


class _OfTrajectories(MeanOverBatches):
    """Accepts the options of its function, and those of torchmetrics."""

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
        values = self.values(hypotheses=hypotheses, targets=targets, mask=mask, scores=scores, scene=scene)
        self._add(*values.sums())


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
        values = self.values(
            hypotheses=hypotheses, targets=targets, probabilities=probabilities, mask=mask, scene=scene
        )
        self._add(*values.sums())


class CollisionRate(_OfTrajectories):
    """`torchmcl.metrics.collision_rate` over batches of whole scenes, with its options."""

    metric = parts.Collisions

    def update(self, *, hypotheses: Tensor, scene: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        self._add(*self.values(hypotheses=hypotheses, scene=scene, mask=mask).sums())
