"""Conformal regions: sets that contain the target with a given probability, for any network.

The guarantee holds for rows that are exchangeable with the calibration rows, which must not be training rows: a new
target lies in its region with probability at least `coverage`, on average over calibration rows and new rows.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.checks import bad_value, check_positive, check_positive_int, check_real, check_share
from torchmcl.postprocess._inputs import (
    Scores,
    WeightedHypotheses,
    as_tensor,
    real_targets,
    row_weights,
    scored,
)
from torchmcl.postprocess.nonconformity import Nonconformity
from torchmcl.scoring import ScoreObjective, SigmoidScores
from torchmcl.types import Distributions, Predictions

_PERCENT = "0.9 covers 90 % of the targets."


def effective_counts(weights: NDArray[np.float64], units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weights [rows] divided by the expected weight of a new row; they sum to the effective sample size.

    Weighted rows represent a population from which rows are drawn in proportion to their weights. The conformal
    quantile is that of the weighted scores, with the weight of the new row at infinity. This weight is unknown. A row
    of the weighted population has the mean weight sum(w^2) / sum(w), which is used instead. In these units, the new
    row has weight 1, and the calibration rows together have sum(w)^2 / sum(w^2), Kish's effective sample size. Rows of
    a unit are dependent, and a new row belongs to a new unit; w are then the weights of the units.

    Args:
        weights: [rows]
        units: [rows], the unit that each row belongs to.

    Reference:
        Tibshirani, Foygel Barber, Candes, Ramdas: Conformal prediction under covariate shift, 2019, Eq. (7).
    """
    _, unit = np.unique(units, return_inverse=True)
    sums = np.bincount(unit.ravel(), weights)
    return weights * (sums.sum() / (sums @ sums)) if len(sums) else weights


def quantile(scores: NDArray[np.float64], counts: NDArray[np.float64], alpha: float) -> float:
    """Return the conformal quantile; infinite if there are too few calibration rows for `alpha`.

    Args:
        scores: [rows]
        counts: [rows], the weight of each row relative to a new row, which has weight 1.
        alpha: the allowed fraction of misses.
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


@dataclass(frozen=True, eq=False)
class ConformalRegions:
    """Calibrated regions: targets with a nonconformity up to a level. They can be pickled.

    Attributes:
        nonconformity: the calibrated nonconformity.
        coverage: the expected fraction of new targets inside.
        groups: [groups], integers in increasing order; empty without groups.
        levels: [groups], the quantile of each, or a single one.
        scores: converts score logits to probabilities; None if probabilities were given.
        n_rows: the number of calibration rows.
    """

    nonconformity: Nonconformity
    coverage: float
    groups: Tensor
    levels: Tensor
    scores: ScoreObjective | None
    n_rows: int

    def level(self, n_rows: int, groups: Any = None) -> Tensor:
        """Return the level of each row, [rows].

        Raises:
            ValueError: for a group without calibration rows, or groups if none were calibrated.
        """
        owner = "ConformalRegions"
        if len(self.groups) == 0:
            if groups is not None:
                raise ValueError(bad_value(owner, "groups", "be None: it was calibrated without groups", "groups"))
            return self.levels.expand(n_rows)
        if groups is None:
            raise ValueError(bad_value(owner, "groups", "be given: it was calibrated with groups", "None"))
        wanted = _integers(owner, "groups", groups, n_rows)
        place = torch.searchsorted(self.groups, wanted).clamp_max(len(self.groups) - 1)
        unknown = self.groups[place] != wanted
        if unknown.any():
            rule = "be among those of the calibration"
            raise ValueError(bad_value(owner, "groups", rule, wanted[unknown][0].item()))
        return self.levels[place]

    def contains(
        self,
        predictions: Predictions | Distributions,
        targets: Any,
        *,
        mask: Tensor | None = None,
        groups: Any = None,
        scores: Scores | None = None,
    ) -> Tensor:
        """Return whether each target [rows, ...] lies in its region, [rows]."""
        given = self._scored(predictions, scores)
        values = _values("ConformalRegions", self.nonconformity, given, targets, mask)
        return values.double() <= self.level(len(values), groups).to(values.device)

    def volume(
        self,
        predictions: Predictions | Distributions,
        *,
        groups: Any = None,
        scores: Scores | None = None,
        n_samples: int = 1000,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the volume of the region of each row, [rows]; exact for balls and tubes on the line and in the plane.

        Args:
            predictions: hypotheses [rows, hypotheses, ...] and scores.
            groups: [rows], if it was calibrated with groups.
            scores: how score logits become probabilities, or probabilities; as in the calibration by default.
            n_samples: number of draws if the volume is estimated.
            generator: for these draws; torch's global generator by default.
        """
        check_positive_int("ConformalRegions", "n_samples", n_samples)
        given = self._scored(predictions, scores)
        level = self.level(len(given.hypotheses), groups).to(given.hypotheses)
        return self.nonconformity.volume(given, level, n_samples, generator)

    def _scored(self, predictions: Predictions | Distributions, scores: Scores | None) -> WeightedHypotheses:
        reader = self.scores if scores is None else scores
        if reader is None:
            rule = "be probabilities, as in the calibration"
            raise ValueError(bad_value("ConformalRegions", "scores", rule, "None"))
        return scored("ConformalRegions", predictions, reader)


