"""Closed forms and bounds: R(D) of Gaussians by reverse water-filling, high-resolution limits, Shannon's lower bound.

Rates are in bits. A distortion is the total squared error over all coordinates, not per coordinate.
"""

import math

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_non_negative, check_positive_int, check_tensor
from torchmcl.costs import pairwise_euclidean
from torchmcl.dispatch import broadcast_shapes

# Normalised second moments of the best cells, total over the coordinates: the interval, and the regular hexagon.
_BEST_CELLS = {1: 1 / 12, 2: 5 / (18 * math.sqrt(3))}


def gaussian_rate(distortion: float | Tensor, covariance: float | Tensor) -> Tensor:
    """Return R(D) of a Gaussian in bits, by reverse water-filling.

    Each principal axis of variance v is described to min(v, level), the level being such that these
    add up to D: axes below the water are not described at all.

    Args:
        distortion: >= 0; a float, or a tensor that broadcasts against the leading axes. The rate is infinite at 0, and
            0 from the trace of the covariance upwards.
        covariance: a variance (a number or a tensor without axes), or matrices [..., dim, dim].
            Axes without variance cost nothing.

    Returns:
        [...]

    Example:
        >>> gaussian_rate(0.25, 1.0)  # log2(1 / 0.25) / 2
        tensor(1.)
        >>> gaussian_rate(torch.tensor([5.0, 2.0, 1.0]), torch.diag(torch.tensor([4.0, 1.0])))
        tensor([0., 1., 2.])

    Reference:
        Eq. (10) for p(y | x) Gaussian; Cover and Thomas, section 10.3.3.
    """
    check_non_negative("gaussian_rate", "distortion", distortion)
    variances = _variances("gaussian_rate", covariance, distortion)  # ascending, [..., dim]
    d = torch.as_tensor(distortion, dtype=variances.dtype, device=variances.device).unsqueeze(-1)
    # With the k smallest axes under water: D = their sum + (dim - k) level. The right k is the first whose level
    # does not reach the next axis.
    dim = variances.shape[-1]
    drowned = variances.cumsum(dim=-1) - variances  # sum of the axes below
    n_left = torch.arange(dim, 0, -1, dtype=variances.dtype, device=variances.device)
    levels = (d - drowned) / n_left
    fits = levels <= variances
    index = fits.to(torch.uint8).argmax(dim=-1, keepdim=True)  # the first that fits
    level = torch.where(fits.any(dim=-1, keepdim=True), levels.gather(-1, index), math.inf)
    described = variances > level
    ratio = torch.where(described, variances, 1) / torch.where(described, level, 1)
    return ratio.log2().sum(dim=-1) / 2


def gaussian_distortion(rate: float | Tensor, covariance: float | Tensor) -> Tensor:
    """Return D with R(D) = rate for a Gaussian, the inverse of `gaussian_rate`.

    With `rate = log2(n)` no set of n hypotheses can have a lower distortion.

    Args:
        rate: >= 0, in bits; a float, or a tensor that broadcasts against the leading axes.
        covariance: a variance (a number or a tensor without axes), or matrices [..., dim, dim].

    Returns:
        [...]

    Example:
        >>> gaussian_distortion(1.0, 1.0)
        tensor(0.2500)
        >>> gaussian_distortion(torch.tensor([0.0, 1.0, 2.0]), torch.diag(torch.tensor([4.0, 1.0])))
        tensor([5., 2., 1.])

    Reference:
        D* of the figure on the rate-distortion curve, with R(D*) = log2 n.
    """
    check_non_negative("gaussian_distortion", "rate", rate)
    variances = _variances("gaussian_distortion", covariance, rate).flip(-1)  # descending
    r = torch.as_tensor(rate, dtype=variances.dtype, device=variances.device).unsqueeze(-1)
    # With the k largest axes above the water: sum log2 v - k log2 level = 2 R. The right k is the last whose level
    # does not reach its smallest axis.
    n_above = torch.arange(1, variances.shape[-1] + 1, dtype=variances.dtype, device=variances.device)
    log_levels = (variances.log2().cumsum(dim=-1) - 2 * r) / n_above
    fits = log_levels <= variances.log2()
    fits = fits & (variances > 0)
    index = (fits.sum(dim=-1, keepdim=True) - 1).clamp_min(0)
    level = log_levels.gather(-1, index).exp2()
    level = torch.where(fits.any(dim=-1, keepdim=True), level, 0)  # no variance: the distortion is 0
    return torch.minimum(variances.expand(broadcast_shapes(variances.shape, level.shape)), level).sum(dim=-1)


