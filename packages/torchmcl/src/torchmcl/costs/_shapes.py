"""Preparation shared by the costs: at least float32, and one set of leading axes."""

import torch
from torch import Tensor

from torchmcl._eager import broadcast_shapes

__all__ = ["aligned_pair"]


def aligned_pair(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors in one dtype of at least float32, leading axes expanded to match."""
    dtype = torch.promote_types(torch.promote_types(hypotheses.dtype, targets.dtype), torch.float32)
    hypotheses, targets = hypotheses.to(dtype), targets.to(dtype)
    if hypotheses.shape[:-2] != targets.shape[:-2]:
        leading = broadcast_shapes(hypotheses.shape[:-2], targets.shape[:-2])
        hypotheses = hypotheses.expand(*leading, *hypotheses.shape[-2:])
        targets = targets.expand(*leading, *targets.shape[-2:])
    return hypotheses, targets
