"""Cost matrices that are hard for assignment solvers, and a comparison of solutions with SciPy."""

from collections.abc import Callable
from multiprocessing.pool import Pool

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def _product(*shape: int) -> Tensor:
    """Return the products of the numbers of row and column: long augmenting paths, with every later row in the way."""
    rows, columns = torch.arange(1.0, shape[-2] + 1), torch.arange(1.0, shape[-1] + 1)
    return (rows[:, None] * columns).expand(shape).clone() * (1 if shape[0] % 2 else -1)


def _sparse(*shape: int) -> Tensor:
    """Return costs with a third of the pairs forbidden; often no assignment is left."""
    return torch.randn(shape).masked_fill(torch.rand(shape) < 0.33, torch.inf)


def _spoilt(*shape: int) -> Tensor:
    """Return costs with NaN or minus infinity in some matrices."""
    cost = torch.randn(shape)
    cost[::3, 0, -1] = torch.nan
    cost[1::3, -1, 0] = -torch.inf
    return cost


MATRICES: dict[str, Callable[..., Tensor]] = {
    "normal": lambda *shape: torch.randn(shape),
    "negative": lambda *shape: -torch.rand(shape),
    "ties": lambda *shape: torch.randint(0, 3, shape).float(),
    "all equal": lambda *shape: torch.full(shape, 0.1),
    "nearly equal": lambda *shape: 1 + torch.randint(0, 4, shape) * torch.finfo(torch.float32).eps,
    "equal rows": lambda *shape: torch.randn(*shape[:-2], 1, shape[-1]).expand(shape).clone(),
    "one favorite": lambda *shape: torch.rand(shape) - 10 * (torch.arange(shape[-1]) == 0),
    "product": _product,
    "many magnitudes": lambda *shape: torch.randn(shape) * 10.0 ** torch.randint(-30, 30, shape),
    "forbidden pairs": _sparse,
    "not numbers": _spoilt,
}


def drawn(kind: str, n: int, n_targets: int, n_hypotheses: int, masked: bool) -> tuple[Tensor, Tensor | None]:
    """Return costs [n, targets, hypotheses] of a kind, and a mask or None."""
    return MATRICES[kind](n, n_targets, n_hypotheses), torch.rand(n, n_targets) < 0.7 if masked else None


def minimum_cost(cost: np.ndarray) -> float:
    """Return the total of the cheapest assignment by SciPy, NaN where there is none."""
    try:
        return float(cost[linear_sum_assignment(cost)].sum())
    except ValueError:
        return np.nan


def n_faults(cost: Tensor, mask: Tensor | None, weights: Tensor, pool: Pool | None = None) -> int:
    """Return the number of samples whose solution differs from SciPy: pairs, total cost, NaN, padding."""
    real = torch.ones(cost.shape[:-1], dtype=torch.bool) if mask is None else mask.cpu()
    cost, weights = cost.cpu().double(), weights.cpu().double()
    samples = [sample[rows] for sample, rows in zip(cost.numpy(), real.numpy(), strict=True)]
    totals = map(minimum_cost, samples) if pool is None else pool.map(minimum_cost, samples, 1000)
    best = torch.tensor(list(totals), dtype=torch.float64)
    padding_is_zero = (weights == 0).all(-1) | real
    unsolvable = best.isnan()
    is_nan = (weights.isnan().all(-1) | ~real).all(-1)
    chosen = weights == 1
    total = cost.where(chosen, 0).sum((-1, -2))
    size = cost.where(real.unsqueeze(-1) & cost.isfinite(), 0).abs().amax((-1, -2))
    expected_pairs = real.sum(-1).clamp(max=cost.shape[-1])
    one_to_one = (
        ((weights == 0) | chosen).all(-1).all(-1)
        & (chosen.sum(-1) <= 1).all(-1)
        & (chosen.sum(-2) <= 1).all(-1)
        & (chosen.sum((-1, -2)) == expected_pairs)
    )
    # Both solvers round in float64: 1e-16 of the largest cost for each sum on the way, with room to spare.
    right = one_to_one & ((total - best).abs() <= 1e-13 * size * expected_pairs)
    right = torch.where(unsolvable, is_nan, right) & padding_is_zero.all(-1)
    return int((~right).sum())
