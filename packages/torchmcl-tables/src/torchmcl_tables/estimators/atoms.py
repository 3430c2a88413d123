"""Discrete targets: probability masses at their values (atoms), the most representative values, and prediction sets."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl_tables.estimators.kernels import Kernels

# Targets with at most this many distinct values are discrete: their hypotheses are these values, as kernels with this
# width in standardized units.
_MAX_ATOMS, _ATOM_WIDTH = 64, 1e-3
# Number of rows processed at once.
_AT_ONCE = 1024


def atoms_of(train: NDArray[np.float64], held_out: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the distinct values of targets, [rows, 1], if they are few, repeated, and include all held-out targets."""
    if train.shape[1] != 1:
        return None
    values, counts = np.unique(train, return_counts=True)
    few = 1 < len(values) <= min(_MAX_ATOMS, len(train) // 4) and (counts > 1).mean() > 0.9
    return values if few and np.isin(held_out, values).all() else None


def at_atoms(kernels: Kernels, atoms: Tensor) -> Kernels:
    """Concentrate the mass of kernels with one output at the nearest atoms, [atoms]."""
    borders = (atoms[1:] + atoms[:-1]) / 2
    blocks = (
        [kernels] if torch.compiler.is_compiling() else zip(*(part.split(_AT_ONCE) for part in kernels), strict=True)
    )
    probabilities = torch.cat([_masses_at(Kernels(*block), borders) for block in blocks])
    centers = atoms.expand(probabilities.shape[0], -1).unsqueeze(-1)
    width = (atoms.diff().min() / 10).clamp_max(_ATOM_WIDTH)
    return Kernels(centers, probabilities / probabilities.sum(dim=1, keepdim=True), width.expand_as(centers))


def _masses_at(kernels: Kernels, borders: Tensor) -> Tensor:
    """Compute the mass between the borders of neighboring atoms, [rows, atoms]."""
    exporting = torch.compiler.is_compiling()
    z = (borders - kernels.values) / kernels.widths  # [rows, kernels, borders]
    # onnxruntime has the error function in single precision only.
    below = 0.5 + 0.5 * (z * math.sqrt(0.5)).float().erf().double() if exporting else torch.special.ndtr(z)
    upto = torch.einsum("rk,rkb->rb", kernels.probabilities, below)
    ends = torch.cat([torch.zeros_like(upto[:, :1]), upto, torch.ones_like(upto[:, :1])], dim=1)
    return ends.diff(dim=1).clamp_min(0)


def best_atoms(atoms: Tensor, masses: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Select the atoms that minimize the mean squared distance to the masses, and compute the mass nearest to each.

    Args:
        atoms: Increasing values, [atoms].
        masses: Probability masses, [rows, atoms].
        n_points: Maximum number of atoms to select.

    Returns:
        Increasing, distinct indices of the atoms, [rows, points], and their masses, [rows, points].
    """
    n_points = min(n_points, len(atoms))
    blocks = [_best_atoms(atoms, rows, n_points) for rows in masses.split(_AT_ONCE)]
    places, nearest = (torch.cat(part) for part in zip(*blocks, strict=True))
    return places, nearest


def _best_atoms(atoms: Tensor, masses: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Compute `best_atoms` for a block of rows, by dynamic programming over runs of adjacent atoms."""
    n_rows, n_atoms = masses.shape
    if n_points == n_atoms:
        return torch.arange(n_atoms).expand(n_rows, -1), masses
    cost, middle = _runs(atoms, masses)
    least = cost[:, 0]  # [rows, ends], cost of one run from the first atom to each end
    starts = [torch.zeros(n_rows, n_atoms, dtype=torch.int64)]
    for _ in range(n_points - 1):
        before = torch.cat([torch.full_like(least[:, :1], torch.inf), least[:, :-1]], dim=1)
        least, start = (before.unsqueeze(-1) + cost).min(dim=1)
        starts.append(start)
    end = torch.full((n_rows, 1), n_atoms - 1)
    upto, places, nearest = masses.cumsum(dim=1), [], []
    for start in reversed(starts):
        begin = start.gather(1, end)
        places.append(middle.flatten(1).gather(1, begin * n_atoms + end))
        below = torch.where(begin > 0, upto.gather(1, (begin - 1).clamp_min(0)), 0.0)
        nearest.append(upto.gather(1, end) - below)
        end = (begin - 1).clamp_min(0)
    return torch.cat(places[::-1], dim=1), torch.cat(nearest[::-1], dim=1).clamp_min(0)


def _runs(atoms: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the lowest squared distance of each run to one of its atoms, and the index of that atom.

    Both have the shape [rows, starts, ends]. The distance is infinite if a run would end before it starts.
    """
    n_atoms = len(atoms)
    upto = torch.stack([masses, masses * atoms, masses * atoms.square()]).cumsum(dim=-1)
    before = torch.nn.functional.pad(upto, (1, 0))[..., :-1]
    mass, first, second = upto.unsqueeze(-2) - before.unsqueeze(-1)  # all [rows, starts, ends]
    mean = first / mass.clamp_min(1e-300)
    place = torch.searchsorted((atoms[1:] + atoms[:-1]) / 2, mean.contiguous())
    index = torch.arange(n_atoms)
    place = torch.minimum(torch.maximum(place, index[:, None]), torch.maximum(index, index[:, None]))
    at = atoms[place]
    cost = (second - 2 * at * first + at.square() * mass).clamp_min(0)
    return cost.masked_fill(index < index[:, None], torch.inf), place


def masses_above(masses: Tensor) -> Tensor:
    """Compute, for each atom, the total mass of the atoms that are more probable, [rows, atoms].

    Atoms are treated as narrow normal kernels of equal width, so that only a part of the mass of a slightly more
    probable atom counts. This avoids ties between rows, as calibration requires.
    """
    ratios = masses.unsqueeze(-2).clamp_min(1e-300).log() - masses.unsqueeze(-1).clamp_min(1e-300).log()
    return (masses.unsqueeze(-2) * ratios.clamp_min(0).sqrt().erf()).sum(dim=-1)


def pieces_of_atoms(inside: Tensor, values: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Compute the lower and upper ends, [rows, pieces], of the runs of atoms that belong to a set.

    Args:
        inside: Mask of the atoms in the set, [rows, atoms], with at least one atom per row.
        values: Values of the atoms in the units of the ends, [atoms].
    """
    padded = torch.nn.functional.pad(inside, (1, 1))
    ends = torch.from_numpy(values).expand(inside.shape)
    begins, stops = inside & ~padded[:, :-2], inside & ~padded[:, 2:]
    n_pieces = int(begins.sum(dim=1).max())
    lower, upper = (ends.masked_fill(~marks, torch.nan).sort(dim=1).values for marks in (begins, stops))
    return lower[:, :n_pieces], upper[:, :n_pieces]
