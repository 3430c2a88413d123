"""Split-conformal calibration of the highest-density sets of a predictive distribution.

The conformity score of a target is the mass of the predicted density above it; lower is better. The score of a new row
is below the calibrated quantile with probability 1 - alpha, for any density, if the row is exchangeable with the
calibration rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import pdtr
from torch import Tensor

from torchmcl.density import REACH, Mixture, masked_first
from torchmcl.postprocess import effective_counts, quantile
from torchmcl_tables.estimators.rows import Rows
from torchmcl_tables.estimators.tables import Targets

# Scores up to 1 are masses. If the density is almost 0, the score is 1 plus the distance to the nearest hypothesis in
# bandwidths.
_BEYOND = 1.0
# Bisection steps for the score of a value, the largest mass they reach, and the number of masses in the initial grid.
_HALVINGS = 16
_LARGEST = 1 - 2.0**-_HALVINGS
_LOOKS = 16
# Bins of gap depth: the lowest density in the gap divided by the density at the lower of the adjacent peaks.
_DEPTHS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
# Sets are extended to the mean of their row if at most this mass lies between the set and the mean.
_ON_THE_WAY = 0.02
# Significance level of a gap: the probability that so few values lie in it by chance.
_MIN_EXPECTED, _DOUBT = 3.0, 0.01


def conformity(density: Mixture, values: Tensor, fill: float = 1.0) -> Tensor:
    """Compute the conformity scores of values under a density over one output, [rows].

    Args:
        density: Density of each row.
        values: Values to score, [rows, 1].
        fill: Depth from which gaps are filled, see `Mixture.highest_density`.
    """
    mass = density.mass_above(values) if fill >= 1 else _smallest_mass(density, values, fill)
    distances = (values - density.hypotheses.squeeze(-1)).abs() / density.widths.squeeze(-1)
    nearest = distances.amin(dim=-1)
    return torch.where((nearest <= REACH) | (mass < _BEYOND), mass, _BEYOND + nearest)


def _smallest_mass(density: Mixture, values: Tensor, fill: float) -> Tensor:
    """Compute the smallest mass whose highest-density set contains a value, [rows], by bisection.

    A filled gap may open again at a larger mass: if an interval merges with one that has a higher peak, the relative
    depth of the gap increases. A grid of masses is therefore searched first for the largest mass whose set does not
    contain the value.
    """

    def holds(mass: Tensor) -> Tensor:
        pieces = density.highest_density(mass, fill)
        return ((pieces.lower <= values) & (values <= pieces.upper)).any(dim=-1)

    low = torch.zeros_like(values[:, 0])
    n_looks = _LOOKS if fill > 0 else 1
    for mass in (torch.full_like(low, look / n_looks) for look in range(1, n_looks)):
        low = torch.where(holds(mass), low, mass)
    high = low + 1 / n_looks
    for _ in range(_HALVINGS - round(math.log2(n_looks))):
        middle = (low + high) / 2
        held = holds(middle)
        low, high = torch.where(held, low, middle), torch.where(held, middle, high)
    return high


def supported_fill(density: Mixture, values: Tensor, mass: float = 0.9) -> float:
    """Estimate the depth below which gaps in the sets are credible; 0 if held-out values support no gaps.

    A gap predicts that few values lie in it. The number of values in the gaps is compared with the number expected if
    the density inside a gap equaled the density at its ends. Gaps of similar depth are tested together, the deepest
    first.

    Args:
        density: Density of each held-out row, over one output.
        values: Held-out values, [rows, 1].
        mass: Mass of the sets whose gaps are tested.
    """
    pieces = density.highest_density(mass)
    depth = density.gap_depth(mass)
    starts, ends = pieces.upper[:, :-1], pieces.lower[:, 1:]
    inside = ((starts < values) & (values < ends)).any(dim=-1).double()
    height = density.log_prob(pieces.lower[:, :1]).exp()
    expected = ((ends - starts).nansum(dim=-1) * height).clamp_max(1.0)
    believed, least = 0.0, 0.0
    for most in _DEPTHS:
        judged = (depth >= least) & (depth < most)
        n_inside, n_expected = float(inside[judged].sum()), float(expected[judged].sum())
        if n_expected >= _MIN_EXPECTED:
            if n_inside >= n_expected / 2 or pdtr(int(n_inside), n_expected) > _DOUBT:
                break
            believed = most
        least = most
    return believed


def region(density: Mixture, level: float, fill: float = 1.0) -> tuple[Tensor, Tensor]:
    """Compute the set of values whose score is at most `level`, as lower and upper ends, [rows, pieces]."""
    if math.isinf(level):
        ends = density.hypotheses.new_full((len(density.hypotheses), 1), math.inf)
        return -ends, ends
    if level >= _BEYOND:
        return _balls(density, max(level - _BEYOND, REACH), fill)
    pieces = density.highest_density(math.nextafter(level, 1.0), fill)
    return pieces.lower, pieces.upper


def _balls(density: Mixture, radius: float, fill: float) -> tuple[Tensor, Tensor]:
    """Compute the union of intervals of `radius` bandwidths around the hypotheses, with shallow gaps filled."""
    reach = density.widths.squeeze(-1) * radius
    centers = density.hypotheses.squeeze(-1)
    if fill >= 1:
        return _union(centers - reach, centers + reach)
    closed = density.highest_density(_LARGEST, fill)
    return _union(
        torch.cat([centers - reach, closed.lower], dim=-1), torch.cat([centers + reach, closed.upper], dim=-1)
    )


def _union(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the union of intervals, [rows, intervals], in increasing order; missing intervals are NaN."""
    lower, order = lower.sort(dim=-1)  # NaN comes last
    upper = upper.gather(-1, order).nan_to_num(-math.inf, math.inf, -math.inf).cummax(dim=-1).values
    # An interval of the union begins where no earlier interval overlaps.
    begins = torch.cat([torch.ones_like(lower[..., :1], dtype=torch.bool), lower[..., 1:] > upper[..., :-1]], dim=-1)
    ends = torch.cat([begins[..., 1:], torch.ones_like(begins[..., :1])], dim=-1)
    return masked_first(lower, begins), masked_first(upper, ends)


