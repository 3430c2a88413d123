"""Joint regions of several outputs: where the density of a row is at least a calibrated level."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.density import KernelMixture

__all__ = ["PredictionRegions"]

# Draws times kernels of all rows that are held at a time.
_AT_ONCE = 2**24


@dataclass(frozen=True, eq=False)
class PredictionRegions:
    """One region for each row, in the space of all outputs together: it may have any shape, and several parts.

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
