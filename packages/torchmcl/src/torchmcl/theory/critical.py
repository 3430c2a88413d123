"""Predicted and observed critical temperatures, at which merged hypotheses split.

All formulas are for the squared Euclidean cost. Covariances divide by the number of samples, not by
one less: the samples themselves are the distribution whose hypotheses split, so on them the
prediction is exact.

Why a free energy: hypotheses that follow annealed MCL stop where the gradient with fixed weights
vanishes. These points are the stationary points of F, and F splits at 2 lambda_max. The soft
distortion D(q_T, f) alone, minimized over f with the weights following, leaves the mean earlier
(from 4 lambda_max when n = 2); D*(T) in Eq. (14) is therefore to be read at the minimizer of F.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import check_mask, check_non_negative, check_tensor
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.dispatch import full_precision, is_plain_eager
from torchmcl.errors import bad_value
from torchmcl.theory.free_energy import boltzmann_weights, covariance_blocks

__all__ = [
    "Trajectory",
    "Transition",
    "covariance",
    "critical_temperature_of_residuals",
    "first_critical_temperature",
    "n_distinct",
    "next_critical_temperatures",
    "observed_transitions",
    "thermal_tolerance",
]

# Just below a critical temperature T_c (1 - u) two halves of a Gaussian are sqrt(2 T_c u) apart, so a tenth of sqrt(T)
# detects a split half a percent below T_c, and is still well above the noise of a trained network.
_THERMAL_FRACTION = 0.1


class Trajectory(NamedTuple):
    """A recorded cooling run.

    Attributes:
        temperatures: Temperatures, [steps], from hot to cold.
        hypotheses: Hypotheses, [steps, ..., hypotheses, dim], at those temperatures; extra axes are probe inputs.
    """

    temperatures: Tensor
    hypotheses: Tensor


class Transition(NamedTuple):
    """A split between two records of a trajectory.

    Attributes:
        step: Index of the first record after the split.
        temperature: Temperature, of that record.
        temperature_before: Temperature of the record before it; the split lies in between.
        n_before: Largest number of distinct hypotheses up to then.
        n_after: Number of distinct hypotheses at `step`.
    """

    step: int
    temperature: float
    temperature_before: float
    n_before: int
    n_after: int


def covariance(samples: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the covariance of samples, normalized by their number (not one less), [..., dim, dim].

    Args:
        samples: Samples, [..., samples, dim]; one sample has covariance 0.
        mask: Valid samples, [..., samples]; None if all are valid.

    Example:
        >>> covariance(torch.tensor([[-1.0], [1.0]]))
        tensor([[1.]])
    """
    _check_samples("covariance", samples)
    return _moments("covariance", samples, mask, centered=True)


def first_critical_temperature(samples: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return 2 lambda_max(Cov): above it all hypotheses are at the mean, below it they split.

    The result is 0 if all samples are equal. There may be fewer samples than dimensions: the largest eigenvalue of a
    singular covariance is well defined.

    Args:
        samples: Samples [..., samples, dim] of p(y | x); leading axes are inputs x or data sets.
        mask: Valid samples, [..., samples]; None if all are valid.

    Returns:
        Critical temperature, [...], in the units of the squared Euclidean cost.

    Example:
        >>> first_critical_temperature(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.5], [0.0, -0.5]]))
        tensor(1.)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Proposition 4 (ii),
        Equation (14).
    """
    _check_samples("first_critical_temperature", samples)
    return 2 * _largest_eigenvalue(_moments("first_critical_temperature", samples, mask, centered=True))


def critical_temperature_of_residuals(residuals: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return 2 lambda_max of the second moment around 0 of a trained model's residuals.

    For the residuals y - E[y | x] it is the critical temperature of the mean covariance E_x[C(x)]: equal to the
    critical temperature of every input if the noise is homogeneous, and never above the largest one. Errors of the mean
    of the model increase it, so that a start above it is above the split.

    Args:
        residuals: Residuals, [..., samples, dim], targets less the model's conditional mean, such as the mean of its
            hypotheses by score. Group by similar inputs on a leading axis to see C(x) itself.
        mask: Valid samples, [..., samples]; None if all are valid.

    Returns:
        Critical temperature, [...].

    Example:
        >>> critical_temperature_of_residuals(torch.tensor([[0.5], [-0.5], [0.5]]))
        tensor(0.5000)
    """
    _check_samples("critical_temperature_of_residuals", residuals, "residuals")
    return 2 * _largest_eigenvalue(_moments("critical_temperature_of_residuals", residuals, mask, centered=False))