def zador_constant(dim: int) -> float:
    """Return J_d, the limit of n^(2/d) times the distortion of the best n points for a uniform unit cube.

    Known in 1 and 2 dimensions; for more see `zador_bounds`.

    Example:
        >>> round(zador_constant(1), 6), round(zador_constant(2), 6)
        (0.083333, 0.160375)

    Reference:
        Zador (1982); Fejes Tóth (1959) for the hexagon.
    """
    check_positive_int("zador_constant", "dim", dim)
    if dim not in _BEST_CELLS:
        advice = "It is not known in higher dimensions: use zador_bounds."
        raise ValueError(bad_value("zador_constant", "dim", "be 1 or 2", dim, advice))
    return _BEST_CELLS[dim]


def zador_bounds(dim: int) -> tuple[float, float]:
    """Return a lower and an upper bound of J_d, from ball-shaped cells and from random points.

    Example:
        >>> low, high = zador_bounds(2)
        >>> low < zador_constant(2) < high
        True

    Reference:
        Zador (1982), in the total squared error.
    """
    check_positive_int("zador_bounds", "dim", dim)
    log_ball = dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1)  # volume of the unit ball
    scale = math.exp(-2 * log_ball / dim)
    return dim / (dim + 2) * scale, math.gamma(1 + 2 / dim) * scale


def high_resolution_distortion(n: int, covariance: float | Tensor) -> Tensor:
    """Return the distortion of the best n points for a Gaussian, for large n, in 1 or 2 dimensions.

    D_n n^(2/d) tends to J_d 2 pi ((d + 2) / d)^((d + 2) / 2) det(Cov)^(1/d): sqrt(3) pi / 2 for N(0, 1)
    (Panter and Dite), 4.03067 for two independent ones.

    Args:
        n: number of points.
        covariance: a variance (a number or a tensor without axes), or matrices [..., dim, dim]. A
            degenerate one gives 0: on a line D_n falls faster than 1 / n.

    Example:
        >>> 64**2 * high_resolution_distortion(64, 1.0)
        tensor(2.7207)
        >>> high_resolution_distortion(1, torch.eye(2))
        tensor(4.0307)

    Reference:
        Panter and Dite (1951), Zador (1982).
    """
    check_positive_int("high_resolution_distortion", "n", n)
    variances = _variances("high_resolution_distortion", covariance)
    dim = variances.shape[-1]
    norm = 2 * math.pi * ((dim + 2) / dim) ** ((dim + 2) / 2) * variances.prod(dim=-1) ** (1 / dim)
    return zador_constant(dim) * norm * n ** (-2 / dim)


def _variances(owner: str, covariance: float | Tensor, beside: float | Tensor = 0.0) -> Tensor:
    """Return the variances along the principal axes, ascending, [..., dim], at least in the precision of `beside`."""
    if not isinstance(covariance, Tensor):
        check_non_negative(owner, "covariance", covariance)
    other = torch.as_tensor(beside)
    matrix = torch.as_tensor(covariance, device=None if isinstance(covariance, Tensor) else other.device)
    matrix = matrix.to(torch.promote_types(matrix.dtype, other.dtype))
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    if matrix.ndim == 0:
        matrix = matrix.reshape(1, 1)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        advice = "Put variances on a diagonal: torch.diag(variances)."
        raise ValueError(
            bad_value(owner, "covariance", "be a variance or [..., dim, dim]", tuple(matrix.shape), advice)
        )
    if not bool(matrix.isfinite().all()):
        raise ValueError(bad_value(owner, "covariance", "be finite", matrix[~matrix.isfinite()][0].item()))
    variances = torch.linalg.eigvalsh(matrix)
    # Rounding of a singular matrix may leave -1e-17; a matrix with more is not a covariance.
    slack = 100 * torch.finfo(variances.dtype).eps * variances.abs().amax(dim=-1, keepdim=True)
    if bool((variances < -slack).any()):
        lowest = variances.min().item()
        rule = "have no negative variance"
        raise ValueError(bad_value(owner, "covariance", rule, f"an eigenvalue of {lowest:.4g}", "Is it symmetric?"))
    return torch.where(variances > slack, variances, 0)


