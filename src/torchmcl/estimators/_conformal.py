"""Split-conformal calibration of highest-density sets.

The conformity score of a target is the mass of the predicted density above it: the smaller, the better the target
conforms. The score of a fresh row is below the calibrated quantile with probability 1 - alpha, whatever the density
is worth, for rows that are exchangeable with the calibration rows.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.after._quantiles import effective_counts, quantile
from torchmcl.density import KernelMixture
from torchmcl.density.kernels import REACH, marked

__all__ = ["PredictionIntervals", "conformity", "effective_counts", "joined", "quantile", "region"]

_ROWS_AT_ONCE = 2048
# Up to 1 a score is a mass. Where the density is as good as 0 it is 1 plus the bandwidths to the nearest hypothesis.
_BEYOND = 1.0


class PredictionIntervals(NamedTuple):
    """Prediction sets as unions of intervals, one union for each row and output.

    Attributes:
        lower: [rows, pieces], or [rows, outputs, pieces] for several outputs; NaN where a row has fewer pieces.
        upper: the same shape, where each piece ends.
    """

    lower: NDArray[Any]
    upper: NDArray[Any]

    @property
    def hull(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """One interval for each row (and output), from the first lower end to the last upper end."""
        return np.nanmin(self.lower, axis=-1), np.nanmax(self.upper, axis=-1)

    @property
    def width(self) -> NDArray[Any]:
        """The total length of the pieces, [rows] or [rows, outputs]."""
        return np.nansum(self.upper - self.lower, axis=-1)

    @property
    def n_pieces(self) -> NDArray[Any]:
        """How many pieces each union has, [rows] or [rows, outputs]."""
        return np.isfinite(self.lower).sum(axis=-1) + np.isinf(self.lower).sum(axis=-1)

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each target lies in its set; y is [rows] or [rows, outputs]."""
        values = np.asarray(y, dtype=float)[..., None]
        return np.asarray(((self.lower <= values) & (values <= self.upper)).any(axis=-1))


def conformity(density: KernelMixture, values: Tensor) -> Tensor:
    """Return the scores of values [rows, 1] under a density over one output, [rows]."""
    parts = []
    for low in range(0, len(values), _ROWS_AT_ONCE):
        some, own = density.rows(slice(low, low + _ROWS_AT_ONCE)), values[low : low + _ROWS_AT_ONCE]
        mass = some.mass_above(own)
        distances = (own - some.hypotheses.squeeze(-1)).abs() / (some.bandwidth * some.scale)
        nearest = distances.amin(dim=-1)
        parts.append(torch.where(nearest <= REACH, mass, _BEYOND + nearest))
    return torch.cat(parts) if parts else values.new_zeros(0)


def region(density: KernelMixture, level: float) -> tuple[Tensor, Tensor]:
    """Return the set of values whose score is at most `level`, as lower and upper ends [rows, pieces]."""
    n_rows = len(density.hypotheses)
    if math.isinf(level):
        ends = density.hypotheses.new_full((n_rows, 1), math.inf)
        return -ends, ends
    parts = []
    for low in range(0, n_rows, _ROWS_AT_ONCE):
        some = density.rows(slice(low, low + _ROWS_AT_ONCE))
        if level >= _BEYOND:
            parts.append(_balls(some, max(level - _BEYOND, REACH)))
        else:
            pieces = some.highest_density(math.nextafter(level, 1.0))
            parts.append((pieces.lower, pieces.upper))
    lower, upper = (torch.cat(ends) for ends in _alike(parts))
    return lower, upper


def _balls(density: KernelMixture, radius: float) -> tuple[Tensor, Tensor]:
    """Return the union of the intervals of `radius` bandwidths around each hypothesis."""
    reach = density.bandwidth * density.scale * radius
    centres = density.hypotheses.squeeze(-1)
    lower, order = (centres - reach).sort(dim=-1)
    upper = (centres + reach).gather(-1, order).cummax(dim=-1).values
    # A piece begins where no earlier one reaches.
    begins = torch.cat([torch.ones_like(lower[..., :1], dtype=torch.bool), lower[..., 1:] > upper[..., :-1]], dim=-1)
    ends = torch.cat([begins[..., 1:], torch.ones_like(begins[..., :1])], dim=-1)
    return marked(lower, begins), marked(upper, ends)


def joined(outputs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return lower and upper ends [rows, outputs, pieces] from those of each output, NaN where one has fewer pieces."""
    lower, upper = (torch.stack(ends, dim=1) for ends in _alike(outputs))
    return lower, upper


def _alike(parts: Sequence[tuple[Tensor, Tensor]]) -> list[list[Tensor]]:
    """Return all lower ends and all upper ends, padded with NaN to the same number of pieces."""
    n_pieces = max((lower.shape[-1] for lower, _ in parts), default=1)
    pad = torch.nn.functional.pad
    return [
        [pad(end, (0, n_pieces - end.shape[-1]), value=math.nan) for end in ends] for ends in zip(*parts, strict=True)
    ]
