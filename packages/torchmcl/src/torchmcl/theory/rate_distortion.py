"""Rate-distortion theory: mutual information, R(D) by the Blahut-Arimoto algorithm, closed forms and bounds.

Rates are in bits. A distortion is the total squared error over all coordinates, not per coordinate.

R(D) is the smallest mutual information, in bits, of any soft assignment whose distortion is at most D.
Along the curve dR/dD = -1 / (T ln 2) in bits (-1 / T in nats, Prop. 3 (ii)), so every point is found
at its temperature by minimizing D + T I. With n hypotheses no rate above log2 n can be used.

The Lagrangian D + T I is the free energy of `torchmcl.theory.free_energy` where hypotheses have
masses r_k that are learned too: weights r_k exp(-cost_k / T) / Z. With the fixed equal masses of
annealed MCL, F + T log n >= D + T I (in nats), and they are equal while the usage is uniform.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import check_cost, check_non_negative, check_positive, check_positive_int, check_tensor
from torchmcl.costs import pairwise_euclidean, pairwise_sq_euclidean
from torchmcl.dispatch import broadcast_shapes, full_precision
from torchmcl.errors import bad_value
from torchmcl.rules.winners import WTA
from torchmcl.theory.critical import covariance, probabilities_of, variances_of
from torchmcl.theory.free_energy import assignment_entropy, hypothesis_masses, soft_barycenters

# Updates in the log domain compute the bound and avoid underflow. Plain matrix products between them are ten times as
# fast; there are few of them at first, while masses change by orders of magnitude.
_FIRST_QUICK_UPDATES = 8
_MAX_QUICK_UPDATES = 64
_QUICK_BELOW = 20.0  # only if no mass grows by more than e^20 in one update
# Rows of the distance matrix per chunk: 1024 rows of 100 000 samples in single precision are 400 MB.
_CHUNK = 1024

__all__ = [
    "RatePoints",
    "blahut_arimoto",
    "differential_entropy",
    "gaussian_distortion",
    "gaussian_rate",
    "lloyd",
    "max_distortion",
    "mutual_information",
    "rate_of_samples",
    "shannon_lower_bound",
]


class RatePoints(NamedTuple):
    """Points of a rate-distortion curve, one per temperature.

    Attributes:
        distortion: Expected cost of the assignment found.
        rate: Mutual information in bits.
        gap: Bound of the error in bits: rate - gap <= R(distortion) <= rate, for the given reproductions.
        temperature: Temperature, which is the slope: dR/dD = -1 / (T ln 2).
        masses: Probability that each reproduction is used, [..., reproductions].
    """

    distortion: Tensor
    rate: Tensor
    gap: Tensor
    temperature: Tensor
    masses: Tensor


def mutual_information(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return I(hypothesis; target) of a soft assignment in bits: the information that the choice carries about y.

    It is 0 when all targets have the same weights, and at most log2 of the number of hypotheses.

    Args:
        weights: Weights, [..., targets, hypotheses], rows of valid targets sum to 1; all targets count alike.
        mask: Valid targets, [..., targets]; None if all are valid.

    Returns:
        Mutual information in bits, [...].

    Example:
        >>> mutual_information(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        tensor(1.)
        >>> mutual_information(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
        tensor(0.)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, I_x of Equation (10),
        there in nats.
    """
    usage = torch.special.entr(hypothesis_masses(weights, mask)).sum(dim=-1)
    return ((usage - assignment_entropy(weights, mask=mask)) / math.log(2)).clamp_min(0)


