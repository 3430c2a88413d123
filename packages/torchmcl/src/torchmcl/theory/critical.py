"""Predicted and observed critical temperatures, at which merged hypotheses split.

All formulas are for the squared Euclidean cost. Covariances divide by the number of samples, not by
one less: the samples themselves are the distribution whose hypotheses split, so on them the
prediction is exact.

Hypotheses that follow annealed MCL stop at stationary points of the free energy F, and two
temperatures describe when they leave the mean. Merged hypotheses are a local minimum of F, and stay
merged, down to 2 lambda_max (`local_critical_temperature`). They are its global minimum, for
any number of hypotheses, only above T0c >= 2 lambda_max (`critical_temperature`), where the rate R(D)
becomes positive. The two are equal for a Gaussian. In between the state depends on the past
(hysteresis): merged hypotheses stay merged, and separate hypotheses stay separate.

Equation (14) of the paper gives the first value for the second temperature, so it is a lower bound. Its
D*(T) is a minimum over f of the soft distortion with weights that follow f, which leaves the mean even
earlier (at 4 lambda_max or above); annealed MCL minimizes F instead.
"""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import check_finite, check_mask, check_non_negative, check_shape, check_tensor
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.dispatch import full_precision, is_plain_eager
from torchmcl.errors import bad_value
from torchmcl.theory.free_energy import boltzmann_weights, covariance_blocks

__all__ = [
    "CriticalTemperature",
    "Trajectory",
    "Transition",
    "covariance",
    "critical_temperature",
    "critical_temperature_of_residuals",
    "local_critical_temperature",
    "n_distinct",
    "next_critical_temperatures",
    "observed_transitions",
    "thermal_tolerance",
]

# Just below a critical temperature T_c (1 - u) two halves of a Gaussian are sqrt(2 T_c u) apart, so a tenth of sqrt(T)
# detects a split half a percent below T_c, and is still well above the noise of a trained network.
_THERMAL_FRACTION = 0.1

# Grid of `critical_temperature`: with 64 directions in the plane, lengths in steps of 10 %, and short and long vectors
# bounded to within 0.1 %, the upper bound is at most 0.7 % too high.
_N_DIRECTIONS, _LENGTH_RATIO, _SLACK = 64, 1.1, 1e-3
_N_STARTS, _N_ASCENT_STEPS = 16, 60  # each step reduces the distance to a maximum by a factor
_ROUNDING = 1e-9  # relative error of a ratio in double precision, with a margin
_CHUNK = 2**22  # exponentials at a time
_SMALLEST = 1e-280  # squared distance below which |w|^2 may overflow
_DECISIVE = 0.9  # a sample decides the result if its bound is within a tenth of it


class CriticalTemperature(NamedTuple):
    """First critical temperature T0c, with certified bounds.

    Attributes:
        temperature: Largest ratio 4 K(w) / |w|^2 that the search found. It is within about 0.01 % of T0c unless the
            search missed the maximum.
        lower: Certified lower bound of T0c: the largest ratio of a vector w that was evaluated, or of a limit.
        upper: Certified upper bound of T0c. In one and two dimensions it is at most 0.7 % too high. In more dimensions
            it is Hoeffding's bound, which is exact for a Gaussian and usually several times too high for samples.
        sample_bound: Lower bound max_i |y_i - m|^2 / log(1 / p_i) for points of probability p_i (1 / n for n samples).
    """

    temperature: float
    lower: float
    upper: float
    sample_bound: float


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


