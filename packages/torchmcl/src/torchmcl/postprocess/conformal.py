"""Conformal prediction sets: regions that contain the target with a given probability, for any network.

A new target lies in its region with probability at least `coverage`, on average over calibration rows and new rows, if
the new rows are exchangeable with the calibration rows. Training rows must not be used for calibration.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.checks import check_fraction, check_interval, check_non_negative, check_positive, check_positive_int
from torchmcl.costs import pairwise_euclidean
from torchmcl.costs.declared import NormFormula, cost_declaration
from torchmcl.costs.families import HypothesisFamily
from torchmcl.density import mixture_distribution
from torchmcl.errors import bad_value
from torchmcl.postprocess.inputs import (
    CostFn,
    Scores,
    WeightedHypotheses,
    pair_cost,
    real_targets,
    row_weights,
    weighted_hypotheses,
)
from torchmcl.scoring import ScoreObjective, SigmoidScores, SoftmaxScores
from torchmcl.types import Distributions, Predictions

__all__ = [
    "BallNonconformity",
    "Conformal",
    "MixtureNonconformity",
    "Nonconformity",
    "TubeNonconformity",
    "effective_counts",
    "quantile",
    "rows_needed",
]


def effective_counts(weights: NDArray[np.float64], units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide the weights by the expected weight of a new row, so that they sum to the effective sample size.

    Rows are sampled from the weighted population in proportion to their weights. The conformal quantile is the quantile
    of the weighted scores, with the weight of the new row at infinity. As this weight is unknown, the mean weight
    sum(w^2) / sum(w) of a row of the weighted population is used. In units of it, the new row has weight 1, and the
    calibration rows together have sum(w)^2 / sum(w^2), Kish's effective sample size. If the rows of a unit are
    dependent, and a new row belongs to a new unit, w are the weights of the units.

    Args:
        weights: Weights, [rows].
        units: Index of the unit of each row, [rows].

    References:
        R. Tibshirani et al., *Conformal prediction under covariate shift*, NeurIPS 2019, arXiv:1904.06019, Equation
        (7).
    """
    _, unit = np.unique(units, return_inverse=True)
    sums = np.bincount(unit.ravel(), weights)
    return weights * (sums.sum() / (sums @ sums)) if len(sums) else weights


def quantile(scores: NDArray[np.float64], counts: NDArray[np.float64], alpha: float) -> float:
    """Compute the conformal quantile; infinite if there are too few calibration rows for `alpha`.

    Args:
        scores: Nonconformity scores, [rows].
        counts: Weight of each row relative to a new row, which has weight 1, [rows].
        alpha: Allowed fraction of misses.
    """
    if len(scores) == 0:
        return math.inf
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(counts[order])
    rank = (1 - alpha) * (reached[-1] + 1)
    place = int(np.searchsorted(reached, rank - 1e-9))
    return math.inf if place >= len(order) else float(scores[order[place]])


def rows_needed(alpha: float) -> int:
    """Return the smallest number of calibration rows for which the quantile is finite.

    Example:
        >>> rows_needed(0.1), rows_needed(0.05)
        (9, 19)
    """
    return math.ceil((1 - alpha) / alpha - 1e-9)


class Nonconformity(ABC):
    """Base class of nonconformity scores: functions of a target that are larger for worse predictions.

    A region contains the values with scores up to a quantile. A score is immutable, and must not be fitted on the
    calibration rows.
    """

    @abstractmethod
    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the score of each row, [rows].

        Args:
            given: Hypotheses [rows, hypotheses, ...] and probabilities [rows, hypotheses].
            targets: Targets, [rows, ...].
            mask: Valid steps, [rows, steps], or None.
        """

    @abstractmethod
    def volume(
        self, given: WeightedHypotheses, level: float, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Compute the volume of the region of each row, [rows], at a level."""


