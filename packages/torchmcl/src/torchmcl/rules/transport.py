"""Assignment rules that couple the targets of a sample: PIT, Sinkhorn and EMD.

`Sinkhorn` and, on a GPU, `PIT` run on the device like the rules of `torchmcl.rules.winners`; on CPUs `PIT` uses SciPy.
`EMD` solves a linear program per sample with SciPy on the CPU: it waits for the device, and does not run inside
`torch.compile(fullgraph=True)`, `torch.vmap` and other transforms of `torch.func`, or a captured CUDA graph.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchmcl.checks import check_positive_int
from torchmcl.dispatch import faster, is_plain_eager
from torchmcl.errors import bad_value
from torchmcl.optional import optional_import
from torchmcl.rules.winners import AssignmentRule, Temperature, hard_where_cold

__all__ = [
    "EMD",
    "PIT",
    "Sinkhorn",
    "one_to_one_weights",
    "solved_by_scipy",
    "transport_plan",
]


@dataclass(frozen=True, eq=False)
class Sinkhorn(AssignmentRule):
    """Entropic optimal transport from valid targets to hypotheses; rows are rescaled to sum to 1.

    Targets and hypotheses have uniform masses, so every hypothesis is used. A low temperature approaches `EMD` (and
    `PIT` for as many targets as hypotheses) but needs more iterations. Temperature 0 is `WTA`, as for all rules; use
    `EMD` for the exact plan.

    Args:
        temperature: Temperature, >= 0, in the units of the cost; a number, or a tensor that broadcasts against the cost
            and is constant within a sample.
        n_iters: Number of iterations that rescale rows and columns in turn; a fractional number, as a schedule gives,
            is rounded.

    Example:
        >>> Sinkhorn(temperature=0.5)(torch.tensor([[0.0, 1.0], [0.0, 3.0]]))
        tensor([[0.1192, 0.8808],
                [0.8808, 0.1192]])

    References:
        M. Cuturi, *Sinkhorn distances: lightspeed computation of optimal transport*, NeurIPS 2013, arXiv:1306.0895.

    See Also:
        EMD: Exact plan.
    """

    temperature: Temperature
    n_iters: int = 50

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if isinstance(self.n_iters, float) and abs(self.n_iters) < math.inf:  # what a schedule gives
            object.__setattr__(self, "n_iters", round(self.n_iters))
        check_positive_int("Sinkhorn", "n_iters", self.n_iters)

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the entropic transport plan."""
        return hard_where_cold(cost, self.temperature, lambda cost, temperature: self._plan(cost, temperature, mask))

    def _plan(self, cost: Tensor, temperature: float | Tensor, mask: Tensor | None) -> Tensor:
        # Subtracting the row minima changes no plan and keeps the exponents near 0.
        excess = cost - cost.amin(dim=-1, keepdim=True)
        largest = torch.finfo(cost.dtype).max
        factor = (
            (1 / temperature).clamp(max=largest) if isinstance(temperature, Tensor) else min(1 / temperature, largest)
        )
        affinity = (-excess * factor).clamp(min=-largest / 1e6)  # avoids NaN from sums of opposite infinities
        n_hypotheses = cost.shape[-1]
        if mask is None:
            mask = torch.ones(cost.shape[:-1], dtype=torch.bool, device=cost.device)
        padded = ~mask.unsqueeze(-1)
        empty = ~mask.any(dim=-1)[..., None, None]
        n_real = mask.sum(dim=-1)[..., None, None].clamp_min(1)
        column_mass = (n_real / n_hypotheses).to(cost.dtype).log()  # in units of one target's mass
        potential = torch.zeros_like(affinity[..., :1, :])  # [..., 1, hypotheses]
        for _ in range(self.n_iters):
            rows = (affinity + potential).log_softmax(dim=-1)  # each valid row has mass 1
            load = rows.masked_fill(padded, -torch.inf).logsumexp(dim=-2, keepdim=True)
            potential = (potential + column_mass - load).masked_fill(empty, 0)
        return (affinity + potential).softmax(dim=-1)