def local_critical_temperature(samples: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return 2 lambda_max(Cov): merged hypotheses are locally stable above it, and separate below it.

    It is a lower bound of the first critical temperature (`critical_temperature`), with equality for a Gaussian.
    Hypotheses that are already separate may stay so above it. The result is 0 if all samples are equal. There may
    be fewer samples than dimensions: the largest eigenvalue of a singular covariance is well defined.

    Args:
        samples: Samples [..., samples, dim] of p(y | x); leading axes are inputs x or data sets.
        mask: Valid samples, [..., samples]; None if all are valid.

    Returns:
        Local critical temperature, [...], in the units of the squared Euclidean cost.

    Example:
        >>> local_critical_temperature(torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.5], [0.0, -0.5]]))
        tensor(1.)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Proposition 4 (ii),
        Equation (14), whose right side this is; K. Rose, E. Gurewitz, G. Fox, *Statistical mechanics and phase
        transitions in clustering*, Physical Review Letters 1990.
    """
    _check_samples("local_critical_temperature", samples)
    return 2 * _largest_eigenvalue(_moments("local_critical_temperature", samples, mask, centered=True))


@torch.inference_mode(False)  # the search needs gradients
def critical_temperature(
    points: Tensor, *, weights: Tensor | None = None, covariances: Tensor | None = None
) -> CriticalTemperature:
    """Return T0c, above which merging all hypotheses at the mean minimizes the free energy globally.

        T0c = inf {T : E exp((2 (y - m).z - |z|^2) / T) <= 1 for all z} = sup_w 4 K(w) / |w|^2,
        m = E[y],  K(w) = log E exp(w.(y - m))

    The first form is the condition of Kuhn and Tucker for a rate R(D) of 0. The second follows with w = 2 z / T, and
    shows that T0c is twice the optimal sub-Gaussian variance of y. The limit w -> 0 is `local_critical_temperature`,
    so T0c >= 2 lambda_max. For a Gaussian they are equal. Skewness and rare distant modes increase T0c: for two
    points at a distance of d with probabilities p < 1/2 and 1 - p it is d^2 (1 - 2 p) / log((1 - p) / p), while
    2 lambda_max is 2 d^2 p (1 - p).

    Below T0c, some split state has a lower free energy than the merged state, for enough hypotheses. The merged state
    nevertheless remains a local minimum down to 2 lambda_max.

    The maximum is searched over lengths and directions of w, and refined by the ascent w <- 2 grad K(w) / T, which
    never decreases the ratio. K is convex, so the values on a grid also give an upper bound in one and two dimensions.

    For samples, this is the value of their empirical distribution. Each of n samples is a point of probability 1 / n,
    so the value is at least max |y_i - m|^2 / log(n), whatever distribution they were drawn from: in ten dimensions,
    1000 samples of a normal distribution have a value above 4 instead of 2. A warning is given if this `sample_bound`
    decides.

    Args:
        points: Samples or atoms of p(y | x), or means of Gaussians, [points, dim].
        weights: Probabilities of the points, [points], summing to 1; None if all are equal.
        covariances: Covariances of Gaussians around the points, [points, dim, dim]; None without Gaussians.

    Returns:
        The temperature with its bounds, in the units of the squared Euclidean cost; 0 if all points are equal.

    Warns:
        UserWarning: If a single sample decides the result (its bound is above 2 lambda_max and 0.9 of the result). Pass
            the means, weights and covariances of a mixture instead.

    Example:
        >>> two_modes, unequal = torch.tensor([[0.0], [1.0]]), torch.tensor([0.9, 0.1])
        >>> round(critical_temperature(two_modes, weights=unequal).temperature, 3)  # 2 lambda_max is 0.18
        0.364
        >>> centers = torch.tensor([[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]])  # of the paper's three Gaussians
        >>> result = critical_temperature(centers, covariances=0.01 * torch.eye(2).expand(3, 2, 2))
        >>> round(result.temperature, 3), result.lower <= result.temperature <= result.upper < 1.007 * result.lower
        (0.501, True)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Definition 1 and
        Proposition 3 (ii), as T0c = -1 / R'(D_max); R. Blahut, *Computation of channel capacity and rate-distortion
        functions*, IEEE Transactions on Information Theory 1972, for the condition; J. Arbel, O. Marchal, H. Nguyen,
        *On strict sub-Gaussianity, optimal proxy variance and symmetry for bounded random variables*, ESAIM:
        Probability and Statistics 2020, arXiv:1901.09188.
    """
    owner = "critical_temperature"
    probabilities, offsets, covariances = _centered(owner, points, weights, covariances)
    second = offsets.mT @ (probabilities[:, None] * offsets) + torch.einsum("p,pde->de", probabilities, covariances)
    variances, axes = torch.linalg.eigh(second)
    local, widest = 2 * float(variances[-1]), float(_largest_eigenvalue(covariances).max())
    if local <= 0:
        return CriticalTemperature(0.0, 0.0, 0.0, 0.0)
    squares = offsets.square().sum(dim=-1)
    if not _SMALLEST < (size := float(squares.max()) + widest) < 1 / _SMALLEST:
        rule = f"have squared distances from {_SMALLEST:g} to {1 / _SMALLEST:g}"
        raise ValueError(bad_value(owner, "points", rule, f"{size:g}", "Divide them by their scale."))
    bounds = (squares / -probabilities.log()).nan_to_num()  # 0 / 0 for a single point
    sample_bound, farthest = float(bounds.max()), math.sqrt(float(squares.max()))

    def log_means(vectors: Tensor) -> Tensor:
        """Return K(w) of vectors [vectors, dim]; the form with expm1 is accurate for short vectors as well."""
        exponents = vectors @ offsets.mT.contiguous() + torch.einsum("vd,pde,ve->vp", vectors, covariances, vectors) / 2
        shift = (exponents.amax(dim=-1, keepdim=True) - 600).clamp_min(0)  # exp(709) overflows
        return shift.squeeze(-1) + ((exponents - shift).expm1() @ probabilities).log1p()

    # Below `shortest` the second derivative of K bounds the ratio by `floor`; beyond `longest`, the bound
    # K(w) <= |w| farthest + |w|^2 widest / 2 does. Chords of the convex K bound it between neighboring lengths.
    floor = (1 + _SLACK) * max(local, 2 * widest, sample_bound)
    shortest = min(1.0, math.log(floor / local)) / (farthest + 2 * math.sqrt(widest))
    longest = max(4 * farthest / (floor - 2 * widest), 2 * shortest)
    n_lengths = math.ceil(math.log(longest / shortest, _LENGTH_RATIO)) + 1
    lengths = torch.logspace(math.log10(shortest), math.log10(longest), n_lengths, dtype=torch.float64).to(squares)
    directions, excess = _directions(offsets, bounds, axes)
    grid = (lengths[:, None] * directions[:, None]).flatten(0, 1)
    values = torch.cat([log_means(part) for part in grid.split(math.ceil(_CHUNK / len(offsets)))]).view(-1, n_lengths)
    slopes = values.diff() / lengths.diff()
    at_zero = values[:, 1:] - slopes * lengths[1:]  # <= 0
    peaks = (-2 * at_zero / slopes.clamp_min(1e-300)).clamp(lengths[:-1], lengths[1:])
    highest_chord = float((4 * (at_zero + slopes * peaks) / peaks.square()).max())

    best, positions = (values / lengths.square()).max(dim=-1)
    vectors = (lengths[positions, None] * directions)[best.argsort(descending=True)[:_N_STARTS]]
    for _ in range(_N_ASCENT_STEPS):
        with torch.enable_grad():
            values = log_means(vectors.requires_grad_())
            (gradients,) = torch.autograd.grad(values.sum(), vectors)
        ratios = 4 * values.detach() / vectors.detach().square().sum(dim=-1).clamp_min(shortest**2)
        vectors = 2 * gradients / ratios.clamp_min(local).unsqueeze(-1)
    temperature = max(local, 2 * widest, sample_bound, float(ratios.max()))
    if weights is None and not covariances.any() and sample_bound > max(local, _DECISIVE * temperature):
        message = f"{owner}: one of {len(points)} samples decides the result (`sample_bound`). Pass a mixture instead."
        warnings.warn(message, stacklevel=3)
    hoeffding = 2 * (farthest**2 + widest)
    upper = max(temperature, min(excess * max(floor, highest_chord), hoeffding))
    return CriticalTemperature(temperature, (1 - _ROUNDING) * temperature, (1 + _ROUNDING) * upper, sample_bound)


def _centered(
    owner: str, points: Tensor, weights: Tensor | None, covariances: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities [points], offsets from the mean [points, dim], covariances [points or 1, dim, dim]."""
    _check_samples(owner, points, "points")
    check_shape(owner, "points", points, points.shape[-2:], "points, dim")
    check_finite(owner, "points", points, always=True, advice="Remove such points.")
    n, dim = points.shape
    points = points.detach().double()
    if weights is not None:
        check_tensor(owner, "weights", weights)
        check_shape(owner, "weights", weights, (n,), "points")
    probabilities = probabilities_of(owner, "weights", weights, n, points)
    possible = probabilities > 0
    if covariances is None:
        covariances = points.new_zeros(1, dim, dim)
    else:
        check_tensor(owner, "covariances", covariances)
        variances_of(owner, covariances, argument="covariances")
        check_shape(owner, "covariances", covariances, (n, dim, dim), "points, dim, dim")
        covariances = covariances.detach().to(points)[possible]
    probabilities, offsets = probabilities[possible], (points - points[:1])[possible]  # exactly 0 for equal points
    return probabilities, offsets - probabilities @ offsets, covariances


