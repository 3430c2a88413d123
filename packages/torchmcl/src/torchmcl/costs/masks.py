"""The cost of segmentation: the dice distance between masks."""

from torch import Tensor

from torchmcl._checks import check_positive
from torchmcl.costs._parts import aligned_events, inner_products
from torchmcl.costs.declared import declares


@declares(event_dims=...)
def pairwise_dice(
    *, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None, event_dims: int = 2, smooth: float = 1.0
) -> Tensor:
    """Return the dice distance of every pair of a target and the sigmoid of a hypothesis, in [0, 1].

    It is 1 - (2 |p t| + smooth) / (|p| + |t| + smooth), with sums over the pixels; 0 for equal masks.

    Args:
        hypotheses: logits [..., hypotheses, height, width]
        targets: [..., targets, height, width], in [0, 1]; the contents of masked pixels are ignored, even NaN.
        mask: [..., targets, height, width], True where a pixel counts; None when all do.
        event_dims: how many axes one mask has; `mcl_step` fills it in.
        smooth: > 0, keeps two empty masks at a distance of 0.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> import torch
        >>> left, right = torch.tensor([[9.0, -9.0]]), torch.tensor([[-9.0, 9.0]])
        >>> pairwise_dice(hypotheses=torch.stack([left, right]), targets=torch.tensor([[[1.0, 0.0]]]))
        tensor([[8.2254e-05, 6.6658e-01]])
    """
    check_positive("pairwise_dice", "smooth", smooth)
    logits, targets, mask = aligned_events("pairwise_dice", hypotheses, targets, mask, event_dims)
    inside = logits.sigmoid().flatten(-event_dims)  # [..., hypotheses, pixels]
    real = None
    if mask is not None:
        real = mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim)).expand(targets.shape).flatten(-event_dims)
    targets = targets.flatten(-event_dims)
    overlap = inner_products(inside, targets).cross
    covered = inside.sum(dim=-1).unsqueeze(-2) if real is None else inner_products(inside, real.to(inside)).cross
    total = covered + targets.sum(dim=-1, keepdim=True)
    return (1 - (2 * overlap + smooth) / (total + smooth)).to(inside.dtype)
