"""How many speak? The scores of the outputs as probabilities of each number of voices."""

import torch
from torch import Tensor

__all__ = ["count_probabilities"]


def count_probabilities(score_logits: Tensor) -> Tensor:
    """Return how likely each number of voices is, from 0 to all outputs.

    Each score is the probability that its output is a voice, given by the network for each output by itself; taken as
    independent, their sum has the distribution that is returned.

    Args:
        score_logits: [..., outputs]

    Returns:
        Probabilities [..., outputs + 1] that sum to 1.

    Example:
        >>> count_probabilities(torch.tensor([20.0, 20.0, 0.0, -20.0])).round(decimals=3)
        tensor([0.0000, 0.0000, 0.5000, 0.5000, 0.0000])
    """
    scores = torch.sigmoid(score_logits.double())
    counts = torch.zeros(*scores.shape[:-1], scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    counts[..., 0] = 1
    for score in scores.unsqueeze(-2).unbind(dim=-1):  # each [..., 1]
        one_more = torch.cat([torch.zeros_like(score), counts[..., :-1]], dim=-1)
        counts = (1 - score) * counts + score * one_more
    return counts.to(score_logits.dtype)