def probabilities_of(owner: str, argument: str, values: Tensor | None, n: int, like: Tensor) -> Tensor:
    """Return checked probabilities, [..., n], in the dtype and on the device of a tensor; all equal if None."""
    if values is None:
        return like.new_full((n,), 1 / n)
    check_tensor(owner, argument, values)
    check_shape(owner, argument, values, (*values.shape[:-1], n), f"..., {argument}")
    values = values.detach().to(like)
    sums = values.sum(dim=-1, keepdim=True)
    if bool((values < 0).any()) or not torch.allclose(sums, sums.new_ones(()), atol=1e-4):
        got = f"a sum of {sums.flatten()[0].item():.4g} and a minimum of {values.min().item():.4g}"
        raise ValueError(bad_value(owner, argument, "be >= 0 and sum to 1", got, "Divide them by their sum."))
    return values / sums


def variances_of(
    owner: str, covariance: float | Tensor, beside: float | Tensor = 0.0, argument: str = "covariance"
) -> Tensor:
    """Return the variances along the principal axes, ascending, [..., dim], at least in the precision of `beside`."""
    if not isinstance(covariance, Tensor):
        check_non_negative(owner, argument, covariance)
    other = torch.as_tensor(beside)
    matrix = torch.as_tensor(covariance, device=None if isinstance(covariance, Tensor) else other.device)
    matrix = matrix.to(torch.promote_types(torch.promote_types(matrix.dtype, other.dtype), torch.float32))
    if matrix.ndim == 0:
        matrix = matrix.reshape(1, 1)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        advice = "Put variances on a diagonal: torch.diag(variances)."
        raise ValueError(bad_value(owner, argument, "be a variance or [..., dim, dim]", tuple(matrix.shape), advice))
    if not bool(matrix.isfinite().all()):
        raise ValueError(bad_value(owner, argument, "be finite", matrix[~matrix.isfinite()][0].item()))
    if not torch.allclose(matrix, matrix.mT, rtol=1e-4, atol=1e-4 * float(matrix.abs().max())):
        raise ValueError(bad_value(owner, argument, "be symmetric", "a matrix that is not", "Use (C + C.mT) / 2."))
    variances = torch.linalg.eigvalsh(matrix)
    # Rounding of a singular matrix may leave -1e-17; a matrix with more is not a covariance.
    slack = 100 * torch.finfo(variances.dtype).eps * variances.abs().amax(dim=-1, keepdim=True)
    if bool((variances < -slack).any()):
        got = f"an eigenvalue of {variances.min().item():.4g}"
        raise ValueError(bad_value(owner, argument, "have no negative variance", got, "Is it symmetric?"))
    return torch.where(variances > slack, variances, 0)


