"""Sets on the line from cells: the densest cells with a given mass, and the mass denser than a value.

This is what `torchmcl.accel.native.line` computes faster for mixtures of normal kernels.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Cells", "HighestDensitySet", "densest", "gap_depth", "marked", "mass_above"]


class HighestDensitySet(NamedTuple):
    """The smallest sets with a given mass, in one dimension: unions of intervals.

    Attributes:
        lower: [..., pieces], where each interval begins, in increasing order; NaN where there are fewer pieces.
        upper: [..., pieces], where it ends.
    """

    lower: Tensor
    upper: Tensor


class Cells(NamedTuple):
    """Cells of the line: edges [..., cells + 1], the mass and the log density of each, [..., cells]."""

    edges: Tensor
    masses: Tensor
    height: Tensor


def densest(cells: Cells, mass: Tensor, fill: float) -> HighestDensitySet:
    """Return the densest cells with `mass` [...] as intervals; gaps of depth `fill` or more are closed."""
    inside = _inside(cells, mass)
    if fill < 1:
        depths, piece = _depths(cells.height, inside)
        inside = inside | (depths >= fill).gather(-1, piece)
    return _runs(cells.edges, inside)


def gap_depth(cells: Cells, mass: Tensor) -> Tensor:
    """Return the depth of the deepest gap of the set of `mass` [...], 1 without a gap."""
    depths, _ = _depths(cells.height, _inside(cells, mass))
    return depths.nan_to_num(1.0).amin(dim=-1)


def mass_above(cells: Cells, value: Tensor) -> Tensor:
    """Return the mass of the cells denser than that of value [..., 1], 1 outside of all cells, [...]."""
    own = torch.searchsorted(cells.edges.contiguous(), value.contiguous(), right=True) - 1  # [..., 1]
    n_cells = cells.masses.shape[-1]
    level = cells.height.gather(-1, own.clamp(0, n_cells - 1))
    above = (cells.masses * (cells.height > level)).sum(dim=-1, keepdim=True)
    return torch.where((own >= 0) & (own < n_cells), above, 1.0).squeeze(-1)


def _inside(cells: Cells, mass: Tensor) -> Tensor:
    """Return which cells are the densest ones with `mass`, [..., cells]."""
    order = cells.height.argsort(dim=-1, descending=True, stable=True)
    sorted_masses = cells.masses.gather(-1, order)
    before = sorted_masses.cumsum(dim=-1) - sorted_masses
    wanted = mass.to(before).expand(before.shape[:-1]).unsqueeze(-1)
    return torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before < wanted)


def _depths(height: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the depth of the gap after each piece, and for each cell the number of the last piece so far.

    The depth is the lowest density of the gap, divided by that of the lower peak beside it. Pieces count from 1; the
    depth is NaN where no gap between two pieces is.
    """
    starts = inside & ~torch.cat([torch.zeros_like(inside[..., :1]), inside[..., :-1]], dim=-1)
    piece = starts.cumsum(dim=-1)
    n_pieces = piece[..., -1:]
    numbers = torch.arange(height.shape[-1] // 2 + 3, device=height.device)
    empty = torch.zeros(*height.shape[:-1], len(numbers)).to(height)
    peaks = (empty - torch.inf).scatter_reduce(-1, piece, height.masked_fill(~inside, -torch.inf), "amax")
    valleys = (empty + torch.inf).scatter_reduce(-1, piece, height.masked_fill(inside, torch.inf), "amin")
    lower = torch.minimum(peaks[..., :-1], peaks[..., 1:])
    depths = (valleys[..., :-1] - lower).exp()
    between = (numbers[:-1] >= 1) & (numbers[:-1] < n_pieces)
    return depths.masked_fill(~between, torch.nan), piece


def _runs(edges: Tensor, inside: Tensor) -> HighestDensitySet:
    """Return runs of cells inside the set as intervals, padded with NaN to the largest number of runs."""
    outside = torch.zeros_like(inside[..., :1])
    padded = torch.cat([outside, inside, outside], dim=-1)
    starts, stops = padded[..., 1:] & ~padded[..., :-1], padded[..., :-1] & ~padded[..., 1:]  # at edges
    return HighestDensitySet(marked(edges, starts), marked(edges, stops))


def marked(values: Tensor, marks: Tensor) -> Tensor:
    """Return the marked values of each row in order, padded with NaN to the largest number of them, >= 1."""
    n_marked = max(int(marks.sum(dim=-1).max()), 1) if marks.numel() else 1
    first = marks.int().argsort(dim=-1, descending=True, stable=True)[..., :n_marked]
    return values.gather(-1, first).masked_fill(~marks.gather(-1, first), torch.nan)
