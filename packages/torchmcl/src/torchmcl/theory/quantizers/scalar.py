"""Optimal scalar quantizers of known densities, as reference values for training."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_choice, check_positive_int, check_tensor
from torchmcl.theory.quantizers.densities import (
    Density,
    ExponentialDensity,
    LaplaceDensity,
    NormalDensity,
    UniformDensity,
)

__all__ = ["ScalarQuantizer", "lloyd_max", "panter_dite_constant", "scalar_distortion"]

# Of unit variance, except the uniform one, which is on [0, 1].
_BY_NAME: dict[str, Density] = {
    "normal": NormalDensity(),
    "uniform": UniformDensity(),
    "laplace": LaplaceDensity(scale=0.5**0.5),
    "exponential": ExponentialDensity(),
}
_MAX_STEPS = 500
# The last step of Newton, relative to the spacing of the points. What is left after it is about its square.
_TOLERANCE = 1e-6
# Added to the Hessian, in units of the masses, until it is positive: for an even number of points the Laplace density
# has a singular one, along a direction in which symmetric points need not go.
_DAMPINGS = (0.0, 1e-9, 1e-6, 1e-3, 1.0)
_ROUNDING = 1e-15  # of a distortion of order 1


@dataclass(frozen=True, eq=False)
class ScalarQuantizer:
    """The best n points for a density on the line, float64.

    Attributes:
        points: [n], ascending.
        boundaries: [n - 1], halfway between them.
        masses: [n], the probability of each cell.
        distortion: the expected squared error.
    """

    points: Tensor
    boundaries: Tensor
    masses: Tensor
    distortion: float


def lloyd_max(n: int, density: str | Density = "normal") -> ScalarQuantizer:
    """Return the optimal quantizer of a density with n points, with a distortion exact to 1e-8 or better.

    Newton's method, with the steps of Lloyd where it would go uphill, on the condition that each
    point is the mean of its cell, from points placed with the density p^(1/3).

    Args:
        n: number of points.
        density: a `Density`, or the name of a usual one: "normal" N(0, 1), "uniform" on [0, 1],
            "laplace" of variance 1, "exponential" of scale 1. Where log p is concave, as for all of
            these, the optimum is the only one.

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
    """Return the expected squared error of a density to the nearest of some points, exactly.

    Args:
        points: [n] in any order; they may coincide.
        density: as for `lloyd_max`.

    Example:
        >>> scalar_distortion(torch.tensor([0.0]), "normal")
        tensor(1., dtype=torch.float64)
    """
    check_tensor("scalar_distortion", "points", points)
    if points.ndim != 1 or len(points) == 0:
        advice = "Points on the line have no other axis: points.flatten()."
        raise ValueError(bad_value("scalar_distortion", "points", "have shape [n]", tuple(points.shape), advice))
    points = points.double().cpu().sort().values
    zeroth, first, second = _cell_moments(points, _density("scalar_distortion", density))
    return (second - 2 * points * first + points**2 * zeroth).sum().clamp_min(0)


def panter_dite_constant(density: str | Density = "normal") -> float:
    """Return the limit of n^2 D_n for the best n points on the line, (integral of p^(1/3))^3 / 12.

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
        raise TypeError(bad_value(owner, "density", "be a Density or the name of one", repr(density)))
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

    It is, unless that would raise the distortion.
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
    # Far from the optimum the distortion may be concave; the step of Lloyd, to the mean of the cell, never raises it.
    return torch.where(mass > 0, moment / mass.clamp_min(torch.finfo(mass.dtype).tiny) - points, 0), False
