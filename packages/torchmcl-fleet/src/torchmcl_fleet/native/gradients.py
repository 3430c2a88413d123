"""Gradients of a step with one target for each sample in plain torch, for the backward passes of the kernels."""

from torch import Tensor

from torchmcl.costs.distances import centered_pull

__all__ = ["plain_pull"]


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
        to_hypotheses, to_targets = centered_pull(hypotheses, targets, sum(parts[1:], parts[0]), needs[:2])
    if logits is not None and needs[2] and score_grad is not None:
        labels = logits.new_zeros(logits.shape).scatter(-1, winners.long().unsqueeze(-1), 1.0)
        to_logits = (logits.sigmoid() - labels) * (score_grad / (n * n_hypotheses))
    return to_hypotheses, to_targets, to_logits
