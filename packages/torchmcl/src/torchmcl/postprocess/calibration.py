"""Calibration of scores to the frequency of winning, on held-out rows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.checks import bad_value, check_mask, check_positive, check_positive_int
from torchmcl.postprocess._inputs import finite_tensor, logits_of, probabilities_of, row_weights, warn_unless_sigmoid
from torchmcl.rules.winners import WTA
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Distributions, Matching, Predictions, check_predictions

# The range of 1 / T. Scores with no finite optimal temperature, constant ones for example, end at a limit.
_COLDEST, _HOTTEST = 1e3, 1e-3
_NEWTON_STEPS = 100
# Approximate number of rows of the first fit, which is then refined on all rows in two or three steps.
_FIRST_ROWS = 5000
# Groups of scores in which mean score and frequency of winning are compared.
_N_BINS = 10
# Group boundaries are computed from at most about this many scores.
_SCORES_SORTED = 100_000


class ScoreMap(ABC):
    """A fitted map from log-probabilities [rows, hypotheses] in float64 to calibrated ones."""

    @abstractmethod
    def __call__(self, logs: Tensor) -> Tensor:
        """Return normalized log-probabilities."""


class CalibrationMethod(ABC):
    """A calibration method: a frozen value with one method."""

    @abstractmethod
    def fit(self, logs: Tensor, labels: Tensor, weights: Tensor) -> ScoreMap:
        """Return the map with the lowest loss, computed in float64.

        Args:
            logs: [rows, hypotheses], log-probabilities.
            labels: [rows, hypotheses], the fraction of the row's targets that each hypothesis wins.
            weights: [rows], how much each row counts.
        """


@dataclass(frozen=True)
class TemperatureMap(ScoreMap):
    """Probabilities raised to the power 1 / temperature, and normalized.

    Attributes:
        temperature: above 1 for overconfident scores.
    """

    temperature: float

    def __call__(self, logs: Tensor) -> Tensor:
        """Return normalized log-probabilities."""
        return (logs / self.temperature).log_softmax(dim=-1)


@dataclass(frozen=True)
class TemperatureScaling(CalibrationMethod):
    """One parameter for all scores: it changes their confidence, but not their order.

    Example:
        >>> logs, labels = torch.tensor([[[0.9, 0.1]], [[0.75, 0.25]]], dtype=torch.float64)
        >>> TemperatureScaling().fit(logs.log(), labels, torch.ones(1).double())
        TemperatureMap(temperature=2.0)
    """

    def fit(self, logs: Tensor, labels: Tensor, weights: Tensor) -> TemperatureMap:
        """Return the temperature with the lowest cross-entropy, by Newton's method within bounds."""
        centred = logs - logs.amax(dim=-1, keepdim=True)
        wanted = weights * (labels * centred).sum(dim=-1)
        inverse, every = 1.0, max(len(logs) // _FIRST_ROWS, 1)
        if every > 1 and bool(weights[::every].sum() > 0):  # a subset of the rows gives the starting point
            inverse = _inverse_temperature(centred[::every], wanted[::every], weights[::every], inverse)
        return TemperatureMap(float(f"{1 / _inverse_temperature(centred, wanted, weights, inverse):.10g}"))


def _inverse_temperature(centred: Tensor, wanted: Tensor, weights: Tensor, inverse: float) -> float:
    """Return the 1 / T with the lowest cross-entropy, a convex function of it, starting from the guess `inverse`."""
    low, high, goal = _HOTTEST, _COLDEST, wanted.sum()
    inverse = min(max(inverse, 2 * low), high / 2)
    for _ in range(_NEWTON_STEPS):
        shares = (inverse * centred).softmax(dim=-1)
        weighted = shares * centred
        means = weighted.sum(dim=-1)
        slope = float((weights * means).sum() - goal)
        squares = (weighted * centred).sum(dim=-1) - means.square()
        curvature = float((weights * squares).sum())
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else -1.0
        following = step if low < step < high else (low * high) ** 0.5
        if abs(following - inverse) <= 1e-12 * inverse:
            break
        inverse = following
    return inverse


@dataclass(frozen=True, eq=False)
class VectorMap(ScoreMap):
    """softmax(slopes * logs + offsets).

    Attributes:
        slopes: [hypotheses]
        offsets: [hypotheses]
    """

    slopes: Tensor
    offsets: Tensor

    def __call__(self, logs: Tensor) -> Tensor:
        """Return normalized log-probabilities."""
        if logs.shape[-1] != len(self.slopes):
            rule = f"have {len(self.slopes)} hypotheses, as those it was fitted on"
            raise ValueError(bad_value("VectorMap", "predictions", rule, logs.shape[-1]))
        return (logs * self.slopes.to(logs) + self.offsets.to(logs)).log_softmax(dim=-1)


@dataclass(frozen=True)
class VectorScaling(CalibrationMethod):
    """A slope and an offset for each hypothesis, for networks whose hypotheses have fixed roles.

    Args:
        pull: strength of the regularization of slopes to 1 and offsets to 0, in rows: without it the offset of a
            hypothesis that never wins would diverge.
    """

    pull: float = 1.0

    def __post_init__(self) -> None:
        """Check the field."""
        check_positive("VectorScaling", "pull", self.pull)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def fit(self, logs: Tensor, labels: Tensor, weights: Tensor) -> VectorMap:
        """Return slopes and offsets with the lowest cross-entropy, by L-BFGS; the problem is convex."""
        # Copies: tensors created in inference mode cannot be part of a backward pass.
        logs, labels, weights = logs.clone(), labels.clone(), weights.clone()
        n = logs.shape[-1]
        parameters = torch.cat([logs.new_ones(n), logs.new_zeros(n)]).requires_grad_()
        start, total = parameters.detach().clone(), weights.sum()
        optimizer = torch.optim.LBFGS(
            [parameters], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-13, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            scaled = (logs * parameters[:n] + parameters[n:]).log_softmax(dim=-1)
            loss = -(weights * (labels * scaled).sum(dim=-1)).sum() / total
            loss = loss + self.pull / total * (parameters - start).square().sum() / 2
            loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
            return loss

        optimizer.step(closure)
        slopes, offsets = parameters.detach().split(n)
        return VectorMap(slopes.cpu().clone(), offsets.cpu().clone())


@dataclass(frozen=True, eq=False)
class IsotonicMap(ScoreMap):
    """A non-decreasing function, the same for all hypotheses, normalized over them.

    Attributes:
        knots: [n], probabilities in increasing order.
        values: [n], how often a hypothesis with this probability wins; interpolated linearly.
    """

    knots: Tensor
    values: Tensor

    def __call__(self, logs: Tensor) -> Tensor:
        """Return normalized log-probabilities."""
        knots, values = self.knots.to(logs), self.values.to(logs)
        if len(knots) == 1:
            return torch.zeros_like(logs).log_softmax(dim=-1)
        given = logs.exp().clamp(knots[0], knots[-1])
        right = torch.searchsorted(knots, given).clamp(1, len(knots) - 1)
        share = (given - knots[right - 1]) / (knots[right] - knots[right - 1])
        heights = values[right - 1] + share * (values[right] - values[right - 1])
        return heights.log().log_softmax(dim=-1)


@dataclass(frozen=True)
class IsotonicScaling(CalibrationMethod):
    """The frequency of winning as a non-decreasing function of the score.

    Args:
        n_knots: scores are grouped into at most this many before the fit.
    """

    n_knots: int = 2000

    def __post_init__(self) -> None:
        """Check the field."""
        check_positive_int("IsotonicScaling", "n_knots", self.n_knots)

    def fit(self, logs: Tensor, labels: Tensor, weights: Tensor) -> IsotonicMap:
        """Return the function with the lowest squared error, by pooling adjacent violators."""
        given = logs.exp().cpu().numpy().ravel()
        wins = labels.cpu().numpy().ravel()
        mass = np.broadcast_to(weights.cpu().numpy()[:, None], labels.shape).ravel()
        kept = mass > 0
        knots, values = isotonic(*_grouped(given[kept], wins[kept], mass[kept], self.n_knots))
        # A frequency of 0 would make a later win impossible; one win in twice as many rows would be plausible.
        least = 0.5 / (float(mass.sum()) / labels.shape[-1] + 1)
        return IsotonicMap(torch.from_numpy(knots), torch.from_numpy(values).clamp_min(least))


def _grouped(
    given: NDArray[np.float64], wins: NDArray[np.float64], mass: NDArray[np.float64], n_knots: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mean score, mean win and weight of at most `n_knots` groups of scores; equal scores share a group."""
    different, group = np.unique(given, return_inverse=True)
    if len(different) > n_knots:
        counts = np.cumsum(np.bincount(group, mass))
        coarse = np.minimum((counts * (n_knots / counts[-1])).astype(int), n_knots - 1)
        _, coarse = np.unique(coarse, return_inverse=True)
        group = coarse[group]
    total = np.bincount(group, mass).astype(np.float64)
    return np.bincount(group, mass * given) / total, np.bincount(group, mass * wins) / total, total


def isotonic(
    knots: NDArray[np.float64], values: NDArray[np.float64], mass: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return knots and values of the non-decreasing weighted least-squares fit, only at the ends of flat pieces."""
    blocks: list[list[float]] = []  # value, mass, first, last
    for index, (value, weight) in enumerate(zip(values.tolist(), mass.tolist(), strict=True)):
        blocks.append([value, weight, index, index])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            value, weight, _, last = blocks.pop()
            before = blocks[-1]
            total = before[1] + weight
            blocks[-1] = [(before[0] * before[1] + value * weight) / total, total, before[2], last]
    ends = sorted({(int(place), block[0]) for block in blocks for place in block[2:]})
    return knots[[place for place, _ in ends]], np.array([value for _, value in ends])


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """A fitted calibration, called on predictions. It can be pickled.

    Attributes:
        score_map: the fitted map.
        scores: how score logits are read.
        error_before: mean |score - frequency of winning| on the rows of the fit, in ten groups of equally many scores.
        error_after: the same after calibration.
        n_targets: the number of targets in the fit.
    """

    score_map: ScoreMap
    scores: ScoreObjective
    error_before: float
    error_after: float
    n_targets: int

    def __call__(self, predictions: Predictions) -> Predictions:
        """Return predictions with calibrated score logits of the same kind."""
        check_predictions("ScoreCalibration", "predictions", predictions)
        logits = _logits("ScoreCalibration", predictions)
        calibrated = self.score_map(_logs("ScoreCalibration", logits, self.scores)).exp()
        return predictions._replace(score_logits=logits_of(calibrated, self.scores).to(logits.dtype))

    def __str__(self) -> str:
        """Return a one-line description."""
        change = f"{self.error_before:.4f} to {self.error_after:.4f}"
        return f"{type(self.score_map).__name__} of {self.n_targets} targets: calibration error from {change}"


def calibrate_scores(
    predictions: Predictions | Distributions | Tensor,
    winners: Matching | Tensor,
    *,
    mask: Tensor | None = None,
    method: CalibrationMethod | None = None,
    scores: ScoreObjective | None = None,
    sample_weights: Tensor | None = None,
) -> ScoreCalibration:
    """Return a calibration of scores, fitted in float64 on held-out rows.

    Args:
        predictions: with score logits, or the logits [rows, hypotheses].
        winners: a Matching, whose cheapest hypotheses win, or the indices of the winners, integers [rows] or
            [rows, targets].
        mask: [rows, targets], True where a target is real, if `winners` are indices; a Matching has its own.
        method: `TemperatureScaling()` by default, `VectorScaling()` or `IsotonicScaling()`.
        scores: how score logits are read, `SigmoidScores()` by default.
        sample_weights: [rows], how much each row counts.

    Raises:
        ValueError: for inconsistent shapes, NaN, indices out of range, or no real target.

    Example:
        >>> import torchmcl as mcl
        >>> logits = torch.tensor([[4.0, -4.0]]).expand(100, 2)  # nearly sure of the first
        >>> winners = torch.arange(100) % 4 == 3  # which wins three times of four
        >>> calibration = calibrate_scores(logits, winners.long(), scores=mcl.SoftmaxScores())
        >>> calibration(Predictions(torch.zeros(1, 2, 1), logits[:1])).score_logits.exp()
        tensor([[0.7500, 0.2500]])
    """
    owner, given, method = "calibrate_scores", scores, method or TemperatureScaling()
    scores = SigmoidScores() if given is None else given
    if not isinstance(method, CalibrationMethod):
        rule = "be a CalibrationMethod"
        raise TypeError(bad_value(owner, "method", rule, repr(method), "VectorScaling() for example."))
    check_score_objective(owner, scores)
    logits = _logits(owner, predictions)
    if given is None:
        warn_unless_sigmoid(owner, logits, stacklevel=3)
    wins = _wins(owner, winners, mask, logits)  # [rows, hypotheses], how many targets each wins
    counts = wins.sum(dim=-1)
    weights = counts
    if sample_weights is not None:
        weights = counts * row_weights(owner, sample_weights, len(counts)).to(counts)
    if not weights.sum() > 0:
        advice = "Check the mask and the sample weights."
        raise ValueError(bad_value(owner, "winners", "have at least one real target that counts", "none", advice))
    logs = _logs(owner, logits, scores)
    labels = wins / counts.clamp_min(1).unsqueeze(-1)
    score_map = method.fit(logs, labels, weights)
    before, after = (score_error(values.exp(), labels, weights) for values in (logs, score_map(logs)))
    return ScoreCalibration(score_map, scores, before, after, int(counts.sum()))


def _logits(owner: str, predictions: Any) -> Tensor:
    """Return the score logits [rows, hypotheses] of predictions, or the given logits."""
    logits = predictions.score_logits if isinstance(predictions, (Predictions, Distributions)) else predictions
    if logits is None:
        raise ValueError(bad_value(owner, "predictions", "have score logits", "none", "Use a head with scores=True."))
    logits = finite_tensor(owner, "score_logits", logits)
    if logits.ndim != 2 or logits.shape[1] < 1:
        raise ValueError(bad_value(owner, "score_logits", "have shape [rows, hypotheses]", tuple(logits.shape)))
    return logits


def _logs(owner: str, logits: Tensor, scores: ScoreObjective) -> Tensor:
    """Return log-probabilities in float64."""
    probabilities = probabilities_of(owner, logits.double(), scores, logits.double().unsqueeze(-1))
    return probabilities.clamp_min(torch.finfo(torch.float64).tiny).log()


def _wins(owner: str, winners: Any, mask: Tensor | None, logits: Tensor) -> Tensor:
    """Return the number of real targets that each hypothesis wins, [rows, hypotheses]."""
    if isinstance(winners, Matching):
        expected = (len(logits), winners.cost.shape[-2], logits.shape[1])
        if winners.cost.shape != expected:
            rule = f"have a cost of shape {expected}, as the scores"
            raise ValueError(bad_value(owner, "winners", rule, tuple(winners.cost.shape)))
        return WTA()(winners.cost, winners.mask).sum(dim=-2).double()
    places = winners if isinstance(winners, Tensor) else torch.as_tensor(winners)
    if places.is_floating_point() or places.is_complex() or places.dtype == torch.bool:
        raise TypeError(bad_value(owner, "winners", "be a Matching or integers", places.dtype))
    places = (places.unsqueeze(-1) if places.ndim == 1 else places).to(logits.device)
    if places.ndim != 2 or len(places) != len(logits):
        rule = f"have shape [{len(logits)}] or [{len(logits)}, targets]"
        raise ValueError(bad_value(owner, "winners", rule, tuple(winners.shape)))
    real = torch.ones_like(places, dtype=torch.bool)
    if mask is not None:
        check_mask(owner, mask, places.shape)
        real = mask.to(logits.device).expand(places.shape)
    outside = real & ((places < 0) | (places >= logits.shape[1]))
    if outside.any():
        rule = f"be places from 0 to {logits.shape[1] - 1} where the target is real"
        raise ValueError(bad_value(owner, "winners", rule, places[outside][0].item()))
    wins = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    return wins.scatter_add_(1, places.long().masked_fill(~real, 0), real.double())


def score_error(probabilities: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """Return the calibration error of scores in groups of equal size: mean |score - frequency of winning|.

    With bins of equal width, nearly all scores of many hypotheses would fall into the first bin, in which scores and
    wins agree on average for any scores.

    Args:
        probabilities: [rows, hypotheses]
        labels: [rows, hypotheses], the fraction of the row's targets that each wins; without weights, their number.
        weights: [rows], how much each row counts; its number of targets by default.
    """
    if weights is None:
        weights = labels.sum(dim=-1)
        labels = labels / weights.clamp_min(1).unsqueeze(-1)
    given = probabilities.reshape(-1)
    some = given[:: max(len(given) // _SCORES_SORTED, 1)].contiguous()
    levels = torch.arange(1, _N_BINS, device=some.device, dtype=some.dtype) / _N_BINS
    index = torch.bucketize(given, torch.quantile(some, levels))
    of_each = weights.unsqueeze(-1).expand_as(labels).reshape(-1)
    off = torch.bincount(index, of_each * (given - labels.reshape(-1)), minlength=_N_BINS)
    return float(off.abs().sum() / of_each.sum())