# Rows of the distance matrix held at a time: 1024 rows of 100 000 float32 samples are 400 MB.
_CHUNK = 1024


def shannon_lower_bound(distortion: float | Tensor, *, entropy: float | Tensor, dim: int) -> Tensor:
    """Return a lower bound of R(D) in bits, for the squared Euclidean cost.

        SLB(D) = h(Y) - (d / 2) log2(2 pi e D / d)

    The second term is the entropy of the widest noise that D allows, a Gaussian of variance D / d
    in each of d directions (the paper's "Gaussian with variance D" is the case d = 1). Equal to R(D)
    for a Gaussian source up to d times its smallest variance; tight for small D in general.

    Args:
        distortion: > 0, total over the coordinates. A float or a tensor; at 0 the bound is infinite.
        entropy: h(Y) in bits, known or from `differential_entropy`; broadcasts with the distortion.
        dim: d, the number of coordinates of Y.

    Returns:
        The bound, negative where it is uninformative.

    Example:
        >>> h = 0.5 * math.log2(2 * math.pi * math.e)  # of N(0, 1)
        >>> shannon_lower_bound(0.25, entropy=h, dim=1)
        tensor(1.)

    Reference:
        Prop. 3 (iii), Eq. (12), there in nats.
    """
    check_non_negative("shannon_lower_bound", "distortion", distortion)
    check_positive_int("shannon_lower_bound", "dim", dim)
    d = torch.as_tensor(distortion)
    d = d.to(torch.promote_types(d.dtype, torch.get_default_dtype()))
    bound = entropy - dim / 2 * (2 * math.pi * math.e / dim * d).log2()
    # A source without a density has no bound, not even at a distortion of 0.
    return torch.where(torch.as_tensor(entropy, device=d.device) == -torch.inf, -torch.inf, bound)


def differential_entropy(samples: Tensor, n_neighbors: int = 3) -> Tensor:
    """Return an estimate of the differential entropy of the distribution of the samples, in bits.

    The estimator of Kozachenko and Leonenko, from the distance of each sample to its nearest neighbors. Samples that
    repeat come from a distribution with atoms, whose entropy is minus infinity, and so is the estimate.

    Args:
        samples: [..., samples, dim], more than `n_neighbors` of them.
        n_neighbors: which nearest neighbor to use. A larger number gives a smoother estimate, with more bias.

    Returns:
        [...]

    Example:
        >>> samples = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
        >>> differential_entropy(samples)  # N(0, 1) has log2(2 pi e) / 2 = 2.05
        tensor(2.0...)

    Reference:
        Kozachenko and Leonenko (1987); Kraskov, Stögbauer and Grassberger (2004), Eq. (20).
    """
    owner = "differential_entropy"
    check_tensor(owner, "samples", samples)
    check_positive_int(owner, "n_neighbors", n_neighbors)
    if samples.ndim < 2 or samples.shape[-2] <= n_neighbors:
        rule = f"have shape [..., samples, dim] with more than n_neighbors = {n_neighbors} samples"
        raise ValueError(bad_value(owner, "samples", rule, tuple(samples.shape)))
    n, dim = samples.shape[-2:]
    samples = samples.detach().to(torch.promote_types(samples.dtype, torch.float32))
    parts = []
    for rows in samples.split(_CHUNK, dim=-2):
        distance = pairwise_euclidean(hypotheses=samples, targets=rows)
        # The sample itself is at distance 0, so the k-th neighbor is the (k + 1)-th smallest.
        parts.append(distance.kthvalue(n_neighbors + 1, dim=-1).values.log())
    log_radius = torch.cat(parts, dim=-1).mean(dim=-1)
    digamma = torch.special.digamma(torch.tensor([n, n_neighbors], dtype=torch.float64))
    log_ball = dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1)
    constant = (digamma[0] - digamma[1]).item() + log_ball
    return (constant + dim * log_radius) / math.log(2)
