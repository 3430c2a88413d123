"""Diagnosis of a trained network: unused, merged and misplaced hypotheses, scores and distortions, as numbers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.annealing import AnnealingRecords, phase_transitions
from torchmcl.annealing.moves import Samples, planned_moves
from torchmcl.checks import bad_value, check_boolean, check_mask
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.loop.recorder import Recorder
from torchmcl.postprocess._inputs import Scores, WeightedHypotheses, as_tensor, finite_tensor, pair_cost, scored
from torchmcl.postprocess.calibration import score_error
from torchmcl.postprocess.reducing import reduce
from torchmcl.scoring import ScoreObjective
from torchmcl.theory import critical_temperature_of_residuals
from torchmcl.types import Distributions, Predictions

# A hypothesis that wins less than this fraction of an equal share is starved.
_STARVED = 0.1
# Hypotheses closer than this share of the typical error count as equal (as in `theory.thermal_tolerance`).
_TOGETHER = 0.1
# Residuals for k-means: all pairs of them are compared.
_RESIDUALS = 1000
# Numbers processed at a time, in double precision.
_NUMBERS_AT_ONCE = 1_000_000
# Maximum number of listed hypotheses.
_LISTED = 25


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`, printed as a table. Values that are missing in records are None.

    Attributes:
        win_shares: how often each hypothesis wins; they sum to 1.
        starved: hypotheses that win less than a tenth of an equal share.
        duplicated: pairs of hypotheses that are equal in all rows.
        collapsed: fraction of rows in which all hypotheses are equal.
        distortion: mean squared distance of a target to the nearest hypothesis; in records the matched cost.
        n_targets: the number of real targets.
        mean_scores: the mean score of each hypothesis; None without scores.
        misplaced: pairs of a nearly unused hypothesis and one that covers two modes, to which it should be moved.
        score_error: calibration error of the scores, as in `ScoreCalibration`; None without scores.
        distortion_of_mean: of the score-weighted mean of the hypotheses.
        distortion_of_offsets: of the same number of points at fixed offsets from that mean: k-means of one half of
            the residuals, evaluated on the other; None for fewer than four targets per hypothesis.
        distortion_of_moves: after the moves of `misplaced`.
        split_temperature: temperature below which hypotheses at that mean would split, in the units of the squared
            cost; in records the temperature of the first observed split.
        final_temperature: temperature at the end of the records.
    """

    win_shares: tuple[float, ...]
    starved: tuple[int, ...]
    duplicated: tuple[tuple[int, int], ...]
    collapsed: float
    distortion: float
    n_targets: int | None = None
    mean_scores: tuple[float, ...] | None = None
    misplaced: tuple[tuple[int, int], ...] | None = None
    score_error: float | None = None
    distortion_of_mean: float | None = None
    distortion_of_offsets: float | None = None
    distortion_of_moves: float | None = None
    split_temperature: float | None = None
    final_temperature: float | None = None

    def __str__(self) -> str:
        """Return the table."""
        pairs = ", ".join(f"{i} and {j}" for i, j in self.duplicated[:5]) + (" ..." if len(self.duplicated) > 5 else "")
        found: dict[str, str | float | None] = {
            "distortion": self.distortion,
            "  of the mean": self.distortion_of_mean,
            "  of fixed offsets": self.distortion_of_offsets,
            "  after moves": self.distortion_of_moves if self.misplaced else None,
            "starved hypotheses": ", ".join(map(str, self.starved)) or "none",
            "duplicated hypotheses": pairs or "none",
            "between two modes": ", ".join(f"{split}" for _, split in self.misplaced or ()) or None,
            "rows that collapsed": f"{self.collapsed:.1%}",
            "error of the scores": "no scores" if self.mean_scores is None else self.score_error,
            "temperature of a split": self.split_temperature,
            "temperature at the end": self.final_temperature,
        }
        known = {
            name: value if isinstance(value, str) else f"{value:.4g}"
            for name, value in found.items()
            if value is not None
        }
        seen = "" if self.n_targets is None else f"{self.n_targets} targets, "
        return "\n".join(
            [
                f"{seen}{len(self.win_shares)} hypotheses",
                *(f"  {name:<23}  {value}" for name, value in known.items()),
                *self._of_each(),
            ]
        )

    def _of_each(self) -> list[str]:
        """Return a line per hypothesis, most wins first, limited in number."""
        order = sorted(range(len(self.win_shares)), key=lambda i: -self.win_shares[i])
        lines = ["", "  hypothesis  wins    mean score"]
        for i in order[:_LISTED]:
            score = "" if self.mean_scores is None else f"{self.mean_scores[i]:.1%}"
            lines.append(f"  {i:>10}  {self.win_shares[i]:<6.1%}  {score}".rstrip())
        return [*lines, *(["  ..."] if len(order) > _LISTED else [])]