@dataclass(frozen=True)
class BallNonconformity(Nonconformity):
    """Cost of the nearest hypothesis: regions are unions of balls around the hypotheses.

    Args:
        cost_fn: Cost function, any `pairwise_*` function.
        power: Exponent with which balls grow with the probability of their hypothesis: costs are divided by
            (n p)^power. With 0, all balls of a row are equal.

    Example:
        >>> two = WeightedHypotheses(torch.tensor([[[0.0], [4.0]]]), torch.tensor([[0.5, 0.5]]))
        >>> BallNonconformity()(two, torch.tensor([[3.0]]))
        tensor([1.])
    """

    cost_fn: CostFn = pairwise_euclidean
    power: float = 0.0

    def __post_init__(self) -> None:
        """Check the field."""
        check_non_negative("BallNonconformity", "power", self.power)

    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the lowest cost relative to the size of the ball."""
        steps = None if mask is None else mask.unsqueeze(1)
        cost = pair_cost("BallNonconformity", self.cost_fn, given.hypotheses, targets.unsqueeze(1), steps).squeeze(1)
        return (cost / _growth(given.probabilities, self.power)).amin(dim=-1)

    def volume(
        self, given: WeightedHypotheses, level: float, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Compute the volume of the union of balls.

        Raises:
            ValueError: For a cost that is not a function of the Euclidean distance.
        """
        norm = cost_declaration(self.cost_fn).formula
        if not isinstance(norm, NormFormula) or norm.order != 2 or norm.mean_over_steps:
            rule = "be declared as a power of the Euclidean distance for a volume"
            name = getattr(self.cost_fn, "__name__", repr(self.cost_fn))
            raise ValueError(
                bad_value("BallNonconformity", "cost_fn", rule, name, "`TubeNonconformity` has a volume for sequences.")
            )
        radii = (level * _growth(given.probabilities, self.power)) ** (1 / norm.power)
        return _union_volume(given.hypotheses.flatten(2), radii, n_samples, generator)


@dataclass(frozen=True)
class TubeNonconformity(Nonconformity):
    """Largest scaled distance over the steps to the nearest hypothesis: regions are tubes around hypotheses.

    A target lies in the region if all its steps lie in the tube of the same hypothesis, so that coverage is joint over
    the steps. The coordinates of a vector are steps of dimension 1.

    Args:
        scales: Radius of each step relative to the others, from `TubeNonconformity.fit`. None for equal radii.
        power: Exponent by which tubes grow with the probability of their hypothesis, as in `BallNonconformity`.

    Example:
        >>> one = WeightedHypotheses(torch.zeros(1, 1, 2, 2), torch.ones(1, 1))
        >>> TubeNonconformity(scales=(1.0, 2.0))(one, torch.tensor([[[0.0, 1.0], [3.0, 0.0]]]))
        tensor([1.5000])
    """

    scales: tuple[float, ...] | None = None
    power: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_non_negative("TubeNonconformity", "power", self.power)
        for scale in self.scales or ():
            check_positive("TubeNonconformity", "scales", scale)

    @classmethod
    def fit(
        cls,
        predictions: Predictions | Distributions,
        targets: Any,
        mask: Tensor | None = None,
        *,
        fraction: float = 0.9,
        power: float = 0.0,
    ) -> "TubeNonconformity":
        """Fit the scales, which are quantiles of the distance to the nearest hypothesis at each step.

        Args:
            predictions: Predictions for rows other than the calibration rows.
            targets: Targets, [rows, ...]; masked steps are ignored, even NaN.
            mask: Valid steps, [rows, steps], or None.
            fraction: Fraction of the rows whose distance is below the scale.
            power: Exponent by which tubes grow, as above.
        """
        owner = "TubeNonconformity.fit"
        given = weighted_hypotheses(owner, predictions, SigmoidScores())
        shape = (len(given.hypotheses), *given.hypotheses.shape[2:])
        targets, mask = real_targets(owner, targets, mask, shape)
        if len(targets) == 0:
            raise ValueError(bad_value(owner, "targets", "have at least one row", tuple(targets.shape)))
        check_fraction(owner, "fraction", fraction)
        distances = _step_distances(given.hypotheses, targets.to(given.hypotheses))  # [rows, hypotheses, steps]
        mask = torch.ones_like(distances[:, 0], dtype=torch.bool) if mask is None else mask
        spread = distances.masked_fill(~mask.unsqueeze(1), 0)
        # The nearest hypothesis by the mean distance over steps in units of their typical sizes: no step dominates.
        unit = (spread.amin(dim=1).sum(dim=0) / mask.sum(dim=0).clamp_min(1)).clamp_min(1e-12)
        nearest = (spread / unit).mean(dim=-1).argmin(dim=-1)
        nearest_distances = distances[torch.arange(len(distances), device=nearest.device), nearest]
        scales = torch.nanquantile(nearest_distances.masked_fill(~mask, torch.nan).double(), fraction, dim=0)
        return cls(tuple(scales.nan_to_num(1.0).clamp_min(1e-12).tolist()), power)

    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the largest scaled distance along the nearest hypothesis."""
        distances = _step_distances(given.hypotheses, targets)
        scaled = distances / self._radii(distances)
        if mask is not None:
            scaled = scaled.masked_fill(~mask.unsqueeze(1), 0)
        return (scaled.amax(dim=-1) / _growth(given.probabilities, self.power)).amin(dim=-1)

    def volume(
        self, given: WeightedHypotheses, level: float, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Compute the volume of the cross-sections of the union of tubes, averaged over the steps."""
        events = _as_steps(given.hypotheses).transpose(1, 2)  # [rows, steps, hypotheses, dim]
        growth = level * _growth(given.probabilities, self.power)
        radii = growth.unsqueeze(1) * self._radii(events[..., 0].mT).unsqueeze(-1)
        volumes = _union_volume(events.flatten(0, 1), radii.flatten(0, 1), n_samples, generator)
        return volumes.view(radii.shape[:2]).mean(dim=-1)

    def _radii(self, like: Tensor) -> Tensor:
        """Return the relative radii [steps] for a tensor [..., steps]."""
        if self.scales is None:
            return like.new_ones(like.shape[-1])
        if len(self.scales) != like.shape[-1]:
            rule = f"have one number for each of {like.shape[-1]} steps"
            raise ValueError(bad_value("TubeNonconformity", "scales", rule, len(self.scales)))
        return like.new_tensor(self.scales)


