"""Optimal scalar quantizers of univariate densities, in float64, and the densities."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.checks import check_choice, check_positive, check_positive_int, check_real, check_tensor
from torchmcl.errors import bad_value

__all__ = [
    "Density",
    "ExponentialDensity",
    "LaplaceDensity",
    "NormalDensity",
    "ScalarQuantizer",
    "UniformDensity",
    "lloyd_max",
    "panter_dite_constant",
    "scalar_distortion",
]


class Density(ABC):
    """Univariate density p.

    A subclass implements p and its partial moments up to a point; all methods take and return float64 tensors and
    must be defined at plus and minus infinity. `lloyd_max` finds the unique optimal quantizer if log p is concave, and
    a local optimum otherwise.
    """

    @abstractmethod
    def pdf(self, x: Tensor) -> Tensor:
        """Return p(x)."""

    @abstractmethod
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the integrals of p(t), t p(t) and t^2 p(t) for t from minus infinity to x."""

    @abstractmethod
    def spread_points(self, n: int) -> Tensor:
        """Return n points [n], ascending, placed with a density proportional to p^(1/3): optimal for large n."""

    @property
    @abstractmethod
    def cube_root_norm(self) -> float:
        """The integral of p^(1/3), cubed: 12 times the limit of n^2 D_n (Panter and Dite)."""


@dataclass(frozen=True)
class NormalDensity(Density):
    """The normal density.

    Example:
        >>> NormalDensity(std=2.0).moments(torch.tensor(math.inf))  # mass, mean, second moment
        (tensor(1., dtype=torch.float64), tensor(0., dtype=torch.float64), tensor(4., dtype=torch.float64))
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_real("NormalDensity", "mean", self.mean)
        check_positive("NormalDensity", "std", self.std)

    def pdf(self, x: Tensor) -> Tensor:
        """Return p(x)."""
        z = (x.double() - self.mean) / self.std
        return (-0.5 * z * z).exp() / (self.std * math.sqrt(2 * math.pi))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the partial moments up to x."""
        z = (x.double() - self.mean) / self.std
        bell = (-0.5 * z * z).exp() / math.sqrt(2 * math.pi)
        zeroth, first = torch.special.ndtr(z), -bell
        second = zeroth - z.nan_to_num(posinf=0.0, neginf=0.0) * bell
        return _rescaled(zeroth, first, second, self.mean, self.std)

    def spread_points(self, n: int) -> Tensor:
        """Return the quantiles of a normal that is sqrt(3) times as wide."""
        return self.mean + math.sqrt(3) * self.std * torch.special.ndtri(_middles(n))

    @property
    def cube_root_norm(self) -> float:
        """The integral of p^(1/3), cubed."""
        return 2 * math.pi * 3**1.5 * self.std**2


@dataclass(frozen=True)
class UniformDensity(Density):
    """The uniform density on an interval.

    Example:
        >>> UniformDensity(0.0, 2.0).pdf(torch.tensor([1.0, 3.0]))
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_real("UniformDensity", "low", self.low)
        check_real("UniformDensity", "high", self.high)
        if not self.low < self.high:
            raise ValueError(bad_value("UniformDensity", "high", f"be above `low` {self.low}", self.high))

    def pdf(self, x: Tensor) -> Tensor:
        """Return p(x)."""
        x = x.double()
        return ((x >= self.low) & (x <= self.high)).double() / (self.high - self.low)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the partial moments up to x."""
        width = self.high - self.low
        z = ((x.double() - self.low) / width).clamp(0, 1)
        return _rescaled(z, z**2 / 2, z**3 / 3, self.low, width)

    def spread_points(self, n: int) -> Tensor:
        """Return the midpoints of n equal parts."""
        return self.low + (self.high - self.low) * _middles(n)

    @property
    def cube_root_norm(self) -> float:
        """The integral of p^(1/3), cubed."""
        return (self.high - self.low) ** 2


