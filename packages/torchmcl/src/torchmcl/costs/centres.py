"""Points of lowest cost for weighted groups of hypotheses: means for squares, geometric medians for distances."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.accel.eager.products import wide_dtype

__all__ = ["MEAN", "MEDIAN", "MEDIAN_OF_LAST_STEP", "MEDIAN_OF_STEPS", "Centre"]

# Steps of Weiszfeld's algorithm; each group has several rounds of Lloyd's around it.
_WEISZFELD_STEPS = 8


@dataclass(frozen=True)
class Centre:
    """The center of a group under a cost.

    Args:
        from_means: a function of events [rows, hypotheses, ...], the weight of each in each group [rows, groups,
            hypotheses] and the means of the groups [rows, groups, ...], that returns better centers of the shape of
            the means. None where no center is better than the mean.
    """

    from_means: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None


def _median(events: Tensor, shares: Tensor, means: Tensor) -> Tensor:
    return _weiszfeld(events.flatten(2).unsqueeze(2), shares, means.flatten(2).unsqueeze(2)).view_as(means)


def _median_of_last_step(events: Tensor, shares: Tensor, means: Tensor) -> Tensor:
    last = _weiszfeld(events[..., -1:, :], shares, means[..., -1:, :])
    return torch.cat([means[..., :-1, :], last], dim=-2)


def _weiszfeld(events: Tensor, shares: Tensor, centres: Tensor) -> Tensor:
    """Return the geometric median of each group at each step by Weiszfeld's algorithm.

    Args:
        events: [rows, hypotheses, steps, dim]
        shares: [rows, groups, hypotheses]
        centres: [rows, groups, steps, dim], where to start.
    """
    wide = wide_dtype(events)
    points = events.transpose(1, 2).to(wide)  # [rows, steps, hypotheses, dim]
    shares, centres = shares.unsqueeze(1).to(wide), centres.transpose(1, 2).to(wide)
    # Of each row by itself: its result must not depend on the size of other rows.
    tiny = torch.finfo(wide).eps * points.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    for _ in range(_WEISZFELD_STEPS):
        distances = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist")
        pulls = shares / distances.maximum(tiny)  # [rows, steps, groups, hypotheses]
        total = pulls.sum(dim=-1, keepdim=True)
        centres = torch.where(total > 0, pulls @ points / total.clamp_min(1e-30), centres)
    return centres.transpose(1, 2).to(events)


#: The mean, for squared distances.
MEAN = Centre()
#: The geometric median, for the distance over all axes of an event.
MEDIAN = Centre(_median)
#: The geometric median at each step, for the mean distance over steps.
MEDIAN_OF_STEPS = Centre(_weiszfeld)
#: The geometric median at the last step, means before it.
MEDIAN_OF_LAST_STEP = Centre(_median_of_last_step)
