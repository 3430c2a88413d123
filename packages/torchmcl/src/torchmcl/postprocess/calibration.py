"""Calibration of scores: temperature scaling to the frequency of winning, on held-out rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.errors import bad_value
from torchmcl.postprocess.inputs import finite_tensor, probabilities_of, warn_unless_sigmoid
from torchmcl.rules.winners import WTA
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Distributions, Matching, Predictions, check_predictions

__all__ = ["ScoreCalibration", "calibrate_scores", "score_error"]

# Range of 1 / T. Scores without a finite optimal temperature, constant ones for example, end at a limit.
_COLDEST, _HOTTEST = 1e3, 1e-3
_NEWTON_STEPS = 100
# Number of groups of scores in which the mean score is compared with the frequency of winning.
_N_BINS = 10
# Approximate maximum number of scores from which the boundaries of the groups are computed.
_SCORES_SORTED = 100_000


@dataclass(frozen=True)
class ScoreCalibration:
    """Temperature scaling of scores: probabilities are raised to the power 1 / temperature and normalized.

    Call it on predictions. The order of the scores does not change.

    Attributes:
        temperature: Temperature, above 1 for overconfident scores.
        scores: Objective that the scores were trained with.
        error_before: Mean |score - frequency of winning| on the rows of the fit, in ten groups of equally many scores.
        error_after: The same error after calibration.
        n_targets: Number of targets in the fit.
    """

    temperature: float
    scores: ScoreObjective
    error_before: float
    error_after: float
    n_targets: int

    def __call__(self, predictions: Predictions) -> Predictions:
        """Return predictions with calibrated score logits for the same objective."""
        check_predictions("ScoreCalibration", "predictions", predictions)
        logs = _log_probabilities("ScoreCalibration", predictions, self.scores)
        calibrated = self.scores.logits((logs / self.temperature).softmax(dim=-1))
        assert predictions.score_logits is not None
        return predictions._replace(score_logits=calibrated.to(predictions.score_logits.dtype))

    def __str__(self) -> str:
        """Return a one-line description."""
        change = f"{self.error_before:.4f} to {self.error_after:.4f}"
        return f"temperature {self.temperature:.4g} from {self.n_targets} targets: calibration error from {change}"


def calibrate_scores(
    predictions: Predictions | Distributions, matching: Matching, *, scores: ScoreObjective | None = None
) -> ScoreCalibration:
    """Fit the temperature of the scores on held-out rows, in float64.

    The temperature minimizes the cross-entropy between the scores and the hypotheses that win.

    Args:
        predictions: Predictions with score logits, [rows, hypotheses].
        matching: Matching of the same predictions, [rows, targets, hypotheses]; the cheapest hypotheses win.
        scores: Objective that the scores were trained with; `SigmoidScores()` by default.

    Returns:
        Calibration of any predictions of the same network.

    Raises:
        ValueError: For inconsistent shapes, NaN, or no valid target.

    Example:
        >>> import torchmcl as mcl
        >>> logits = torch.tensor([[4.0, -4.0]]).expand(100, 2)  # nearly certain of the first
        >>> first_wins = (torch.arange(100) % 4 < 3).view(-1, 1, 1)  # three times of four
        >>> cost = torch.where(first_wins, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
        >>> matching = mcl.assign(cost, mcl.WTA())
        >>> predictions = Predictions(torch.zeros(100, 2, 1), logits)
        >>> calibration = calibrate_scores(predictions, matching, scores=mcl.SoftmaxScores())
        >>> calibration(predictions).score_logits[0].exp()
        tensor([0.7500, 0.2500])

    References:
        C. Guo et al., *On calibration of modern neural networks*, ICML 2017, arXiv:1706.04599.
    """
    owner, objective = "calibrate_scores", SigmoidScores() if scores is None else scores
    check_score_objective(owner, objective)
    check_predictions(owner, "predictions", predictions)
    logs = _log_probabilities(owner, predictions, objective)
    if scores is None:
        assert predictions.score_logits is not None
        warn_unless_sigmoid(owner, predictions.score_logits, stacklevel=3)
    expected = (len(logs), matching.cost.shape[-2], logs.shape[1])
    if matching.cost.shape != expected:
        rule = f"have a cost of shape {expected}, as the scores"
        raise ValueError(bad_value(owner, "matching", rule, tuple(matching.cost.shape)))
    wins = WTA()(matching.cost, matching.mask).sum(dim=-2).double()  # targets that each hypothesis wins
    n_targets = int(matching.mask.sum())
    if n_targets == 0:
        raise ValueError(bad_value(owner, "matching", "have at least one valid target", "none"))
    temperature = float(f"{1 / _inverse_temperature(logs, wins):.10g}")
    before, after = (score_error(values.exp(), wins) for values in (logs, (logs / temperature).log_softmax(dim=-1)))
    return ScoreCalibration(temperature, objective, before, after, n_targets)


def _log_probabilities(owner: str, predictions: Any, scores: ScoreObjective) -> Tensor:
    """Return the log-probabilities [rows, hypotheses] of predictions in float64."""
    logits = predictions.score_logits
    if logits is None:
        raise ValueError(bad_value(owner, "predictions", "have score logits", "none", "Use a head with scores=True."))
    logits = finite_tensor(owner, "score_logits", logits).double()
    if logits.ndim != 2 or logits.shape[1] < 1:
        raise ValueError(bad_value(owner, "score_logits", "have shape [rows, hypotheses]", tuple(logits.shape)))
    probabilities = probabilities_of(owner, logits, scores, logits.unsqueeze(-1))
    return probabilities.clamp_min(torch.finfo(torch.float64).tiny).log()


def _inverse_temperature(logs: Tensor, wins: Tensor) -> float:
    """Return the 1 / T with the lowest cross-entropy, a convex function of it, by Newton's method within bounds."""
    offsets = logs - logs.amax(dim=-1, keepdim=True)
    n_targets, goal = wins.sum(dim=-1), float((wins * offsets).sum())
    low, high, inverse = _HOTTEST, _COLDEST, 1.0
    for _ in range(_NEWTON_STEPS):
        weighted = (inverse * offsets).softmax(dim=-1) * offsets
        means = weighted.sum(dim=-1)
        slope = float((n_targets * means).sum() - goal)
        curvature = float((n_targets * ((weighted * offsets).sum(dim=-1) - means.square())).sum())
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else -1.0
        following = step if low < step < high else (low * high) ** 0.5
        if abs(following - inverse) <= 1e-12 * inverse:
            break
        inverse = following
    return inverse


def score_error(probabilities: Tensor, wins: Tensor) -> float:
    """Compute the calibration error of scores in groups of equal size: mean |score - frequency of winning|.

    With bins of equal width, nearly all scores of many hypotheses would fall into the first bin, in which scores and
    wins agree on average for any scores.

    Args:
        probabilities: Probabilities, [rows, hypotheses].
        wins: Number of the row's targets that each hypothesis wins, [rows, hypotheses].
    """
    scores = probabilities.reshape(-1)
    subset = scores[:: max(len(scores) // _SCORES_SORTED, 1)].contiguous()
    levels = torch.arange(1, _N_BINS, device=subset.device, dtype=subset.dtype) / _N_BINS
    bins = torch.bucketize(scores, torch.quantile(subset, levels))
    n_targets = wins.sum(dim=-1, keepdim=True).expand_as(wins)
    excess = torch.bincount(bins, (n_targets * probabilities - wins).reshape(-1), minlength=_N_BINS)
    return float(excess.abs().sum() / n_targets.sum())