def conformal(
    predictions: Predictions | Distributions,
    targets: Any,
    *,
    nonconformity: Nonconformity,
    coverage: float = 0.9,
    mask: Tensor | None = None,
    sample_weights: Any = None,
    groups: Any = None,
    units: Any = None,
    scores: Scores | None = None,
) -> ConformalRegions:
    """Return regions that contain a new target with probability `coverage`, calibrated on held-out rows.

    Args:
        predictions: hypotheses [rows, hypotheses, ...] and scores of the calibration rows.
        targets: [rows, ...], one for each row; the contents of masked steps are ignored, even NaN.
        nonconformity: `BallScore()`, `TubeScore()`, `DensityLevels()` or your own.
        coverage: in (0, 1), the fraction of new targets inside.
        mask: [rows, steps], True where a step of the target is real; `TubeScore` and costs of sequences support it.
        sample_weights: [rows], for new rows from a different population: proportional to the ratio of its
            density to theirs. Coverage is then approximate, and falls short under a strong shift, where a
            few rows have most of the weight: a new row gets the average weight instead of its own.
        groups: [rows], integers: each group has its own level, and coverage holds within each group (Mondrian).
        units: [rows], integers: rows of the same unit, frames of one person for example, are not independent, and
            count as one row.
        scores: how logits become probabilities, `SigmoidScores()` by default, or probabilities [rows, hypotheses].

    Raises:
        ValueError: for too few rows (with the required number), inconsistent shapes, NaN, or a mask that the
            nonconformity does not support.

    Example:
        >>> from torchmcl.postprocess import BallScore
        >>> given, targets = Predictions(torch.zeros(99, 1, 1)), torch.arange(1, 100).view(-1, 1) / 100
        >>> regions = conformal(given, targets, nonconformity=BallScore(), coverage=0.9)
        >>> regions.levels, regions.volume(given)[:2]
        (tensor([0.9000], dtype=torch.float64), tensor([1.8000, 1.8000]))
    """
    owner, kept = "conformal", SigmoidScores() if scores is None else scores
    check_share(owner, "coverage", coverage, "(0, 1)", _PERCENT)
    given = scored(owner, predictions, scores)
    values = _values(owner, nonconformity, given, targets, mask).double().cpu().numpy()
    weights = np.ones(len(values))
    if sample_weights is not None:
        weights = row_weights(owner, sample_weights, len(values)).cpu().numpy()
    unit = np.arange(len(values)) if units is None else _integers(owner, "units", units, len(values)).numpy()
    if groups is None:
        keys, members = torch.zeros(0, dtype=torch.long), [np.arange(len(values))]
    else:
        keys, place = _integers(owner, "groups", groups, len(values)).unique(return_inverse=True)
        order = np.argsort(place.numpy(), kind="stable")
        members = np.split(order, np.cumsum(np.bincount(place.numpy()))[:-1])
    names = ["" if groups is None else f" in group {key}" for key in (keys.tolist() or [0])]
    levels = [
        _level(owner, values[rows], weights[rows], unit[rows], coverage, name)
        for rows, name in zip(members, names, strict=True)
    ]
    reader = kept if isinstance(kept, ScoreObjective) else None
    exact = torch.tensor(levels, dtype=torch.float64)  # rounded to float32, a level could exclude targets exactly on it
    return ConformalRegions(nonconformity, float(coverage), keys, exact, reader, len(values))