@dataclass(frozen=True)
class ExponentialDensity(Density):
    """The density exp(-x / scale) / scale for x >= 0.

    Example:
        >>> ExponentialDensity().pdf(torch.tensor([-1.0, 0.0]))
        tensor([0., 1.], dtype=torch.float64)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the field."""
        check_positive("ExponentialDensity", "scale", self.scale)

    def pdf(self, x: Tensor) -> Tensor:
        """Return p(x)."""
        z = x.double() / self.scale
        return torch.where(z >= 0, (-z).exp(), 0) / self.scale

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the partial moments up to x."""
        return _rescaled(*_exponential_moments(x.double() / self.scale), 0.0, self.scale)

    def spread_points(self, n: int) -> Tensor:
        """Return the quantiles of an exponential that is three times as wide."""
        return -3 * self.scale * torch.log1p(-_middles(n))

    @property
    def cube_root_norm(self) -> float:
        """The integral of p^(1/3), cubed."""
        return 27 * self.scale**2


@dataclass(frozen=True)
class LaplaceDensity(Density):
    """The two-sided exponential density exp(-|x - mean| / scale) / (2 scale), of variance 2 scale^2.

    Example:
        >>> LaplaceDensity().pdf(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.1839, 0.5000, 0.1839], dtype=torch.float64)
    """

    mean: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_real("LaplaceDensity", "mean", self.mean)
        check_positive("LaplaceDensity", "scale", self.scale)

    def pdf(self, x: Tensor) -> Tensor:
        """Return p(x)."""
        return (-(x.double() - self.mean).abs() / self.scale).exp() / (2 * self.scale)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the partial moments up to x."""
        z = (x.double() - self.mean) / self.scale
        right = _exponential_moments(z)
        left = _exponential_moments(-z)  # from x to the mean, mirrored
        zeroth = (1 - left[0] + right[0]) / 2
        first = (-1 + left[1] + right[1]) / 2
        second = (2 - left[2] + right[2]) / 2
        return _rescaled(zeroth, first, second, self.mean, self.scale)

    def spread_points(self, n: int) -> Tensor:
        """Return the quantiles of a Laplace density that is three times as wide."""
        u = 2 * _middles(n) - 1
        return self.mean - 3 * self.scale * u.sign() * torch.log1p(-u.abs())

    @property
    def cube_root_norm(self) -> float:
        """The integral of p^(1/3), cubed."""
        return 108 * self.scale**2


