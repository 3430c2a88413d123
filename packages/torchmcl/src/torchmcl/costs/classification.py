"""Classification costs: cross-entropy of every (class id, hypothesis) pair."""

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_leading_axes, check_tensor
from torchmcl.costs.declared import declares
from torchmcl.dispatch import broadcast_shapes, debug_checks_enabled


@declares(event_dims=1, target_dims=0)
def pairwise_cross_entropy(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every (class id, hypothesis) pair.

    Args:
        hypotheses: logits [..., hypotheses, classes]
        targets: class ids [..., targets], integers from 0 to classes - 1, including padded ones.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in the logits.

    Raises:
        TypeError: if the targets are not integers.
        ValueError: if the axes do not fit, or for an id out of range (on GPUs only inside `debug_checks`).

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
        >>> pairwise_cross_entropy(hypotheses=logits, targets=torch.tensor([1]))
        tensor([[0.6931, 0.1269]])
    """
    owner = "pairwise_cross_entropy"
    _check(owner, hypotheses, targets)
    hypotheses = hypotheses.to(torch.promote_types(hypotheses.dtype, torch.float32))
    leading = broadcast_shapes(hypotheses.shape[:-2], targets.shape[:-1])
    hypotheses = hypotheses.expand(*leading, *hypotheses.shape[-2:])
    n_hypotheses = hypotheses.shape[-2]
    ids = targets.long().expand(*leading, targets.shape[-1]).unsqueeze(-1)
    # Normalising once per hypothesis and then picking needs no [..., targets, hypotheses, classes].
    log_probs = hypotheses.log_softmax(dim=-1).mT  # [..., classes, hypotheses]
    ids = ids.expand(*ids.shape[:-1], n_hypotheses)
    try:
        return -log_probs.gather(-2, ids)
    except (RuntimeError, IndexError) as error:  # raised on the CPU for an id out of range
        if "out of bounds" not in str(error):
            raise
        rule = f"lie between 0 and {hypotheses.shape[-1] - 1}"
        raise ValueError(bad_value(owner, "targets", rule, "an id out of range", str(error))) from error


def _check(owner: str, hypotheses: Tensor, targets: Tensor) -> None:
    check_tensor(owner, "hypotheses", hypotheses)
    check_tensor(owner, "targets", targets, floating=False)
    if targets.is_floating_point() or targets.dtype == torch.bool:
        rule = "hold integer class ids"
        raise TypeError(bad_value(owner, "targets", rule, targets.dtype, "Convert them first: targets.long()."))
    if hypotheses.ndim < 2:
        rule = "have shape [..., hypotheses, classes]"
        raise ValueError(bad_value(owner, "hypotheses", rule, tuple(hypotheses.shape)))
    if targets.ndim < 1:
        rule = "have shape [..., targets]"
        advice = "A batch of single targets is [batch, 1]: targets.unsqueeze(-1)."
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape), advice))
    check_leading_axes(owner, hypotheses, targets, hypotheses.shape[:-2], targets.shape[:-1])
    n_classes = hypotheses.shape[-1]
    if n_classes < 1:
        rule = "have at least one class"
        raise ValueError(bad_value(owner, "hypotheses", rule, tuple(hypotheses.shape)))
    if debug_checks_enabled() and targets.numel():
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= n_classes:
            rule = f"lie between 0 and {n_classes - 1}"
            raise ValueError(bad_value(owner, "targets", rule, low if low < 0 else high))