def next_critical_temperatures(
    samples: Tensor, hypotheses: Tensor, temperature: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return 2 lambda_max(C_kk) for each hypothesis: the temperature at which its cluster would split.

    Coinciding hypotheses have the samples and the value of their cluster, which is stable while T is above its value.
    The blocks depend on T, so the value is an estimate while T is far above it, and exact when T reaches it.

    Args:
        samples: Samples, [..., samples, dim].
        hypotheses: Hypotheses, [..., hypotheses, dim], at equilibrium at this temperature.
        temperature: Temperature, >= 0; a float, or a tensor that broadcasts against [..., samples, hypotheses].
        mask: Valid samples, [..., samples]; None if all are valid.

    Returns:
        Critical temperatures, [..., hypotheses]; 0 for a hypothesis without weight.

    Example:
        >>> samples = torch.tensor([[-4.0], [-2.0], [3.0], [3.0]])
        >>> next_critical_temperatures(samples, torch.tensor([[-3.0], [3.0]]), temperature=0.1)
        tensor([2., 0.])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (14) with
        Equation (13) in place of C(x); after K. Rose, E. Gurewitz, G. Fox, *Statistical mechanics and phase transitions
        in clustering*, Physical Review Letters 1990.
    """
    _check_samples("next_critical_temperatures", samples)
    cost = pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples)
    weights = boltzmann_weights(cost, temperature, mask)
    samples = samples if mask is None else samples.where(mask.unsqueeze(-1), 0)  # padding may contain anything
    return 2 * _largest_eigenvalue(covariance_blocks(samples, hypotheses, weights))


def thermal_tolerance(temperature: float | Tensor) -> Tensor:
    """Return the distance below which two hypotheses count as one at a temperature, 0.1 sqrt(T).

    Hypotheses closer than sqrt(T) have nearly equal weights. A tenth of this distance detects the split of a Gaussian
    half a percent below its critical temperature, and scales with the data. At T = 0 only equal hypotheses count as
    one.

    Example:
        >>> thermal_tolerance(0.25)
        tensor(0.0500)
    """
    check_non_negative("thermal_tolerance", "temperature", temperature)
    return _THERMAL_FRACTION * torch.as_tensor(temperature).sqrt()


def _distinct_representatives(hypotheses: Tensor, tolerance: float | Tensor) -> Tensor:
    """Return which hypotheses represent a distinct position, [..., hypotheses].

    Taken in order, a hypothesis represents its position unless it is within `tolerance` of an earlier representative.
    Every hypothesis is then within `tolerance` of a representative, and representatives are further
    apart than that; a chain of close neighbors does not count as one position.
    """
    check_tensor("n_distinct", "hypotheses", hypotheses)
    check_non_negative("n_distinct", "tolerance", tolerance)
    if hypotheses.ndim < 2:
        rule = "have shape [..., hypotheses, dim]"
        raise ValueError(bad_value("n_distinct", "hypotheses", rule, tuple(hypotheses.shape)))
    hypotheses = hypotheses.detach()
    squares = pairwise_sq_euclidean(hypotheses=hypotheses, targets=hypotheses)
    reach = torch.as_tensor(tolerance, dtype=squares.dtype, device=squares.device)[..., None, None]
    near_earlier = (squares <= reach * reach).tril(-1)
    # Each round settles at least one more hypothesis, in order; a few are enough unless there are long chains.
    # Stopping early reads values on the host, which GPUs should not wait for and compilers do not support.
    may_stop_early = is_plain_eager() and not hypotheses.is_cuda
    stands = torch.ones(near_earlier.shape[:-1], dtype=torch.bool, device=hypotheses.device)
    for _ in range(hypotheses.shape[-2]):
        settled = ~(near_earlier & stands.unsqueeze(-2)).any(dim=-1)
        if may_stop_early and torch.equal(settled, stands):
            break
        stands = settled
    return stands


def n_distinct(hypotheses: Tensor, tolerance: float | Tensor = 0.01) -> Tensor:
    """Return the number of distinct positions of the hypotheses; those within `tolerance` count once.

    Args:
        hypotheses: Hypotheses, [..., hypotheses, dim].
        tolerance: Distance, >= 0. A float, or a tensor that broadcasts against [...]. The default
            suits targets of unit scale; `thermal_tolerance` suits a cooling of any scale.

    Returns:
        Numbers of positions, [...], integers; on GPUs nothing is read on the host.

    Example:
        >>> n_distinct(torch.tensor([[[0.0], [0.001], [0.5]], [[0.0], [0.2], [0.5]]]))
        tensor([2, 3])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, the virtual number of
        hypotheses, above Equation (10).
    """
    return _distinct_representatives(hypotheses, tolerance).sum(dim=-1)


def observed_transitions(
    trajectory: Trajectory, tolerance: float | Tensor | None = None, *, lasting: bool = False
) -> list[Transition]:
    """Return the splits in a recorded cooling run: the steps with a new maximum of distinct hypotheses.

    Args:
        trajectory: Temperatures [steps] from hot to cold, hypotheses [steps, hypotheses, dim].
        tolerance: Tolerance of `n_distinct`; a float, or one per step. By default `thermal_tolerance` of
            each step's temperature.
        lasting: Whether to count only splits that last for the rest of the cooling, and no hypotheses of a network that
            have not merged yet or separate temporarily.

    Returns:
        Transitions in order; empty if nothing splits.

    Raises:
        ValueError: If there are fewer than two steps, or the temperature rises.

    Example:
        >>> places = torch.tensor([[[0.0], [0.0]], [[0.0], [0.0]], [[-1.0], [1.0]]])
        >>> observed_transitions(Trajectory(torch.tensor([3.0, 2.0, 1.0]), places))
        [Transition(step=2, temperature=1.0, temperature_before=2.0, n_before=1, n_after=2)]
    """
    owner = "observed_transitions"
    temperatures, hypotheses = trajectory
    check_tensor(owner, "temperatures", temperatures)
    check_tensor(owner, "hypotheses", hypotheses)
    if temperatures.ndim != 1 or len(temperatures) < 2:
        advice = "A split is detected between two records: record more often."
        rule = "contain at least two temperatures [steps]"
        raise ValueError(bad_value(owner, "temperatures", rule, f"shape {tuple(temperatures.shape)}", advice))
    if hypotheses.ndim != 3 or len(hypotheses) != len(temperatures):
        rule = f"have shape [steps, hypotheses, dim] with {len(temperatures)} steps"
        advice = "For several probe inputs call it once per input."
        raise ValueError(bad_value(owner, "hypotheses", rule, tuple(hypotheses.shape), advice))
    if not bool((temperatures.diff() <= 0).all()):
        step = int((temperatures.diff() > 0).nonzero()[0]) + 1
        got = f"a rise at step {step}"
        raise ValueError(bad_value(owner, "temperatures", "be non-increasing", got, "Reverse the records."))
    seen = n_distinct(hypotheses, thermal_tolerance(temperatures) if tolerance is None else tolerance)
    counts = (seen.flip(0).cummin(dim=0).values.flip(0) if lasting else seen).tolist()
    transitions = []
    highest = counts[0]
    for step in range(1, len(counts)):
        if counts[step] > highest:
            after, before = temperatures[step].item(), temperatures[step - 1].item()
            transitions.append(Transition(step, after, before, highest, counts[step]))
            highest = counts[step]
    return transitions


@full_precision
def _moments(owner: str, samples: Tensor, mask: Tensor | None, *, centered: bool) -> Tensor:
    """Return the second moments [..., dim, dim] around the mean or around 0."""
    samples = samples.to(torch.promote_types(samples.dtype, torch.float32))
    if mask is None:
        offsets = samples - samples.mean(dim=-2, keepdim=True) if centered else samples
        return offsets.mT @ offsets / samples.shape[-2]
    check_mask(owner, mask, samples.shape[:-1])
    real = mask.expand(samples.shape[:-1]).unsqueeze(-1)
    n_real = real.sum(dim=-2, keepdim=True).clamp_min(1)
    samples = samples.masked_fill(~real, 0)
    if centered:
        samples = (samples - samples.sum(dim=-2, keepdim=True) / n_real).masked_fill(~real, 0)
    return samples.mT @ samples / n_real


@full_precision
def _largest_eigenvalue(matrices: Tensor) -> Tensor:
    if matrices.shape[-1] == 1:
        return matrices[..., 0, 0]
    return torch.linalg.eigvalsh(matrices)[..., -1]


def _check_samples(owner: str, samples: Tensor, argument: str = "samples") -> None:
    check_tensor(owner, argument, samples)
    if samples.ndim < 2 or 0 in samples.shape[-2:]:
        rule = f"have shape [..., {argument}, dim] with at least one of them"
        advice = f"Add the missing axis: {argument}.unsqueeze(-1) for scalars."
        raise ValueError(bad_value(owner, argument, rule, tuple(samples.shape), advice))