def _directions(offsets: Tensor, bounds: Tensor, axes: Tensor) -> tuple[Tensor, float]:
    """Return unit vectors [directions, dim], and the factor by which others may exceed their largest ratio.

    A vector between two directions at an angle of 2 a is a convex combination of them, 1 / cos(a) longer at most. K is
    convex, so its ratio is at most 1 / cos(a)^2 times the larger of theirs.
    """
    dim = offsets.shape[-1]
    if dim <= 2:
        n = 2 if dim == 1 else _N_DIRECTIONS
        angles = torch.arange(n).to(offsets) * (2 * math.pi / n)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)[:, :dim]
        return directions, 1.0 if dim == 1 else 1 / math.cos(math.pi / n) ** 2
    every = math.ceil(len(offsets) / _N_DIRECTIONS)
    spread = offsets[bounds.argsort(descending=True)[::every]]  # from the farthest to the nearest
    main = axes.mT[-_N_DIRECTIONS:]
    return torch.cat([main, -main, torch.nn.functional.normalize(spread, dim=-1)]), math.inf


def critical_temperature_of_residuals(residuals: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return 2 lambda_max of the second moment around 0 of a trained model's residuals.

    For the residuals y - E[y | x] it is the local critical temperature of the mean covariance E_x[C(x)]: equal to
    `local_critical_temperature` of every input if they have the same covariance, and never above the largest of
    them. Errors of the model's mean increase it. Neither it nor the largest local value is an upper bound of the first
    critical temperature T0c of an input, which is higher for skewed distributions; `critical_temperature` of the
    residuals of similar inputs estimates T0c.

    Args:
        residuals: Residuals, [..., samples, dim], targets less the model's conditional mean, such as the mean of its
            hypotheses by score. Group by similar inputs on a leading axis to see C(x) itself.
        mask: Valid samples, [..., samples]; None if all are valid.

    Returns:
        Local critical temperature, [...].

    Example:
        >>> critical_temperature_of_residuals(torch.tensor([[0.5], [-0.5], [0.5]]))
        tensor(0.5000)
    """
    _check_samples("critical_temperature_of_residuals", residuals, "residuals")
    return 2 * _largest_eigenvalue(_moments("critical_temperature_of_residuals", residuals, mask, centered=False))


def next_critical_temperatures(
    samples: Tensor, hypotheses: Tensor, temperature: float | Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return 2 lambda_max(C_kk) for each hypothesis: the temperature at which its cluster becomes unstable.

    Coinciding hypotheses have the samples and the value of their cluster, which is locally stable while T is above its
    value. The blocks depend on T, so the value is an estimate while T is far above it, and exact when T reaches it. As
    for the first split, a state with a divided cluster may have a lower free energy before that.

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


def n_distinct(hypotheses: Tensor, tolerance: float | Tensor = 0.01) -> Tensor:
    """Return the number of distinct positions of the hypotheses; those within `tolerance` count once.

    Taken in order, a hypothesis represents its position unless it is within `tolerance` of an earlier representative.
    Every hypothesis is then within `tolerance` of a representative, and representatives are further
    apart than that; a chain of close neighbors does not count as one position.

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
    check_tensor("n_distinct", "hypotheses", hypotheses)
    check_non_negative("n_distinct", "tolerance", tolerance)
    if hypotheses.ndim < 2:
        rule = "have shape [..., hypotheses, dim]"
        raise ValueError(bad_value("n_distinct", "hypotheses", rule, tuple(hypotheses.shape)))
    squares = pairwise_sq_euclidean(hypotheses=hypotheses, targets=hypotheses).detach()
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
    return stands.sum(dim=-1)


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
    for step in range(1, len(counts)):
        if counts[step] > (highest := max(counts[:step])):
            after, before = temperatures[step].item(), temperatures[step - 1].item()
            transitions.append(Transition(step, after, before, highest, counts[step]))
    return transitions


@full_precision
def _moments(owner: str, samples: Tensor, mask: Tensor | None, *, centered: bool) -> Tensor:
    """Return the second moments [..., dim, dim] around the mean or around 0."""
    samples = samples.to(torch.promote_types(samples.dtype, torch.float32))
    mask = samples.new_ones(samples.shape[:-1], dtype=torch.bool) if mask is None else mask
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
