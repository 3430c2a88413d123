"""Prediction sets of single outputs, and joint regions of several."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.density import KernelMixture

__all__ = ["PredictionIntervals", "PredictionRegions"]

# Draws times kernels of all rows that are held at a time.
_AT_ONCE = 2**24


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
        """The number of pieces of each union, [rows] or [rows, outputs]."""
        return np.isfinite(self.lower).sum(axis=-1) + np.isinf(self.lower).sum(axis=-1)

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each target lies in its set; y is [rows] or [rows, outputs]."""
        values = np.asarray(y, dtype=float)[..., None]
        return np.asarray(((self.lower <= values) & (values <= self.upper)).any(axis=-1))


@dataclass(frozen=True, eq=False)
class PredictionRegions:
    """One region for each row, in the joint space of all outputs, of any shape and with any number of parts.

    All rows have the same level, which makes the regions as small as possible on average.

    Attributes:
        density: of each row, in the units of y.
        log_level: the log density from which on a value belongs to the region; minus infinity where too few rows
            calibrate, and then everything does.
    """

    density: KernelMixture
    log_level: float

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each row of y [rows, outputs] lies in its region, [rows]; y is [rows] for one output."""
        values = torch.as_tensor(np.asarray(y, dtype=np.float64))
        values = values.unsqueeze(-1) if values.ndim == 1 else values
        shape = *self.density.batch_shape, self.density.dim
        if tuple(values.shape) != shape:
            raise ValueError(
                bad_value("PredictionRegions.contains", "y", f"have the shape {shape}", tuple(values.shape))
            )
        inside: NDArray[np.bool_] = (self.density.log_prob(values) >= self.log_level).numpy()
        return inside

    def volume(self, n_samples: int = 1000, random_state: int = 0) -> NDArray[Any]:
        """Return the volume of each region, [rows], estimated by draws of the densities.

        Args:
            n_samples: draws for each row; the error falls with their square root.
            random_state: a seed.
        """
        check_positive_int("PredictionRegions.volume", "n_samples", n_samples)
        if np.isinf(self.log_level):
            return np.full(tuple(self.density.batch_shape), np.inf)
        generator = torch.Generator().manual_seed(random_state)
        at_once = max(1, _AT_ONCE // (n_samples * self.density.probabilities.shape[-1]))
        parts = []
        for start in range(0, len(self.density.hypotheses), at_once):
            some = self.density.rows(slice(start, start + at_once))
            logs = some.log_prob(some.sample((n_samples,), generator))
            # A draw stands for 1 / density of volume: it is the more likely to be drawn.
            parts.append(torch.where(logs >= self.log_level, (-logs).exp(), 0.0).mean(dim=0))
        return torch.cat(parts).numpy()