@dataclass(frozen=True)
class MixtureNonconformity(Nonconformity):
    """Negative log density of the mixture of hypotheses with scales: regions are its level sets.

    Args:
        family: Family of the scales, `FullNormal()` for example.

    Example:
        >>> from torchmcl.costs import FullNormal
        >>> given = WeightedHypotheses(torch.zeros(1, 1, 2), torch.ones(1, 1), torch.eye(2).expand(1, 1, 2, 2))
        >>> MixtureNonconformity(FullNormal())(given, torch.zeros(1, 2))
        tensor([1.8379])
    """

    family: HypothesisFamily

    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the negative log density at the targets."""
        if mask is not None:
            advice = "Leave out truncated rows, or use `TubeNonconformity`."
            raise ValueError(bad_value("MixtureNonconformity", "mask", "be None", "a mask", advice))
        return -self._mixture(given).log_prob(targets)

    def volume(
        self, given: WeightedHypotheses, level: float, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Estimate the volume of the level set as the mean of 1 / density over samples inside it."""
        mixture = self._mixture(given)
        device = given.hypotheses.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=generator is not None):
            if generator is not None:  # torch distributions do not accept a generator
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            logs = mixture.log_prob(mixture.sample(torch.Size((n_samples,))))  # [samples, rows]
        exponents = torch.where(-logs <= level, -logs, -torch.inf)
        return exponents.logsumexp(dim=0).exp() / n_samples

    def _mixture(self, given: WeightedHypotheses) -> torch.distributions.MixtureSameFamily:
        if given.scale is None:
            advice = "Train with `scales=True`, or use BallNonconformity()."
            raise ValueError(bad_value("MixtureNonconformity", "predictions", "be Distributions", "no scale", advice))
        logits = given.probabilities.clamp_min(torch.finfo(given.probabilities.dtype).tiny).log()
        predictions = Distributions(given.hypotheses, logits, given.scale.to(given.hypotheses))
        return mixture_distribution(predictions, self.family, scores=SoftmaxScores())


