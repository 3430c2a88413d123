"""Class probabilities: the mixture of networks, its temperature, and the held-out folds of the networks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl_fleet import FleetData, MixtureLogLoss, Validation
from torchmcl_tables.estimators.predictive import outputs_of
from torchmcl_tables.estimators.rows import Encoder, Rows, check_numbers
from torchmcl_tables.estimators.training import Examples

# Candidate temperatures, and a prior towards 1 worth this many pseudo-observations.
_TEMPERATURES = np.exp(np.linspace(-1.5, 1.5, 61))
_PRIOR_ROWS = 20.0


@dataclass(frozen=True)
class ClassMixture:
    """Map from rows of a table to class probabilities.

    Attributes:
        modules: Networks whose probabilities are averaged.
        encoder: Encoder of the columns.
        temperature: Divisor of the log-probabilities of each network.
        device: Device that computes the probabilities.
    """

    modules: list[nn.Module]
    encoder: Encoder
    temperature: float
    device: str | torch.device

    def __post_init__(self) -> None:
        """Check the temperature."""
        check_numbers("the temperature of class probabilities", self.temperature, positive=True)

    def __call__(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Compute the probability of each class, [rows, classes]."""
        logs = log_probabilities(self.modules, torch.from_numpy(self.encoder(X, X.dtype)), self.device)
        mixed: NDArray[np.float64] = (logs / self.temperature).softmax(dim=-1).mean(dim=0).numpy()
        return mixed / mixed.sum(axis=1, keepdims=True)


def log_probabilities(modules: Sequence[nn.Module], inputs: Tensor, device: str | torch.device) -> Tensor:
    """Compute the log-probabilities of the classes for each network, [networks, rows, classes], in float64."""
    return torch.cat(
        outputs_of(modules, inputs, device, lambda pairs: torch.stack([mixed_log_probabilities(*x) for x in pairs])),
        dim=1,
    )


def mixed_log_probabilities(hypotheses: Tensor, logits: Tensor) -> Tensor:
    """Compute the log-probabilities of the mixture of hypotheses, [rows, classes]."""
    return torch.logsumexp(hypotheses.log_softmax(dim=-1) + logits.log_softmax(dim=-1).unsqueeze(-1), dim=-2)


def fitted_temperature(logs: Sequence[Tensor], held_out: Sequence[Examples]) -> float:
    """Fit the temperature of the networks to their held-out rows; 1 without held-out rows.

    Args:
        logs: Log-probabilities of the held-out rows of each network, [rows, classes].
        held_out: Held-out rows of each network.
    """
    if not len(held_out[0].weights):
        return 1.0
    classes = np.concatenate([held.targets.squeeze(1).numpy() for held in held_out])
    weights = np.concatenate([held.weights for held in held_out])
    temperature = best_temperature(torch.cat(list(logs)), classes, weights)
    # Overconfident networks agree less, so their mean is already flatter than each of them.
    return temperature if temperature < 1 else float(temperature ** (1 / len(logs)))


def best_temperature(logs: Tensor, classes: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Return the temperature at which log-probabilities, [rows, classes], have the lowest log-loss.

    A prior on the squared logarithm of the temperature, worth a few rows, keeps it near 1: if a few rows are all
    classified correctly, the log-loss alone would be lowest for a temperature near 0.
    """
    ids, counts = torch.from_numpy(classes), torch.from_numpy(weights / weights.mean())
    losses = []
    for temperature in _TEMPERATURES:
        chosen = (logs / temperature).log_softmax(dim=-1).gather(1, ids[:, None]).squeeze(1)
        losses.append(float(-(counts * chosen).sum()) + _PRIOR_ROWS * float(np.log(temperature)) ** 2)
    return float(_TEMPERATURES[int(np.argmin(losses))])


# More held-out rows do not improve the temperature.
_MAX_HELD_OUT = 10_000


def dealt_folds(rows: Rows, n_networks: int, fraction: float) -> list[tuple[Rows, Rows]]:
    """Return the training rows and the held-out rows of each network.

    Units (rows that belong together) are assigned to the folds in turn, class by class, so that the folds are
    stratified. If there are more networks than folds, the folds are reused, beginning with the first.

    Args:
        rows: Rows ordered by a hash, with class ids as targets.
        n_networks: Number of networks.
        fraction: Fraction of the units held out by each network, rounded to 1/2, 1/3, 1/4 ...; 0 for none.
    """
    if fraction == 0:
        return [(rows, rows.head(0))] * n_networks
    _, first, unit = np.unique(rows.units, return_index=True, return_inverse=True)
    n_units = len(first)
    if n_units < 2:
        return [(rows, rows.head(0))] * n_networks
    n_folds = min(max(2, round(1 / fraction), math.ceil(n_units / _MAX_HELD_OUT)), n_units)
    order = np.lexsort((first, rows.targets[first]))
    fold = np.empty(n_units, dtype=np.int64)
    fold[order] = np.arange(n_units) % n_folds
    fold_of_row: NDArray[np.int64] = fold[unit.ravel()]
    folds = [fold_of_row == place for place in range(min(n_networks, n_folds))]
    dealt = [(rows.take(~held), rows.take(held)) for held in folds]
    return [dealt[place % len(dealt)] for place in range(n_networks)]


def fold_data(examples: Sequence[Examples]) -> FleetData:
    """Combine the rows of each network to the data of a fleet; shorter sets are padded with rows of weight 0."""
    sets = list({id(fold): fold for fold in examples}.values())
    places = {id(fold): place for place, fold in enumerate(sets)}
    longest = max(len(fold.weights) for fold in sets)
    padded = [_padded(fold, longest) for fold in sets]
    data = FleetData.of_sets([(fold.inputs, fold.targets) for fold in padded], [places[id(fold)] for fold in examples])
    weights = np.stack([fold.weights for fold in padded])
    if (weights == weights[0, 0]).all():
        return data
    means = np.maximum(weights.mean(axis=1, keepdims=True), 1e-300)
    return data._replace(weights=torch.from_numpy(weights / means).float())


def _padded(examples: Examples, n_rows: int) -> Examples:
    inputs, targets, weights = examples
    n_more = n_rows - len(weights)
    if not n_more:
        return examples
    inputs, targets = (torch.cat([part, part.new_zeros(n_more, *part.shape[1:])]) for part in (inputs, targets))
    return Examples(inputs, targets, np.concatenate([weights, np.zeros(n_more)]))


def watched_folds(examples: Sequence[Examples], *, every: int, patience: int) -> Validation | None:
    """Return a validation by the mean log-loss of the networks on their held-out rows; None without held-out rows."""
    if not len(examples[0].weights):
        return None
    rows = fold_data(examples)
    shape = len(examples), rows.inputs.shape[1]
    weights = torch.ones(shape) if rows.weights is None else rows.weights[rows.set_of_model]
    monitor = MixtureLogLoss(weights, together=True)
    return Validation(rows._replace(weights=None), monitor=monitor, every=every, patience=patience)
