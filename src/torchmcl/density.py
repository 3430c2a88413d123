"""Hypotheses and their probabilities as a density: a kernel around each hypothesis.

Two families, both `torch.distributions.Distribution`s over [..., dim]:

- `KernelMixture`: a Gaussian kernel around each hypothesis; smooth, with closed forms for everything.
- `VoronoiKernels`: the same kernels, each cut off at the border of its hypothesis' cell and renormalised, so that
  the mass of a cell is exactly the hypothesis' probability, as the scores say.

Distances are taken after dividing each coordinate by `scale`, so that outputs of different units can share a
bandwidth. As the bandwidth goes to 0 both become the weighted set of points.
"""

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from torchmcl._checks import bad_value, check_fraction, check_non_negative, check_tensor

__all__ = ["Bandwidth", "HighestDensitySet", "KernelMixture", "VoronoiKernels", "fit_bandwidth"]

_LOG_TAU = math.log(2 * math.pi)
# Directions for the mass of a cell: enough for five digits in two dimensions, three in more.
_N_DIRECTIONS = 512
# Half width, in bandwidths, of the grid around each hypothesis: all but 1e-6 of a kernel is inside.
_REACH = 5.0
_GRID = 81


class HighestDensitySet(NamedTuple):
    """The smallest sets that hold a given mass, in one dimension: unions of intervals.

    Attributes:
        lower: [..., pieces], where each interval begins, in increasing order; NaN where there are fewer pieces.
        upper: [..., pieces], where it ends.
    """

    lower: Tensor
    upper: Tensor


