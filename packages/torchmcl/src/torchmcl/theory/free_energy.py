"""Soft assignments as statistical physics: weights, distortion, entropy, free energy and its curvature.

Conventions, those of the paper: the weights of a target y are

    q_T(f_k | x, y) = exp(-cost_k / T) / Z,    Z = sum_s exp(-cost_s / T)        Eq. (5)

with no prior 1/n in front of the sum, so F = D - T H = -T log Z. With the prior (as in rate-distortion
theory, where every hypothesis starts with mass 1/n) the free energy is larger by T log n and
everything else is the same. Entropies here are in nats, because T H must be in the units of the
cost; `torchmcl.theory.rate_distortion` is in bits.

A cost or weights [..., targets, hypotheses] hold one row for each target, that is each sample of
p(y | x). `mean_axes` is the number of the last axes of [..., targets] to average: 0 keeps the
value of each target, 1 averages over the targets of one input (the conditional D_x, F_x), 2 over
the axis before them too (the average over x of a batch), and so on; leading axes such as models stay.
"""

import torch
from torch import Tensor

from torchmcl.checks import check_cost, check_event_pair, check_mask, check_non_negative, check_positive, check_tensor
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.dispatch import full_precision
from torchmcl.errors import bad_value
from torchmcl.rules.winners import AnnealedWTA

__all__ = [
    "assignment_entropy",
    "boltzmann_weights",
    "covariance_blocks",
    "free_energy",
    "free_energy_hessian",
    "hypothesis_masses",
    "soft_barycenters",
    "soft_distortion",
]


