"""The predictive of a classifier: mixtures over classes of several networks, with a calibrated temperature."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl.sklearn.examples import Examples
from torchmcl.sklearn.preprocessing import Encoder, check_numbers
from torchmcl.types import Predictions

__all__ = ["ClassMixture", "fitted_temperature", "log_shares"]

_ROWS_AT_ONCE = 65_536
# Temperatures of the probabilities that are tried, with a prior towards 1, worth this many pseudo-observations.
_TEMPERATURES = np.exp(np.linspace(-1.5, 1.5, 61))
_PRIOR_ROWS = 20.0


@dataclass(frozen=True)
class ClassMixture:
    """A map from the columns of rows to probabilities of classes.

    Attributes:
        modules: the networks, whose probabilities are averaged.
        encoder: of the columns.
        temperature: that the log-probabilities of each network are divided by.
        device: where to compute.
    """

    modules: list[nn.Module]
    encoder: Encoder
    temperature: float
    device: str | torch.device

    def __post_init__(self) -> None:
        """Check the temperature."""
        check_numbers("the temperature of class probabilities", self.temperature, positive=True)

    def on(self, device: str | torch.device) -> "ClassMixture":
        """Return the same mixture, computed on another device."""
        return replace(self, device=device)

    def __call__(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probability of each class, [rows, classes]."""
        logs = log_shares(self.modules, torch.from_numpy(self.encoder(X, X.dtype)), self.device)
        mixed: NDArray[np.float64] = (logs / self.temperature).softmax(dim=-1).mean(dim=0).numpy()
        return mixed / mixed.sum(axis=1, keepdims=True)


@torch.no_grad()
def log_shares(modules: Sequence[nn.Module], inputs: Tensor, device: str | torch.device) -> Tensor:
    """Return the log-probabilities of the classes by each network, [networks, rows, classes], in float64."""
    at = torch.device(device)
    movable = [copy.deepcopy(module).to(at, inputs.dtype) for module in modules]  # others may be predicting, in threads
    parts = []
    for rows in inputs.split(_ROWS_AT_ONCE):
        given: list[Predictions] = [module(rows.to(at)) for module in movable]
        parts.append(torch.stack([_mixed(one) for one in given]))
    return torch.cat(parts, dim=1)


def _mixed(answers: Predictions) -> Tensor:
    """Return the log-probabilities of the mixture, [rows, classes]."""
    assert answers.score_logits is not None
    scores = answers.score_logits.cpu().double().log_softmax(dim=-1)
    return torch.logsumexp(answers.hypotheses.cpu().double().log_softmax(dim=-1) + scores.unsqueeze(-1), dim=-2)


def fitted_temperature(logs: Sequence[Tensor], held_out: Sequence[Examples]) -> float:
    """Return the temperature with the best fit of networks to their held-out rows; 1 without any.

    Args:
        logs: log-probabilities of the held-out rows of each network, [rows, classes].
        held_out: these rows.
    """
    if not len(held_out[0].weights):
        return 1.0
    classes = np.concatenate([held.targets.squeeze(1).numpy() for held in held_out])
    found = best_temperature(torch.cat(list(logs)), classes, np.concatenate([held.weights for held in held_out]))
    # Overconfident networks agree less, so that their mean is flatter than each of them already.
    return found if found < 1 else float(found ** (1 / len(logs)))


def best_temperature(logs: Tensor, classes: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Return the temperature of probabilities [rows, classes] with the lowest log-loss on held-out rows.

    A prior holds it near 1, the squared logarithm of the temperature as the log-loss of some more rows: on a few rows
    that are all right the lowest log-loss would be that of certainty.
    """
    ids, counts = torch.from_numpy(classes), torch.from_numpy(weights / weights.mean())
    losses = []
    for temperature in _TEMPERATURES:
        chosen = (logs / temperature).log_softmax(dim=-1).gather(1, ids[:, None]).squeeze(1)
        losses.append(float(-(counts * chosen).sum()) + _PRIOR_ROWS * float(np.log(temperature)) ** 2)
    return float(_TEMPERATURES[int(np.argmin(losses))])
