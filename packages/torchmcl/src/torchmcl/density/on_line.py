"""Highest-density sets in one dimension, and the mass of the region where the density is higher than at a value."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from torchmcl.checks import bad_value, check_fraction


class HighestDensitySet(NamedTuple):
    """The smallest sets with a given mass, in one dimension: unions of intervals.

    Attributes:
        lower: [..., pieces], where each interval begins, in increasing order; NaN where there are fewer pieces.
        upper: [..., pieces], where it ends.
    """

    lower: Tensor
    upper: Tensor


class Cells(NamedTuple):
    """Cells on the line: edges [..., cells + 1], the mass and the log density of each, [..., cells]."""

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
    """Return the depth of the deepest gap in the highest-density set with `mass`, [...]; 1 without a gap."""
    depths, _ = _depths(cells.height, _inside(cells, mass))
    return depths.nan_to_num(1.0).amin(dim=-1)


def mass_above(cells: Cells, value: Tensor) -> Tensor:
    """Return the mass [...] of the cells denser than the one that contains value [..., 1]; 1 outside all cells."""
    own = torch.searchsorted(cells.edges.contiguous(), value.contiguous(), right=True) - 1  # [..., 1]
    n_cells = cells.masses.shape[-1]
    level = cells.height.gather(-1, own.clamp(0, n_cells - 1))
    above = (cells.masses * (cells.height > level)).sum(dim=-1, keepdim=True)
    return torch.where((own >= 0) & (own < n_cells), above, 1.0).squeeze(-1)


def _inside(cells: Cells, mass: Tensor) -> Tensor:
    """Return a mask [..., cells] of the densest cells with `mass`."""
    order = cells.height.argsort(dim=-1, descending=True, stable=True)
    sorted_masses = cells.masses.gather(-1, order)
    before = sorted_masses.cumsum(dim=-1) - sorted_masses
    wanted = mass.to(before).expand(before.shape[:-1]).unsqueeze(-1)
    return torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before < wanted)


def _depths(height: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the depth of the gap after each piece, and the index of the last piece at or before each cell.

    The depth is the lowest density of the gap, divided by that of the lower peak beside it. Pieces count from 1; the
    depth is NaN where there is no gap between two pieces.
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
    """Return the marked values of each row in order, padded with NaN to the largest count (at least 1)."""
    n_marked = max(int(marks.sum(dim=-1).max()), 1) if marks.numel() else 1
    first = marks.int().argsort(dim=-1, descending=True, stable=True)[..., :n_marked]
    return values.gather(-1, first).masked_fill(~marks.gather(-1, first), torch.nan)


# Half width, in bandwidths, of the grid around each hypothesis: all but 1e-6 of a kernel is inside.
REACH = 5.0
_GRID = 81
# Numbers per chunk: every kernel is evaluated at every cell of a grid.
_AT_ONCE = 2**23


class OnLine(Distribution):
    """Highest-density sets of a density around hypotheses, in one dimension.

    By definition they are made of the cells of a grid that is fine (an eighth of a bandwidth) around every hypothesis.
    Mixtures of normal kernels on the CPU go to compiled loops, whose cells are cut where the set ends.
    """

    hypotheses: Tensor
    probabilities: Tensor
    bandwidth: Tensor

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number of coordinates."""

    @property
    @abstractmethod
    def widths(self) -> Tensor:
        """The standard deviation of each kernel in each coordinate, [..., hypotheses, dim]."""

    @abstractmethod
    def flat(self) -> Self:
        """Return the same distributions with a single batch axis."""

    @abstractmethod
    def rows(self, chosen: slice | Tensor) -> Self:
        """Return the distributions at the given indices of the first batch axis."""

    def compiled(self) -> Any:
        """Return the kernels of each row for faster functions, or None if those do not apply."""
        return None

    def highest_density(self, mass: float | Tensor, fill: float = 1.0) -> HighestDensitySet:
        """Return the smallest unions of intervals with `mass`, in one dimension.

        Args:
            mass: in [0, 1], a number or a tensor [...].
            fill: in [0, 1]; two neighboring pieces are joined where the lowest density between them is at least `fill`
                times that of the lower of their peaks. At 1 none are, at 0 all are: one interval.

        Raises:
            ValueError: in more than one dimension; use `highest_density_level` there.

        Example:
            >>> from torchmcl.density import KernelMixture
            >>> two = KernelMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.5, 0.5]), bandwidth=0.1)
            >>> two.highest_density(0.9).lower.round(decimals=1)
            tensor([-1.2000,  0.8000])
            >>> two.highest_density(0.9, fill=0.0).lower.round(decimals=1)
            tensor([-1.2000])
        """
        check_fraction(type(self).__name__, "mass", mass)
        check_fraction(type(self).__name__, "fill", fill)
        self._check_one_dimension("highest_density")
        masses = self._of_rows(torch.as_tensor(mass, dtype=torch.float64))
        mixtures = self.compiled()
        if mixtures is not None:
            lower, upper, _ = mixtures.sets(masses, fill)
        else:
            parts = [densest(cells, some, fill) for cells, some in self._cells(masses)]
            n_pieces = max((part.lower.shape[-1] for part in parts), default=1)
            lower, upper = (torch.cat([_padded(end, n_pieces) for end in ends]) for ends in zip(*parts, strict=True))
        shape = (*self.batch_shape, lower.shape[-1])
        return HighestDensitySet(lower.to(self.hypotheses).view(shape), upper.to(self.hypotheses).view(shape))

    def gap_depth(self, mass: float | Tensor) -> Tensor:
        """Return the depth of the deepest gap in the highest-density set with `mass`, [...], in one dimension.

        It is the lowest density between two neighboring pieces, divided by that of the lower of their peaks: near 0
        between branches, 1 where the set is one interval. `highest_density(mass, fill)` is one interval where `fill`
        is not above it.

        Args:
            mass: in [0, 1], a number or a tensor [...].

        Example:
            >>> from torchmcl.density import KernelMixture
            >>> two = KernelMixture(torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[0.5, 0.5]]), torch.tensor([[0.7]]))
            >>> two.gap_depth(0.6).round(decimals=1), two.gap_depth(0.9)
            (tensor([0.7000]), tensor([1.]))
        """
        check_fraction(type(self).__name__, "mass", mass)
        self._check_one_dimension("gap_depth")
        masses = self._of_rows(torch.as_tensor(mass, dtype=torch.float64))
        mixtures = self.compiled()
        if mixtures is not None:
            depths = mixtures.sets(masses, 1.0).depths
        else:
            depths = torch.cat([gap_depth(cells, some) for cells, some in self._cells(masses)])
        return depths.to(self.hypotheses).view(self.batch_shape)

    def mass_above(self, value: Tensor) -> Tensor:
        """Return the mass of the region denser than at value [..., 1], in one dimension, [...].

        The value lies in the highest-density set of every larger mass, and of no smaller mass. For a value
        drawn from the density itself it is uniform on [0, 1], which makes it a good conformity score. It is 1 where
        the value is further than five bandwidths from every hypothesis.
        """
        self._check_one_dimension("mass_above")
        values = self._of_rows(value.squeeze(-1)).to(self.hypotheses)
        mixtures = self.compiled()
        if mixtures is not None:
            masses = mixtures.mass_above(values)
        else:
            masses = torch.cat([mass_above(cells, some.unsqueeze(-1)) for cells, some in self._cells(values)])
        return masses.to(self.hypotheses).view(self.batch_shape)

    def _of_rows(self, values: Tensor) -> Tensor:
        """Return the values expanded to one per density of the batch, [rows]."""
        return values.expand(self.batch_shape).reshape(-1)

    def _cells(self, values: Tensor) -> Iterator[tuple[Cells, Tensor]]:
        """Yield the cells of a few densities at a time, with the corresponding part of values [rows]."""
        n_rows, n = len(values), self.probabilities.shape[-1]
        flat = self.flat()
        at_once = max(_AT_ONCE // (n * n * _GRID), 1)
        for low in range(0, max(n_rows, 1), at_once):
            rows = slice(low, low + at_once)
            yield flat.rows(rows)._grid(), values[rows]

    def _grid(self) -> Cells:
        """Return cells that are fine around each hypothesis; the mass outside (1e-6) is spread over them."""
        steps = torch.linspace(-REACH, REACH, _GRID).to(self.hypotheses)
        edges = (self.hypotheses + self.widths * steps).flatten(-2).sort(dim=-1).values
        first = edges.movedim(-1, 0).unsqueeze(-1)  # grid axis in front, like that of samples
        masses = self.cdf(first).diff(dim=0).clamp_min(0)
        height = self.log_prob((first[1:] + first[:-1]) / 2)
        return Cells(edges, (masses / masses.sum(dim=0)).movedim(0, -1), height.movedim(0, -1))

    def _check_one_dimension(self, method: str) -> None:
        if self.dim != 1:
            rule = "have one dimension here"
            advice = "KernelMixture.marginal(output) gives one."
            raise ValueError(bad_value(f"{type(self).__name__}.{method}", "hypotheses", rule, self.dim, advice))


def _padded(ends: Tensor, n_pieces: int) -> Tensor:
    """Return ends [rows, pieces] with NaN for missing pieces."""
    return torch.nn.functional.pad(ends, (0, n_pieces - ends.shape[-1]), value=torch.nan)