def boltzmann_weights(cost: Tensor, temperature: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Return q_T, the Boltzmann distribution over the hypotheses of each target.

    The weights equal those of `torchmcl.AnnealedWTA(temperature)`: detached, and 0 in padded rows.

    Args:
        cost: Cost, [..., targets, hypotheses], lower is better.
        temperature: Temperature, >= 0; 0 gives the limit, winner-takes-all. A float, or a tensor that broadcasts
            against the cost, such as [models, 1, 1].
        mask: Valid targets, [..., targets]; None if all are valid.

    Returns:
        Weights [..., targets, hypotheses]; valid rows sum to 1.

    Example:
        >>> boltzmann_weights(torch.tensor([[0.3, 0.1, 0.2]]), temperature=0.1)
        tensor([[0.0900, 0.6652, 0.2447]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (5) and
        Proposition 2 (i).
    """
    check_cost("boltzmann_weights", cost)
    check_non_negative("boltzmann_weights", "temperature", temperature, "0 is hard winner-takes-all.")
    return AnnealedWTA(temperature)(cost, mask)


def soft_distortion(cost: Tensor, weights: Tensor, *, mask: Tensor | None = None, mean_axes: int = 1) -> Tensor:
    """Return D(q, f), the expected cost if the hypothesis of each target is drawn from its weights.

    Args:
        cost: Cost, [..., targets, hypotheses].
        weights: Weights, [..., targets, hypotheses], of any rule; one-hot weights give the hard distortion.
        mask: Valid targets, [..., targets]; None if all are valid.
        mean_axes: Number of the last axes of [..., targets] to average over.

    Returns:
        Soft distortion, [..., targets] without its last `mean_axes` axes, differentiable in the cost.

    Example:
        >>> cost = torch.tensor([[1.0, 2.0], [4.0, 3.0]])
        >>> soft_distortion(cost, torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
        tensor(2.2500)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (7), and D_x
        below Equation (10).
    """
    check_cost("soft_distortion", cost)
    _check_weights("soft_distortion", weights, cost.shape)
    paid = cost.masked_fill(weights == 0, 0)  # a pair with weight 0 adds nothing, even at infinite cost
    return _average("soft_distortion", (weights * paid).sum(dim=-1), mask, mean_axes)


def assignment_entropy(weights: Tensor, *, mask: Tensor | None = None, mean_axes: int = 1) -> Tensor:
    """Return H(q), the entropy of each target's weights, in nats.

    This is the entropy given the target, as in the free energy. `torchmcl.metrics.usage_entropy` is the entropy of the
    weights averaged over the targets of a sample; the difference of the two is the mutual information.

    Args:
        weights: Weights, [..., targets, hypotheses], rows of valid targets sum to 1.
        mask: Valid targets, [..., targets]; None if all are valid.
        mean_axes: Number of the last axes of [..., targets] to average over.

    Example:
        >>> assignment_entropy(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), mean_axes=0)
        tensor([0.6931, 0.0000])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, H(q) above Equation (8);
        its average over p(x, y) is in the notations of the appendix.
    """
    _check_weights("assignment_entropy", weights)
    return _average("assignment_entropy", torch.special.entr(weights).sum(dim=-1), mask, mean_axes)


def free_energy(cost: Tensor, temperature: float | Tensor, *, mask: Tensor | None = None, mean_axes: int = 1) -> Tensor:
    """Return F = D(q_T, f) - T H(q_T) by its closed form -T log sum_k exp(-cost_k / T).

    It is the minimum of D(q, f) - T H(q) over all weights q. Its gradient with respect to the cost is q_T, so that the
    gradient of F with respect to f equals the gradient of annealed MCL with detached weights. Its limit as T goes to 0
    is the hard distortion.

    Args:
        cost: Cost, [..., targets, hypotheses].
        temperature: Temperature, >= 0, 0 and infinity being limits. A float, or a tensor with a last axis of 1 that
            broadcasts against the cost, such as [models, 1, 1].
        mask: Valid targets, [..., targets]; None if all are valid.
        mean_axes: Number of the last axes of [..., targets] to average over.

    Returns:
        Free energy, [..., targets] without its last `mean_axes` axes, differentiable in the cost. Hypotheses of
        infinite cost are ignored.

    Example:
        >>> cost = torch.tensor([[0.3, 0.1, 0.2]])
        >>> free_energy(cost, 0.1)
        tensor(0.0592)
        >>> weights = boltzmann_weights(cost, 0.1)
        >>> soft_distortion(cost, weights) - 0.1 * assignment_entropy(weights)
        tensor(0.0592)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equations (11) and (27);
        the closed form is Proposition 6 (iii), Equation (28) and, given x, Equation (29).
    """
    check_cost("free_energy", cost)
    check_non_negative("free_energy", "temperature", temperature, "0 is the limit, the hard distortion.")
    cost = cost.to(torch.promote_types(cost.dtype, torch.float32))
    if isinstance(temperature, Tensor) and temperature.ndim > 0 and temperature.shape[-1] != 1:
        rule = "have a last axis of 1: all hypotheses of a target share one temperature"
        raise ValueError(bad_value("free_energy", "temperature", rule, tuple(temperature.shape)))
    if mask is not None:  # padded rows may contain anything
        check_mask("free_energy", mask, cost.shape[:-1])
        cost = cost.masked_fill(~mask.expand(cost.shape[:-1]).unsqueeze(-1), 0)
    t = torch.as_tensor(temperature, dtype=cost.dtype, device=cost.device)
    cold, hot = t <= 0, t == torch.inf
    # Relative to the cheapest hypothesis, no exponential overflows. This constant cancels in the gradient.
    lowest = cost.detach().amin(dim=-1, keepdim=True)
    lowest = lowest.masked_fill(lowest.isinf(), 0)
    warm = t.masked_fill(cold | hot, 1)
    values = lowest - warm * torch.logsumexp((lowest - cost) / warm, dim=-1, keepdim=True)
    values = torch.where(hot, _infinitely_hot(cost), values)
    values = torch.where(cold, cost.amin(dim=-1, keepdim=True), values).squeeze(-1)
    return _average("free_energy", values, mask, mean_axes)


def _infinitely_hot(cost: Tensor) -> Tensor:
    """Return the limit of the free energy as T goes to infinity, [..., targets, 1].

    It is the mean cost minus T log n for n hypotheses of finite cost: minus infinity for several hypotheses, the cost
    itself for one, and infinity for none.
    """
    finite = cost != torch.inf
    n_finite = finite.sum(dim=-1, keepdim=True)
    entropy = torch.where(n_finite > 1, torch.inf, torch.where(n_finite == 1, 0.0, -torch.inf)).to(cost.dtype)
    return cost.masked_fill(~finite, 0).sum(dim=-1, keepdim=True) / n_finite.clamp_min(1) - entropy


def hypothesis_masses(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return q(f_k | x), the fraction of the targets assigned to each hypothesis.

    Args:
        weights: Weights, [..., targets, hypotheses], rows of valid targets sum to 1.
        mask: Valid targets, [..., targets]; None if all are valid.

    Returns:
        Masses, [..., hypotheses], summing to 1; 0 without a valid target.

    Example:
        >>> hypothesis_masses(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
        tensor([0.2500, 0.7500])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, q(f_k | x) below Equation
        (10), and gamma_k of Proposition 2 (iii).
    """
    _check_weights("hypothesis_masses", weights)
    if mask is not None:
        check_mask("hypothesis_masses", mask, weights.shape[:-1])
    return _average("hypothesis_masses", weights.mT, None if mask is None else mask.unsqueeze(-2), 1)


@full_precision
def soft_barycenters(samples: Tensor, weights: Tensor, *, otherwise: Tensor | None = None) -> Tensor:
    """Return the mean of the samples under each hypothesis' weights: the fixed-point update.

    Alternating it with `boltzmann_weights` never increases the free energy. The gradient of the squared Euclidean soft
    distortion points from the barycenter to the hypothesis,

        dD / df_k = 2 gamma_k (f_k - barycenter_k),

    where gamma is `hypothesis_masses` (the paper writes it without the factor 2).

    Args:
        samples: Samples, [..., samples, dim], finite where padded.
        weights: Weights, [..., samples, hypotheses], 0 where padded.
        otherwise: Result [..., hypotheses, dim] for a hypothesis without any weight,
            such as its current position; NaN when None.

    Returns:
        Barycenters, [..., hypotheses, dim].

    Example:
        >>> soft_barycenters(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0, 0], [1, 0], [0, 1]]))
        tensor([[0.5000],
                [5.0000]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Proposition 2 (ii) and
        (iii).
    """
    _check_weights("soft_barycenters", weights)
    _check_samples("soft_barycenters", samples, weights)
    dtype = torch.promote_types(samples.dtype, weights.dtype)
    samples, weights = samples.to(dtype), weights.to(dtype)
    mass = weights.sum(dim=-2).unsqueeze(-1)  # [..., hypotheses, 1]
    # Relative to the mean sample, so that a common offset costs no precision; padded samples have no weight.
    totals = weights.sum(dim=-1, keepdim=True)
    center = (totals * samples).sum(dim=-2, keepdim=True) / totals.sum(dim=-2, keepdim=True).clamp_min(1e-30)
    barycenters = center + weights.mT @ (samples - center) / mass
    if otherwise is None:
        return barycenters
    return torch.where(mass > 0, barycenters, otherwise.to(dtype))


@full_precision
def covariance_blocks(samples: Tensor, hypotheses: Tensor, weights: Tensor) -> Tensor:
    """Return C_kk, the second moment of the samples assigned to each hypothesis, around that hypothesis.

    The samples of hypothesis k are weighted by the posterior q(y | f_k, x), that is `weights`
    normalized over the samples. At a soft barycenter this is their covariance; while all hypotheses are at the mean, it
    is the covariance of the data.

    Args:
        samples: Samples, [..., samples, dim], finite where padded.
        hypotheses: Hypotheses, [..., hypotheses, dim].
        weights: Weights, [..., samples, hypotheses], 0 where padded.

    Returns:
        Covariances, [..., hypotheses, dim, dim]; 0 for a hypothesis without weight.

    Example:
        >>> samples = torch.tensor([[-1.0], [1.0], [5.0]])
        >>> weights = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
        >>> covariance_blocks(samples, soft_barycenters(samples, weights), weights).flatten()
        tensor([1., 0.])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (13), whose
        factor p(y | x) is already contained in the posterior by Bayes' rule.
    """
    _check_weights("covariance_blocks", weights)
    _check_samples("covariance_blocks", samples, weights)
    check_event_pair("covariance_blocks", hypotheses, samples)
    dtype = torch.promote_types(torch.promote_types(samples.dtype, hypotheses.dtype), weights.dtype)
    samples, hypotheses, weights = samples.to(dtype), hypotheses.to(dtype), weights.to(dtype)
    offsets = samples.unsqueeze(-3) - hypotheses.unsqueeze(-2)  # [..., hypotheses, samples, dim]
    mass = weights.sum(dim=-2)
    posterior = weights.mT / mass.masked_fill(mass == 0, 1).unsqueeze(-1)
    return (posterior.unsqueeze(-1) * offsets).mT @ offsets


@full_precision
def free_energy_hessian(
    samples: Tensor, hypotheses: Tensor, temperature: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return the Hessian of F_x in all coordinates of all hypotheses, for the squared Euclidean cost.

    Its block (k, l) is

        2 [k = l] gamma_k (1 - (2 / T) C_kk) + (4 / T) E[q_k q_l (f_k - y)(f_l - y)^t].

    For displacements that keep the sum of coinciding hypotheses, only the first term matters, so a cluster is
    unstable from the temperature 2 lambda_max(C_kk) downwards.

    Args:
        samples: Samples, [..., samples, dim].
        hypotheses: Hypotheses, [..., hypotheses, dim].
        temperature: Temperature, > 0; a float, or a tensor that broadcasts against [..., samples, hypotheses].
        mask: Valid samples, [..., samples]; None if all are valid.

    Returns:
        Hessian, [..., hypotheses * dim, hypotheses * dim], with hypotheses outermost.

    Example:
        >>> samples = torch.tensor([[-1.0], [1.0]])
        >>> free_energy_hessian(samples, torch.zeros(2, 1), temperature=4.0)
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, the Hessian above
        Equation (13); after K. Rose, E. Gurewitz, G. Fox, *Statistical mechanics and phase transitions in clustering*,
        Physical Review Letters 1990.
    """
    owner = "free_energy_hessian"
    check_positive(owner, "temperature", temperature, "At 0 the free energy has kinks.")
    check_event_pair(owner, hypotheses, samples)
    weights = boltzmann_weights(pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples), temperature, mask)
    samples = samples if mask is None else samples.where(mask.unsqueeze(-1), 0)  # padding may contain anything
    t = torch.as_tensor(temperature, dtype=weights.dtype, device=weights.device)
    t = t.reshape(*t.shape, *(1,) * (2 - t.ndim))
    n_hypotheses, dim = hypotheses.shape[-2:]
    masses = hypothesis_masses(weights, mask)
    identity = torch.eye(dim, dtype=weights.dtype, device=weights.device)
    blocks = identity - 2 / t.unsqueeze(-1) * covariance_blocks(samples, hypotheses, weights)
    blocks = 2 * masses[..., None, None] * blocks  # [..., hypotheses, dim, dim]
    pulls = weights.unsqueeze(-1) * (hypotheses.unsqueeze(-3) - samples.unsqueeze(-2))
    pulls = pulls.flatten(-2)  # [..., samples, hypotheses * dim]
    n_real = weights.sum(dim=(-2, -1), keepdim=True).clamp_min(1)  # the weights of a valid sample sum to 1
    hessian = 4 / t * (pulls.mT @ pulls) / n_real
    diagonal = torch.eye(n_hypotheses, dtype=weights.dtype, device=weights.device)[:, None, :, None]
    return hessian + (diagonal * blocks.unsqueeze(-2)).flatten(-2).flatten(-3, -2)


def _average(owner: str, values: Tensor, mask: Tensor | None, mean_axes: int) -> Tensor:
    """Return the mean of the real values over the last axes; 0 where there are none."""
    if not 0 <= mean_axes <= values.ndim:
        rule = f"be between 0 and the number of axes of [..., targets] {values.ndim}"
        raise ValueError(bad_value(owner, "mean_axes", rule, repr(mean_axes)))
    axes = tuple(range(-mean_axes, 0))
    if mask is None:
        return values.mean(dim=axes) if axes else values
    check_mask(owner, mask, values.shape)
    mask = mask.expand(values.shape)
    values = values.masked_fill(~mask, 0)
    return values.sum(dim=axes) / mask.sum(dim=axes).clamp_min(1) if axes else values


def _check_weights(owner: str, weights: Tensor, shape: torch.Size | None = None) -> None:
    check_tensor(owner, "weights", weights)
    if weights.ndim < 2 or (shape is not None and weights.shape != shape):
        rule = "have shape [..., targets, hypotheses]" + ("" if shape is None else f" of the cost {tuple(shape)}")
        raise ValueError(bad_value(owner, "weights", rule, tuple(weights.shape)))


def _check_samples(owner: str, samples: Tensor, weights: Tensor) -> None:
    check_tensor(owner, "samples", samples)
    if samples.ndim < 2 or samples.shape[-2] != weights.shape[-2]:
        rule = f"have shape [..., samples, dim] with the {weights.shape[-2]} samples of the weights"
        raise ValueError(bad_value(owner, "samples", rule, tuple(samples.shape)))