def reaching(
    ends: tuple[Tensor, Tensor], means: Tensor, between: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Extend sets to the mean of their row if little mass lies in between.

    With almost no noise, the mean may be slightly outside an even narrower set. The mean of a skewed density, for
    example of rare insurance claims, may lie far outside the set; the set is then not extended.

    Args:
        ends: Lower and upper ends of the intervals, [rows, pieces], increasing; NaN comes last.
        means: Mean of each row, [rows, 1].
        between: Function that computes the mass strictly between two values, [some, 1], for the rows with the given
            indices, [some].
    """
    lower, upper = (end.clone() for end in ends)
    last = (~upper.isnan()).sum(dim=1, keepdim=True) - 1
    lowest, highest = lower[:, :1], upper.gather(1, last)

    def near(first: Tensor, second: Tensor) -> Tensor:
        """Return the rows in which the first value is below the second, with little mass in between."""
        rows = (first < second).squeeze(1).nonzero().squeeze(1)  # only these rows: computing a mass is slow
        return rows[between(rows, first[rows], second[rows]) <= _ON_THE_WAY] if len(rows) else rows

    down, up = near(means, lowest), near(highest, means)
    lower[down, 0] = means[down, 0]
    upper[up, last[up, 0]] = means[up, 0]
    return lower, upper


def joined(outputs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Stack the ends of the sets of all outputs, [rows, outputs, pieces], padded with NaN."""
    lower, upper = (torch.stack(ends, dim=1) for ends in _alike(outputs))
    return lower, upper


def stacked(blocks: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate the ends of the sets of blocks of rows, [rows, pieces], padded with NaN."""
    lower, upper = (torch.cat(ends) for ends in _alike(blocks))
    return lower, upper


def _alike(parts: Sequence[tuple[Tensor, Tensor]]) -> list[list[Tensor]]:
    """Pad all lower ends and all upper ends with NaN to the same number of intervals."""
    n_pieces = max((lower.shape[-1] for lower, _ in parts), default=1)
    pad = torch.nn.functional.pad
    return [
        [pad(end, (0, n_pieces - end.shape[-1]), value=math.nan) for end in ends] for ends in zip(*parts, strict=True)
    ]


# With this many rows, calibration adds a quarter of a percentage point to the error of the coverage.
CALIBRATION_ROWS = 16_384
_GAP_ROWS = 4096
# Number of rows whose kernels are in memory at the same time.
_ROWS_AT_ONCE = 8192


def supported_gaps(predictive: Any, rows: Rows) -> NDArray[np.float64]:
    """Estimate the depth below which gaps in the sets stay open, [outputs], from held-out rows."""
    rows = rows.head(_GAP_ROWS)
    fill = np.zeros(predictive.targets.n_outputs)
    if len(rows):
        density = predictive.standardized(rows.inputs.astype(np.float64))
        targets = predictive.targets.standardized(rows.targets)
        for i in range(len(fill)):
            fill[i] = supported_fill(density.marginal(i), targets[:, i : i + 1])
    return fill


@dataclass(frozen=True)
class Calibrator:
    """Calibrator of prediction sets: conformity scores of calibration rows.

    Attributes:
        fill: Depth from which gaps are filled, [outputs].
        scores: Mass of the density above each target, [outputs, rows].
        surprise: Negative joint log density of all outputs, [rows].
        counts: Weight of each row relative to a new row, [rows].
    """

    fill: NDArray[np.float64]
    scores: NDArray[np.float64]
    surprise: NDArray[np.float64]
    counts: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check shapes and values, because a file may come from an untrusted source."""
        n_outputs, n_rows = len(self.fill), len(self.counts)
        if self.scores.shape != (n_outputs, n_rows) or self.surprise.shape != (n_rows,):
            raise ValueError("the scores of a calibrator differ in the number of outputs or rows")
        if not (self.scores >= -1e-6).all():  # rounding may make 0 negative
            raise ValueError("the scores of a calibrator must not be negative or NaN")
        if not ((self.counts >= 0) & np.isfinite(self.counts)).all():
            raise ValueError("the counts of a calibrator must be finite and not negative")
        if not ((self.fill >= 0) & (self.fill <= 1)).all():
            raise ValueError("the depths of gaps must lie in [0, 1]")

    @classmethod
    def fit(cls, predictive: Any, rows: Rows, fill: NDArray[np.float64]) -> "Calibrator":
        """Compute the scores of rows that were used for neither training nor selection."""
        rows = rows.head(CALIBRATION_ROWS)
        counts = effective_counts(rows.weights, rows.units)
        if not len(rows):
            return cls(fill, np.zeros((len(fill), 0)), np.zeros(0), counts)
        density = predictive.standardized(rows.inputs.astype(np.float64))
        targets = predictive.targets.standardized(rows.targets)
        inner = [conformity(density.marginal(i), targets[:, i : i + 1], depth).numpy() for i, depth in enumerate(fill)]
        # No set contains values outside the bounds, whatever their density.
        low, high = predictive.targets.bounds
        outside = (rows.targets < low) | (rows.targets > high)
        scores = np.where(outside.T, np.inf, np.stack(inner))
        return cls(fill, scores, -density.log_prob(targets).numpy(), counts)

    def surprise_at(self, coverage: float) -> float:
        """Compute the conformal quantile of `surprise` for a coverage."""
        return quantile(self.surprise, self.counts, 1 - coverage)

    def __call__(self, predictive: Any, X: NDArray[Any], coverage: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Compute the lower and upper ends of the sets in the units of y, [rows, outputs, pieces]."""
        levels = [quantile(scores, self.counts, 1 - coverage) for scores in self.scores]
        ends_of_blocks = []
        for rows in blocks(X):
            density, means = predictive.standardized_with_means(rows)
            parts = []
            for i, (level, depth) in enumerate(zip(levels, self.fill, strict=True)):
                marginal = density.marginal(i)
                parts.append(reaching(region(marginal, level, depth), means[:, i : i + 1], _mass_between(marginal)))
            ends_of_blocks.append(parts)
        ends = joined([stacked(parts) for parts in zip(*ends_of_blocks, strict=True)])
        lower, upper = (predictive.targets.restored(end.movedim(1, -1).numpy()) for end in ends)
        # A set with an infinite level is the whole line and ignores the bounds.
        lower, upper = np.where(np.isinf(levels), -np.inf, lower), np.where(np.isinf(levels), np.inf, upper)
        return np.moveaxis(lower, -1, 1), np.moveaxis(upper, -1, 1)


@dataclass(frozen=True)
class FittedDensity:
    """Predictive distribution and calibrator of a fitted regressor.

    Attributes:
        predictive: Predictive distribution, a `Predictive` or a `Blend`.
        calibrator: Calibrator of its prediction sets.
    """

    predictive: Any
    calibrator: Calibrator

    @property
    def targets(self) -> Targets:
        """Names, units and bounds of the targets."""
        return self.predictive.targets


def _mass_between(density: Mixture) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def between(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        some = density.rows(rows)
        return some.cdf(high) - some.cdf(low)

    return between


def blocks(X: NDArray[Any]) -> list[NDArray[Any]]:
    """Split rows into blocks whose kernels fit in memory."""
    return [X[start : start + _ROWS_AT_ONCE] for start in range(0, max(1, len(X)), _ROWS_AT_ONCE)]