def select_nonconformity(
    offered: Sequence[Nonconformity],
    predictions: Predictions | Distributions,
    targets: Any,
    *,
    coverage: float = 0.9,
    mask: Tensor | None = None,
    scores: Scores | None = None,
    n_samples: int = 1000,
    generator: torch.Generator | None = None,
) -> Nonconformity:
    """Return the nonconformity with the smallest regions, selected on rows other than the calibration rows.

    Levels are computed from every second row, volumes from the others. Selection on the calibration rows themselves
    would invalidate the guarantee.

    Args:
        offered: the candidates; their volumes must be in the same space.
        predictions: hypotheses [rows, hypotheses, ...] and scores.
        targets: [rows, ...]
        coverage: in (0, 1), of the compared regions.
        mask: [rows, steps], or None.
        scores: how score logits become probabilities, or probabilities.
        n_samples: number of draws for estimated volumes.
        generator: for these draws; torch's global generator by default.

    Example:
        >>> from torchmcl.postprocess import BallScore
        >>> hypotheses, logits = torch.tensor([[[0.0], [9.0]]]), torch.tensor([[3.0, -3.0]])
        >>> given = Predictions(hypotheses.expand(40, 2, 1), logits.expand(40, 2))
        >>> targets = torch.linspace(-1, 1, 40).view(-1, 1)
        >>> select_nonconformity([BallScore(), BallScore(power=0.5)], given, targets).power
        0.5
    """
    owner = "select_nonconformity"
    if isinstance(offered, Nonconformity):
        raise TypeError(bad_value(owner, "offered", "be a sequence to choose from", type(offered).__name__))
    if not offered:
        raise ValueError(bad_value(owner, "offered", "hold at least one nonconformity", "none"))
    kinds = {type(one).__name__: getattr(one, "of_cross_sections", False) for one in offered}
    if len(set(kinds.values())) > 1:
        rule = "have volumes of the same space"
        advice = "Tubes measure cross-sections, as a mean over the steps: offer tubes only, or none."
        raise ValueError(bad_value(owner, "offered", rule, ", ".join(kinds), advice))
    given = scored(owner, predictions, scores)
    targets, mask = real_targets(owner, targets, mask, (len(given.hypotheses), *given.hypotheses.shape[2:]))
    check_share(owner, "coverage", coverage, "(0, 1)", _PERCENT)
    needed = 2 * rows_needed(1 - coverage)
    if len(targets) < needed:
        rule = f"have at least {needed} rows for a coverage of {coverage:g}, half of them for levels"
        raise ValueError(bad_value(owner, "targets", rule, len(targets)))
    (fitted, shares), (judged, judged_shares) = (_every_other(given, place) for place in (0, 1))
    half = None if mask is None else mask[::2]
    mean_volumes = []
    for one in offered:
        regions = conformal(fitted, targets[::2], nonconformity=one, coverage=coverage, mask=half, scores=shares)
        volumes = regions.volume(judged, scores=judged_shares, n_samples=n_samples, generator=generator)
        mean_volumes.append(float(volumes.double().mean()))
    return offered[int(np.argmin(mean_volumes))]


def _every_other(given: WeightedHypotheses, place: int) -> tuple[Predictions | Distributions, Tensor]:
    """Return every other row, starting at index `place`, as predictions and their probabilities."""
    hypotheses, shares = given.hypotheses[place::2], given.probabilities[place::2]
    if given.scale is None:
        return Predictions(hypotheses), shares
    return Distributions(hypotheses, None, given.scale[place::2]), shares


