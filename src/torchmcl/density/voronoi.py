"""Kernels that end at the border of their hypothesis' cell."""

import math

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.density.kernels import HypothesisDensity, normal_like

__all__ = ["VoronoiKernels"]

# Directions for the mass of a cell: enough for five digits in two dimensions, three in more.
_N_DIRECTIONS = 512


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
        if self.scale.ndim > 1:
            advice = "Cells of hypotheses need one unit in all of space; KernelMixture takes a scale for each kernel."
            rule, given = "have the shape [dim]", tuple(self.scale.shape)
            raise ValueError(bad_value("VoronoiKernels", "scale", rule, given, advice))
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

    def _sample_around(
        self, index: Tensor, centres: Tensor, widths: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        # A kernel cut off on all sides may be far wider than its cell. Drawing the direction first, in proportion to
        # the mass along it, and then the radius would need the grid of directions; rejection needs nothing.
        samples = centres + widths * normal_like(centres, generator)
        for _ in range(10_000):
            offsets = (samples.unsqueeze(-2) - self.hypotheses) / self.scale
            outside = offsets.square().sum(dim=-1).argmin(dim=-1) != index
            if not outside.any():
                break
            again = centres[outside] + widths[outside] * normal_like(centres[outside], generator)
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