@dataclass(frozen=True, eq=False)
class PIT(AssignmentRule):
    """Permutation-invariant training (PIT): the cheapest one-to-one assignment of valid targets.

    There may be more hypotheses than targets, never fewer. A pair of infinite cost is forbidden. The weights of a
    sample are NaN if a cost is NaN or minus infinity, or if no assignment has a finite cost. On a GPU a Triton kernel
    assigns all samples at once without synchronization, even in a CUDA graph. On CPUs, and with more than 2048 targets
    or hypotheses, SciPy assigns them one by one (the extra `transport`). Both find the minimum; if several assignments
    attain it, they may return different ones.

    Raises:
        ValueError: If a sample has more valid targets than there are hypotheses. Where that depends on values of a mask
            that cannot be read (on a GPU, inside `torch.compile` and `torch.vmap`) the sample gets NaN weights.

    Example:
        >>> PIT()(torch.tensor([[0.0, 1.0, 5.0], [0.1, 3.0, 5.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 0.]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (38).
    """

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the cheapest one-to-one assignment."""
        n_targets, n_hypotheses = cost.shape[-2:]
        weights = one_to_one_weights(cost, mask)
        if n_targets <= n_hypotheses or 0 in cost.shape[:-2]:
            return weights
        if mask is None:
            raise _too_many_targets(n_targets, n_hypotheses)
        n_real = mask.sum(dim=-1)
        if cost.device.type == "cpu" and is_plain_eager() and (n_real > n_hypotheses).any():
            raise _too_many_targets(int(n_real.max()), n_hypotheses)
        return weights.masked_fill((n_real > n_hypotheses)[..., None, None], torch.nan)


def _too_many_targets(n_real: int, n_hypotheses: int) -> ValueError:
    advice = "Give the model more outputs, or use WTA, AnnealedWTA or EMD."
    rule = f"be at least the number of valid targets {n_real}"
    return ValueError(bad_value("PIT", "number of hypotheses", rule, n_hypotheses, advice))


@dataclass(frozen=True, eq=False)
class EMD(AssignmentRule):
    """Exact optimal transport (earth mover's distance) from valid targets to hypotheses; rows are rescaled to sum to 1.

    Targets and hypotheses have uniform masses. The rule requires SciPy (the extra `transport`), which solves a linear
    program per sample on the CPU, so it waits for the device. If the cost of a sample is not finite, its weights are
    NaN.

    Example:
        >>> EMD()(torch.tensor([[0.0, 1.0], [0.1, 3.0]]))
        tensor([[0., 1.],
                [1., 0.]])
    """

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the exact transport plan."""
        if cost.is_meta:  # shapes without values: nothing to solve
            return torch.empty_like(cost)
        samples = cost.reshape(math.prod(cost.shape[:-2]), *cost.shape[-2:]).cpu().double().numpy()
        real = np.ones(samples.shape[:-1], bool) if mask is None else mask.reshape(samples.shape[:-1]).cpu().numpy()
        weights = np.zeros_like(samples)
        for sample, rows, plan in zip(samples, real, weights, strict=True):
            if rows.any():
                problem = sample[rows]
                plan[rows] = _uniform_transport(problem) if np.isfinite(problem).all() else np.nan
        return torch.from_numpy(weights).to(cost).reshape(cost.shape)


def _uniform_transport(cost: np.ndarray) -> np.ndarray:
    n_targets, n_hypotheses = cost.shape
    if n_targets == n_hypotheses:  # the plan is a permutation, which has a faster solver
        return solved_by_scipy(cost)
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
        message = solution.message.rstrip(".")
        raise RuntimeError(f"transport_plan: the linear program was not solved: {message}. Use Sinkhorn instead.")
    return solution.x.reshape(cost.shape).clip(min=0)


@torch.library.custom_op("torchmcl::one_to_one_weights", mutates_args=(), device_types="cpu")
def _weights(cost: Tensor, mask: Tensor | None) -> Tensor:
    return _on_host(cost, mask)


def _on_cuda(cost: Tensor, mask: Tensor | None) -> Tensor:
    if cost.numel() == 0:
        return torch.empty_like(cost)
    weights = faster("assignment", cost, mask)
    return _on_host(cost, mask) if weights is NotImplemented else weights


_weights.register_kernel("cuda")(_on_cuda)


@_weights.register_fake
def _shape(cost: Tensor, mask: Tensor | None) -> Tensor:
    return torch.empty(cost.shape, dtype=cost.dtype, device=cost.device)


@_weights.register_vmap
def _many(
    info: object, in_dims: tuple[int | None, int | None], cost: Tensor, mask: Tensor | None
) -> tuple[Tensor, int]:
    """Make the mapped axis the first leading axis; matrices are solved independently."""
    n = next(x.shape[d] for x, d in zip((cost, mask), in_dims, strict=True) if x is not None and d is not None)
    first = [
        x if x is None else x.movedim(d, 0) if d is not None else x.expand(n, *x.shape)
        for x, d in zip((cost, mask), in_dims, strict=True)
    ]
    return _weights(*first), 0


def one_to_one_weights(cost: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return 1 at the pairs of the cheapest one-to-one assignment of each sample, 0 elsewhere.

    The number of pairs is the smaller of the numbers of valid targets and of hypotheses. A pair of infinite cost is
    forbidden. The weights of a sample are NaN if a cost of a valid target is NaN or minus infinity, or if no assignment
    has a finite cost. If several assignments are cheapest, any of them may be returned. On a GPU the assignment does
    not wait for the device, except without Triton or with more than 2048 targets or hypotheses: then SciPy computes it
    on the host, as on a CPU.

    Args:
        cost: Pairwise cost, [..., targets, hypotheses], in single or double precision; the computation is in double
            precision.
        mask: Valid targets, [..., targets]; None if all are valid.

    Returns:
        Weights [..., targets, hypotheses] in the dtype of the cost, without gradient; padded rows are 0.
    """
    cost, mask = cost.detach(), None if mask is None else mask.expand(cost.shape[:-1])
    # The dispatcher takes longer than a small problem, and is needed only for tracing and for tensors without values.
    if is_plain_eager() and type(cost) is Tensor and cost.device.type in ("cpu", "cuda"):
        return _on_cuda(cost, mask) if cost.is_cuda else _on_host(cost, mask)
    return _weights(cost, mask)


def _on_host(cost: Tensor, mask: Tensor | None) -> Tensor:
    samples = cost.reshape(math.prod(cost.shape[:-2]), *cost.shape[-2:]).cpu().double().numpy()
    real = np.ones(samples.shape[:-1], bool) if mask is None else mask.reshape(samples.shape[:-1]).cpu().numpy()
    weights = np.zeros_like(samples)
    for sample, rows, chosen in zip(samples, real, weights, strict=True):
        chosen[rows] = solved_by_scipy(sample[rows])
    return torch.from_numpy(weights).to(cost).reshape(cost.shape)


def solved_by_scipy(cost: np.ndarray) -> np.ndarray:
    """Return the weights of a single sample without padding, [targets, hypotheses]."""
    optimize = optional_import("scipy.optimize", extra="transport", needed_by="An assignment on the CPU (PIT, EMD)")
    weights = np.zeros_like(cost)
    try:
        weights[optimize.linear_sum_assignment(cost)] = 1
    except ValueError:  # NaN, minus infinity, or no assignment of finite cost
        weights[:] = np.nan
    return weights