@dataclass(frozen=True)
class Conformal:
    """Calibrated prediction sets: regions of values with a nonconformity score up to a level.

    Attributes:
        nonconformity: Nonconformity score.
        level: Calibrated level, a quantile of the scores of the calibration rows.
        coverage: Expected fraction of new targets inside.
        scores: Objective that turns score logits into probabilities; None if the calibration used probabilities.
        n_rows: Number of calibration rows.
    """

    nonconformity: Nonconformity
    level: float
    coverage: float
    scores: ScoreObjective | None
    n_rows: int

    @classmethod
    def calibrate(
        cls,
        nonconformity: Nonconformity,
        predictions: Predictions | Distributions,
        targets: Any,
        *,
        coverage: float = 0.9,
        mask: Tensor | None = None,
        sample_weights: Any = None,
        scores: Scores | None = None,
    ) -> "Conformal":
        """Calibrate, on held-out rows, regions that contain a new target with probability `coverage`.

        Args:
            nonconformity: Nonconformity, such as `BallNonconformity()`, `TubeNonconformity()` or
                `MixtureNonconformity(family)`.
            predictions: Hypotheses [rows, hypotheses, ...] and scores of the calibration rows.
            targets: Targets, [rows, ...], one for each row; masked steps are ignored, even NaN.
            coverage: Fraction of new targets inside, in (0, 1).
            mask: Valid steps, [rows, steps]; `TubeNonconformity` and costs of sequences support it.
            sample_weights: Weights [rows] for new rows from a different population, proportional to the ratio of its
                density to that of the calibration rows. Coverage is then approximate, and falls short under a strong
                shift, where a few rows have most of the weight: a new row gets the average weight instead of its own.
            scores: Objective that the scores were trained with, `SigmoidScores()` by default, or probabilities
                [rows, hypotheses].

        Raises:
            ValueError: For too few rows (with the required number), inconsistent shapes, NaN, or a mask that the
                nonconformity does not support.

        Example:
            >>> predictions, targets = Predictions(torch.zeros(99, 1, 1)), torch.arange(1, 100).view(-1, 1) / 100
            >>> regions = Conformal.calibrate(BallNonconformity(), predictions, targets, coverage=0.9)
            >>> round(regions.level, 4), regions.volume(predictions)[:2]
            (0.9, tensor([1.8000, 1.8000]))
        """
        owner = "Conformal.calibrate"
        check_interval(owner, "coverage", coverage, "(0, 1)", "0.9 covers 90 % of the targets.")
        given = weighted_hypotheses(owner, predictions, scores)
        values = _scores_of(owner, nonconformity, given, targets, mask).cpu().numpy()
        weights = np.ones(len(values))
        if sample_weights is not None:
            weights = row_weights(owner, sample_weights, len(values)).cpu().numpy()
        counts = effective_counts(weights, np.arange(len(values)))
        level = quantile(values, counts, 1 - coverage)
        if not np.isfinite(level):
            rule = f"have at least {rows_needed(1 - coverage)} rows for a coverage of {coverage:g}"
            weighted = "" if sample_weights is None else f" that count as {counts.sum():.1f}"
            got = f"{len(values)}{weighted}"
            raise ValueError(bad_value(owner, "targets", rule, got, "Or choose a lower coverage."))
        objective = SigmoidScores() if scores is None else scores
        return cls(
            nonconformity, level, coverage, objective if isinstance(objective, ScoreObjective) else None, len(values)
        )

    def contains(
        self,
        predictions: Predictions | Distributions,
        targets: Any,
        *,
        mask: Tensor | None = None,
        scores: Scores | None = None,
    ) -> Tensor:
        """Return whether each target [rows, ...] lies in its region, [rows]."""
        given = self._weighted(predictions, scores)
        return _scores_of("Conformal.contains", self.nonconformity, given, targets, mask) <= self.level

    def volume(
        self,
        predictions: Predictions | Distributions,
        *,
        scores: Scores | None = None,
        n_samples: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Compute the volume of the region of each row, [rows]; exact for balls and tubes in one dimension.

        Args:
            predictions: Hypotheses [rows, hypotheses, ...] and scores.
            scores: Objective of the scores, or probabilities; as in the calibration by default.
            n_samples: Number of samples if the volume is estimated.
            generator: Random generator of these samples; torch's global generator by default.
        """
        check_positive_int("Conformal.volume", "n_samples", n_samples)
        return self.nonconformity.volume(self._weighted(predictions, scores), self.level, n_samples, generator)

    def _weighted(self, predictions: Predictions | Distributions, scores: Scores | None) -> WeightedHypotheses:
        objective = self.scores if scores is None else scores
        if objective is None:
            raise ValueError(bad_value("Conformal", "scores", "be probabilities, as in the calibration", "None"))
        return weighted_hypotheses("Conformal", predictions, objective)


def _scores_of(owner: str, nonconformity: Any, given: WeightedHypotheses, targets: Any, mask: Tensor | None) -> Tensor:
    """Return the nonconformity of each row in double precision, [rows], after checking the targets.

    With single precision, rounding of the level could exclude targets exactly on it.
    """
    if not isinstance(nonconformity, Nonconformity):
        rule, advice = "be a Nonconformity", "BallNonconformity() or TubeNonconformity() for example."
        raise TypeError(bad_value(owner, "nonconformity", rule, type(nonconformity).__name__, advice))
    targets, steps = real_targets(owner, targets, mask, (len(given.hypotheses), *given.hypotheses.shape[2:]))
    return nonconformity(given, targets.to(given.hypotheses), steps).double()


def _growth(probabilities: Tensor, power: float) -> Tensor:
    """Return the size of each hypothesis's ball relative to that of a hypothesis with average probability."""
    return (probabilities * probabilities.shape[-1]).clamp_min(1e-12) ** power


def _step_distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the distance of each hypothesis to the target at each step, [rows, hypotheses, steps]."""
    return (_as_steps(hypotheses) - _as_steps(targets.unsqueeze(1))).square().sum(dim=-1).sqrt()


def _as_steps(events: Tensor) -> Tensor:
    """Return events [rows, n, steps, dim]; the coordinates of a vector are steps of one dimension."""
    return events.unsqueeze(-1) if events.ndim == 3 else events.flatten(3)


def _union_volume(centers: Tensor, radii: Tensor, n_samples: int, generator: torch.Generator | None) -> Tensor:
    """Return the volume of the union of balls [rows, balls, dim] with radii [rows, balls] of each row, [rows].

    It is exact in one dimension. Otherwise it is an unbiased estimate from samples in the balls, weighted by 1 /
    (number of balls that contain the sample).
    """
    if centers.shape[-1] == 1:
        lower, order = (centers.squeeze(-1) - radii).sort(dim=-1)
        upper = (centers.squeeze(-1) + radii).gather(-1, order)
        reached = torch.cat([lower[:, :1], upper.cummax(dim=-1).values[:, :-1]], dim=-1)
        return (upper - torch.maximum(lower, reached)).clamp_min(0).sum(dim=-1)
    dim = centers.shape[-1]
    volumes = math.exp(dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1)) * radii**dim
    total = volumes.sum(dim=-1, keepdim=True)
    ball = torch.multinomial(torch.where(total > 0, volumes, 1.0), n_samples, replacement=True, generator=generator)
    shape = (*ball.shape, dim)
    direction = torch.randn(shape, dtype=centers.dtype, device=centers.device, generator=generator)
    direction = direction / direction.square().sum(dim=-1, keepdim=True).sqrt()
    length = torch.rand(ball.shape, dtype=centers.dtype, device=centers.device, generator=generator) ** (1 / dim)
    reach = (length * radii.gather(1, ball)).unsqueeze(-1)
    points = centers.gather(1, ball.unsqueeze(-1).expand(shape)) + direction * reach
    holds = torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist") <= radii.unsqueeze(1)
    # A ball contains its own samples, despite rounding.
    count = holds.scatter(-1, ball.unsqueeze(-1), True).sum(dim=-1)
    return total.squeeze(-1) * (1 / count).mean(dim=-1)
