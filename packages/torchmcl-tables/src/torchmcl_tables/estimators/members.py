"""Members of a blend as kernels, and their mixtures."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl_tables.estimators.kernels import Kernels

__all__ = ["background", "forest_kernels", "informed", "mixed"]

# Input-independent background component, in standardised units: a normal distribution like that of all targets, in case
# the others learned nothing, and a wide one, so that outliers are not impossible.
_BACKGROUND_WIDTHS, _BACKGROUND_SHARES = (1.0, 4.0), (0.9, 0.1)
# With so large a weight of the background the others have learned little.
_MOSTLY_BACKGROUND = 0.3


def mixed(members: Sequence[Kernels], weights: NDArray[np.float64]) -> Kernels:
    """Return the kernels of all members."""
    return Kernels.joined([part.times(weight) for part, weight in zip(members, weights, strict=True)])


def informed(members: Sequence[Kernels], weights: NDArray[np.float64]) -> Kernels:
    """Return the kernels of all members but the last, the background; of all if these contribute little."""
    if weights[-1] >= _MOSTLY_BACKGROUND:
        return mixed(members, weights)
    return mixed(members[:-1], weights[:-1] / weights[:-1].sum())


def forest_kernels(values: NDArray[np.float64], spreads: NDArray[np.float64], factor: float, floor: float) -> Kernels:
    """Return a kernel for each tree, all equally probable."""
    centres = torch.from_numpy(values).double()
    widths = torch.from_numpy(np.hypot(floor, factor * spreads)).double()
    shares = torch.full(widths.shape, 1 / widths.shape[1], dtype=torch.float64)
    return Kernels(centres, shares, widths.unsqueeze(-1).expand_as(centres))


def background(like: Kernels) -> Kernels:
    """Return the same kernels for each row, around the mean of all targets."""
    n_rows, _, n_outputs = like.values.shape
    widths = torch.tensor(_BACKGROUND_WIDTHS, dtype=torch.float64)[:, None].expand(n_rows, -1, n_outputs)
    shares = torch.tensor(_BACKGROUND_SHARES, dtype=torch.float64).expand(n_rows, -1)
    return Kernels(torch.zeros_like(widths), shares, widths)
