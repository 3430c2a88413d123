"""Several kinds of densities for a row, blended by what rows say that trained none of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl_tables.estimators._atoms import at_atoms
from torchmcl_tables.estimators._forest import Forest
from torchmcl_tables.estimators._inputs import Bends, Gaps, Scaler
from torchmcl_tables.estimators._kernels import Kernels, network_kernels

__all__ = ["Blend", "forest_kernels", "known"]

# What knows nothing of a row, in standardised units: a normal distribution like that of all targets, in case the others
# learned nothing, and a wide one, so that what nobody foresaw, an outlier for example, is not impossible.
_IGNORANT_WIDTHS, _IGNORANT_SHARES = (1.0, 4.0), (0.9, 0.1)
# Where this has so large a share the others have learned little.
_MOSTLY_IGNORANT = 0.3


@dataclass(frozen=True)
class Blend:
    """How the kernels of a row come about.

    Attributes:
        encoders: of each kind of networks: what makes their inputs of columns.
        n_networks: of each kind.
        shares: of the kinds, of the forest where there is one, and of what knows nothing of the row.
        forest: or None.
        factor: of the widths of its kernels.
        floor: below which none of those is.
        stretches: of the widths of each kind of networks.
        trim: the share of the probability at each end that answers do not consider; for one output.
        atoms: the only values that the targets take, increasing; None where they take many.
    """

    encoders: list[Scaler | Bends | Gaps]
    n_networks: list[int]
    shares: NDArray[np.float64]
    forest: Forest | None = None
    factor: float = 1.0
    floor: float = 0.1
    stretches: NDArray[np.float64] | None = None
    trim: float = 0.0
    atoms: NDArray[np.float64] | None = None

    def members(self, networks: Sequence[Any], X: NDArray[Any], device: Any) -> list[Kernels]:
        """Return the kernels that each member gives to rows, each with the whole probability, in standardised units."""
        ends = np.cumsum(self.n_networks)
        parts = [
            network_kernels(networks[end - n : end], encoder, X, device)
            for encoder, n, end in zip(self.encoders, self.n_networks, ends, strict=True)
        ]
        if self.stretches is not None:
            parts = [part.stretched(by) for part, by in zip(parts, self.stretches, strict=True)]
        if self.forest is not None:
            values, spreads = self.forest.answers(self.encoders[0].places(X).dense)
            parts.append(forest_kernels(values, spreads, self.factor, self.floor))
        return [*parts, ignorant(parts[0])]

    def kernels(self, networks: Sequence[Any], X: NDArray[Any], device: Any, *, knowing: bool = False) -> Kernels:
        """Return all kernels of rows, in standardised units.

        Args:
            networks: of all kinds.
            X: [rows, columns]
            device: where to compute.
            knowing: leave out what knows nothing of a row, and stray kernels. A mean, or points that stand for the
                density, would depend on little else: squared distances count what is far.
        """
        members = self.members(networks, X, device)
        whole = self.at_atoms((known if knowing else mixed)(members, self.shares))
        return whole.trimmed(self.trim) if knowing and self.trim else whole

    def at_atoms(self, kernels: Kernels) -> Kernels:
        """Return kernels at the atoms, where there are any."""
        return kernels if self.atoms is None else at_atoms(kernels, torch.from_numpy(self.atoms))


def mixed(members: Sequence[Kernels], shares: NDArray[np.float64]) -> Kernels:
    """Return the kernels of all members."""
    return Kernels.joined([part.times(share) for part, share in zip(members, shares, strict=True)])


def known(members: Sequence[Kernels], shares: NDArray[np.float64]) -> Kernels:
    """Return the kernels of all members but the last, which knows nothing of a row; of all if these learned little."""
    if shares[-1] >= _MOSTLY_IGNORANT:
        return mixed(members, shares)
    return mixed(members[:-1], shares[:-1] / shares[:-1].sum())


def forest_kernels(values: NDArray[np.float64], spreads: NDArray[np.float64], factor: float, floor: float) -> Kernels:
    """Return a kernel for each tree, all equally probable."""
    centres = torch.from_numpy(values).double()
    widths = torch.from_numpy(np.hypot(floor, factor * spreads)).double()
    shares = torch.full(widths.shape, 1 / widths.shape[1], dtype=torch.float64)
    return Kernels(centres, shares, widths.unsqueeze(-1).expand_as(centres))


def ignorant(like: Kernels) -> Kernels:
    """Return the same kernels for each row, around the mean of all targets."""
    n_rows, _, n_outputs = like.values.shape
    widths = torch.tensor(_IGNORANT_WIDTHS, dtype=torch.float64)[:, None].expand(n_rows, -1, n_outputs)
    shares = torch.tensor(_IGNORANT_SHARES, dtype=torch.float64).expand(n_rows, -1)
    return Kernels(torch.zeros_like(widths), shares, widths)
