"""The preprocessor: rows as tensors for training and validation."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.fleet import FleetData, Validation, WeightedDistortion, hard_distortion
from torchmcl.sklearn.preprocessing import Encoder
from torchmcl.sklearn.rows import Rows
from torchmcl.sklearn.targets import Targets

__all__ = ["Examples", "Preprocessor", "default_n_epochs", "mean_one", "seeds_of"]

# A small table is seen hundreds of times and a large one twenty times.
_MIN_EPOCHS, _MAX_EPOCHS = 20, 1000


class Examples(NamedTuple):
    """Inputs [rows, columns], targets [rows, 1, ...] and weights [rows]."""

    inputs: Tensor
    targets: Tensor
    weights: NDArray[np.float64]

    def for_all(self, n_networks: int) -> FleetData:
        """Return the data of a fleet whose networks are all trained on these rows."""
        return FleetData.shared(self.inputs, self.targets, n_networks, weights=mean_one(self.weights))

    def watched(self, n_networks: int, *, every: int, patience: int | None) -> Validation | None:
        """Return the validation of networks by the distortion on these rows; None without any."""
        if not len(self.weights):
            return None
        uneven = mean_one(self.weights)
        return Validation(
            FleetData.shared(self.inputs, self.targets, n_networks),
            monitor=hard_distortion if uneven is None else WeightedDistortion(uneven),
            every=every,
            patience=patience,
        )


@dataclass(frozen=True)
class Preprocessor:
    """Rows to examples.

    Attributes:
        encoder: of the columns.
        targets: of a regressor; None for class ids, which stay unchanged.
    """

    encoder: Encoder
    targets: Targets | None = None

    def __call__(self, rows: Rows) -> Examples:
        """Return rows as tensors."""
        targets = rows.targets if self.targets is None else self.targets.scaler(rows.targets)
        inputs = torch.from_numpy(self.encoder(rows.inputs))
        return Examples(inputs, torch.from_numpy(targets).unsqueeze(1), rows.weights)


def mean_one(weights: NDArray[np.float64]) -> Tensor | None:
    """Return weights of mean 1, None if all are equal."""
    if (weights == weights[0]).all():
        return None
    return torch.from_numpy(weights / weights.mean()).float()


def default_n_epochs(n_rows: int, batch_size: int, n_steps: int) -> int:
    """Return the number of epochs for about this many steps, between 20 and 1000."""
    return max(_MIN_EPOCHS, min(_MAX_EPOCHS, round(n_steps / math.ceil(n_rows / batch_size))))


def seeds_of(seed: int, n_networks: int) -> list[int]:
    """Return a seed for each network."""
    return [int(s) for s in np.random.RandomState(seed).randint(2**31 - 1, size=n_networks)]
