"""Probabilities of the number of voices, computed from the scores of the outputs."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchmcl.errors import bad_value

__all__ = ["count_log_loss", "count_probabilities", "fit_count_temperature", "score_temperature"]


def count_probabilities(score_logits: Tensor) -> Tensor:
    """Compute the probability of each number of voices, from 0 to the number of outputs.

    Each score is the probability that its output is a voice. The number of voices is computed as if the outputs were
    independent.

    Args:
        score_logits: Score logits [..., outputs].

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


def count_log_loss(score_logits: Tensor, n_voices: Tensor) -> Tensor:
    """Compute the mean negative log-probability of the true number of voices.

    Args:
        score_logits: Score logits [..., recordings, outputs].
        n_voices: True numbers of voices, [recordings].

    Returns:
        Log-loss in nats, [...].

    Example:
        >>> count_log_loss(torch.tensor([[0.0, 20.0]]), torch.tensor([1])).round(decimals=3)
        tensor(0.6930)
    """
    probabilities = count_probabilities(score_logits.double())
    places = n_voices.expand(probabilities.shape[:-1]).unsqueeze(-1)
    true = probabilities.gather(-1, places).squeeze(-1)
    return -true.clamp_min(1e-12).log().mean(dim=-1).to(score_logits.dtype)


def fit_count_temperature(score_logits: Tensor, n_voices: Tensor) -> float:
    """Fit the temperature of the score logits that calibrates the probabilities of the number of voices.

    The temperature minimizes `count_log_loss` among values from 0.1 to 10 in steps of 1 %.

    Args:
        score_logits: Score logits of recordings outside of the training data, [recordings, outputs].
        n_voices: True numbers of voices, [recordings].

    Example:
        >>> round(fit_count_temperature(torch.tensor([[8.0], [8.0], [8.0], [8.0]]), torch.tensor([1, 1, 1, 0])), 1)
        7.3
    """
    temperatures = torch.logspace(-1, 1, 463, dtype=torch.float64)
    losses = count_log_loss(score_logits.double() / temperatures.view(-1, 1, 1), n_voices)
    return float(temperatures[losses.argmin()])


def score_temperature(notes: Mapping[str, Any]) -> float:
    """Return the temperature of the score logits in the notes of a model; 1 if the model is not calibrated.

    Raises:
        ValueError: If the temperature is not a positive number.
    """
    value = notes.get("score_temperature", 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        advice = "Calibrate the model again: torchmcl separation calibrate."
        raise ValueError(bad_value("separation", "score_temperature", "be a positive number", repr(value)[:80], advice))
    return float(value)