def diagnose(
    predictions: Predictions | Distributions | AnnealingRecords | Recorder,
    targets: Any = None,
    mask: Tensor | None = None,
    *,
    scores: Scores | None = None,
) -> Diagnosis:
    """Return a diagnosis of a network from its predictions for held-out rows.

    Distances are squared Euclidean over all axes of a hypothesis. Records of a training run contain less
    information, and only about training rows.

    Args:
        predictions: hypotheses [rows, hypotheses, ...] and scores; or a `Recorder`, or its records.
        targets: [rows, ...], or several for each row, [rows, targets, ...]; None with records.
        mask: [rows, targets], True where a target is real; or [rows, steps] for one target of each row, True where a
            step is; None when all are.
        scores: how score logits are read, `SigmoidScores()` by default, or probabilities [rows, hypotheses].

    Raises:
        ValueError: for inconsistent shapes, NaN, or no real target.

    Example:
        >>> hypotheses = torch.tensor([[[-1.0], [1.0], [1.0]]]).expand(100, 3, 1)
        >>> targets = 2.0 * (torch.arange(100) % 2).view(-1, 1) - 1
        >>> found = diagnose(Predictions(hypotheses), targets)
        >>> found.starved, found.duplicated, found.distortion
        ((2,), ((1, 2),), 0.0)
    """
    owner = "diagnose"
    if isinstance(predictions, (Recorder, AnnealingRecords)):
        if targets is not None or mask is not None or scores is not None:
            raise ValueError(bad_value(owner, "targets", "be None, as mask and scores, for records", "something"))
        return _of_records(predictions.records() if isinstance(predictions, Recorder) else predictions)
    if targets is None:
        raise ValueError(bad_value(owner, "targets", "be given with predictions", "None"))
    given = scored(owner, predictions, scores)
    truth, real, given = _targets(owner, given, targets, mask)
    cost = pair_cost(owner, pairwise_sq_euclidean, given.hypotheses, truth)  # [rows, targets, hypotheses]
    nearest, winners = cost.min(dim=-1)
    flat = given.hypotheses.flatten(2)
    wins = torch.zeros_like(given.probabilities).scatter_add_(1, winners, real.to(cost.dtype))
    shares = wins.double().sum(dim=0) / real.sum()
    mean = torch.einsum("rk,rkd->rd", given.probabilities, flat)
    residuals = (truth.flatten(2) - mean.unsqueeze(1))[real]  # [targets, dim]
    distortion, of_mean = (float(x.double().mean()) for x in (nearest[real], residuals.square().sum(dim=-1)))
    has_scores = predictions.score_logits is not None or (scores is not None and not isinstance(scores, ScoreObjective))
    misplaced, of_moves = _moves(flat, truth.flatten(2), real)
    return _diagnosis(
        shares,
        _together(flat, distortion, of_mean),
        distortion,
        n_targets=int(real.sum()),
        mean_scores=tuple(given.probabilities.double().mean(dim=0).tolist()) if has_scores else None,
        misplaced=misplaced,
        score_error=score_error(given.probabilities.double(), wins.double()) if has_scores else None,
        distortion_of_mean=of_mean,
        distortion_of_offsets=_of_offsets(residuals, cost.shape[-1]),
        distortion_of_moves=of_moves,
        split_temperature=float(critical_temperature_of_residuals(residuals)),
    )


