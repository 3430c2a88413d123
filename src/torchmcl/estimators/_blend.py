"""Several kinds of densities for a row, blended by what rows say that trained none of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from torchmcl.costs.mixtures import mean_distance
from torchmcl.estimators._forest import Forest
from torchmcl.estimators._inputs import Bends, Gaps, Scaler
from torchmcl.estimators._kernels import Kernels, network_kernels

__all__ = ["CRPS_WEIGHT", "Blend", "atoms_of", "blended", "fitted_stretch", "fitted_widths"]

#: Of the continuous ranked probability score, in standardised units, beside the likelihood.
CRPS_WEIGHT = 3.0
# The widths of the forest's kernels that are tried: a multiple of what the rows of a leaf's parent differ by, and a
# width below which none is.
_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
_FLOORS = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
# Factors of the widths of networks that are tried; 1 is held to as if by this many rows, a nat each at a factor of e.
_STRETCHES = (0.2, 0.3, 0.42, 0.6, 0.77, 0.88, 1.0, 1.14, 1.3, 1.66, 2.0)
_STRETCH_DOUBT = 5.0
# What knows nothing of a row, in standardised units: a normal distribution like that of all targets, in case the others
# learned nothing, and a wide one, so that what nobody foresaw, an outlier for example, is not impossible.
_IGNORANT_WIDTHS, _IGNORANT_SHARES = (1.0, 4.0), (0.9, 0.1)
# Where this has so large a share the others have learned little.
_MOSTLY_IGNORANT = 0.3
# Shares are held near equal ones as if by this many more rows.
_ROWS_OF_DOUBT = 4.0
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
        atoms: the only values that the targets take, increasing; None where they take many.
    """

    encoders: list[Scaler | Bends | Gaps]
    n_networks: list[int]
    shares: NDArray[np.float64]
    forest: Forest | None = None
    factor: float = 1.0
    floor: float = 0.1
    stretches: NDArray[np.float64] | None = None
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
            knowing: leave out what knows nothing of a row. Its kernels are wide: a mean, or points that stand for the
                density, would look at little else.
        """
        members, shares = self.members(networks, X, device), self.shares
        if knowing and shares[-1] < _MOSTLY_IGNORANT:
            members, shares = members[:-1], shares[:-1] / shares[:-1].sum()
        whole = Kernels.joined([part.times(share) for part, share in zip(members, shares, strict=True)])
        return whole if self.atoms is None else at_atoms(whole, torch.from_numpy(self.atoms))


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


# ---------------------------------------------------------------------- fitted on held-out rows


def fitted_widths(
    values: NDArray[np.float64],
    spreads: NDArray[np.float64],
    unseen: NDArray[np.bool_],
    targets: Tensor,
    weights: Tensor,
) -> tuple[float, float, Kernels]:
    """Return factor and floor of the forest's widths with the best log score on held-out rows, and the kernels there.

    Args:
        values: [rows, trees, outputs]
        spreads: [rows, trees]
        unseen: [rows, trees], whether a tree has not been grown on a row: the others must not be asked.
        targets: [rows, outputs]
        weights: [rows]
    """
    judged = np.maximum(unseen, ~unseen.any(axis=1, keepdims=True))  # a row that all have seen is judged by all
    shares = torch.from_numpy(judged / judged.sum(axis=1, keepdims=True))

    def kernels(factor: float, floor: float) -> Kernels:
        return forest_kernels(values, spreads, factor, floor)._replace(probabilities=shares)

    def score(pair: tuple[float, float]) -> float:
        return float((weights * log_density(kernels(*pair), targets)).sum())

    best = max(((factor, floor) for factor in _FACTORS for floor in _FLOORS), key=score)
    return *best, kernels(*best)


def fitted_stretch(kernels: Kernels, targets: Tensor, weights: Tensor) -> float:
    """Return the factor of all widths with the best log score on held-out rows; without much evidence near 1."""
    counts = weights / weights.mean()

    def loss(stretch: float) -> float:
        score = (counts * log_density(kernels.stretched(stretch), targets)).sum()
        return _STRETCH_DOUBT * math.log(stretch) ** 2 - float(score)

    return min(_STRETCHES, key=loss)


def log_density(kernels: Kernels, targets: Tensor) -> Tensor:
    """Return the log density of targets [rows, outputs], [rows]."""
    z = (targets.unsqueeze(1) - kernels.values) / kernels.widths
    logs = -0.5 * z.square() - kernels.widths.log() - 0.5 * math.log(2 * math.pi)
    return (kernels.probabilities.log() + logs.sum(dim=-1)).logsumexp(dim=-1)


def blended(members: Sequence[Kernels], targets: Tensor, weights: Tensor) -> NDArray[np.float64]:
    """Return the share of each member that foresees targets best, by likelihood and CRPS, [members].

    Args:
        members: kernels for held-out rows.
        targets: [rows, outputs]
        weights: [rows], how much each counts.
    """
    counts = (weights / weights.sum()).numpy()
    logs = torch.stack([log_density(member, targets) for member in members]).numpy()
    near, apart = (part.numpy() for part in _distances(members, targets))
    n_members, doubt = len(members), _ROWS_OF_DOUBT / len(members) / len(targets)
    highest = logs.max(axis=0)
    likely = np.exp(logs - highest)  # relative to the likeliest member of each row
    near, apart = near @ counts, apart @ counts

    def loss(logits: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        mixed = shares @ likely
        crps = shares @ near - 0.5 * shares @ apart @ shares
        value = CRPS_WEIGHT * crps - counts @ np.log(mixed) - doubt * np.log(shares).sum()
        slope = CRPS_WEIGHT * (near - apart @ shares) - (likely / mixed) @ counts - doubt / shares
        return float(value), shares * (slope - shares @ slope)

    found = minimize(loss, np.zeros(n_members), jac=True, method="L-BFGS-B").x
    shares = np.exp(found - found.max())
    return np.asarray(shares / shares.sum())


def _distances(members: Sequence[Kernels], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean distance of a draw of each member to the target [members, rows], and of draws of two of them.

    Of several outputs they are summed over coordinates.
    """
    near = [
        (member.probabilities * mean_distance(targets.unsqueeze(1) - member.values, member.widths).sum(dim=-1)).sum(1)
        for member in members
    ]
    apart = torch.zeros(len(members), len(members), len(targets), dtype=torch.float64)
    for i, one in enumerate(members):
        for j, other in enumerate(members[: i + 1]):
            apart[i, j] = apart[j, i] = _between(one, other)
    return torch.stack(near), apart


def _between(one: Kernels, other: Kernels) -> Tensor:
    """Return the mean distance between draws of two members, [rows]; block by block, for memory."""
    parts = []
    for (a, p, s), (b, q, t) in zip(
        zip(*(x.split(256) for x in one), strict=True), zip(*(x.split(256) for x in other), strict=True), strict=True
    ):
        both = (s.square().unsqueeze(2) + t.square().unsqueeze(1)).sqrt()
        distance = mean_distance(a.unsqueeze(2) - b.unsqueeze(1), both).sum(dim=-1)
        parts.append(torch.einsum("ri,rj,rij->r", p, q, distance))
    return torch.cat(parts)