class HypothesisDensity(Distribution):
    """What both families share; see `KernelMixture` for the arguments."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (as in torch.distributions)
    support = constraints.real_vector
    has_rsample = False

    def __init__(
        self, hypotheses: Tensor, probabilities: Tensor, bandwidth: float | Tensor, scale: Tensor | None = None
    ) -> None:
        owner = type(self).__name__
        check_tensor(owner, "hypotheses", hypotheses)
        check_tensor(owner, "probabilities", probabilities)
        if hypotheses.ndim < 2 or probabilities.shape != hypotheses.shape[:-1]:
            rule = f"have the shape of `hypotheses` {tuple(hypotheses.shape)} without its last axis"
            raise ValueError(bad_value(owner, "probabilities", rule, tuple(probabilities.shape)))
        if not isinstance(bandwidth, Tensor):
            check_non_negative(owner, "bandwidth", bandwidth)
            if bandwidth == 0:
                advice = "At 0 the density is infinite; the points themselves are the hypotheses."
                raise ValueError(bad_value(owner, "bandwidth", "be > 0", repr(bandwidth), advice))
        self.hypotheses = hypotheses
        self.probabilities = probabilities
        self.bandwidth = torch.as_tensor(bandwidth).to(hypotheses).expand(probabilities.shape)
        self.scale = hypotheses.new_ones(hypotheses.shape[-1]) if scale is None else scale.to(hypotheses)
        super().__init__(probabilities.shape[:-1], hypotheses.shape[-1:], validate_args=False)

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.hypotheses.shape[-1]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at value [..., dim]."""
        offsets = (value.unsqueeze(-2) - self.hypotheses) / self.scale  # [..., hypotheses, dim]
        squares = offsets.square().sum(dim=-1)
        kernel = -0.5 * squares / self.bandwidth.square() - self.dim * (self.bandwidth.log() + 0.5 * _LOG_TAU)
        return self._log_mixed(squares, kernel) - self.scale.log().sum()

    @abstractmethod
    def _log_mixed(self, squares: Tensor, kernel: Tensor) -> Tensor:
        """Return the log density from squared distances and log kernels [..., hypotheses]."""

    @property
    def mean(self) -> Tensor:
        """The mean, [..., dim]."""
        return (self.probabilities.unsqueeze(-1) * self._kernel_moments()[0]).sum(dim=-2)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, [..., dim]."""
        centres, variances = self._kernel_moments()
        offsets = centres - self.mean.unsqueeze(-2)
        return (self.probabilities.unsqueeze(-1) * (variances + offsets.square())).sum(dim=-2)

    @abstractmethod
    def _kernel_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each kernel, [..., hypotheses, dim]."""

    def highest_density(self, mass: float | Tensor) -> HighestDensitySet:
        """Return the smallest unions of intervals that hold `mass`, in one dimension.

        They are made of cells of a grid that is fine (an eighth of a bandwidth) around every hypothesis.

        Args:
            mass: in [0, 1], a number or a tensor [...].

        Raises:
            ValueError: in more than one dimension; `highest_density_level` serves there.

        Example:
            >>> two = KernelMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.5, 0.5]), bandwidth=0.1)
            >>> two.highest_density(0.9).lower.round(decimals=1)
            tensor([-1.2000,  0.8000])
        """
        check_fraction(type(self).__name__, "mass", mass)
        grid = self._grid()
        order = grid.height.argsort(dim=-1, descending=True, stable=True)
        sorted_masses = grid.masses.gather(-1, order)
        before = sorted_masses.cumsum(dim=-1) - sorted_masses
        wanted = torch.as_tensor(mass).to(before).expand(before.shape[:-1]).unsqueeze(-1)
        inside = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before < wanted)
        return _runs(grid.edges, inside)

    def mass_above(self, value: Tensor) -> Tensor:
        """Return the mass of the region that is denser than at value [..., 1], in one dimension, [...].

        The value lies in the highest-density set of every larger mass, and in none of a smaller one. For a value
        drawn from the density itself it is uniform on [0, 1], which makes it a good conformity score. It is 1 where
        the value is further than five bandwidths from every hypothesis.
        """
        grid = self._grid()
        own = torch.searchsorted(grid.edges.contiguous(), value.contiguous(), right=True) - 1  # [..., 1]
        n_cells = grid.masses.shape[-1]
        level = grid.height.gather(-1, own.clamp(0, n_cells - 1))
        above = (grid.masses * (grid.height > level)).sum(dim=-1, keepdim=True)
        return torch.where((own >= 0) & (own < n_cells), above, 1.0).squeeze(-1)

    def highest_density_level(self, mass: float, n_samples: int = 2000) -> Tensor:
        """Return the log density c for which the set where log_prob >= c holds `mass`, [...], by sampling.

        Args:
            mass: in [0, 1].
            n_samples: samples of each distribution; the error of the mass is about 1 / sqrt(n_samples).
        """
        check_fraction(type(self).__name__, "mass", mass)
        logs = self.log_prob(self.sample(torch.Size((n_samples,))))
        return torch.quantile(logs, 1 - mass, dim=0)

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = torch.Size()) -> Tensor:  # noqa: B008
        """Return samples, [sample_shape, ..., dim]."""
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            index = torch.distributions.Categorical(self.probabilities).sample(shape)  # [sample_shape, ...]
            wide = index[..., None, None].expand(*index.shape, 1, self.dim)
            centres = self.hypotheses.expand(*shape, *self.hypotheses.shape).gather(-2, wide).squeeze(-2)
            width = self.bandwidth.expand(*shape, *self.bandwidth.shape).gather(-1, index[..., None])
            return self._sample_around(index, centres, width * self.scale)

    @abstractmethod
    def _sample_around(self, index: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
        """Return a sample of the kernel `index` around centres [..., dim]."""

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function at value [..., 1], [...]; in one dimension only.

        Raises:
            ValueError: in more than one dimension.
        """
        self._check_one_dimension("cdf")
        return (self.probabilities * self._kernel_cdf(value)).sum(dim=-1)

    @abstractmethod
    def _kernel_cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function of each kernel at value [..., 1], [..., hypotheses]."""

    def expand(self, batch_shape: torch.Size | tuple[int, ...], _instance: Any = None) -> "HypothesisDensity":
        """Return the same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return type(self)(
            self.hypotheses.expand(*shape, *self.hypotheses.shape[-2:]),
            self.probabilities.expand(*shape, self.probabilities.shape[-1]),
            self.bandwidth.expand(*shape, self.bandwidth.shape[-1]),
            self.scale,
        )

    def _check_one_dimension(self, method: str) -> None:
        if self.dim != 1:
            rule = "have one dimension here"
            advice = "KernelMixture.marginal(output) gives one."
            raise ValueError(bad_value(f"{type(self).__name__}.{method}", "hypotheses", rule, self.dim, advice))

    def _grid(self) -> "_Grid":
        """Return cells that are fine around each hypothesis; the mass outside (1e-6) is shared out."""
        self._check_one_dimension("highest_density")
        steps = torch.linspace(-_REACH, _REACH, _GRID).to(self.hypotheses)
        reach = (self.bandwidth * self.scale).unsqueeze(-1) * steps
        edges = (self.hypotheses + reach).flatten(-2).sort(dim=-1).values
        first = edges.movedim(-1, 0).unsqueeze(-1)  # grid axis in front, where samples stand
        masses = self.cdf(first).diff(dim=0).clamp_min(0)
        height = self.log_prob((first[1:] + first[:-1]) / 2)
        return _Grid(edges, (masses / masses.sum(dim=0)).movedim(0, -1), height.movedim(0, -1))


class _Grid(NamedTuple):
    """Cells of the line: edges [..., cells + 1], the mass and the log density of each, [..., cells]."""

    edges: Tensor
    masses: Tensor
    height: Tensor


class KernelMixture(HypothesisDensity):
    """A Gaussian kernel around each hypothesis, mixed by the probabilities.

    Args:
        hypotheses: [..., hypotheses, dim]
        probabilities: [..., hypotheses], summing to 1.
        bandwidth: standard deviation of the kernels, > 0: a number, or [..., hypotheses] (or broadcast to it).
        scale: [dim], the unit of each coordinate; the kernel's standard deviation there is bandwidth * scale.

    Example:
        >>> density = KernelMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.25, 0.75]), bandwidth=0.1)
        >>> density.mean, density.cdf(torch.tensor([0.0]))
        (tensor([0.5000]), tensor(0.2500))
        >>> density.sample((5,)).shape
        torch.Size([5, 1])
    """

    def marginal(self, output: int) -> "KernelMixture":
        """Return the density of one coordinate."""
        columns = slice(output, output + 1) if output != -1 else slice(-1, None)
        return KernelMixture(
            self.hypotheses[..., columns], self.probabilities, self.bandwidth, self.scale[..., columns]
        )

    def _log_mixed(self, squares: Tensor, kernel: Tensor) -> Tensor:
        return torch.logsumexp(self.probabilities.log() + kernel, dim=-1)

    def _kernel_moments(self) -> tuple[Tensor, Tensor]:
        variances = (self.bandwidth.unsqueeze(-1) * self.scale).square()
        return self.hypotheses, variances.expand_as(self.hypotheses)

    def _sample_around(self, index: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
        return centres + widths * torch.randn_like(centres)

    def _kernel_cdf(self, value: Tensor) -> Tensor:
        offsets = (value - self.hypotheses.squeeze(-1)) / self.scale
        return torch.special.ndtr(offsets / self.bandwidth)


class VoronoiKernels(HypothesisDensity):
    """A Gaussian kernel around each hypothesis, cut off at the border of its Voronoi cell and renormalised.

    Takes the arguments of `KernelMixture`. The mass of a kernel inside its cell is an integral over directions,
    for the cell is seen from its hypothesis as a radius in each direction: exact in one dimension, to about five
    digits in two, to about three in more, where the directions are random (but always the same).

    Example:
        >>> density = VoronoiKernels(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.25, 0.75]), bandwidth=5.0)
        >>> density.cdf(torch.tensor([0.0]))
        tensor(0.2500)
    """

    def __init__(
        self, hypotheses: Tensor, probabilities: Tensor, bandwidth: float | Tensor, scale: Tensor | None = None
    ) -> None:
        super().__init__(hypotheses, probabilities, bandwidth, scale)
        # Of hypotheses in the same place the first has the cell, and the probability of all.
        points = self.hypotheses / self.scale
        same = (points.unsqueeze(-2) == points.unsqueeze(-3)).all(dim=-1)
        owner = same.int().argmax(dim=-1)
        self.cell_probabilities = torch.zeros_like(probabilities).scatter_add(-1, owner, probabilities)
        self.probabilities = self.cell_probabilities
        self._directions = _directions(self.dim).to(points)

    def _log_mixed(self, squares: Tensor, kernel: Tensor) -> Tensor:
        nearest = squares.argmin(dim=-1, keepdim=True)
        inside = self.probabilities.log() - self._log_masses() + kernel
        return inside.gather(-1, nearest).squeeze(-1)

    def _log_masses(self) -> Tensor:
        return self._radial(0).mean(dim=-1).log()

    def _radii(self) -> Tensor:
        """Return how far each cell reaches in each direction, in bandwidths, [..., hypotheses, directions]."""
        points = self.hypotheses / self.scale
        offsets = points.unsqueeze(-3) - points.unsqueeze(-2)  # [..., of, to, dim]
        half = offsets.square().sum(dim=-1) / 2
        along = offsets @ self._directions.mT  # [..., of, to, directions]
        reach = torch.where(along > 0, half.unsqueeze(-1) / along.clamp_min(1e-30), torch.inf)
        return reach.amin(dim=-2) / self.bandwidth.unsqueeze(-1)

    def _radial(self, power: int) -> Tensor:
        """Return the integral of r^power over the kernel from 0 to the border, in each direction."""
        shape = torch.tensor((self.dim + power) / 2).to(self.hypotheses)
        factor = 2 ** (power / 2) * math.exp(math.lgamma(float(shape)) - math.lgamma(self.dim / 2))
        return factor * torch.special.gammainc(shape, self._radii().square() / 2)

    def _kernel_moments(self) -> tuple[Tensor, Tensor]:
        mass = self._radial(0).mean(dim=-1).unsqueeze(-1)
        n = len(self._directions)
        widths = self.bandwidth.unsqueeze(-1) * self.scale
        first = self._radial(1) @ self._directions / n / mass  # [..., hypotheses, dim]
        second = self._radial(2) @ self._directions.square() / n / mass
        return self.hypotheses + widths * first, widths.square() * (second - first.square())

    def _sample_around(self, index: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
        # A kernel cut off on all sides may be far wider than its cell. Drawing the direction first, in proportion to
        # the mass along it, and then the radius would need the grid of directions; rejection needs nothing.
        samples = centres + widths * torch.randn_like(centres)
        for _ in range(10_000):
            offsets = (samples.unsqueeze(-2) - self.hypotheses) / self.scale
            outside = offsets.square().sum(dim=-1).argmin(dim=-1) != index
            if not outside.any():
                break
            again = centres[outside] + widths[outside] * torch.randn_like(centres[outside])
            samples[outside] = again
        return samples

    def _kernel_cdf(self, value: Tensor) -> Tensor:
        points = self.hypotheses.squeeze(-1) / self.scale
        order = points.sort(dim=-1)
        middles = (order.values[..., 1:] + order.values[..., :-1]) / 2
        edge = torch.full_like(order.values[..., :1], torch.inf)
        below = torch.cat([-edge, middles], dim=-1)
        above = torch.cat([middles, edge], dim=-1)
        back = order.indices.argsort(dim=-1)
        low, high = below.gather(-1, back), above.gather(-1, back)
        at = ((value / self.scale).maximum(low).minimum(high) - points) / self.bandwidth
        low, high = ((low - points) / self.bandwidth), ((high - points) / self.bandwidth)
        start, stop = torch.special.ndtr(low), torch.special.ndtr(high)
        share = (torch.special.ndtr(at) - start) / (stop - start).clamp_min(torch.finfo(at.dtype).tiny)
        return share.clamp(0, 1)


class Bandwidth(NamedTuple):
    """A rule for the bandwidth at each input: sqrt(floor^2 + (spread * deviation)^2).

    The deviation is the standard deviation of the scored hypotheses at that input: where the answers lie far apart
    because the noise is large, kernels should be wide; where they are branches, `spread` becomes 0 and they are not.

    Attributes:
        floor: smallest bandwidth, in units of the scale.
        spread: share of the deviation.
    """

    floor: float
    spread: float = 0.0

    def __call__(self, hypotheses: Tensor, probabilities: Tensor) -> Tensor:
        """Return the bandwidth for hypotheses [..., hypotheses, dim] in units of the scale, [..., 1]."""
        return (self.floor**2 + self.spread**2 * _deviation(hypotheses, probabilities).square()).sqrt()


def fit_bandwidth(
    kind: type[HypothesisDensity],
    hypotheses: Tensor,
    probabilities: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
) -> Bandwidth:
    """Return the bandwidth rule with the highest likelihood of held-out targets.

    Args:
        kind: `KernelMixture` or `VoronoiKernels`.
        hypotheses: [rows, hypotheses, dim], of rows that the model was not trained on, in units of the scale.
        probabilities: [rows, hypotheses]
        targets: [rows, dim]
        weights: [rows], how much each row counts.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch...>
        >>> points = torch.zeros(1000, 1, 1)
        >>> round(fit_bandwidth(KernelMixture, points, torch.ones(1000, 1), 0.3 * torch.randn(1000, 1)).floor, 1)
        0.3
    """
    weights = torch.ones(len(targets)).to(targets) if weights is None else weights.to(targets)
    hypotheses, probabilities = hypotheses.double(), probabilities.double()
    targets, weights = targets.double(), weights.double()
    deviation = _deviation(hypotheses, probabilities)

    def likelihood(floor: float, spread: float) -> float:
        width = (floor**2 + spread**2 * deviation.square()).sqrt()
        logs = kind(hypotheses, probabilities, width).log_prob(targets)
        return float((weights * logs).sum())

    # A coarse look at all scales from 1e-4 to 10, then twice a finer one around the best.
    floors = [10 ** (power / 2) for power in range(-8, 3)]
    spreads = [0.0, 0.1, 0.3, 1.0]
    best = max(((likelihood(floor, spread), floor, spread) for floor in floors for spread in spreads))
    for ratio in (1.5, 1.15):
        _, floor, spread = best
        near = [floor * ratio**i for i in (-2, -1, 0, 1, 2)]
        wide = [spread * ratio**i for i in (-2, -1, 0, 1, 2)] if spread else [0.0, 0.03, 0.05]
        best = max(((likelihood(a, b), a, b) for a in near for b in wide))
    return Bandwidth(best[1], best[2])


def _deviation(hypotheses: Tensor, probabilities: Tensor) -> Tensor:
    """Return the root mean squared deviation of the scored hypotheses per coordinate, [..., 1]."""
    weights = probabilities.unsqueeze(-1)
    mean = (weights * hypotheses).sum(dim=-2, keepdim=True)
    variance = (weights * (hypotheses - mean).square()).sum(dim=-2)
    return variance.mean(dim=-1, keepdim=True).sqrt()


def _directions(dim: int) -> Tensor:
    """Return unit vectors that stand for all directions, [directions, dim]."""
    if dim == 1:
        return torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    if dim == 2:
        angles = torch.arange(_N_DIRECTIONS, dtype=torch.float64) * (2 * math.pi / _N_DIRECTIONS)
        return torch.stack([angles.cos(), angles.sin()], dim=-1)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(_N_DIRECTIONS, dim, generator=generator, dtype=torch.float64)
    unit = normal / normal.norm(dim=-1, keepdim=True)
    return torch.cat([unit, -unit])


def _runs(edges: Tensor, inside: Tensor) -> HighestDensitySet:
    """Return the runs of cells that are inside as intervals, padded with NaN to the largest number of them."""
    outside = torch.zeros_like(inside[..., :1])
    padded = torch.cat([outside, inside, outside], dim=-1)
    starts, stops = padded[..., 1:] & ~padded[..., :-1], padded[..., :-1] & ~padded[..., 1:]  # at edges
    n_pieces = max(int(starts.sum(dim=-1).max()), 1) if starts.numel() else 1
    ends = []
    for marks in (starts, stops):
        first = marks.int().argsort(dim=-1, descending=True, stable=True)[..., :n_pieces]
        ends.append(edges.gather(-1, first).masked_fill(~marks.gather(-1, first), torch.nan))
    return HighestDensitySet(*ends)
