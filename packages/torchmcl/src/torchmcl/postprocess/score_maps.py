"""Calibration methods, and the fitted maps between probabilities."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl._checks import bad_value, check_positive, check_positive_int

__all__ = [
    "CalibrationMethod",
    "IsotonicMap",
    "IsotonicScaling",
    "ScoreMap",
    "TemperatureMap",
    "TemperatureScaling",
    "VectorMap",
    "VectorScaling",
]

# 1 / T is searched here. Scores that no finite temperature improves, constant ones for example, end at a border.
_COLDEST, _HOTTEST = 1e3, 1e-3
_NEWTON_STEPS = 100
# Rows, about, of the first fit, which all rows then refine in two or three steps.
_FIRST_ROWS = 5000


class ScoreMap(ABC):
    """A fitted map from log-probabilities [rows, hypotheses] in float64 to calibrated ones."""

    @abstractmethod
    def __call__(self, logs: Tensor) -> Tensor:
        """Return log-probabilities that sum to 1."""


class CalibrationMethod(ABC):
    """A calibration method: a frozen value with one method."""

    @abstractmethod
    def fit(self, logs: Tensor, labels: Tensor, weights: Tensor) -> ScoreMap:
        """Return the map of the lowest loss, computed in float64.

        Args:
            logs: [rows, hypotheses], log-probabilities.
            labels: [rows, hypotheses], the share of the row's targets that each hypothesis wins.
            weights: [rows], how much each row counts.
        """


@dataclass(frozen=True)
class TemperatureMap(ScoreMap):
    """Probabilities raised to the power 1 / temperature, and normalized.

    Attributes:
        temperature: above 1 for scores that were too sure.
    """

    temperature: float

    def __call__(self, logs: Tensor) -> Tensor:
        """Return log-probabilities that sum to 1."""
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
        """Return the temperature of the lowest cross-entropy, by Newton's method within bounds."""
        centred = logs - logs.amax(dim=-1, keepdim=True)
        wanted = weights * (labels * centred).sum(dim=-1)
        inverse, every = 1.0, max(len(logs) // _FIRST_ROWS, 1)
        if every > 1 and bool(weights[::every].sum() > 0):  # some of the rows say where to look
            inverse = _inverse_temperature(centred[::every], wanted[::every], weights[::every], inverse)
        return TemperatureMap(float(f"{1 / _inverse_temperature(centred, wanted, weights, inverse):.10g}"))


def _inverse_temperature(centred: Tensor, wanted: Tensor, weights: Tensor, inverse: float) -> float:
    """Return the root of the slope of the cross-entropy, from a first guess; it increases with 1 / T."""
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
        """Return log-probabilities that sum to 1."""
        if logs.shape[-1] != len(self.slopes):
            rule = f"have {len(self.slopes)} hypotheses, as those it was fitted on"
            raise ValueError(bad_value("VectorMap", "predictions", rule, logs.shape[-1]))
        return (logs * self.slopes.to(logs) + self.offsets.to(logs)).log_softmax(dim=-1)


@dataclass(frozen=True)
class VectorScaling(CalibrationMethod):
    """A slope and an offset for each hypothesis, for networks whose hypotheses have fixed roles.

    Args:
        pull: strength of a pull of slopes to 1 and offsets to 0, in rows: without it the offset of a hypothesis that
            never wins would have no lowest value.
    """

    pull: float = 1.0

    def __post_init__(self) -> None:
        """Check the field."""
        check_positive("VectorScaling", "pull", self.pull)

    def fit(self, logs: Tensor, labels: Tensor, weights: Tensor) -> VectorMap:
        """Return slopes and offsets of the lowest cross-entropy, by L-BFGS; the problem is convex."""
        with torch.inference_mode(False), torch.enable_grad():
            # Copies: tensors made in inference mode cannot take part in a backward pass.
            return self._fit(logs.clone(), labels.clone(), weights.clone())

    def _fit(self, logs: Tensor, labels: Tensor, weights: Tensor) -> VectorMap:
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
        values: [n], how often a hypothesis of such a probability wins; linear in between.
    """

    knots: Tensor
    values: Tensor

    def __call__(self, logs: Tensor) -> Tensor:
        """Return log-probabilities that sum to 1."""
        knots, values = self.knots.to(logs), self.values.to(logs)
        given = logs.exp().clamp(knots[0], knots[-1])
        right = torch.searchsorted(knots, given).clamp(1, max(len(knots) - 1, 1)) if len(knots) > 1 else None
        if right is None:
            return torch.zeros_like(logs).log_softmax(dim=-1)
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
        """Return the function of the lowest squared error, by pooling adjacent violators."""
        given = logs.exp().cpu().numpy().ravel()
        wins = labels.cpu().numpy().ravel()
        mass = np.broadcast_to(weights.cpu().numpy()[:, None], labels.shape).ravel()
        kept = mass > 0
        knots, values = isotonic(*_grouped(given[kept], wins[kept], mass[kept], self.n_knots))
        # A frequency of 0 would make a later win impossible; one win in twice as many rows would not be a surprise.
        least = 0.5 / (float(mass.sum()) / labels.shape[-1] + 1)
        return IsotonicMap(torch.from_numpy(knots), torch.from_numpy(values).clamp_min(least))


def _grouped(
    given: NDArray[np.float64], wins: NDArray[np.float64], mass: NDArray[np.float64], n_knots: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mean score, mean win and mass of at most `n_knots` groups of scores; equal scores share a group."""
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
    """Return knots and non-decreasing values, the nearest in weighted squares, at the ends of flat pieces only."""
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
