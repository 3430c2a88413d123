"""Mixtures of normals around hypotheses: density, samples, highest-density sets, and widths fitted on held-out targets.

Highest-density sets are unions of the cells of a grid with a spacing of an eighth of a width around every hypothesis.
Faster functions for mixtures on the CPU divide the cells at the ends of the set.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, constraints

from torchmcl.checks import check_fraction, check_positive, check_tensor
from torchmcl.costs.families import HypothesisFamily
from torchmcl.dispatch import faster
from torchmcl.errors import bad_value
from torchmcl.scoring import ScoreObjective, SoftmaxScores, check_score_objective
from torchmcl.types import Distributions

__all__ = [
    "REACH",
    "Bandwidth",
    "HighestDensitySet",
    "Mixture",
    "fit_bandwidth",
    "masked_first",
    "mixture_distribution",
]

_LOG_TAU = math.log(2 * math.pi)
#: Half width of the grid around each hypothesis, in widths of its kernel; it contains all but 1e-6 of the mass.
REACH = 5.0
# Points of this grid: fewer for many hypotheses, whose grids overlap, down to a spacing of two thirds of a width.
_GRID, _MIN_GRID, _MANY_POINTS = 81, 17, 2048
# Maximum number of values per chunk; every kernel is evaluated at every cell of the grid.
_CHUNK = 2**20
# Maximum number of cells that a mixture keeps for the next call.
_KEPT_CELLS = 2**22


class HighestDensitySet(NamedTuple):
    """Smallest sets with a given mass, in one dimension: unions of intervals.

    Attributes:
        lower: Lower ends of the intervals in increasing order, [..., intervals]; NaN where there are fewer intervals.
        upper: Upper ends, [..., intervals].
    """

    lower: Tensor
    upper: Tensor


class Mixture(Distribution):
    """Mixture of normal distributions around hypotheses, with independent coordinates.

    Args:
        hypotheses: Means, [..., hypotheses, dim].
        probabilities: Probabilities, [..., hypotheses], summing to 1.
        widths: Standard deviations, > 0: a number, or a tensor that broadcasts to the hypotheses.

    Example:
        >>> density = Mixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.25, 0.75]), widths=0.1)
        >>> density.mean, density.cdf(torch.tensor([0.0]))
        (tensor([0.5000]), tensor(0.2500))
        >>> density.sample((5,)).shape
        torch.Size([5, 1])
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (as in torch.distributions)
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, hypotheses: Tensor, probabilities: Tensor, widths: float | Tensor) -> None:
        check_tensor("Mixture", "hypotheses", hypotheses)
        check_tensor("Mixture", "probabilities", probabilities)
        shape = hypotheses.shape
        if hypotheses.ndim < 2 or probabilities.shape != shape[:-1]:
            rule = f"have the shape of `hypotheses` {tuple(shape)} without its last axis"
            raise ValueError(bad_value("Mixture", "probabilities", rule, tuple(probabilities.shape)))
        check_positive("Mixture", "widths", widths)
        self.hypotheses = hypotheses
        self.probabilities = probabilities
        self._kept_cells: list[_Cells] | None = None
        # Not expanded, so that functions of it are computed once.
        self._widths = torch.as_tensor(widths, dtype=hypotheses.dtype, device=hypotheses.device)
        try:
            self.widths = self._widths.expand(shape)
        except RuntimeError as error:
            rule = f"broadcast to the shape of `hypotheses` {tuple(shape)}"
            raise ValueError(bad_value("Mixture", "widths", rule, tuple(self._widths.shape))) from error
        super().__init__(probabilities.shape[:-1], shape[-1:], validate_args=False)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.hypotheses.shape[-1]

    def log_prob(self, value: Tensor) -> Tensor:
        """Compute the log density at a value [..., dim]."""
        offsets = (value.unsqueeze(-2) - self.hypotheses) / self._widths  # [..., hypotheses, dim]
        logs = self._widths.log().expand(self.hypotheses.shape).sum(dim=-1)
        kernel = offsets.square().sum(dim=-1) * -0.5 - logs - 0.5 * self.dim * _LOG_TAU
        return torch.logsumexp(self.probabilities.log() + kernel, dim=-1)

    @property
    def mean(self) -> Tensor:
        """Mean, [..., dim]."""
        return (self.probabilities.unsqueeze(-1) * self.hypotheses).sum(dim=-2)

    @property
    def variance(self) -> Tensor:
        """Variance of each coordinate, [..., dim]."""
        offsets = self.hypotheses - self.mean.unsqueeze(-2)
        return (self.probabilities.unsqueeze(-1) * (self.widths.square() + offsets.square())).sum(dim=-2)

    def sample(
        self,
        sample_shape: torch.Size | list[int] | tuple[int, ...] = torch.Size(),  # noqa: B008
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw samples, [sample_shape, ..., dim].

        Args:
            sample_shape: Shape of the samples of each distribution of the batch.
            generator: Random number generator; torch's global one by default.
        """
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            probabilities = self.probabilities.reshape(-1, self.probabilities.shape[-1])
            drawn = torch.multinomial(probabilities, shape.numel(), replacement=True, generator=generator)
            index = drawn.mT.reshape(*shape, *self.batch_shape)
            wide = index[..., None, None].expand(*index.shape, 1, self.dim)
            means = self.hypotheses.expand(*shape, *self.hypotheses.shape).gather(-2, wide).squeeze(-2)
            widths = self.widths.expand(*shape, *self.hypotheses.shape).gather(-2, wide).squeeze(-2)
            normal = torch.randn(means.shape, dtype=means.dtype, device=means.device, generator=generator)
            return means + widths * normal

    def cdf(self, value: Tensor) -> Tensor:
        """Compute the distribution function at a value [..., 1], [...]; in one dimension only.

        Raises:
            ValueError: In more than one dimension.
        """
        self._check_one_dimension("cdf")
        offsets = (value - self.hypotheses.squeeze(-1)) / self.widths.squeeze(-1)
        below = 0.5 + 0.5 * torch.erf(offsets * math.sqrt(0.5))  # several times as fast as ndtr
        return (self.probabilities * below).sum(dim=-1)

    def marginal(self, output: int) -> "Mixture":
        """Return the density of one coordinate."""
        columns = slice(output, output + 1) if output != -1 else slice(-1, None)
        return Mixture(self.hypotheses[..., columns], self.probabilities, self.widths[..., columns])

    def expand(self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: Any = None) -> Self:
        """Return the same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return self._changed(lambda part, n_axes: part.expand(*shape, *part.shape[part.ndim - n_axes :]))

    def flat(self) -> Self:
        """Return the same distributions with a single batch axis."""
        return self._changed(lambda part, n_axes: part.reshape(-1, *part.shape[part.ndim - n_axes :]))

    def rows(self, chosen: slice | Tensor) -> Self:
        """Return the distributions at the given indices of the first batch axis."""
        return self._changed(lambda part, n_axes: part[chosen])

    def _changed(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """Apply `change` to all tensors; its arguments are a tensor and the number of axes after the batch axes."""
        return type(self)(change(self.hypotheses, 2), change(self.probabilities, 1), change(self.widths, 2))

    # ------------------------------------------------------------------ one dimension

    def highest_density(self, mass: float | Tensor, fill: float = 1.0) -> HighestDensitySet:
        """Compute the smallest unions of intervals with a mass, in one dimension.

        Args:
            mass: Mass in [0, 1], a number or a tensor [...].
            fill: Depth in [0, 1] from which gaps are closed: two neighboring intervals are joined if the lowest density
                between them is at least `fill` times the density of the lower one of their peaks. At 1 no gap is
                closed, at 0 every gap.

        Raises:
            ValueError: In more than one dimension.

        Example:
            >>> two = Mixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.5, 0.5]), widths=0.1)
            >>> two.highest_density(0.9).lower.round(decimals=1)
            tensor([-1.2000,  0.8000])
            >>> two.highest_density(0.9, fill=0.0).lower.round(decimals=1)
            tensor([-1.2000])
        """
        check_fraction("Mixture", "mass", mass)
        check_fraction("Mixture", "fill", fill)
        self._check_one_dimension("highest_density")
        masses = self._of_rows(torch.as_tensor(mass, dtype=torch.float64))
        kernels = self.univariate_kernels()
        if kernels is not None:
            lower, upper, _ = kernels.sets(masses, fill)
        else:
            parts = [_densest(cells, some, fill) for cells, some in self._cells(masses)]
            n = max((part.lower.shape[-1] for part in parts), default=1)
            pad = torch.nn.functional.pad
            lower, upper = (
                torch.cat([pad(end, (0, n - end.shape[-1]), value=torch.nan) for end in ends])
                for ends in zip(*parts, strict=True)
            )
        shape = (*self.batch_shape, lower.shape[-1])
        return HighestDensitySet(lower.to(self.hypotheses).view(shape), upper.to(self.hypotheses).view(shape))

    def gap_depth(self, mass: float | Tensor) -> Tensor:
        """Compute the depth of the deepest gap in the highest-density set with a mass, [...], in one dimension.

        The depth is the lowest density between two neighboring intervals, divided by the density of the lower one of
        their peaks. It is near 0 between branches, and 1 if the set is one interval. `highest_density(mass, fill)` is
        one interval if `fill` is not above it.

        Args:
            mass: Mass in [0, 1], a number or a tensor [...].

        Example:
            >>> two = Mixture(torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[0.5, 0.5]]), widths=0.7)
            >>> two.gap_depth(0.6).round(decimals=1), two.gap_depth(0.9)
            (tensor([0.7000]), tensor([1.]))
        """
        check_fraction("Mixture", "mass", mass)
        self._check_one_dimension("gap_depth")
        masses = self._of_rows(torch.as_tensor(mass, dtype=torch.float64))
        kernels = self.univariate_kernels()
        if kernels is not None:
            depths = kernels.sets(masses, 1.0).depths
        else:
            depths = torch.cat([_gap_depth(cells, some) for cells, some in self._cells(masses)])
        return depths.to(self.hypotheses).view(self.batch_shape)

    def mass_above(self, value: Tensor) -> Tensor:
        """Compute the mass of the region with a higher density than a value [..., 1], in one dimension, [...].

        The value lies in the highest-density set of every larger mass, and of no smaller mass. For samples of the
        density it is uniformly distributed on [0, 1], which makes it a good nonconformity. It is 1 if the value is more
        than five widths away from every hypothesis.
        """
        self._check_one_dimension("mass_above")
        values = self._of_rows(value.squeeze(-1)).to(self.hypotheses)
        kernels = self.univariate_kernels()
        if kernels is not None:
            masses = kernels.mass_above(values)
        else:
            masses = torch.cat([_mass_above(cells, some.unsqueeze(-1)) for cells, some in self._cells(values)])
        return masses.to(self.hypotheses).view(self.batch_shape)

    def univariate_kernels(self) -> Any:
        """Return the faster functions for the kernels of each row, or None if they do not support the mixture."""
        if self.dim != 1:
            return None
        parts = (self.hypotheses, self.probabilities, self.widths)
        kernels = faster("univariate", *(part.reshape(-1, self.probabilities.shape[-1]) for part in parts))
        return None if kernels is NotImplemented else kernels

    def _of_rows(self, values: Tensor) -> Tensor:
        """Return the values expanded to one per density of the batch, [rows]."""
        return values.expand(self.batch_shape).reshape(-1)

    def _cells(self, values: Tensor) -> Iterator[tuple["_Cells", Tensor]]:
        """Yield the cells of a few densities at a time, with the corresponding values, of values [rows].

        The mass outside of the grid (1e-6) is distributed over the cells.
        """
        if self._kept_cells is not None:
            chunks: Iterable[_Cells] = self._kept_cells
        elif len(values) * self.probabilities.shape[-1] * self._n_points() <= _KEPT_CELLS:
            chunks = self._kept_cells = list(self._computed_cells())
        else:
            chunks = self._computed_cells()
        low = 0
        for cells in chunks:
            yield cells, values[low : low + len(cells.edges)]
            low += len(cells.edges)

    def _computed_cells(self) -> Iterator["_Cells"]:
        flat, n = self.flat(), self.probabilities.shape[-1]
        at_once = max(_CHUNK // (n * n * self._n_points()), 1)
        steps = torch.linspace(-REACH, REACH, self._n_points()).to(self.hypotheses)
        for low in range(0, max(len(flat.hypotheses), 1), at_once):
            some = flat.rows(slice(low, low + at_once))
            edges = (some.hypotheses + some.widths * steps).flatten(-2).sort(dim=-1).values
            # Fewer operations than `cdf` and `log_prob`; a wide gap may have density 0 and height -inf.
            centers, widths = some.hypotheses.mT, some.widths.mT
            below = torch.erf((edges.unsqueeze(-1) - centers) / (widths * math.sqrt(2)))
            masses = (below @ some.probabilities.unsqueeze(-1) / 2).squeeze(-1).diff(dim=-1).clamp_min(0)
            bells = (((edges[:, 1:] + edges[:, :-1]).unsqueeze(-1) / 2 - centers) / widths).square().mul(-0.5).exp()
            heights = (bells @ (some.probabilities.unsqueeze(-1) / some.widths)).squeeze(-1).log() - 0.5 * _LOG_TAU
            yield _Cells(edges, masses / masses.sum(dim=-1, keepdim=True), heights)

    def _n_points(self) -> int:
        """Return the number of points of the grid around each hypothesis."""
        return min(max(_MANY_POINTS // self.probabilities.shape[-1], _MIN_GRID), _GRID)

    def _check_one_dimension(self, method: str) -> None:
        if self.dim != 1:
            advice = "Mixture.marginal(output) gives one."
            raise ValueError(bad_value(f"Mixture.{method}", "hypotheses", "have one dimension here", self.dim, advice))


def mixture_distribution(
    predictions: Distributions, family: HypothesisFamily, *, scores: ScoreObjective | None = None
) -> MixtureSameFamily:
    """Return the mixture of hypotheses of any family as a torch distribution: `log_prob`, `sample`, `mean`.

    Args:
        predictions: Locations [..., hypotheses, dim] or [..., hypotheses, steps, dim], score logits and scales. Without
            score logits all hypotheses have the same probability, and the first axis is the batch.
        family: Family that the scales belong to.
        scores: Objective that turns score logits into probabilities; `SoftmaxScores()` by default, as in `MixtureNLL`.

    Returns:
        Distribution of batch shape [...] over [dim] or [steps, dim]; a gradient flows through `log_prob`.

    Raises:
        TypeError: For predictions without scales, or an unsupported family.

    Example:
        >>> from torchmcl.costs import FullNormal
        >>> predictions = Distributions(torch.zeros(5, 3, 2), torch.zeros(5, 3), torch.eye(2).expand(5, 3, 2, 2))
        >>> mixture = mixture_distribution(predictions, FullNormal())
        >>> mixture.log_prob(torch.zeros(5, 2))[0], mixture.sample((7,)).shape
        (tensor(-1.8379), torch.Size([7, 5, 2]))
    """
    owner = "mixture_distribution"
    if not isinstance(predictions, Distributions):
        advice = "A head with scales=FullNormal() returns them."
        raise TypeError(bad_value(owner, "predictions", "be Distributions", type(predictions).__name__, advice))
    if not isinstance(family, HypothesisFamily):
        raise TypeError(bad_value(owner, "family", "be a family, FullNormal() for example", repr(family)))
    objective = SoftmaxScores() if scores is None else scores
    check_score_objective(owner, objective)
    hypotheses, logits, scale = predictions
    n = min(hypotheses.ndim - 2, 1) if logits is None else logits.ndim - 1  # leading axes
    probabilities = hypotheses.new_ones(hypotheses.shape[: n + 1])
    if logits is not None:
        probabilities = objective.probabilities(logits)
    components: Distribution = family.distribution(hypotheses, family.checked_scale(owner, scale, hypotheses))
    n_steps = hypotheses.ndim - n - 2
    components = Independent(components, n_steps) if n_steps else components
    return MixtureSameFamily(Categorical(probabilities, validate_args=False), components, validate_args=False)


class Bandwidth(NamedTuple):
    """Rule for the width of the normals at each input: sqrt(floor^2 + (spread * deviation)^2).

    The deviation is the standard deviation of the hypotheses at that input, weighted by their scores. If hypotheses lie
    far apart because of large noise, kernels should be wide; if they are separate branches, the fitted `spread` is 0
    and kernels stay narrow.

    Attributes:
        floor: Smallest width.
        spread: Factor on the deviation.
    """

    floor: float
    spread: float = 0.0

    def __call__(self, hypotheses: Tensor, probabilities: Tensor) -> Tensor:
        """Compute the width for hypotheses [..., hypotheses, dim], [..., 1, 1]."""
        return (self.floor**2 + self.spread**2 * _variance(hypotheses, probabilities)).sqrt()


def fit_bandwidth(
    hypotheses: Tensor, probabilities: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Bandwidth:
    """Fit the rule for the widths of a `Mixture` with the highest likelihood of held-out targets.

    Args:
        hypotheses: Hypotheses [rows, hypotheses, dim] of rows that the model was not trained on, standardized.
        probabilities: Probabilities, [rows, hypotheses].
        targets: Targets, [rows, dim].
        weights: Weights, [rows]; equal by default.

    Example:
        >>> noise = 0.3 * torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
        >>> round(fit_bandwidth(torch.zeros(1000, 1, 1), torch.ones(1000, 1), noise).floor, 1)
        0.3
    """
    if targets.shape != (len(hypotheses), hypotheses.shape[-1]) or len(targets) == 0:
        rule = f"have one row for each of `hypotheses` {tuple(hypotheses.shape)}, at least one, and its last axis"
        raise ValueError(bad_value("fit_bandwidth", "targets", rule, tuple(targets.shape)))
    weights = torch.ones(len(targets)).to(targets) if weights is None else weights.to(targets)
    hypotheses, probabilities = hypotheses.double(), probabilities.double()
    targets, weights = targets.double(), weights.double()
    variance = _variance(hypotheses, probabilities)

    def likelihood(floor: float, spread: float) -> float:
        widths = (floor**2 + spread**2 * variance).sqrt()
        return float((weights * Mixture(hypotheses, probabilities, widths).log_prob(targets)).sum())

    # A coarse search over all scales from 1e-4 to 10, then two finer ones around the best.
    floors = [10 ** (power / 2) for power in range(-8, 3)]
    spreads = [0.0, 0.1, 0.3, 1.0]
    best = max((likelihood(floor, spread), floor, spread) for floor in floors for spread in spreads)
    for ratio in (1.5, 1.15):
        _, floor, spread = best
        near = [floor * ratio**i for i in (-2, -1, 0, 1, 2)]
        wide = [spread * ratio**i for i in (-2, -1, 0, 1, 2)] if spread else [0.0, 0.03, 0.05]
        best = max((likelihood(a, b), a, b) for a in near for b in wide)
    return Bandwidth(best[1], best[2])


def _variance(hypotheses: Tensor, probabilities: Tensor) -> Tensor:
    """Return the variance of the scored hypotheses as a mean over coordinates, [..., 1, 1]."""
    weights = probabilities.unsqueeze(-1)
    mean = (weights * hypotheses).sum(dim=-2, keepdim=True)
    return (weights * (hypotheses - mean).square()).sum(dim=-2, keepdim=True).mean(dim=-1, keepdim=True)


# ---------------------------------------------------------------------- cells in one dimension


class _Cells(NamedTuple):
    """Cells in one dimension: edges, [..., cells + 1], and the mass and the log density of each cell, [..., cells]."""

    edges: Tensor
    masses: Tensor
    height: Tensor


def _densest(cells: _Cells, mass: Tensor, fill: float) -> HighestDensitySet:
    """Return the densest cells with `mass` [...] as intervals; gaps of depth `fill` or more are closed."""
    inside = _inside(cells, mass)
    if fill < 1:
        depths, interval = _depths(cells.height, inside)
        inside = inside | (depths >= fill).gather(-1, interval)
    outside = torch.zeros_like(inside[..., :1])
    padded = torch.cat([outside, inside, outside], dim=-1)
    starts, stops = padded[..., 1:] & ~padded[..., :-1], padded[..., :-1] & ~padded[..., 1:]  # at edges
    return HighestDensitySet(masked_first(cells.edges, starts), masked_first(cells.edges, stops))


def _gap_depth(cells: _Cells, mass: Tensor) -> Tensor:
    """Return the depth of the deepest gap in the highest-density set with `mass`, [...]; 1 without a gap."""
    depths, _ = _depths(cells.height, _inside(cells, mass))
    return depths.nan_to_num(1.0).amin(dim=-1)


def _mass_above(cells: _Cells, value: Tensor) -> Tensor:
    """Return the mass [...] of the cells denser than the one that contains value [..., 1]; 1 outside all cells."""
    cell = torch.searchsorted(cells.edges.contiguous(), value.contiguous(), right=True) - 1  # [..., 1]
    n_cells = cells.masses.shape[-1]
    level = cells.height.gather(-1, cell.clamp(0, n_cells - 1))
    above = (cells.masses * (cells.height > level)).sum(dim=-1, keepdim=True)
    return torch.where((cell >= 0) & (cell < n_cells), above, 1.0).squeeze(-1)


def _inside(cells: _Cells, mass: Tensor) -> Tensor:
    """Return which cells are the densest ones with `mass`, [..., cells]."""
    order = cells.height.argsort(dim=-1, descending=True, stable=True)
    sorted_masses = cells.masses.gather(-1, order)
    before = sorted_masses.cumsum(dim=-1) - sorted_masses
    wanted = mass.to(before).expand(before.shape[:-1]).unsqueeze(-1)
    return torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before < wanted)


def _depths(height: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the depth of the gap after each interval, and the index of the last interval at or before each cell.

    The depth is the lowest density of the gap, divided by the density of the lower one of the adjacent peaks. Intervals
    are numbered from 1; the depth is NaN where there is no gap between two intervals.
    """
    starts = inside & ~torch.cat([torch.zeros_like(inside[..., :1]), inside[..., :-1]], dim=-1)
    interval = starts.cumsum(dim=-1)
    numbers = torch.arange(height.shape[-1] // 2 + 3, device=height.device)
    empty = torch.zeros(*height.shape[:-1], len(numbers)).to(height)
    peaks = (empty - torch.inf).scatter_reduce(-1, interval, height.masked_fill(~inside, -torch.inf), "amax")
    valleys = (empty + torch.inf).scatter_reduce(-1, interval, height.masked_fill(inside, torch.inf), "amin")
    depths = (valleys[..., :-1] - torch.minimum(peaks[..., :-1], peaks[..., 1:])).exp()
    between = (numbers[:-1] >= 1) & (numbers[:-1] < interval[..., -1:])
    return depths.masked_fill(~between, torch.nan), interval


def masked_first(values: Tensor, mask: Tensor) -> Tensor:
    """Move the values inside a mask to the front of each row, and pad the rows with NaN to the largest count.

    Example:
        >>> masked_first(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[True, False, True]]))
        tensor([[1., 3.]])
    """
    n = max(int(mask.sum(dim=-1).max()), 1) if mask.numel() else 1
    first = mask.int().argsort(dim=-1, descending=True, stable=True)[..., :n]
    return values.gather(-1, first).masked_fill(~mask.gather(-1, first), torch.nan)
