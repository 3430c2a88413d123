"""Densities on the line for optimal scalar quantizers, in float64."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_positive, check_real

__all__ = ["Density", "ExponentialDensity", "LaplaceDensity", "NormalDensity", "UniformDensity"]


class Density(ABC):
    """A density p on the line.

    A subclass gives p and its partial moments up to a point; all take and return float64 tensors and
    must be defined at plus and minus infinity. `lloyd_max` finds the one best quantizer if log p is
    concave, and some local optimum otherwise.
    """

    @abstractmethod
    def pdf(self, x: Tensor) -> Tensor:
        """Return p(x)."""

    @abstractmethod
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the integrals of p(t), t p(t) and t^2 p(t) for t from minus infinity to x."""

    @abstractmethod
    def spread_points(self, n: int) -> Tensor:
        """Return n points [n], ascending, placed with the density p^(1/3), which is best for large n."""

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
        """Return the middles of n equal parts."""
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
    """Return the partial moments of shift + scale z from those of z."""
    new_first = shift * zeroth + scale * first
    return zeroth, new_first, shift**2 * zeroth + 2 * shift * scale * first + scale**2 * second


def _middles(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n
