"""Kernels truncated at the border of the Voronoi cell of their hypothesis."""

import math

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl._eager import full_precision
from torchmcl.density.kernels import HypothesisDensity, normal_like
from torchmcl.density.on_line import REACH
from torchmcl.theory import distinct_representatives

# Directions for the mass of a cell: enough for five digits in two dimensions, three in more.
_N_DIRECTIONS = 512
# Rounds of rejection in space; samples left after them lie in cells that are far smaller than their kernel.
_ROUNDS = 100
_HALVINGS = 60
# Hypotheses within this many rounding errors of each other, at the reach of a kernel, count as equal.
_SAME_PLACE = 8


class VoronoiKernels(HypothesisDensity):
    """A Gaussian kernel around each hypothesis, truncated at the border of its Voronoi cell and renormalized.

    Takes the arguments of `KernelMixture`. The mass of a kernel inside its cell is an integral over directions,
    because a cell has one radius in each direction from its hypothesis: exact in one dimension, to about five digits in
    two, to about three in more, where the directions are random (but fixed). Hypotheses that are equal up to rounding
    share the cell of the first of them.

    Samples are exact in one dimension. In more they are found by rejection, and where a cell has little of its kernel,
    after 100 rejections, by the same directions as the masses.

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
        # Of hypotheses at the same position, the first owns the cell, with the probability of all.
        owner = self._owners()
        self.hypotheses = self.hypotheses.gather(-2, owner.unsqueeze(-1).expand_as(self.hypotheses))
        self.cell_probabilities = torch.zeros_like(probabilities).scatter_add(-1, owner, probabilities)
        self.probabilities = self.cell_probabilities
        self._directions = _directions(self.dim).to(self.hypotheses)

    def _owners(self) -> Tensor:
        """Return the index of the first hypothesis at the same position as each, [..., hypotheses]."""
        points = (self.hypotheses / self.scale).detach()
        reach = points.abs().amax(dim=(-2, -1)) + REACH * self.bandwidth.detach().amax(dim=-1)
        first = distinct_representatives(points, _SAME_PLACE * torch.finfo(points.dtype).eps * reach)
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.masked_fill(~first.unsqueeze(-2), torch.inf).argmin(dim=-1)

    def _log_mixed(self, squares: Tensor, kernel: Tensor) -> Tensor:
        nearest = squares.argmin(dim=-1, keepdim=True)
        inside = self.probabilities.log() - self._log_masses() + kernel
        return inside.gather(-1, nearest).squeeze(-1)

    def _log_masses(self) -> Tensor:
        return self._radial(0).mean(dim=-1).log()

    @full_precision
    def _radii(self) -> Tensor:
        """Return the extent of each cell in each direction, in bandwidths, [..., hypotheses, directions]."""
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

    @full_precision
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
        row = torch.arange(self.batch_shape.numel(), device=index.device).view(self.batch_shape).expand(index.shape)
        if self.dim == 1:
            low, high = _flat(self._borders())[row, index].unbind(dim=-1)
            share = torch.rand(low.shape, dtype=low.dtype, device=low.device, generator=generator)
            largest = 1 - torch.finfo(low.dtype).eps
            offsets = math.sqrt(2) * (low + share * (high - low)).clamp(-largest, largest).erfinv()
            return centres + widths * offsets.unsqueeze(-1)
        samples = centres + widths * normal_like(centres, generator)
        for _ in range(_ROUNDS):
            offsets = (samples.unsqueeze(-2) - self.hypotheses) / self.scale
            outside = offsets.square().sum(dim=-1).argmin(dim=-1) != index
            if not outside.any():
                return samples
            again = centres[outside] + widths[outside] * normal_like(centres[outside], generator)
            samples[outside] = again
        radii = _flat(self._radii())[row[outside], index[outside]]  # [left over, directions]
        samples[outside] = centres[outside] + widths[outside] * self._offsets_within(radii, generator)
        return samples

    def _offsets_within(self, radii: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return standard normal samples [n, dim] within radii [n, directions]: first a direction, then a radius."""
        shape = torch.tensor(self.dim / 2).to(radii)
        masses = torch.special.gammainc(shape, radii.square() / 2).clamp_min(torch.finfo(radii.dtype).tiny)
        drawn = torch.multinomial(masses, 1, generator=generator)
        share = torch.rand(drawn.shape, dtype=radii.dtype, device=radii.device, generator=generator)
        wanted = share * masses.gather(-1, drawn)
        low, high = torch.zeros_like(share), radii.gather(-1, drawn).clamp_max(REACH + self.dim)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            short = torch.special.gammainc(shape, middle.square() / 2) < wanted
            low, high = torch.where(short, middle, low), torch.where(short, high, middle)
        return high * self._directions[drawn.squeeze(-1)]

    def _borders(self) -> Tensor:
        """Return the error function at both borders of each cell on the line, [..., hypotheses, 2].

        The hypothesis is between them: their difference, the mass of the cell, is accurate even for narrow cells.
        """
        return (self._radii() * self._directions.squeeze(-1) * math.sqrt(0.5)).erf()

    def _kernel_cdf(self, value: Tensor) -> Tensor:
        low, high = self._borders().unbind(dim=-1)
        points = self.hypotheses.squeeze(-1)
        at = ((value - points) / self.scale / self.bandwidth * math.sqrt(0.5)).erf().maximum(low).minimum(high)
        return (at - low) / (high - low).clamp_min(torch.finfo(at.dtype).tiny)


def _flat(values: Tensor) -> Tensor:
    """Return values [..., hypotheses, n] with all batch axes merged into one."""
    return values.reshape(-1, *values.shape[-2:])


def _directions(dim: int) -> Tensor:
    """Return unit vectors that represent all directions, [directions, dim]."""
    if dim == 1:
        return torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    if dim == 2:
        angles = torch.arange(_N_DIRECTIONS, dtype=torch.float64) * (2 * math.pi / _N_DIRECTIONS)
        return torch.stack([angles.cos(), angles.sin()], dim=-1)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(_N_DIRECTIONS, dim, generator=generator, dtype=torch.float64)
    unit = normal / normal.norm(dim=-1, keepdim=True)
    return torch.cat([unit, -unit])
