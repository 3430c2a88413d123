"""Discrete targets: masses at their values, the most representative values, and calibrated sets."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl_tables.estimators.kernels import Kernels

# For targets with at most this many values, the answers are those values, with this width in standardized units.
_MAX_ATOMS, _ATOM_WIDTH = 64, 1e-3
# Rows processed at once.
_AT_ONCE = 1024


def atoms_of(train: NDArray[np.float64], held_out: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the distinct values of targets [rows, 1], if they are few, repeated, and include all held-out targets."""
    if train.shape[1] != 1:
        return None
    values, counts = np.unique(train, return_counts=True)
    few = 1 < len(values) <= min(_MAX_ATOMS, len(train) // 4) and (counts > 1).mean() > 0.9
    return values if few and np.isin(held_out, values).all() else None


def at_atoms(kernels: Kernels, atoms: Tensor) -> Kernels:
    """Return kernels at the atoms [atoms] only, each with the mass nearest to it; for one output."""
    borders = (atoms[1:] + atoms[:-1]) / 2
    blocks = (
        [kernels] if torch.compiler.is_compiling() else zip(*(part.split(_AT_ONCE) for part in kernels), strict=True)
    )
    probabilities = torch.cat([_masses_at(Kernels(*block), borders) for block in blocks])
    centers = atoms.expand(probabilities.shape[0], -1).unsqueeze(-1)
    width = (atoms.diff().min() / 10).clamp_max(_ATOM_WIDTH)
    return Kernels(centers, probabilities / probabilities.sum(dim=1, keepdim=True), width.expand_as(centers))


def _masses_at(kernels: Kernels, borders: Tensor) -> Tensor:
    """Return the mass between the borders of neighboring atoms, [rows, atoms]."""
    exporting = torch.compiler.is_compiling()
    z = (borders - kernels.values) / kernels.widths  # [rows, kernels, borders]
    # onnxruntime has the error function in single precision only.
    below = 0.5 + 0.5 * (z * math.sqrt(0.5)).float().erf().double() if exporting else torch.special.ndtr(z)
    upto = torch.einsum("rk,rkb->rb", kernels.probabilities, below)
    ends = torch.cat([torch.zeros_like(upto[:, :1]), upto, torch.ones_like(upto[:, :1])], dim=1)
    return ends.diff(dim=1).clamp_min(0)


def best_atoms(atoms: Tensor, masses: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Return the atoms that best represent the masses, by mean squared distance, and the mass nearest to each.

    Args:
        atoms: [atoms], increasing.
        masses: [rows, atoms]
        n_points: how many; all of them if there are fewer.

    Returns:
        Indices [rows, points] of the atoms, increasing and distinct, and masses [rows, points].
    """
    n_points = min(n_points, len(atoms))
    found = [_best_atoms(atoms, rows, n_points) for rows in masses.split(_AT_ONCE)]
    places, shares = (torch.cat(part) for part in zip(*found, strict=True))
    return places, shares


def _best_atoms(atoms: Tensor, masses: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Return the result of `best_atoms` for a block of rows, by dynamic programming over runs of adjacent atoms."""
    n_rows, n_atoms = masses.shape
    if n_points == n_atoms:
        return torch.arange(n_atoms).expand(n_rows, -1), masses
    cost, middle = _runs(atoms, masses)
    least = cost[:, 0]  # [rows, ends], of one run from the first atom to each
    starts = [torch.zeros(n_rows, n_atoms, dtype=torch.int64)]
    for _ in range(n_points - 1):
        before = torch.cat([torch.full_like(least[:, :1], torch.inf), least[:, :-1]], dim=1)
        least, start = (before.unsqueeze(-1) + cost).min(dim=1)
        starts.append(start)
    end = torch.full((n_rows, 1), n_atoms - 1)
    upto, places, shares = masses.cumsum(dim=1), [], []
    for start in reversed(starts):
        begin = start.gather(1, end)
        places.append(middle.flatten(1).gather(1, begin * n_atoms + end))
        below = torch.where(begin > 0, upto.gather(1, (begin - 1).clamp_min(0)), 0.0)
        shares.append(upto.gather(1, end) - below)
        end = (begin - 1).clamp_min(0)
    return torch.cat(places[::-1], dim=1), torch.cat(shares[::-1], dim=1).clamp_min(0)


def _runs(atoms: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """Return each run's lowest squared distance to one of its atoms, and that atom's index, [rows, starts, ends].

    Infinite where a run would end before it starts.
    """
    n_atoms = len(atoms)
    upto = torch.stack([masses, masses * atoms, masses * atoms.square()]).cumsum(dim=-1)
    before = torch.nn.functional.pad(upto, (1, 0))[..., :-1]
    mass, first, second = upto.unsqueeze(-2) - before.unsqueeze(-1)  # [rows, starts, ends] each
    mean = first / mass.clamp_min(1e-300)
    place = torch.searchsorted((atoms[1:] + atoms[:-1]) / 2, mean.contiguous())
    every = torch.arange(n_atoms)
    place = torch.minimum(torch.maximum(place, every[:, None]), torch.maximum(every, every[:, None]))
    at = atoms[place]
    cost = (second - 2 * at * first + at.square() * mass).clamp_min(0)
    return cost.masked_fill(every < every[:, None], torch.inf), place


def masses_above(masses: Tensor) -> Tensor:
    """Return, for each atom, the total mass of the atoms that are more probable, [rows, atoms].

    Atoms are treated as narrow normal kernels of equal width: of an atom that is only slightly more probable, only a
    part counts. This avoids ties between rows, as calibration requires.
    """
    ratios = masses.unsqueeze(-2).clamp_min(1e-300).log() - masses.unsqueeze(-1).clamp_min(1e-300).log()
    return (masses.unsqueeze(-2) * ratios.clamp_min(0).sqrt().erf()).sum(dim=-1)


def pieces_of_atoms(inside: Tensor, values: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Return lower and upper ends [rows, pieces] of the runs of atoms that belong to a set [rows, atoms].

    Args:
        inside: [rows, atoms], with at least one atom per row.
        values: [atoms], in the units of the ends.
    """
    padded = torch.nn.functional.pad(inside, (1, 1))
    ends = torch.from_numpy(values).expand(inside.shape)
    begins, stops = inside & ~padded[:, :-2], inside & ~padded[:, 2:]
    n_pieces = int(begins.sum(dim=1).max())
    lower, upper = (ends.masked_fill(~marks, torch.nan).sort(dim=1).values for marks in (begins, stops))
    return lower[:, :n_pieces], upper[:, :n_pieces]