def max_distortion(samples: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return D_max, the smallest squared error with a single hypothesis: the trace of the covariance, [...].

    R(D) = 0 from here on.

    Example:
        >>> max_distortion(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        tensor(1.)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (31).
    """
    return covariance(samples, mask).diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def blahut_arimoto(
    cost: Tensor,
    temperature: float | Tensor,
    *,
    masses: Tensor | None = None,
    n_iters: int = 5000,
    tolerance: float = 1e-4,
) -> RatePoints:
    """Return points of the rate-distortion curve of a discrete source, in the log domain.

    The iteration begins with equal masses of the reproductions, and no update increases D + T I. Each update also
    bounds the remaining gain (`gap`), which shows whether a curve has converged.

    Args:
        cost: Cost, [..., sources, reproductions], the distortion of every pair; infinite where a reproduction must not
            stand for a source.
        temperature: Temperature, > 0 and finite; a float, or a tensor [...] that broadcasts against the leading
            axes of the cost: [n] with a cost [sources, reproductions] gives n points of one curve.
        masses: Masses, [..., sources], the probabilities of the sources, summing to 1; None when all are equal.
        n_iters: Maximum number of updates.
        tolerance: Gap in bits below which a point has converged.

    Raises:
        ValueError: For a source of positive mass without any reproduction of finite cost, and for NaN.

    Returns:
        RatePoints of shape [...]: temperatures and leading axes of the cost, broadcast.

    Example:
        >>> fair_coin, hamming = torch.tensor([0.5, 0.5]), 1 - torch.eye(2)
        >>> points = blahut_arimoto(hamming, 1 / math.log(9), masses=fair_coin)  # R = 1 - h(0.1)
        >>> points.distortion, points.rate
        (tensor(0.1000), tensor(0.5310))

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (10) and
        Proposition 3 (ii); R. Blahut, *Computation of channel capacity and rate-distortion functions*, IEEE
        Transactions on Information Theory 1972.
    """
    owner = "blahut_arimoto"
    check_cost(owner, cost)
    check_positive_int(owner, "n_iters", n_iters)
    check_positive(owner, "tolerance", tolerance)
    cost = cost.detach().to(torch.promote_types(cost.dtype, torch.float32))
    t = torch.as_tensor(temperature, dtype=cost.dtype, device=cost.device)
    if bool(((t <= 0) | ~t.isfinite()).any()):
        advice = "The ends of the curve are (0, entropy of the source) and (max_distortion, 0)."
        raise ValueError(bad_value(owner, "temperature", "be > 0 and finite", t.flatten().tolist()[:5], advice))
    shape = broadcast_shapes(t.shape, cost.shape[:-2])
    log_p = probabilities_of(owner, "masses", masses, cost.shape[-2], cost).log().unsqueeze(-1)  # [..., sources, 1]
    cost = _possible_costs(owner, cost, log_p)
    # Relative to the cheapest reproduction of each source, which changes no assignment and keeps one finite.
    energy = -(cost - cost.amin(dim=-1, keepdim=True)) / t[..., None, None]
    log_r = cost.new_full((*shape, cost.shape[-1]), -math.log(cost.shape[-1]))
    n_done, n_quick = 0, _FIRST_QUICK_UPDATES
    while True:
        log_joint = energy + log_r.unsqueeze(-2)
        log_z = torch.logsumexp(log_joint, dim=-1, keepdim=True)
        log_q, log_g = log_joint - log_z, energy + (log_p - log_z)
        log_c = torch.logsumexp(log_g, dim=-2)  # the masses r become r c
        log_r = log_r + log_c
        moved = (log_r.exp() * log_c).nan_to_num().sum(dim=-1)  # KL(new r || old r)
        gap = (log_c.amax(dim=-1) - moved).clamp_min(0) / math.log(2)
        n_done += 1
        if n_done >= n_iters or bool((gap < tolerance).all()):
            break
        if log_c.amax() < _QUICK_BELOW:
            n_quick = min(n_quick, n_iters - 1 - n_done)
            log_r = log_r + _quick_updates(log_q.exp(), log_g.exp(), log_c.exp(), n_quick)
            n_done, n_quick = n_done + n_quick, min(2 * n_quick, _MAX_QUICK_UPDATES)
    q = (log_p + log_q).exp()  # joint, [..., sources, reproductions], with marginal r
    distortion = (q * cost.masked_fill(cost == torch.inf, 0)).sum(dim=(-2, -1))
    rate = (q * (log_q - log_r.unsqueeze(-2))).nan_to_num().sum(dim=(-2, -1)).clamp_min(0) / math.log(2)
    return RatePoints(distortion, rate, gap, t.expand(shape), log_r.exp())


def rate_of_samples(
    samples: Tensor,
    temperature: float | Tensor,
    *,
    reproductions: Tensor | None = None,
    n_iters: int = 5000,
    tolerance: float = 1e-3,
) -> RatePoints:
    """Return points of R(D) of equally likely samples under the squared Euclidean cost.

    It ends at log2 N bits for N samples, and approximates R(D) of the distribution of the samples at rates well below.

    Args:
        samples: Samples, [..., samples, dim].
        temperature: Temperature, > 0, as for `blahut_arimoto`.
        reproductions: Positions that hypotheses may take, [..., reproductions, dim]; the samples when None. A set
            too coarse for sqrt(T) raises the curve.
        n_iters: Maximum number of updates.
        tolerance: Gap in bits below which a point has converged.

    Example:
        >>> samples = torch.linspace(-1, 1, 101).unsqueeze(-1)
        >>> cold, hot = rate_of_samples(samples, torch.tensor([0.01, 0.5])).rate
        >>> bool(cold > hot > 0)
        True
    """
    check_tensor("rate_of_samples", "samples", samples)
    places = samples if reproductions is None else reproductions
    cost = pairwise_sq_euclidean(hypotheses=places, targets=samples)
    return blahut_arimoto(cost, temperature, n_iters=n_iters, tolerance=tolerance)


def gaussian_rate(distortion: float | Tensor, covariance: float | Tensor) -> Tensor:
    """Return R(D) of a Gaussian in bits, by reverse water-filling.

    The distortion of a principal axis with variance v is min(v, level), and the level is such that the distortions add
    up to D. Axes with a variance below the level are not encoded.

    Args:
        distortion: Distortion, >= 0; a float, or a tensor that broadcasts against the leading axes. The rate is
            infinite at 0, and 0 from the trace of the covariance upwards.
        covariance: Variance (a number or a tensor without axes), or matrices [..., dim, dim].
            Axes without variance cost nothing.

    Returns:
        Rate in bits, [...].

    Example:
        >>> gaussian_rate(0.25, 1.0)  # log2(1 / 0.25) / 2
        tensor(1.)
        >>> gaussian_rate(torch.tensor([5.0, 2.0, 1.0]), torch.diag(torch.tensor([4.0, 1.0])))
        tensor([0., 1., 2.])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (10) for a
        Gaussian p(y | x); T. Cover, J. Thomas, *Elements of Information Theory*, Section 10.3.3.
    """
    check_non_negative("gaussian_rate", "distortion", distortion)
    variances = variances_of("gaussian_rate", covariance, distortion)  # ascending, [..., dim]
    d = torch.as_tensor(distortion, dtype=variances.dtype, device=variances.device).unsqueeze(-1)
    # With the k smallest axes under water: D = their sum + (dim - k) level. The right k is the first whose level
    # does not reach the next axis.
    dim = variances.shape[-1]
    submerged = variances.cumsum(dim=-1) - variances  # sum of the axes below
    n_left = torch.arange(dim, 0, -1, dtype=variances.dtype, device=variances.device)
    levels = (d - submerged) / n_left
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
        rate: Rate, >= 0, in bits; a float, or a tensor that broadcasts against the leading axes.
        covariance: Variance (a number or a tensor without axes), or matrices [..., dim, dim].

    Returns:
        Distortion, [...].

    Example:
        >>> gaussian_distortion(1.0, 1.0)
        tensor(0.2500)
        >>> gaussian_distortion(torch.tensor([0.0, 1.0, 2.0]), torch.diag(torch.tensor([4.0, 1.0])))
        tensor([5., 2., 1.])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, D* of the figure on the
        rate-distortion curve, with R(D*) = log2 n.
    """
    check_non_negative("gaussian_distortion", "rate", rate)
    variances = variances_of("gaussian_distortion", covariance, rate).flip(-1)  # descending
    r = torch.as_tensor(rate, dtype=variances.dtype, device=variances.device).unsqueeze(-1)
    # With the k largest axes above the water: sum log2 v - k log2 level = 2 R. The right k is the last whose level
    # does not reach its smallest axis.
    n_above = torch.arange(1, variances.shape[-1] + 1, dtype=variances.dtype, device=variances.device)
    log_levels = (variances.log2().cumsum(dim=-1) - 2 * r) / n_above
    fits = (log_levels <= variances.log2()) & (variances > 0)
    index = (fits.sum(dim=-1, keepdim=True) - 1).clamp_min(0)
    level = log_levels.gather(-1, index).exp2()
    level = torch.where(fits.any(dim=-1, keepdim=True), level, 0)  # no variance: the distortion is 0
    return torch.minimum(variances.expand(broadcast_shapes(variances.shape, level.shape)), level).sum(dim=-1)


def shannon_lower_bound(distortion: float | Tensor, *, entropy: float | Tensor, dim: int) -> Tensor:
    """Return a lower bound of R(D) in bits, for the squared Euclidean cost.

        SLB(D) = h(Y) - (d / 2) log2(2 pi e D / d)

    The second term is the entropy of the widest noise that D allows, a Gaussian of variance D / d
    in each of d directions (the paper's "Gaussian with variance D" is the case d = 1). Equal to R(D)
    for a Gaussian source up to d times its smallest variance; tight for small D in general.

    Args:
        distortion: Distortion, > 0, total over the coordinates. A float or a tensor; at 0 the bound is infinite.
        entropy: Entropy h(Y) in bits, known or from `differential_entropy`; broadcasts with the distortion.
        dim: Number d of coordinates of Y.

    Returns:
        The bound, negative where it is uninformative.

    Example:
        >>> h = 0.5 * math.log2(2 * math.pi * math.e)  # of N(0, 1)
        >>> shannon_lower_bound(0.25, entropy=h, dim=1)
        tensor(1.)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Proposition 3 (iii),
        Equation (12), there in nats.
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

    It is the estimator of Kozachenko and Leonenko, from the distances of the samples to their nearest neighbors. For
    repeated samples, which come from a distribution with atoms, it is minus infinity.

    Args:
        samples: Samples, [..., samples, dim], more than `n_neighbors` of them.
        n_neighbors: Rank of the nearest neighbor to use. A larger number gives a smoother estimate, with more bias.

    Returns:
        Entropy in bits, [...].

    Example:
        >>> samples = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
        >>> differential_entropy(samples)  # N(0, 1) has log2(2 pi e) / 2 = 2.05
        tensor(2.0...)

    References:
        A. Kraskov, H. Stögbauer, P. Grassberger, *Estimating mutual information*, Physical Review E 2004,
        arXiv:cond-mat/0305641, Equation (20).
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
    return ((digamma[0] - digamma[1]).item() + log_ball + dim * log_radius) / math.log(2)


def lloyd(samples: Tensor, points: Tensor, n_steps: int, tolerance: float = 0.0) -> tuple[Tensor, int]:
    """Move points by Lloyd's algorithm, k-means without restarts; unused points stay.

    Args:
        samples: Samples, [..., samples, dim].
        points: Initial points, [..., hypotheses, dim].
        n_steps: Maximum number of steps.
        tolerance: Largest distance that a point moves in the last step.

    Returns:
        Points, and the number of steps.

    Example:
        >>> samples = torch.tensor([[0.0], [1.0], [9.0], [10.0]])
        >>> lloyd(samples, torch.tensor([[0.0], [8.0]]), n_steps=10)
        (tensor([[0.5000],
                [9.5000]]), 2)

    References:
        S. Lloyd, *Least squares quantization in PCM*, IEEE Transactions on Information Theory 1982.
    """
    for step in range(n_steps):
        weights = WTA()(pairwise_sq_euclidean(hypotheses=points, targets=samples))
        before, points = points, soft_barycenters(samples, weights, otherwise=points)
        if float((points - before).norm(dim=-1).max()) <= tolerance:
            return points, step + 1
    return points, n_steps


@full_precision
def _quick_updates(q: Tensor, g: Tensor, c: Tensor, n_updates: int) -> Tensor:
    """Return the change of log r after `n_updates` further updates, computed without exponentials.

    Args:
        q: Assignment of the last update in the log domain, [..., sources, reproductions].
        g: Factors of that update before the sum over sources, [..., sources, reproductions].
        c: Factors by which that update multiplied the masses, [..., reproductions].
        n_updates: Number of updates.
    """
    # Masses are kept relative to those of the last update. A clamp at the ends of the range is undone by the next
    # update in the log domain, which makes a proper distribution of any masses.
    info = torch.finfo(q.dtype)
    ratio = c.unsqueeze(-1)  # [..., reproductions, 1]
    for _ in range(n_updates):
        ratio = (ratio * (g.mT @ (1 / (q @ ratio).clamp_min(info.tiny)))).clamp(info.tiny, info.max**0.5)
    unused = c == 0  # and remains unused
    return (ratio.squeeze(-1) / c.masked_fill(unused, 1)).log().masked_fill(unused, 0)


def _possible_costs(owner: str, cost: Tensor, log_p: Tensor) -> Tensor:
    """Return the costs, 0 for sources that never occur, after checking that all others can be reproduced."""
    cost = torch.where(log_p == -torch.inf, 0.0, cost)
    if bool((cost.isnan() | (cost == -torch.inf)).any()) or bool((cost.amin(dim=-1) == torch.inf).any()):
        rule = "be a number or infinity, with a finite one for each source of positive mass"
        cheapest = cost.amin(dim=-1)
        got = cheapest[~cheapest.isfinite()][0].item()
        advice = "Give a source without any reproduction a mass of 0, or a reproduction."
        raise ValueError(bad_value(owner, "cost", rule, got, advice))
    return cost
