"""Several kinds of densities for a row, blended by what rows say that trained none of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.estimators._forest import Forest
from torchmcl.estimators._inputs import Bends, Gaps, Scaler
from torchmcl.estimators._kernels import Kernels, network_kernels

__all__ = ["Blend", "atoms_of", "forest_kernels", "known"]

# What knows nothing of a row, in standardised units: a normal distribution like that of all targets, in case the others
# learned nothing, and a wide one, so that what nobody foresaw, an outlier for example, is not impossible.
_IGNORANT_WIDTHS, _IGNORANT_SHARES = (1.0, 4.0), (0.9, 0.1)
# Where this has so large a share the others have learned little.
_MOSTLY_IGNORANT = 0.3
# Targets that take at most this many values are answered by those values, of this width in standardised units.
_MAX_ATOMS, _ATOM_WIDTH = 64, 1e-3


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

    def with_targets(self, targets: NDArray[np.float64]) -> "Blend":
        """Return it without atoms if further targets [rows, outputs] take other values."""
        contradicted = self.atoms is not None and not np.isin(targets, self.atoms).all()
        return replace(self, atoms=None) if contradicted else self

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
        whole = (known if knowing else mixed)(members, self.shares)
        if self.atoms is not None:
            return at_atoms(whole, torch.from_numpy(self.atoms))
        return whole.trimmed(self.trim) if knowing and self.trim else whole


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


def at_atoms(kernels: Kernels, atoms: Tensor) -> Kernels:
    """Return kernels at the atoms [atoms] only, with the mass of what is nearest to each; for one output."""
    borders = (atoms[1:] + atoms[:-1]) / 2
    masses = []
    for values, shares, widths in zip(*(part.split(1024) for part in kernels), strict=True):
        below = torch.special.ndtr((borders - values) / widths)  # [rows, kernels, borders]
        upto = torch.einsum("rk,rkb->rb", shares, below)
        ends = torch.cat([torch.zeros_like(upto[:, :1]), upto, torch.ones_like(upto[:, :1])], dim=1)
        masses.append(ends.diff(dim=1).clamp_min(0))
    probabilities = torch.cat(masses)
    centres = atoms.expand(len(probabilities), -1).unsqueeze(-1)
    width = min(_ATOM_WIDTH, float(atoms.diff().min()) / 10) if len(atoms) > 1 else _ATOM_WIDTH
    return Kernels(centres, probabilities / probabilities.sum(dim=1, keepdim=True), torch.full_like(centres, width))


def atoms_of(train: NDArray[np.float64], held_out: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the values that targets [rows, 1] take, if they are few, come again, and others have no further ones."""
    if train.shape[1] != 1:
        return None
    values, counts = np.unique(train, return_counts=True)
    few = 1 < len(values) <= min(_MAX_ATOMS, len(train) // 4) and (counts > 1).mean() > 0.9
    return values if few and np.isin(held_out, values).all() else None
