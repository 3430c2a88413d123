"""Calibration of scores to the frequency of winning, on held-out rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_mask, check_sample_weights
from torchmcl.postprocess._inputs import as_tensor, finite_tensor, logits_of, probabilities_of, warn_unless_sigmoid
from torchmcl.postprocess.score_maps import CalibrationMethod, ScoreMap, TemperatureScaling
from torchmcl.rules.winners import WTA
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Distributions, Matching, Predictions

__all__ = ["ScoreCalibration", "calibrate_scores", "score_error"]

_N_BINS = 10
# The borders of the groups come from at most about this many scores.
_SCORES_SORTED = 100_000


@dataclass(frozen=True, eq=False)
class ScoreCalibration:
    """A fitted calibration, called on predictions. It can be pickled, and saved by `save_fitted`.

    Attributes:
        score_map: the fitted map.
        scores: how score logits are read.
        error_before: mean |score - frequency of winning| on the rows of the fit, in ten groups of equally many scores.
        error_after: the same after calibration.
        n_targets: how many targets were seen.
    """

    score_map: ScoreMap
    scores: ScoreObjective
    error_before: float
    error_after: float
    n_targets: int

    def __call__(self, predictions: Predictions) -> Predictions:
        """Return predictions with calibrated score logits of the same kind."""
        if not isinstance(predictions, (Predictions, Distributions)):
            rule = "be Predictions"
            raise TypeError(bad_value("ScoreCalibration", "predictions", rule, type(predictions).__name__))
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
        winners: a Matching, whose cheapest hypotheses win, or the places of the winners, integers [rows] or
            [rows, targets].
        mask: [rows, targets], True where a target is real, if `winners` are places; a Matching has its own.
        method: `TemperatureScaling()` by default, `VectorScaling()` or `IsotonicScaling()`.
        scores: how score logits are read, `SigmoidScores()` by default.
        sample_weights: [rows], how much each row counts.

    Raises:
        ValueError: for shapes that do not fit, NaN, places outside the hypotheses, or without any real target.

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
        sample_weights = as_tensor(owner, "sample_weights", sample_weights)
        check_sample_weights(owner, sample_weights, counts.shape)
        finite_tensor(owner, "sample_weights", sample_weights.double())
        if (sample_weights < 0).any():
            raise ValueError(bad_value(owner, "sample_weights", "be >= 0", f"{sample_weights.min().item()}"))
        weights = counts * sample_weights.to(counts)
    if not weights.sum() > 0:
        raise ValueError(bad_value(owner, "winners", "have at least one real target that counts", "none"))
    logs = _logs(owner, logits, scores)
    labels = wins / counts.clamp_min(1).unsqueeze(-1)
    score_map = method.fit(logs, labels, weights)
    before, after = (score_error(values.exp(), labels, weights) for values in (logs, score_map(logs)))
    return ScoreCalibration(score_map, scores, before, after, int(counts.sum()))


def _logits(owner: str, predictions: Any) -> Tensor:
    """Return the score logits [rows, hypotheses] of predictions, or the logits given."""
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

    With bins of equal width nearly all scores of many hypotheses would fall into the first, in which scores and wins
    agree on average for any scores.

    Args:
        probabilities: [rows, hypotheses]
        labels: [rows, hypotheses], the share of the row's targets that each wins; without weights how many it wins.
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
