"""What densities around hypotheses share, and the plain mixture of kernels."""

import math
from abc import abstractmethod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from torchmcl._checks import bad_value, check_fraction, check_non_negative, check_tensor

__all__ = ["HighestDensitySet", "HypothesisDensity", "KernelMixture"]

_LOG_TAU = math.log(2 * math.pi)
# Half width, in bandwidths, of the grid around each hypothesis: all but 1e-6 of a kernel is inside.
REACH = 5.0
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
        self._width = torch.as_tensor(bandwidth).to(hypotheses)  # may be one for many, and so are its functions
        self.bandwidth = self._width.expand(probabilities.shape)
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
        kernel = squares * (-0.5 / self._width.square()) - self.dim * (self._width.log() + 0.5 * _LOG_TAU)
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

    def sample(
        self,
        sample_shape: torch.Size | list[int] | tuple[int, ...] = torch.Size(),  # noqa: B008
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return samples, [sample_shape, ..., dim].

        Args:
            sample_shape: how many, for each distribution of the batch.
            generator: of the random numbers; torch's own by default.
        """
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            shares = self.probabilities.reshape(-1, self.probabilities.shape[-1])
            drawn = torch.multinomial(shares, shape.numel(), replacement=True, generator=generator)
            index = drawn.mT.reshape(*shape, *self.batch_shape)
            wide = index[..., None, None].expand(*index.shape, 1, self.dim)
            centres = self.hypotheses.expand(*shape, *self.hypotheses.shape).gather(-2, wide).squeeze(-2)
            width = self.bandwidth.expand(*shape, *self.bandwidth.shape).gather(-1, index[..., None])
            return self._sample_around(index, centres, width * self.scale, generator)

    @abstractmethod
    def _sample_around(
        self, index: Tensor, centres: Tensor, widths: Tensor, generator: torch.Generator | None
    ) -> Tensor:
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

    def expand(
        self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: Any = None
    ) -> "HypothesisDensity":
        """Return the same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return type(self)(
            self.hypotheses.expand(*shape, *self.hypotheses.shape[-2:]),
            self.probabilities.expand(*shape, self.probabilities.shape[-1]),
            self.bandwidth.expand(*shape, self.bandwidth.shape[-1]),
            self.scale,
        )

    def rows(self, chosen: slice | Tensor) -> Self:
        """Return the distributions at some places of the first axis of the batch."""
        parts = (self.hypotheses[chosen], self.probabilities[chosen], self.bandwidth[chosen])
        return type(self)(*parts, self.scale)

    def _check_one_dimension(self, method: str) -> None:
        if self.dim != 1:
            rule = "have one dimension here"
            advice = "KernelMixture.marginal(output) gives one."
            raise ValueError(bad_value(f"{type(self).__name__}.{method}", "hypotheses", rule, self.dim, advice))

    def _grid(self) -> "_Grid":
        """Return cells that are fine around each hypothesis; the mass outside (1e-6) is spread over them."""
        self._check_one_dimension("highest_density")
        steps = torch.linspace(-REACH, REACH, _GRID).to(self.hypotheses)
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

    def _sample_around(
        self, index: Tensor, centres: Tensor, widths: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        return centres + widths * normal_like(centres, generator)

    def _kernel_cdf(self, value: Tensor) -> Tensor:
        offsets = (value - self.hypotheses.squeeze(-1)) / self.scale
        return 0.5 + 0.5 * torch.erf(offsets / (math.sqrt(2) * self.bandwidth))  # several times as fast as ndtr


def normal_like(values: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return standard normal numbers of the shape of `values`."""
    return torch.randn(values.shape, dtype=values.dtype, device=values.device, generator=generator)


def _runs(edges: Tensor, inside: Tensor) -> HighestDensitySet:
    """Return the runs of cells that are inside as intervals, padded with NaN to the largest number of them."""
    outside = torch.zeros_like(inside[..., :1])
    padded = torch.cat([outside, inside, outside], dim=-1)
    starts, stops = padded[..., 1:] & ~padded[..., :-1], padded[..., :-1] & ~padded[..., 1:]  # at edges
    return HighestDensitySet(marked(edges, starts), marked(edges, stops))


def marked(values: Tensor, marks: Tensor) -> Tensor:
    """Return the marked values of each row in their order, padded with NaN to the largest number of them, >= 1."""
    n_marked = max(int(marks.sum(dim=-1).max()), 1) if marks.numel() else 1
    first = marks.int().argsort(dim=-1, descending=True, stable=True)[..., :n_marked]
    return values.gather(-1, first).masked_fill(~marks.gather(-1, first), torch.nan)