def _values(owner: str, nonconformity: Any, given: WeightedHypotheses, targets: Any, mask: Tensor | None) -> Tensor:
    """Return the nonconformity of each row, [rows], after checking the targets."""
    if not isinstance(nonconformity, Nonconformity):
        rule = "be a Nonconformity"
        advice = "BallScore() or TubeScore() for example."
        raise TypeError(bad_value(owner, "nonconformity", rule, type(nonconformity).__name__, advice))
    truth, steps = real_targets(owner, targets, mask, (len(given.hypotheses), *given.hypotheses.shape[2:]))
    return nonconformity(given, truth.to(given.hypotheses), steps)


def _integers(owner: str, argument: str, values: Any, n_rows: int) -> Tensor:
    found = as_tensor(owner, argument, values).cpu()
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise TypeError(bad_value(owner, argument, "be integers", found.dtype))
    if found.shape != (n_rows,):
        raise ValueError(bad_value(owner, argument, f"have shape ({n_rows},)", tuple(found.shape)))
    return found.long()


def _level(
    owner: str,
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    units: NDArray[np.int64],
    coverage: float,
    name: str,
) -> float:
    """Return the conformal quantile of the given rows.

    Raises:
        ValueError: if there are too few rows.
    """
    counts = effective_counts(weights, units)
    level = quantile(values, counts, 1 - coverage)
    if not np.isfinite(level):
        rule = f"have at least {rows_needed(1 - coverage)} rows{name} for a coverage of {coverage:g}"
        weighted = "" if len(counts) and np.allclose(counts, 1) else f" that count as {counts.sum():.1f}"
        raise ValueError(bad_value(owner, "targets", rule, f"{len(values)}{weighted}", "Or choose a lower coverage."))
    return level


class AdaptiveLevel:
    """A level that adapts to a stream: after a miss the next region is larger, after a hit slightly smaller.

    The fraction of hits tends to `coverage` for every stream, even under drift: after n steps it differs by at most
    (max(coverage, 1 - coverage) + step_size) / (step_size n).

    Args:
        coverage: in (0, 1), the fraction of targets inside.
        step_size: the adaptation rate.
        window: number of latest values to use; all by default.

    Example:
        >>> level = AdaptiveLevel(coverage=0.8, step_size=0.05)
        >>> hits = [level.update(value) for value in (0.3, 0.1, 0.2, 0.5, 0.4, 0.9, 0.2)]
        >>> level.n_misses, level.level
        (1, 0.9)

    Reference:
        Gibbs, Candes: Adaptive conformal inference under distribution shift, 2021, Eq. (2).
    """

    def __init__(self, coverage: float = 0.9, step_size: float = 0.01, window: int | None = None) -> None:
        check_share("AdaptiveLevel", "coverage", coverage, "(0, 1)", _PERCENT)
        check_positive("AdaptiveLevel", "step_size", step_size)
        if window is not None:
            check_positive_int("AdaptiveLevel", "window", window)
        self.coverage, self.step_size, self.window = coverage, step_size, window
        self.current_coverage = coverage
        self.n_steps = self.n_misses = 0
        self._sorted: list[float] = []
        self._recent: list[float] = []

    @property
    def level(self) -> float:
        """The level of the next region; infinite until enough targets have been observed."""
        if self.current_coverage <= 0:
            return -math.inf
        n = len(self._sorted)
        rank = math.ceil(self.current_coverage * (n + 1) - 1e-9)
        return self._sorted[rank - 1] if 1 <= rank <= n else math.inf

    def update(self, value: float) -> bool:
        """Record the nonconformity of the observed target; return whether it was in its region."""
        check_real("AdaptiveLevel.update", "value", value)
        hit = bool(value <= self.level)
        self.n_steps += 1
        self.n_misses += not hit
        self.current_coverage += self.step_size * (self.coverage - hit)
        bisect.insort(self._sorted, float(value))
        self._recent.append(float(value))
        if self.window is not None and len(self._recent) > self.window:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._recent.pop(0)))
        return hit