def _exponential_moments(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the partial moments of exp(-t), t >= 0, up to z; 0 below 0."""
    z = z.clamp_min(0)
    decay = (-z).exp()
    finite = z.nan_to_num(posinf=0.0)  # exp(-z) is 0 there
    return -torch.expm1(-z), -torch.expm1(-z) - finite * decay, 2 - (finite**2 + 2 * finite + 2) * decay


def _rescaled(
    zeroth: Tensor, first: Tensor, second: Tensor, shift: float, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the partial moments of shift + scale z from the partial moments of z."""
    new_first = shift * zeroth + scale * first
    return zeroth, new_first, shift**2 * zeroth + 2 * shift * scale * first + scale**2 * second


def _middles(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


# Densities with unit variance, except for the uniform density on [0, 1].
_BY_NAME: dict[str, Density] = {
    "normal": NormalDensity(),
    "uniform": UniformDensity(),
    "laplace": LaplaceDensity(scale=0.5**0.5),
    "exponential": ExponentialDensity(),
}
_MAX_STEPS = 500
# Size of the last Newton step, relative to the spacing of the points; the error after it is about its square.
_TOLERANCE = 1e-6
# Multiples of the masses that are added to the Hessian until it is positive definite: for an even number of points the
# Hessian of the Laplace density is singular in a direction in which symmetric points need not move.
_DAMPINGS = (0.0, 1e-9, 1e-6, 1e-3, 1.0)
_ROUNDING = 1e-15  # rounding error of a distortion of order 1


@dataclass(frozen=True, eq=False)
class ScalarQuantizer:
    """Optimal quantizer of a univariate density with n points, in float64.

    Attributes:
        points: Points in ascending order, [n].
        boundaries: Cell boundaries, halfway between the points, [n - 1].
        masses: Probabilities of the cells, [n].
        distortion: Expected squared error.
    """

    points: Tensor
    boundaries: Tensor
    masses: Tensor
    distortion: float


def lloyd_max(n: int, density: str | Density = "normal") -> ScalarQuantizer:
    """Return the optimal quantizer of a density with n points, with a distortion exact to 1e-8 or better.

    Newton's method solves the condition that each point is the mean of its cell; Lloyd steps replace Newton steps that
    would increase the distortion. The initial points have the density p^(1/3).

    Args:
        n: Number of points.
        density: Density, or the name of a common one: "normal" N(0, 1), "uniform" on [0, 1], "laplace" with variance
            1, "exponential" with scale 1. If log p is concave, as for all of these, the optimum is unique.

    Example:
        >>> best = lloyd_max(2)
        >>> best.points  # plus and minus sqrt(2 / pi)
        tensor([-0.7979,  0.7979], dtype=torch.float64)
        >>> round(best.distortion, 7)  # 1 - 2 / pi
        0.3633802

    Reference:
        Max (1960), Lloyd (1982).
    """
    check_positive_int("lloyd_max", "n", n)
    p = _density("lloyd_max", density)
    points = p.spread_points(n)
    for _ in range(_MAX_STEPS):
        step, is_newton = _step(points, p)
        points = points + step
        if is_newton and bool((step.abs() <= _TOLERANCE * _spacings(points)).all()):
            break
    masses = _cell_moments(points, p)[0]
    return ScalarQuantizer(points, _boundaries(points), masses, float(scalar_distortion(points, p)))


def scalar_distortion(points: Tensor, density: str | Density = "normal") -> Tensor:
    """Return the exact expected squared distance from a sample of a density to the nearest point.

    Args:
        points: Points in any order, [n]; they may coincide.
        density: Density, as for `lloyd_max`.

    Example:
        >>> scalar_distortion(torch.tensor([0.0]), "normal")
        tensor(1., dtype=torch.float64)
    """
    check_tensor("scalar_distortion", "points", points)
    if points.ndim != 1 or len(points) == 0:
        advice = "Scalar points have a single axis: points.flatten()."
        raise ValueError(bad_value("scalar_distortion", "points", "have shape [n]", tuple(points.shape), advice))
    points = points.double().cpu().sort().values
    zeroth, first, second = _cell_moments(points, _density("scalar_distortion", density))
    return (second - 2 * points * first + points**2 * zeroth).sum().clamp_min(0)


def panter_dite_constant(density: str | Density = "normal") -> float:
    """Return the limit of n^2 D_n for the optimal n points, (integral of p^(1/3))^3 / 12.

    Example:
        >>> round(panter_dite_constant("normal"), 5)  # sqrt(3) pi / 2
        2.7207

    Reference:
        Panter and Dite (1951).
    """
    return _density("panter_dite_constant", density).cube_root_norm / 12


def _density(owner: str, density: str | Density) -> Density:
    if isinstance(density, Density):
        return density
    if not isinstance(density, str):
        raise TypeError(bad_value(owner, "density", "be a Density or the name of a density", repr(density)))
    check_choice(owner, "density", density, tuple(_BY_NAME))
    return _BY_NAME[density]


def _boundaries(points: Tensor) -> Tensor:
    return (points[1:] + points[:-1]) / 2


def _cell_moments(points: Tensor, density: Density) -> tuple[Tensor, Tensor, Tensor]:
    """Return mass, first and second moment of each cell, [n]."""
    infinity = points.new_tensor([torch.inf])
    edges = torch.cat([-infinity, _boundaries(points), infinity])
    zeroth, first, second = (moment.diff() for moment in density.moments(edges))
    return zeroth, first, second


def _spacings(points: Tensor) -> Tensor:
    """Return the distance of each point to its nearest neighbor, [n]."""
    if len(points) == 1:
        return points.abs() + 1
    gaps = points.diff()
    return torch.minimum(torch.cat([gaps[:1], gaps]), torch.cat([gaps, gaps[-1:]]))


def _step(points: Tensor, density: Density) -> tuple[Tensor, bool]:
    """Return a step to the zero of g_i = x_i mass_i - moment_i, and whether it is a Newton step.

    A Lloyd step is returned if a Newton step would increase the distortion.
    """
    mass, moment, _ = _cell_moments(points, density)
    pull = density.pdf(_boundaries(points)) * points.diff() / 4  # of each boundary on its two points
    diagonal = mass.clone()
    diagonal[:-1] -= pull
    diagonal[1:] -= pull
    half_hessian = torch.diag(diagonal) - torch.diag(pull, 1) - torch.diag(pull, -1)
    before = scalar_distortion(points, density)
    for damping in _DAMPINGS:
        factor, info = torch.linalg.cholesky_ex(half_hessian + damping * torch.diag(mass))
        if int(info) == 0:
            step = torch.cholesky_solve((moment - points * mass).unsqueeze(-1), factor).squeeze(-1)
            moved = points + step
            if bool((moved.diff() > 0).all()) and scalar_distortion(moved, density) <= before + _ROUNDING:
                return step, damping < 1
    # Far from the optimum the distortion may be concave; the Lloyd step, to the mean of the cell, never raises it.
    return torch.where(mass > 0, moment / mass.clamp_min(torch.finfo(mass.dtype).tiny) - points, 0), False
