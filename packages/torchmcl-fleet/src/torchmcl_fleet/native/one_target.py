"""Step for one target per sample in C: `c/one_target.h`.

`mcl_step` is its definition. One pass over memory computes the cost, the weights, both losses and, if they may be
needed, the gradients of the losses, which the backward pass returns.
"""

import ctypes
from ctypes import Structure
from typing import Any

import torch
from torch import Tensor

from torchmcl import dispatch
from torchmcl.costs import distances
from torchmcl_fleet.native import aligned, floats, in_blocks, integers, library, pointers
from torchmcl_fleet.native.compiled import MAX_HYPOTHESES

__all__ = ["one_target_losses", "plain_pull"]


class _OneTarget(Structure):
    _fields_ = (
        *integers("first last n_rows n_hypotheses n_dims"),
        *floats("temperature epsilon"),
        *pointers("hypotheses targets logits cost weights winners losses to_hypotheses to_logits scratch"),
    )


def one_target_losses(
    hypotheses: Tensor, targets: Tensor, logits: Tensor | None, temperature: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return cost, weights, the mean weighted cost, and the mean cross-entropy of the scores with winners as labels.

    Args:
        hypotheses: Hypotheses, [n, hypotheses, dim].
        targets: Targets, [n, 1, dim].
        logits: Score logits, [n, hypotheses]; without them the last result is None.
        temperature: Temperature of soft weights, finite; 0 for hard weights.
        epsilon: Weight that all other hypotheses share under hard weights.
    """
    if hypotheses.shape[-1] > distances.MAX_TURNS or hypotheses.shape[-2] > MAX_HYPOTHESES:
        return NotImplemented
    return _Losses.apply(hypotheses, targets, logits, temperature, epsilon)


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hypotheses: Tensor, targets: Tensor, logits: Tensor | None, temperature: float, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        n, n_hypotheses, _ = hypotheses.shape
        h, t, x = hypotheses.contiguous(), targets.contiguous(), None if logits is None else logits.contiguous()
        cost, weights = h.new_empty(n, 1, n_hypotheses), h.new_empty(n, 1, n_hypotheses)
        winners = torch.empty(n, dtype=torch.int32, device="cpu")
        to_h = torch.empty_like(h) if ctx.needs_input_grad[0] else None
        to_x = torch.empty_like(x) if x is not None and ctx.needs_input_grad[2] else None
        losses = _computed(h, t, x, temperature, epsilon, cost, weights, winners, to_h, to_x)
        ctx.save_for_backward(h, t, x, weights, winners)
        ctx.made = to_h, to_x
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(weights)
        total = losses[0].float()
        # 0 * infinity is NaN, as in `mcl_loss`.
        return cost, weights, total.sub(total, alpha=0), None if x is None else losses[1].float()

    @staticmethod
    def backward(
        ctx: Any, cost_grad: Tensor | None, _: None, grad: Tensor | None, score_grad: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        (to_h, to_x), ctx.made = ctx.made, (None, None)
        pulls, pulls_targets, scores = ctx.needs_input_grad[:3]
        pulls, scores = pulls and grad is not None, scores and score_grad is not None
        taken = (pulls and to_h is None) or (scores and to_x is None)  # by a first backward pass
        if cost_grad is not None or pulls_targets or taken or not dispatch.may_work_in_place(grad, score_grad):
            h, t, x, weights, winners = ctx.saved_tensors
            upstream = cost_grad, grad, score_grad
            return (*plain_pull(h, t, x, weights, winners, upstream, ctx.needs_input_grad), None, None)
        return _times(to_h, grad) if pulls else None, None, _times(to_x, score_grad) if scores else None, None, None


def _computed(
    h: Tensor, t: Tensor, x: Tensor | None, temperature: float, epsilon: float, *written: Tensor | None
) -> Tensor:
    """Fill the output tensors, and return the assignment loss and the score loss."""
    cost, weights, winners, to_h, to_x = written
    n, n_hypotheses, n_dims = h.shape
    n_at_once = library().torchmcl_one_target_rows()
    n_blocks = -(-n // n_at_once)
    losses = torch.empty(n_blocks, 2, dtype=torch.float64, device="cpu")
    places = [
        None if part is None else part.data_ptr() for part in (h, t, x, cost, weights, winners, losses, to_h, to_x)
    ]

    def part(first: int, last: int) -> None:
        step = _OneTarget(first, last, n, n_hypotheses, n_dims, temperature, epsilon, *places)
        scratch = aligned(library().torchmcl_one_target_scratch(ctypes.byref(step)))
        step.scratch = scratch.data_ptr()
        library().torchmcl_one_target(ctypes.byref(step))

    in_blocks(part, n, n_hypotheses, n_at_once)
    return losses.sum(dim=0)


def _times(gradient: Tensor | None, upstream: Tensor | None) -> Tensor:
    """Return the gradient of a loss multiplied by the incoming gradient, which is 1 in most steps."""
    assert gradient is not None
    assert upstream is not None
    return gradient if upstream == 1 else gradient.mul_(upstream)


def plain_pull(
    hypotheses: Tensor,
    targets: Tensor,
    logits: Tensor | None,
    weights: Tensor,
    winners: Tensor,
    upstream: tuple[Tensor | None, Tensor | None, Tensor | None],
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of hypotheses, targets and logits, None where not needed.

    Args:
        hypotheses: Hypotheses, [n, hypotheses, dim].
        targets: Targets, [n, 1, dim].
        logits: Score logits, [n, hypotheses], or None.
        weights: Assignment weights, [n, 1, hypotheses].
        winners: Indices of the winners, [n], integers.
        upstream: Incoming gradients of the cost, the assignment loss and the score loss.
        needs: Whether hypotheses, targets and logits need a gradient.
    """
    cost_grad, grad, score_grad = upstream
    n, n_hypotheses, _ = hypotheses.shape
    to_hypotheses = to_targets = to_logits = None
    parts = [part for part in (cost_grad, None if grad is None else weights * (grad / n)) if part is not None]
    if parts:
        to_hypotheses, to_targets = distances.centered_gradients(
            hypotheses, targets, sum(parts[1:], parts[0]), needs[:2]
        )
    if logits is not None and needs[2] and score_grad is not None:
        labels = logits.new_zeros(logits.shape).scatter(-1, winners.long().unsqueeze(-1), 1.0)
        to_logits = (logits.sigmoid() - labels) * (score_grad / (n * n_hypotheses))
    return to_hypotheses, to_targets, to_logits
