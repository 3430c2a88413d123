"""The metrics of densities, masks and poses as torchmetrics classes."""

from typing import Any, ClassVar

from torch import Tensor

from torchmcl.checks import check_positive
from torchmcl.metrics import _event_parts as parts
from torchmcl.metrics.shells import MeanOverBatches
from torchmcl.types import Predictions


class _OfEvents(MeanOverBatches):
    """Base class; takes the options of the function and those of torchmetrics."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **options: Any) -> None:
        own = {name: options.pop(name) for name in self.names if name in options}
        for name in ("radius", "order"):
            if name in own:
                check_positive(type(self).__name__, name, own[name])
        super().__init__(**options)
        self.options = own

    def update(self, predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch."""
        total, n = type(self).part(predictions, targets, mask, **self.options).sums()
        self._add(total.detach(), n)


class CRPS(_OfEvents):
    """`torchmcl.metrics.crps` over batches, with its options."""

    names = ("scores",)
    part = staticmethod(parts.coordinate_crps)


class VariogramScore(_OfEvents):
    """`torchmcl.metrics.variogram_score` over batches, with its options."""

    names = ("order", "scores")
    part = staticmethod(parts.variogram_scores)


class GeneralizedEnergyDistance(_OfEvents):
    """`torchmcl.metrics.generalized_energy_distance` over batches, with its options."""

    names = ("cost_fn", "scores")
    is_differentiable = False
    part = staticmethod(parts.generalized_energy_distances)


class MatchedDice(_OfEvents):
    """`torchmcl.metrics.matched_dice` over batches."""

    higher_is_better = True
    is_differentiable = False
    part = staticmethod(parts.matched_dices)


class MPJPE(_OfEvents):
    """`torchmcl.metrics.mpjpe` over batches."""

    part = staticmethod(parts.joint_errors)


class PAMPJPE(_OfEvents):
    """`torchmcl.metrics.pa_mpjpe` over batches."""

    part = staticmethod(parts.aligned_joint_errors)


class ModeCoverage(_OfEvents):
    """`torchmcl.metrics.mode_coverage` over batches, with its options; `radius` is required."""

    names = ("radius", "cost_fn")
    higher_is_better = True
    is_differentiable = False
    part = staticmethod(parts.covered_modes)


class AveragePairwiseDistance(MeanOverBatches):
    """`torchmcl.metrics.average_pairwise_distance` over batches."""

    higher_is_better = None

    def update(self, predictions: Predictions) -> None:
        """Add a batch."""
        total, n = parts.pairwise_distances(predictions).sums()
        self._add(total.detach(), n)
