"""The cheapest one-to-one assignment as a torch operator: by SciPy on the host, by a Triton kernel on a GPU.

An operator, because a solver is a loop of unknown length: `torch.compile` and `torch.vmap` cannot trace it, and need
not.
"""

import math

import numpy as np
import torch
from torch import Tensor

from torchmcl.dispatch import faster, is_plain_eager
from torchmcl.optional import optional_import


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

    There are as many pairs as real targets or hypotheses, whichever are fewer. A pair that costs infinity is forbidden.
    A sample whose real targets have NaN or minus infinity somewhere, or that has no assignment of finite cost, is NaN.
    If several assignments are cheapest, any of them may be returned. On a GPU nothing waits for the device, except
    without Triton or with more than 2048 targets or hypotheses: then, as on a CPU, SciPy solves on the host.

    Args:
        cost: [..., targets, hypotheses], float32 or float64; computed in float64.
        mask: [..., targets], True where a target is real; None when all are.

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
