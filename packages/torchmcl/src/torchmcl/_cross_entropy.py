"""Score losses and gradients of a step with one target per sample, in plain torch operations.

The binary cross-entropy of logits, summed over the last axis, needs few transcendental functions and little memory.

The sum of log(1 + e^-|x|) is taken as the logarithm of products, one for every 64 entries: a logarithm for each entry
would dominate the time, as in the plain formula. Only the inputs are kept for the backward pass.
"""

import math
from typing import Any

import torch
from torch import Tensor

from torchmcl._eager import is_plain_eager, may_work_in_place
from torchmcl.costs._distances import centred_pull

_LOG2_E = math.log2(math.e)  # processors do exp2 faster than exp
# A product of this many factors in (1, 2] is far from overflow.
_FACTORS = 64
_CHUNK_ENTRIES = 1 << 21


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return sum_k [max(x, 0) - x y + log(1 + exp(-|x|))], [...]."""
    return _SummedCrossEntropy.apply(logits, labels)


def cross_entropy_gradient(logits: Tensor, labels: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the logits, given that of the sums [..., 1]; differentiable by autograd."""
    return (logits.sigmoid() - labels) * grad


class _SummedCrossEntropy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> Tensor:
        if logits.ndim == 1 or logits.device.type != "cpu" or not is_plain_eager():
            return _by_products(logits, labels)
        # In pieces that fit the cache: on CPUs fresh memory for the intermediates costs more than the arithmetic.
        n_rows = max(1, _CHUNK_ENTRIES * len(logits) // max(logits.numel(), 1))
        chunks = zip(logits.split(n_rows), labels.split(n_rows), strict=True)
        return torch.cat([_by_products(x, y) for x, y in chunks])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        logits, labels = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        to_logits = None
        if ctx.needs_input_grad[0]:
            if may_work_in_place(grad):
                scores = logits.mul(-_LOG2_E).exp2_().add_(1).reciprocal_()  # the sigmoid, a little faster
                to_logits = scores.sub_(labels).mul_(grad)
            else:
                to_logits = cross_entropy_gradient(logits, labels, grad)
        return to_logits, -logits * grad if ctx.needs_input_grad[1] else None


def _by_products(logits: Tensor, labels: Tensor) -> Tensor:
    factors = logits.abs().mul_(-_LOG2_E).exp2_().add_(1)
    n_entries = factors.shape[-1]
    if n_entries > _FACTORS:
        factors = torch.nn.functional.pad(factors, (0, -n_entries % _FACTORS), value=1.0)
        logs = factors.unflatten(-1, (-1, _FACTORS)).prod(dim=-1).log().sum(dim=-1)
    else:
        logs = factors.prod(dim=-1).log()
    return logs + torch.addcmul(logits.clamp_min(0), logits, labels, value=-1).sum(dim=-1)


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
        hypotheses: [n, hypotheses, dim]
        targets: [n, 1, dim]
        logits: [n, hypotheses], or None.
        weights: [n, 1, hypotheses]
        winners: [n], integers.
        upstream: the gradients at the cost, at the assignment loss and at the score loss.
        needs: whether each of the first three needs a gradient.
    """
    cost_grad, grad, score_grad = upstream
    n, n_hypotheses, _ = hypotheses.shape
    to_hypotheses = to_targets = to_logits = None
    parts = [part for part in (cost_grad, None if grad is None else weights * (grad / n)) if part is not None]
    if parts:
        to_hypotheses, to_targets = centred_pull(hypotheses, targets, sum(parts[1:], parts[0]), needs[:2])
    if logits is not None and needs[2] and score_grad is not None:
        labels = logits.new_zeros(logits.shape).scatter(-1, winners.long().unsqueeze(-1), 1.0)
        to_logits = cross_entropy_gradient(logits, labels, score_grad / (n * n_hypotheses))
    return to_hypotheses, to_targets, to_logits
