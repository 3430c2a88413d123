"""What is wrong with a trained network, in numbers and in words."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_mask
from torchmcl.after._inputs import Scored, Scores, finite_tensor, pair_cost, scored
from torchmcl.after.calibration import score_error
from torchmcl.after.reducing import reduce
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.scoring import SigmoidScores
from torchmcl.theory import critical_temperature_of_residuals
from torchmcl.types import Distributions, Predictions

__all__ = ["Diagnosis", "diagnose"]

# A hypothesis that wins less than this share of what is its due is starved.
_STARVED = 0.1
# Hypotheses closer than this share of the typical error hardly tell targets apart (as `theory.thermal_tolerance`).
_TOGETHER = 0.1
# A calibration error above this, in units of the score of an average hypothesis, is worth a calibration.
_UNCALIBRATED = 0.2
# Residuals for k-means: all pairs of them are compared.
_RESIDUALS = 1000


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found; printed, it is a page of text.

    Attributes:
        n_targets: how many real targets were seen.
        win_shares: how often each hypothesis wins; they sum to 1.
        starved: hypotheses that win less than a tenth of an equal share.
        duplicated: pairs of hypotheses that are in the same place in all rows.
        collapsed: share of rows in which all hypotheses are in the same place.
        score_error: calibration error of the scores; None without scores.
        distortion: mean squared distance of a target to the nearest hypothesis.
        distortion_of_mean: to the mean of the hypotheses by score.
        distortion_of_offsets: to the nearest of as many points at fixed offsets from that mean, by k-means.
        split_temperature: below which hypotheses at that mean would part, in the units of the squared cost.
        advice: what to change, in words.
    """

    n_targets: int
    win_shares: tuple[float, ...]
    starved: tuple[int, ...]
    duplicated: tuple[tuple[int, int], ...]
    collapsed: float
    score_error: float | None
    distortion: float
    distortion_of_mean: float
    distortion_of_offsets: float
    split_temperature: float
    advice: tuple[str, ...]

    def __str__(self) -> str:
        """Return a page of text."""
        error = "no scores" if self.score_error is None else f"{self.score_error:.4f}"
        pairs = ", ".join(f"{i} and {j}" for i, j in self.duplicated[:5]) + (" ..." if len(self.duplicated) > 5 else "")
        lines = [
            f"{self.n_targets} targets, {len(self.win_shares)} hypotheses",
            f"  distortion               {self.distortion:.4g}",
            f"    of the mean            {self.distortion_of_mean:.4g}",
            f"    of fixed offsets       {self.distortion_of_offsets:.4g}",
            f"  starved hypotheses       {', '.join(map(str, self.starved)) or 'none'}",
            f"  duplicated hypotheses    {pairs or 'none'}",
            f"  rows that collapsed      {self.collapsed:.1%}",
            f"  error of the scores      {error}",
            f"  temperature of a split   {self.split_temperature:.4g}",
            "",
            *(f"- {line}" for line in self.advice),
        ]
        return "\n".join(lines)


def diagnose(
    predictions: Predictions | Distributions, targets: Any, mask: Tensor | None = None, *, scores: Scores | None = None
) -> Diagnosis:
    """Return what is wrong with a network, from its predictions for rows that it was not trained on.

    Distances are squared Euclidean over all axes of a hypothesis.

    Args:
        predictions: hypotheses [rows, hypotheses, ...] and scores.
        targets: [rows, ...], or several for each row, [rows, targets, ...].
        mask: [rows, targets], True where a target is real; None when all are.
        scores: how score logits are read, `SigmoidScores()` by default, or probabilities [rows, hypotheses].

    Raises:
        ValueError: for shapes that do not fit, NaN, or without any real target.

    Example:
        >>> hypotheses = torch.tensor([[[-1.0], [1.0], [1.0]]]).expand(100, 3, 1)
        >>> targets = 2.0 * (torch.arange(100) % 2).view(-1, 1) - 1
        >>> found = diagnose(Predictions(hypotheses), targets)
        >>> found.starved, found.duplicated, found.distortion
        ((2,), ((1, 2),), 0.0)
    """
    owner = "diagnose"
    given = scored(owner, predictions, SigmoidScores() if scores is None else scores)
    truth, real = _targets(owner, given, targets, mask)
    cost = pair_cost(owner, pairwise_sq_euclidean, given.hypotheses, truth)  # [rows, targets, hypotheses]
    nearest, winners = cost.min(dim=-1)
    n_hypotheses = cost.shape[-1]
    flat = given.hypotheses.flatten(2)
    wins = torch.zeros_like(given.probabilities).scatter_add_(1, winners, real.to(cost.dtype))
    shares = wins.double().sum(dim=0) / real.sum()
    mean = torch.einsum("rk,rkd->rd", given.probabilities, flat)
    residuals = (truth.flatten(2) - mean.unsqueeze(1))[real]  # [targets, dim]
    distortion, of_mean = (float(x.double().mean()) for x in (nearest[real], residuals.square().sum(dim=-1)))
    has_scores = predictions.score_logits is not None or isinstance(scores, Tensor)
    numbers: dict[str, Any] = {
        "n_targets": int(real.sum()),
        "win_shares": tuple(shares.tolist()),
        "starved": tuple((shares < _STARVED / n_hypotheses).nonzero().flatten().tolist()),
        "duplicated": _duplicated(flat, distortion),
        "collapsed": _collapsed(flat, of_mean),
        "score_error": score_error(given.probabilities.double(), wins.double()) if has_scores else None,
        "distortion": distortion,
        "distortion_of_mean": of_mean,
        "distortion_of_offsets": _of_offsets(residuals, n_hypotheses),
        "split_temperature": float(critical_temperature_of_residuals(residuals)),
    }
    return Diagnosis(**numbers, advice=_advice(numbers, n_hypotheses))


