"""Assignment rules that couple the targets of a sample: PIT, Sinkhorn and EMD.

`Sinkhorn` runs on the device like the rules of `torchmcl.assignment`. `PIT` and `EMD` solve a
combinatorial problem per sample with SciPy on the CPU: they wait for the device, and do not run
inside `torch.compile(fullgraph=True)`, `torch.vmap` and other transforms of `torch.func`, or a
captured CUDA graph. On a GPU, `PIT` of a few speakers avoids this by trying all assignments there.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_non_negative, check_positive_int
from torchmcl._optional import optional_import
from torchmcl.assignment import AssignmentRule, hard_where_cold

__all__ = ["EMD", "PIT", "Sinkhorn"]

# Trying this many takes a few small kernels; waiting for the CPU takes a millisecond.
_MAX_ASSIGNMENTS = 120


@dataclass(frozen=True, eq=False)
class Sinkhorn(AssignmentRule):
    """The entropic transport plan from real targets to hypotheses, rows rescaled to sum to 1.

    Targets and hypotheses carry uniform masses, so every hypothesis is used; a low temperature
    approaches `EMD` (and `PIT` when there are as many targets as hypotheses) but needs more
    iterations. Temperature 0 is hard `WTA`, as everywhere; use `EMD` for the exact plan.

    Args:
        temperature: >= 0, in the units of the cost. A float, or a tensor that broadcasts against
            the cost and is constant within a sample.
        n_iters: how many times rows and columns are rescaled in turn; a fractional number, as a schedule
            gives, is rounded.

    Example:
        >>> Sinkhorn(temperature=0.5)(torch.tensor([[0.0, 1.0], [0.0, 3.0]]))
        tensor([[0.1192, 0.8808],
                [0.8808, 0.1192]])
    """

    temperature: float | Tensor
    n_iters: int = 50

    def __post_init__(self) -> None:
        """Check the fields."""
        advice = "0 is hard winner-takes-all."
        check_non_negative("Sinkhorn", "temperature", self.temperature, advice)
        if isinstance(self.n_iters, float) and abs(self.n_iters) < math.inf:  # what a schedule gives
            object.__setattr__(self, "n_iters", round(self.n_iters))
        check_positive_int("Sinkhorn", "n_iters", self.n_iters)

    def _assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        return hard_where_cold(cost, self.temperature, lambda cost, temperature: self._plan(cost, temperature, mask))

    def _plan(self, cost: Tensor, temperature: float | Tensor, mask: Tensor | None) -> Tensor:
        # Subtracting the row minima changes no plan and keeps the exponents near 0.
        excess = cost - cost.amin(dim=-1, keepdim=True)
        largest = torch.finfo(cost.dtype).max
        factor = (
            (1 / temperature).clamp(max=largest) if isinstance(temperature, Tensor) else min(1 / temperature, largest)
        )
        affinity = (-excess * factor).clamp(min=-largest / 1e6)  # minus infinity would meet plus infinity
        n_hypotheses = cost.shape[-1]
        if mask is None:
            mask = torch.ones(cost.shape[:-1], dtype=torch.bool, device=cost.device)
        padded = ~mask.unsqueeze(-1)
        empty = ~mask.any(dim=-1)[..., None, None]
        n_real = mask.sum(dim=-1)[..., None, None].clamp_min(1)
        column_mass = (n_real / n_hypotheses).to(cost.dtype).log()  # in units of one target's mass
        potential = torch.zeros_like(affinity[..., :1, :])  # [..., 1, hypotheses]
        for _ in range(self.n_iters):
            rows = (affinity + potential).log_softmax(dim=-1)  # each real row has mass 1
            load = rows.masked_fill(padded, -torch.inf).logsumexp(dim=-2, keepdim=True)
            potential = (potential + column_mass - load).masked_fill(empty, 0)
        return (affinity + potential).softmax(dim=-1)


@dataclass(frozen=True, eq=False)
class PIT(AssignmentRule):
    """Permutation-invariant training: the cheapest one-to-one assignment of real targets.

    There may be more hypotheses than targets, never fewer. On a GPU up to 120 assignments (5 targets to 5
    hypotheses, 2 to 11) are all tried. Otherwise it needs SciPy (`pip install torchmcl[transport]`), solves on the
    CPU and therefore waits for the device; see the module. A sample whose cost is not finite gets NaN weights.

    Raises:
        ValueError: if a sample has more real targets than there are hypotheses.

    Example:
        >>> PIT()(torch.tensor([[0.0, 1.0, 5.0], [0.1, 3.0, 5.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 0.]])

    Reference:
        Eq. (38).
    """

    def _assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        n_targets, n_hypotheses = cost.shape[-2:]
        # math.perm is 0 where there are more targets than hypotheses: the solver on the CPU names the sample.
        if cost.device.type == "cuda" and 0 < math.perm(n_hypotheses, n_targets) <= _MAX_ASSIGNMENTS:
            return _cheapest_of_all(cost, mask)
        return _solve_on_cpu(cost, mask, "PIT", _one_to_one)


@dataclass(frozen=True, eq=False)
class EMD(AssignmentRule):
    """The exact optimal transport plan (earth mover's distance), rows rescaled to sum to 1.

    Real targets and hypotheses carry uniform masses. Needs SciPy (`pip install
    torchmcl[transport]`), solves a linear program per sample on the CPU and therefore waits for the
    device; see the module. A sample whose cost is not finite gets NaN weights.

    Example:
        >>> EMD()(torch.tensor([[0.0, 1.0], [0.1, 3.0]]))
        tensor([[0., 1.],
                [1., 0.]])
    """

    def _assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        return _solve_on_cpu(cost, mask, "EMD", _uniform_transport)


@functools.lru_cache(maxsize=32)
def _all_assignments(n_targets: int, n_hypotheses: int, device: torch.device) -> Tensor:
    """Return which hypothesis each target gets, [assignments, targets]."""
    listed = list(itertools.permutations(range(n_hypotheses), n_targets))
    return torch.tensor(listed, dtype=torch.long, device=device).view(len(listed), n_targets)


def _cheapest_of_all(cost: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weights of the cheapest one-to-one assignment, found by trying all of them on the device."""
    n_targets, n_hypotheses = cost.shape[-2:]
    real = torch.ones_like(cost[..., :1], dtype=torch.bool) if mask is None else mask.unsqueeze(-1)
    wide = cost.double().masked_fill(~real, 0)
    choices = _all_assignments(n_targets, n_hypotheses, cost.device)
    rows = torch.arange(n_targets, device=cost.device)
    totals = wide[..., rows, choices].sum(dim=-1)  # [..., assignments]
    winners = choices[totals.argmin(dim=-1)]  # [..., targets]
    weights = torch.zeros_like(cost).scatter_(-1, winners.unsqueeze(-1), 1.0)
    finite = wide.isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    return weights.masked_fill(~finite, torch.nan).masked_fill(~real, 0)


def _solve_on_cpu(cost: Tensor, mask: Tensor | None, owner: str, solve: Any) -> Tensor:
    """Apply `solve(cost, optimize) -> weights` to the real rows of every sample."""
    if cost.is_meta:  # shapes without values: nothing to solve
        return torch.empty_like(cost)
    optimize = optional_import("scipy.optimize", extra="transport", needed_by=owner)
    n_samples = math.prod(cost.shape[:-2])
    flat = cost.reshape(n_samples, *cost.shape[-2:]).cpu().double().numpy()
    real = np.ones(flat.shape[:-1], dtype=bool) if mask is None else mask.reshape(flat.shape[:-1]).cpu().numpy()
    weights = np.zeros_like(flat)
    for index, (sample, rows) in enumerate(zip(flat, real, strict=True)):
        if not rows.any():
            continue
        if owner == "PIT" and rows.sum() > sample.shape[-1]:
            rule = f"be at least the number of real targets {rows.sum()}"
            advice = "Give the model more outputs, or use WTA, AnnealedWTA or EMD."
            raise ValueError(bad_value("PIT", "number of hypotheses", rule, sample.shape[-1], advice))
        problem = sample[rows]
        weights[index, rows] = solve(problem, optimize) if np.isfinite(problem).all() else np.nan
    return torch.from_numpy(weights).to(cost).reshape(cost.shape)


def _one_to_one(cost: np.ndarray, optimize: ModuleType) -> np.ndarray:
    weights = np.zeros_like(cost)
    weights[optimize.linear_sum_assignment(cost)] = 1
    return weights


def _uniform_transport(cost: np.ndarray, optimize: ModuleType) -> np.ndarray:
    n_targets, n_hypotheses = cost.shape
    if n_targets == n_hypotheses:  # the plan is a permutation, which has a faster solver
        return _one_to_one(cost, optimize)
    plan = transport_plan(cost, np.full(n_targets, 1 / n_targets), np.full(n_hypotheses, 1 / n_hypotheses))
    return plan / plan.sum(axis=-1, keepdims=True)


def transport_plan(cost: np.ndarray, row_mass: np.ndarray, column_mass: np.ndarray) -> np.ndarray:
    """Return the cheapest plan [rows, columns] with the given marginals, by linear programming."""
    optimize = optional_import("scipy.optimize", extra="transport", needed_by="transport_plan")
    sparse = optional_import("scipy.sparse", extra="transport", needed_by="transport_plan")
    n_rows, n_columns = cost.shape
    sums = sparse.vstack(
        [
            sparse.kron(sparse.eye_array(n_rows), np.ones((1, n_columns))),
            sparse.kron(np.ones((1, n_rows)), sparse.eye_array(n_columns)),
        ]
    ).tocsr()
    # One constraint follows from the others; leaving it out keeps rounding from making them inconsistent.
    marginals = np.concatenate([row_mass, column_mass])[:-1]
    scale = np.abs(cost).max() or 1.0  # HiGHS has absolute tolerances
    solution = optimize.linprog(cost.ravel() / scale, A_eq=sums[:-1], b_eq=marginals, bounds=(0, None), method="highs")
    if not solution.success:
        raise RuntimeError(f"transport_plan: the linear program was not solved: {solution.message}")
    plan: np.ndarray = solution.x.reshape(cost.shape).clip(min=0)
    return plan
