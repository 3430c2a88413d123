"""Rate-distortion of samples: mutual information, and R(D) by the Blahut-Arimoto algorithm. Rates are in bits.

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

from torchmcl.checks import bad_value, check_cost, check_positive, check_positive_int, check_tensor
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.dispatch import broadcast_shapes, full_precision
from torchmcl.rules.winners import WTA
from torchmcl.theory.critical import covariance
from torchmcl.theory.free_energy import assignment_entropy, hypothesis_masses, soft_barycentres

# Updates in the log domain give the bound and keep the numbers in range. Between two of them come plain products of
# matrices, ten times as fast: few at first, while masses change by orders of magnitude.
_FIRST_QUICK_UPDATES = 8
_MAX_QUICK_UPDATES = 64
_QUICK_BELOW = 20.0  # only where no mass grows by more than e^20 in one update


class RatePoints(NamedTuple):
    """Points of a rate-distortion curve, one per temperature.

    Attributes:
        distortion: [...], expected cost of the assignment found.
        rate: [...], its mutual information in bits.
        gap: [...], bits: rate - gap <= R(distortion) <= rate, for the given reproductions.
        temperature: [...], the slope: dR/dD = -1 / (T ln 2).
        masses: [..., reproductions], how often each reproduction is used.
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
        weights: [..., targets, hypotheses], real rows summing to 1; all targets count alike.
        mask: [..., targets], True where a target is real; None when all are.

    Returns:
        [...]

    Example:
        >>> mutual_information(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        tensor(1.)
        >>> mutual_information(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
        tensor(0.)

    Reference:
        I_x of Eq. (10), there in nats.
    """
    usage = torch.special.entr(hypothesis_masses(weights, mask)).sum(dim=-1)
    return ((usage - assignment_entropy(weights, mask=mask)) / math.log(2)).clamp_min(0)


def max_distortion(samples: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return D_max, the smallest squared error with a single hypothesis: the trace of the covariance, [...].

    R(D) = 0 from here on.

    Example:
        >>> max_distortion(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        tensor(1.)

    Reference:
        Eq. (31).
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

    From equal masses of the reproductions, each update never increases D + T I. The update also
    bounds the remaining gain (`gap`), in any state, so a curve that has not
    converged is detected.

    Args:
        cost: [..., sources, reproductions], the distortion of every pair; infinite where a reproduction must not
            stand for a source.
        temperature: > 0 and finite; a float, or a tensor [...] that broadcasts against the leading
            axes of the cost: [n] with a cost [sources, reproductions] gives n points of one curve.
        masses: [..., sources], the probabilities of the sources, summing to 1; None when all are equal.
        n_iters: maximum number of updates.
        tolerance: stop when every gap is below it, in bits.

    Raises:
        ValueError: for a source of positive mass without any reproduction of finite cost, and for NaN.

    Returns:
        RatePoints of shape [...]: temperatures and leading axes of the cost, broadcast.

    Example:
        >>> fair_coin, hamming = torch.tensor([0.5, 0.5]), 1 - torch.eye(2)
        >>> points = blahut_arimoto(hamming, 1 / math.log(9), masses=fair_coin)  # R = 1 - h(0.1)
        >>> points.distortion, points.rate
        (tensor(0.1000), tensor(0.5310))

    Reference:
        Eq. (10) and Prop. 3 (ii); Blahut (1972), Arimoto (1972).
    """
    owner = "blahut_arimoto"
    check_cost(owner, cost)
    _check_temperature(owner, temperature)
    check_positive_int(owner, "n_iters", n_iters)
    check_positive(owner, "tolerance", tolerance)
    cost = cost.detach().to(torch.promote_types(cost.dtype, torch.float32))
    t = torch.as_tensor(temperature, dtype=cost.dtype, device=cost.device)
    shape = broadcast_shapes(t.shape, cost.shape[:-2])
    log_p = _log_masses(owner, cost, masses).unsqueeze(-1)  # [..., sources, 1]
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

    This is R(D) of the samples themselves, N of them: it ends at log2 N bits, and follows that of
    the distribution they come from while it is well below.

    Args:
        samples: [..., samples, dim]
        temperature: > 0, as for `blahut_arimoto`.
        reproductions: [..., reproductions, dim], the positions that hypotheses may take; the samples when None. A set
            too coarse for sqrt(T) raises the curve.
        n_iters: maximum number of updates.
        tolerance: stop when every gap is below it, in bits.

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


def distortion_at_rate(points: RatePoints, rate: float) -> Tensor:
    """Return D* with R(D*) = rate, by interpolation between the points of one curve.

    With `rate = log2(n)` it is the smallest distortion that n hypotheses could reach. A curve is
    convex, so a straight line between two points is above it: D* is never too small.

    Args:
        points: [n], n >= 2 temperatures in any order.
        rate: in bits, between the rates of the points.

    Raises:
        ValueError: if the rate lies outside those of the points.

    Example:
        >>> d = torch.tensor([1.0, 0.25, 0.0625])  # R = log2(1 / D) / 2
        >>> points = RatePoints(d, torch.tensor([0.0, 1.0, 2.0]), 0 * d, 2 * d, torch.empty(3, 0))
        >>> distortion_at_rate(points, 1.0)
        tensor(0.2500)

    Reference:
        The '+' of the figure on the rate-distortion curve.
    """
    owner = "distortion_at_rate"
    if points.rate.ndim != 1 or len(points.rate) < 2:
        raise ValueError(bad_value(owner, "points", "hold a curve of at least two points", tuple(points.rate.shape)))
    rates, order = points.rate.sort()
    low, high = rates[0].item(), rates[-1].item()
    if not low <= rate <= high:
        advice = "Add colder temperatures for a higher rate."
        raise ValueError(
            bad_value(owner, "rate", f"lie between those of the points {low:.4g} and {high:.4g}", rate, advice)
        )
    distortions = points.distortion[order]
    right = int(torch.searchsorted(rates, rate).clamp(1, len(rates) - 1))
    width = (rates[right] - rates[right - 1]).clamp_min(torch.finfo(rates.dtype).tiny)
    share = (rate - rates[right - 1]) / width
    return distortions[right - 1] + share * (distortions[right] - distortions[right - 1])


@full_precision
def _quick_updates(q: Tensor, g: Tensor, c: Tensor, n_updates: int) -> Tensor:
    """Return the change of log r after `n_updates` further updates, computed without exponentials.

    Args:
        q: [..., sources, reproductions], the assignment of the last update in the log domain.
        g: of that shape, its factors before the sum over sources.
        c: [..., reproductions], by which it multiplied the masses.
        n_updates: how many.
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


def _log_masses(owner: str, cost: Tensor, masses: Tensor | None) -> Tensor:
    n_sources = cost.shape[-2]
    if masses is None:
        return cost.new_full((n_sources,), -math.log(n_sources))
    check_tensor(owner, "masses", masses)
    if masses.shape[-1:] != (n_sources,):
        rule = f"have shape [..., sources] with {n_sources} sources"
        raise ValueError(bad_value(owner, "masses", rule, tuple(masses.shape)))
    masses = masses.to(cost)
    if bool((masses < 0).any()) or not torch.allclose(masses.sum(dim=-1), cost.new_ones(()), atol=1e-4):
        got = f"a sum of {masses.sum(dim=-1).flatten()[0].item():.4g} and a minimum of {masses.min().item():.4g}"
        raise ValueError(bad_value(owner, "masses", "be >= 0 and sum to 1", got, "Divide them by their sum."))
    return (masses / masses.sum(dim=-1, keepdim=True)).log()


def _check_temperature(owner: str, temperature: float | Tensor) -> None:
    values = torch.as_tensor(temperature)
    if bool(((values <= 0) | ~values.isfinite()).any()):
        advice = "The ends of the curve are (0, entropy of the source) and (max_distortion, 0)."
        got = temperature if not isinstance(temperature, Tensor) else values.flatten().tolist()[:5]
        raise ValueError(bad_value(owner, "temperature", "be > 0 and finite", got, advice))


def lloyd_steps(samples: Tensor, points: Tensor, n_steps: int, tolerance: float = 0.0) -> tuple[Tensor, int]:
    """Return points after steps of Lloyd's algorithm, and the number of steps; unused points stay.

    Args:
        samples: [..., samples, dim]
        points: [..., hypotheses, dim]
        n_steps: maximum number of steps.
        tolerance: stop when no point moves farther than this.

    Example:
        >>> import torch
        >>> samples = torch.tensor([[0.0], [1.0], [9.0], [10.0]])
        >>> lloyd_steps(samples, torch.tensor([[0.0], [8.0]]), n_steps=10)
        (tensor([[0.5000],
                [9.5000]]), 2)
    """
    for step in range(n_steps):
        weights = WTA()(pairwise_sq_euclidean(hypotheses=points, targets=samples))
        moved = soft_barycentres(samples, weights, otherwise=points)
        far = float((moved - points).norm(dim=-1).max())
        points = moved
        if far <= tolerance:
            return points, step + 1
    return points, n_steps