def _targets(owner: str, given: Scored, targets: Any, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return targets [rows, targets, *event] and which are real, [rows, targets]."""
    values = targets if isinstance(targets, Tensor) else torch.as_tensor(targets)
    truth = values.unsqueeze(1) if values.ndim == given.hypotheses.ndim - 1 else values
    rows, event = len(given.hypotheses), given.hypotheses.shape[2:]
    if truth.ndim != given.hypotheses.ndim or len(truth) != rows or truth.shape[2:] != event:
        rule = f"have shape {(rows, *event)} or [{rows}, targets, ...]"
        raise ValueError(bad_value(owner, "targets", rule, tuple(values.shape)))
    real = torch.ones(truth.shape[:2], dtype=torch.bool, device=truth.device)
    if mask is not None:
        check_mask(owner, mask, truth.shape[:2])
        real = mask.expand(truth.shape[:2])
        truth = truth.masked_fill(~real.view(*real.shape, *[1] * len(event)), 0)
    if not real.any():
        raise ValueError(bad_value(owner, "targets", "have at least one real target", "none"))
    return finite_tensor(owner, "targets", truth).to(given.hypotheses), real


def _duplicated(hypotheses: Tensor, distortion: float) -> tuple[tuple[int, int], ...]:
    """Return the pairs whose root mean squared distance over the rows is small beside the typical error."""
    centred = (hypotheses - hypotheses.mean(dim=1, keepdim=True)).transpose(0, 1).flatten(1).double()
    products = centred @ centred.mT / max(len(hypotheses), 1)
    squares = products.diagonal().unsqueeze(0) + products.diagonal().unsqueeze(1) - 2 * products
    # Of numbers of this size a difference is not known better; equal hypotheses would hardly have exactly 0.
    tolerance = max(_TOGETHER**2 * distortion, 1e-12 * float(products.diagonal().max()))
    first, second = (squares <= tolerance).triu(1).nonzero(as_tuple=True)
    return tuple(zip(first.tolist(), second.tolist(), strict=True))


def _collapsed(hypotheses: Tensor, distortion_of_mean: float) -> float:
    """Return the share of rows whose hypotheses differ little beside the typical error of their mean."""
    if hypotheses.shape[1] == 1:
        return 0.0
    spread = (hypotheses - hypotheses.mean(dim=1, keepdim=True)).square().sum(dim=-1).amax(dim=-1)
    return float((spread <= _TOGETHER**2 * distortion_of_mean).double().mean())


def _of_offsets(residuals: Tensor, n_hypotheses: int) -> float:
    """Return the distortion of the k-means of some residuals, on the others if there are others."""
    order = torch.randperm(len(residuals), generator=torch.Generator().manual_seed(0)).to(residuals.device)
    fitted, others = residuals[order[:_RESIDUALS]], residuals[order[_RESIDUALS:]]
    centres = reduce(Predictions(fitted.unsqueeze(0)), min(n_hypotheses, len(fitted))).hypotheses
    judged = (others if len(others) else fitted).unsqueeze(0)
    cost = pair_cost("diagnose", pairwise_sq_euclidean, centres, judged)
    return float(cost.amin(dim=-1).double().mean())


def _advice(found: dict[str, Any], n_hypotheses: int) -> tuple[str, ...]:
    """Return what to change, the most important first."""
    lines = []
    n_starved, n_pairs = len(found["starved"]), len(found["duplicated"])
    if found["collapsed"] > 0.5:
        lines.append(
            "Most rows have all hypotheses in one place. The temperature ended above the split, about "
            f"{found['split_temperature']:.3g}: anneal below it, or check that the loss is not an average."
        )
    elif n_starved:
        lines.append(
            f"{n_starved} of {n_hypotheses} hypotheses hardly ever win. Start annealed training above a temperature of "
            f"{found['split_temperature']:.3g}, or train with AutoAnnealing, so that none is left behind."
        )
    if n_pairs and found["collapsed"] <= 0.5:
        lines.append(f"{n_pairs} pairs of hypotheses are in the same place. Cool further, or use fewer hypotheses.")
    if found["distortion"] > found["distortion_of_offsets"] * 1.02:
        lines.append(
            "Fixed offsets from the mean would do better than the hypotheses: train longer, with a slower cooling."
        )
    error = found["score_error"]
    if error is not None and error > _UNCALIBRATED / n_hypotheses:
        lines.append(f"The scores are off by {error:.3g} on average: calibrate_scores on held-out rows repairs that.")
    return tuple(lines) or ("Nothing stands out.",)