def _of_records(records: AnnealingRecords) -> Diagnosis:
    """Return the diagnosis from the last tenth of the records of a training run, with the first split temperature."""
    last = slice(-max(len(records) // 10, 1), None)
    shares = records.usage[last].double().mean(dim=0)
    shares = shares / shares.sum().clamp_min(1e-30)
    distortion = float(records.distortion[last].double().mean())
    cools = bool((records.temperature.diff() <= 0).all()) and len(records.temperature.unique()) > 1
    probes = range(records.hypotheses.shape[1]) if cools else ()
    splits = [split.temperature for probe in probes for split in phase_transitions(records, probe)]
    scores = None if records.scores is None else tuple(records.scores[-1].double().mean(dim=0).tolist())
    return _diagnosis(
        shares,
        _together(records.hypotheses[-1], distortion, float(records.distortion[0])),
        distortion,
        mean_scores=scores,
        split_temperature=max(splits, default=None),
        final_temperature=float(records.temperature[-1]),
    )


def _diagnosis(
    shares: Tensor, together: tuple[tuple[tuple[int, int], ...], float], distortion: float, **facts: Any
) -> Diagnosis:
    """Return a diagnosis, from the shares of wins [hypotheses] and the result of `_together`."""
    starved = tuple((shares < _STARVED / len(shares)).nonzero().flatten().tolist())
    return Diagnosis(tuple(shares.tolist()), starved, *together, distortion, **facts)


def _moves(hypotheses: Tensor, targets: Tensor, real: Tensor) -> tuple[tuple[tuple[int, int], ...], float]:
    """Return the moves that would lower the distortion of [rows, hypotheses, dim], and the resulting distortion."""
    n_targets = targets.shape[1]
    stacked = hypotheses.repeat_interleave(n_targets, dim=0).unsqueeze(0)
    flat, is_real = targets.flatten(0, 1).unsqueeze(0), real.reshape(1, -1)
    source, shift = planned_moves(Samples(stacked, flat, is_real), torch.ones(1, dtype=torch.bool, device=real.device))
    moved = [(k, split) for k, split in enumerate(source[0].tolist()) if k != split]
    cost = pair_cost("diagnose", pairwise_sq_euclidean, hypotheses[:, source[0]] + shift, targets)
    return tuple(moved), float(cost.amin(dim=-1)[real].double().mean())


def _targets(
    owner: str, given: WeightedHypotheses, targets: Any, mask: Tensor | None
) -> tuple[Tensor, Tensor, WeightedHypotheses]:
    """Return targets [rows, targets, *event], their mask [rows, targets], and hypotheses, 0 at masked steps."""
    values = as_tensor(owner, "targets", targets)
    truth = values.unsqueeze(1) if values.ndim == given.hypotheses.ndim - 1 else values
    rows, event = len(given.hypotheses), given.hypotheses.shape[2:]
    if truth.ndim != given.hypotheses.ndim or len(truth) != rows or truth.shape[2:] != event:
        rule = f"have shape {(rows, *event)} or [{rows}, targets, ...]"
        raise ValueError(bad_value(owner, "targets", rule, tuple(values.shape)))
    real = torch.ones(truth.shape[:2], dtype=torch.bool, device=truth.device)
    if mask is not None:
        mask = as_tensor(owner, "mask", mask).to(truth.device)
        truth, real, given = _masked(owner, given, truth, mask)
    if not real.any():
        raise ValueError(bad_value(owner, "targets", "have at least one real target", "none"))
    return finite_tensor(owner, "targets", truth).to(given.hypotheses), real, given


def _masked(
    owner: str, given: WeightedHypotheses, truth: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, WeightedHypotheses]:
    """Return targets, their mask, and hypotheses; masked steps of single targets are 0 on both sides."""
    steps = mask.unsqueeze(1) if mask.shape == (len(truth), truth.shape[2]) else mask
    if truth.shape[1] == 1 and steps.shape == truth.shape[:3]:
        check_boolean(owner, "mask", mask)
        padded = ~steps.view(*steps.shape, *[1] * (truth.ndim - 3))
        kept = given._replace(hypotheses=given.hypotheses.masked_fill(padded.to(given.hypotheses.device), 0))
        return truth.masked_fill(padded, 0), steps.any(dim=-1), kept
    check_mask(owner, mask, truth.shape[:2])
    real = mask.expand(truth.shape[:2])
    return truth.masked_fill(~real.view(*real.shape, *[1] * (truth.ndim - 2)), 0), real, given


def _together(
    hypotheses: Tensor, distortion: float, distortion_of_mean: float
) -> tuple[tuple[tuple[int, int], ...], float]:
    """Return pairs of hypotheses that are equal in all rows, and the fraction of collapsed rows.

    Both are relative to the typical error: of the nearest hypothesis for pairs, of the mean for a collapse.
    """
    n_rows, n, _ = hypotheses.shape
    products = torch.zeros(n, n, dtype=torch.float64, device=hypotheses.device)
    n_collapsed = 0
    for rows in hypotheses.split(max(_NUMBERS_AT_ONCE // max(hypotheses[:1].numel(), 1), 1)):
        centred = (rows - rows.mean(dim=1, keepdim=True)).double()
        spread = centred.square().sum(dim=-1).amax(dim=-1)
        n_collapsed += int((spread <= _TOGETHER**2 * distortion_of_mean).sum())
        across = centred.transpose(0, 1).flatten(1)
        products += across @ across.mT
    products /= n_rows
    squares = products.diagonal().unsqueeze(0) + products.diagonal().unsqueeze(1) - 2 * products
    # The rounding error of a difference of numbers of this size: equal hypotheses may not give exactly 0.
    tolerance = max(_TOGETHER**2 * distortion, 1e-12 * float(products.diagonal().max()))
    first, second = (squares <= tolerance).triu(1).nonzero(as_tuple=True)
    return tuple(zip(first.tolist(), second.tolist(), strict=True)), n_collapsed / n_rows if n > 1 else 0.0


def _of_offsets(residuals: Tensor, n_hypotheses: int) -> float | None:
    """Return the distortion of k-means centers fitted on one half of the residuals and evaluated on the other."""
    if len(residuals) < 4 * n_hypotheses:
        return None
    order = torch.randperm(len(residuals), generator=torch.Generator().manual_seed(0)).to(residuals.device)
    total = 0.0
    for fitted, judged in (order.chunk(2), order.chunk(2)[::-1]):
        centres = reduce(Predictions(residuals[fitted[:_RESIDUALS]].unsqueeze(0)), n_hypotheses).hypotheses
        cost = pair_cost("diagnose", pairwise_sq_euclidean, centres, residuals[judged].unsqueeze(0))
        total += float(cost.amin(dim=-1).double().sum())
    return total / len(residuals)
