"""Diagnosis of a trained network: unused, duplicated and misplaced hypotheses, scores and distortions."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing import AnnealingRecords, phase_transitions
from torchmcl.annealing.moves import Samples, planned_moves
from torchmcl.checks import check_boolean, check_mask
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.errors import bad_value
from torchmcl.loop.recorder import Recorder
from torchmcl.postprocess.calibration import score_error
from torchmcl.postprocess.inputs import Scores, as_tensor, finite_tensor, weighted_hypotheses
from torchmcl.postprocess.reducing import reduce
from torchmcl.scoring import ScoreObjective
from torchmcl.theory import critical_temperature_of_residuals
from torchmcl.types import Distributions, Predictions

__all__ = ["Diagnosis", "diagnose"]

# Fraction of 1 / n below which the wins of a hypothesis count as starved.
_STARVED = 0.1
# Fraction of the typical error below which hypotheses count as equal (as in `theory.thermal_tolerance`).
_EQUAL = 0.1
# Number of residuals for k-means, which compares all pairs of them.
_N_RESIDUALS = 1000
# Number of values that are processed at a time in double precision.
_CHUNK = 1_000_000
# Maximum number of listed hypotheses.
_N_LISTED = 25


@dataclass(frozen=True)
class Diagnosis:
    """Result of `diagnose`, printed as a table. Values that records do not contain are None.

    Attributes:
        win_rates: Fraction of the targets that each hypothesis wins; they sum to 1.
        duplicated: Pairs of hypotheses that are equal in all rows.
        collapsed: Fraction of rows in which all hypotheses are equal.
        distortion: Mean squared distance of a target to the nearest hypothesis; in records the matched cost.
        n_targets: Number of valid targets.
        mean_scores: Mean score of each hypothesis; None without scores.
        misplaced: Pairs of a nearly unused hypothesis and one that covers two modes, to which it should be moved.
        score_error: Calibration error of the scores, as in `ScoreCalibration`; None without scores.
        distortion_of_mean: Mean squared distance to the score-weighted mean of the hypotheses.
        distortion_of_offsets: Distortion of the same number of points at fixed offsets from that mean: k-means of one
            half of the residuals, evaluated on the other; None for fewer than four targets per hypothesis.
        distortion_of_moves: Distortion after the moves of `misplaced`.
        split_temperature: Temperature below which hypotheses at that mean would split, in the units of the squared
            cost; in records the temperature of the first observed split.
        final_temperature: Temperature at the end of the records.
    """

    win_rates: tuple[float, ...]
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

    @property
    def starved(self) -> tuple[int, ...]:
        """Hypotheses that win less than a tenth of 1 / n of the targets."""
        return tuple(i for i, rate in enumerate(self.win_rates) if rate < _STARVED / len(self.win_rates))

    def __str__(self) -> str:
        """Return the diagnosis as a table."""
        pairs = ", ".join(f"{i} and {j}" for i, j in self.duplicated[:5]) + (" ..." if len(self.duplicated) > 5 else "")
        entries: dict[str, str | float | None] = {
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
        lines = ["" if self.n_targets is None else f"{self.n_targets} targets, "]
        lines[0] += f"{len(self.win_rates)} hypotheses"
        for name, value in entries.items():
            if value is not None:
                lines.append(f"  {name:<23}  {value if isinstance(value, str) else f'{value:.4g}'}")
        lines += ["", "  hypothesis  wins    mean score"]
        order = sorted(range(len(self.win_rates)), key=lambda i: -self.win_rates[i])
        for i in order[:_N_LISTED]:
            score = "" if self.mean_scores is None else f"{self.mean_scores[i]:.1%}"
            lines.append(f"  {i:>10}  {self.win_rates[i]:<6.1%}  {score}".rstrip())
        return "\n".join([*lines, *(["  ..."] if len(order) > _N_LISTED else [])])


def diagnose(
    predictions: Predictions | Distributions | AnnealingRecords | Recorder,
    targets: Any = None,
    mask: Tensor | None = None,
    *,
    scores: Scores | None = None,
) -> Diagnosis:
    """Diagnose a network from its predictions for held-out rows.

    Distances are squared Euclidean over all axes of a hypothesis. Records of a training run contain less
    information, and only about training rows.

    Args:
        predictions: Hypotheses [rows, hypotheses, ...] and scores; or a `Recorder`, or its records.
        targets: Targets, [rows, ...], or several for each row, [rows, targets, ...]; None with records.
        mask: Valid targets, [rows, targets], or valid steps of single targets, [rows, steps]; None if all are valid.
        scores: Objective that the scores were trained with, `SigmoidScores()` by default, or probabilities
            [rows, hypotheses].

    Raises:
        ValueError: For inconsistent shapes, NaN, or no valid target.

    Example:
        >>> hypotheses = torch.tensor([[[-1.0], [1.0], [1.0]]]).expand(100, 3, 1)
        >>> targets = 2.0 * (torch.arange(100) % 2).view(-1, 1) - 1
        >>> diagnosis = diagnose(Predictions(hypotheses), targets)
        >>> diagnosis.starved, diagnosis.duplicated, diagnosis.distortion
        ((2,), ((1, 2),), 0.0)
    """
    owner = "diagnose"
    if isinstance(predictions, (Recorder, AnnealingRecords)):
        if targets is not None or mask is not None or scores is not None:
            raise ValueError(f"{owner}: `targets`, `mask` and `scores` must be None for records.")
        return _of_records(predictions.records() if isinstance(predictions, Recorder) else predictions)
    if targets is None:
        raise ValueError(f"{owner}: `targets` is required for predictions.")
    hypotheses, probabilities, _ = weighted_hypotheses(owner, predictions, scores)
    rows = _checked(owner, hypotheses, targets, mask)
    nearest, winners = rows.cost(rows.hypotheses).min(dim=-1)  # [rows, targets]
    wins = torch.zeros_like(probabilities).scatter_add_(1, winners, rows.real.to(probabilities.dtype))
    mean = torch.einsum("rk,rkd->rd", probabilities, rows.hypotheses)
    residuals = (rows.targets - mean.unsqueeze(1))[rows.real]  # [targets, dim]
    distortion, of_mean = (float(x.double().mean()) for x in (nearest[rows.real], residuals.square().sum(dim=-1)))
    has_scores = predictions.score_logits is not None or (scores is not None and not isinstance(scores, ScoreObjective))
    misplaced, of_moves = _moves(rows)
    duplicated, collapsed = _equal_hypotheses(rows.hypotheses, distortion, of_mean)
    return Diagnosis(
        win_rates=tuple((wins.double().sum(dim=0) / rows.real.sum()).tolist()),
        duplicated=duplicated,
        collapsed=collapsed,
        distortion=distortion,
        n_targets=int(rows.real.sum()),
        mean_scores=tuple(probabilities.double().mean(dim=0).tolist()) if has_scores else None,
        misplaced=misplaced,
        score_error=score_error(probabilities.double(), wins.double()) if has_scores else None,
        distortion_of_mean=of_mean,
        distortion_of_offsets=_distortion_of_offsets(residuals, hypotheses.shape[1]),
        distortion_of_moves=of_moves,
        split_temperature=float(critical_temperature_of_residuals(residuals)),
    )


def _of_records(records: AnnealingRecords) -> Diagnosis:
    """Diagnose a training run from the last tenth of its records, and its first split."""
    last = slice(-max(len(records) // 10, 1), None)
    win_rates = records.usage[last].double().mean(dim=0)
    distortion = float(records.distortion[last].double().mean())
    cools = bool((records.temperature.diff() <= 0).all()) and len(records.temperature.unique()) > 1
    probes = range(records.hypotheses.shape[1]) if cools else ()
    splits = [split.temperature for probe in probes for split in phase_transitions(records, probe)]
    duplicated, collapsed = _equal_hypotheses(records.hypotheses[-1], distortion, float(records.distortion[0]))
    return Diagnosis(
        win_rates=tuple((win_rates / win_rates.sum().clamp_min(1e-30)).tolist()),
        duplicated=duplicated,
        collapsed=collapsed,
        distortion=distortion,
        mean_scores=None if records.scores is None else tuple(records.scores[-1].double().mean(dim=0).tolist()),
        split_temperature=max(splits, default=None),
        final_temperature=float(records.temperature[-1]),
    )


class _Rows(NamedTuple):
    """Hypotheses [rows, hypotheses, dim], targets [rows, targets, dim], and the mask of valid targets."""

    hypotheses: Tensor
    targets: Tensor
    real: Tensor

    def cost(self, hypotheses: Tensor) -> Tensor:
        """Return the squared distances of hypotheses and targets, [rows, targets, hypotheses]."""
        return pairwise_sq_euclidean(hypotheses=hypotheses, targets=self.targets).detach()


def _checked(owner: str, hypotheses: Tensor, targets: Any, mask: Tensor | None) -> _Rows:
    """Check targets and mask; masked steps of single targets become 0 on both sides."""
    given = as_tensor(owner, "targets", targets)
    targets = given.unsqueeze(1) if given.ndim == hypotheses.ndim - 1 else given
    n_rows, event = len(hypotheses), hypotheses.shape[2:]
    if targets.ndim != hypotheses.ndim or len(targets) != n_rows or targets.shape[2:] != event:
        rule = f"have shape {(n_rows, *event)} or [{n_rows}, targets, ...]"
        raise ValueError(bad_value(owner, "targets", rule, tuple(given.shape)))
    real = torch.ones(targets.shape[:2], dtype=torch.bool, device=targets.device)
    if mask is not None:
        mask = as_tensor(owner, "mask", mask).to(targets.device)
        steps = mask.unsqueeze(1) if mask.shape == (n_rows, targets.shape[2]) else mask
        if targets.shape[1] == 1 and steps.shape == targets.shape[:3]:
            check_boolean(owner, "mask", mask)
            real = steps.any(dim=-1)
            absent = ~steps.to(hypotheses.device).view(*steps.shape, *[1] * (hypotheses.ndim - 3))
            hypotheses = hypotheses.masked_fill(absent, 0)
        else:
            check_mask(owner, mask, targets.shape[:2])
            steps = real = mask.expand(targets.shape[:2])
        targets = targets.masked_fill(~steps.view(*steps.shape, *[1] * (targets.ndim - steps.ndim)), 0)
    if not real.any():
        raise ValueError(bad_value(owner, "targets", "have at least one valid target", "none"))
    targets = finite_tensor(owner, "targets", targets).to(hypotheses)
    return _Rows(hypotheses.flatten(2), targets.flatten(2), real.to(hypotheses.device))


def _moves(rows: _Rows) -> tuple[tuple[tuple[int, int], ...], float]:
    """Return the moves of hypotheses that would lower the distortion, and the resulting distortion."""
    stacked = rows.hypotheses.repeat_interleave(rows.targets.shape[1], dim=0).unsqueeze(0)
    samples = Samples(stacked, rows.targets.flatten(0, 1).unsqueeze(0), rows.real.reshape(1, -1))
    source, shift = planned_moves(samples, torch.ones(1, dtype=torch.bool, device=rows.real.device))
    moves = tuple((k, split) for k, split in enumerate(source[0].tolist()) if k != split)
    cost = rows.cost(rows.hypotheses[:, source[0]] + shift)
    return moves, float(cost.amin(dim=-1)[rows.real].double().mean())


def _equal_hypotheses(
    hypotheses: Tensor, distortion: float, distortion_of_mean: float
) -> tuple[tuple[tuple[int, int], ...], float]:
    """Return pairs of hypotheses that are equal in all rows, and the fraction of collapsed rows.

    Both are relative to the typical error: of the nearest hypothesis for pairs, of the mean for a collapse.
    """
    n_rows, n, _ = hypotheses.shape
    products = torch.zeros(n, n, dtype=torch.float64, device=hypotheses.device)
    n_collapsed = 0
    for rows in hypotheses.split(max(_CHUNK // max(hypotheses[:1].numel(), 1), 1)):
        offsets = (rows - rows.mean(dim=1, keepdim=True)).double()
        spread = offsets.square().sum(dim=-1).amax(dim=-1)
        n_collapsed += int((spread <= _EQUAL**2 * distortion_of_mean).sum())
        vectors = offsets.transpose(0, 1).flatten(1)
        products += vectors @ vectors.mT
    products /= n_rows
    squares = products.diagonal().unsqueeze(0) + products.diagonal().unsqueeze(1) - 2 * products
    # Because of rounding, the distance of equal hypotheses may differ from 0.
    tolerance = max(_EQUAL**2 * distortion, 1e-12 * float(products.diagonal().max()))
    first, second = (squares <= tolerance).triu(1).nonzero(as_tuple=True)
    return tuple(zip(first.tolist(), second.tolist(), strict=True)), n_collapsed / n_rows if n > 1 else 0.0


def _distortion_of_offsets(residuals: Tensor, n_hypotheses: int) -> float | None:
    """Return the distortion of k-means centers fitted on one half of the residuals and evaluated on the other."""
    if len(residuals) < 4 * n_hypotheses:
        return None
    order = torch.randperm(len(residuals), generator=torch.Generator().manual_seed(0)).to(residuals.device)
    total = 0.0
    for fitted, held_out in (order.chunk(2), order.chunk(2)[::-1]):
        centers = reduce(Predictions(residuals[fitted[:_N_RESIDUALS]].unsqueeze(0)), n_hypotheses).hypotheses
        cost = pairwise_sq_euclidean(hypotheses=centers, targets=residuals[held_out].unsqueeze(0))
        total += float(cost.amin(dim=-1).double().sum())
    return total / len(residuals)
