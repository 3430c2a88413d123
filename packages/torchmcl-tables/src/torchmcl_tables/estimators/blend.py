"""The predictive of a blend: networks of several kinds, a forest and a background, weighted by held-out rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.density import KernelMixture, best_points
from torchmcl.sklearn import Hypotheses
from torchmcl.sklearn.preprocessing import Encoder, check_numbers
from torchmcl.sklearn.saving import check_n_answers
from torchmcl.sklearn.targets import Targets
from torchmcl_tables.estimators.atoms import at_atoms, best_atoms
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.kernels import Kernels, network_kernels
from torchmcl_tables.estimators.members import background, forest_kernels, informed, mixed
from torchmcl_tables.estimators.places import dense_inputs

__all__ = ["Blend"]


@dataclass(frozen=True)
class Blend:
    """From the columns of rows to kernels, and to answers.

    Attributes:
        encoders: of each kind of networks.
        networks: of each kind.
        weights: of the kinds, of the forest where there is one, and of the background.
        targets: their units.
        n_points: the number of answers for a row.
        device: where to compute.
        forest: or None.
        factor: of the widths of its kernels.
        floor: below which none of those is.
        stretches: factors of the widths of each kind of networks.
        trim: the share of the probability at each end that answers do not consider; for one output.
        values: the only values that y takes, increasing; None where it takes many.
    """

    encoders: list[Encoder]
    networks: list[list[Any]]
    weights: NDArray[np.float64]
    targets: Targets
    n_points: int
    device: str | torch.device
    forest: Forest | None = None
    factor: float = 1.0
    floor: float = 0.1
    stretches: NDArray[np.float64] | None = None
    trim: float = 0.0
    values: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        """Check the numbers: a file may have been written by others."""
        n_members = len(self.encoders) + (self.forest is not None) + 1
        check_numbers("the weights of a blend", self.weights)
        if self.weights.shape != (n_members,) or (self.weights < 0).any() or abs(self.weights.sum() - 1) > 1e-6:
            raise ValueError(f"the weights of a blend must be {n_members}, one per member, and sum to 1")
        if len(self.networks) != len(self.encoders):
            raise ValueError("a blend must have networks for each encoder")
        stretches: Any = [] if self.stretches is None else self.stretches
        check_numbers("the widths of a blend", [self.factor, self.floor, *stretches], positive=True)
        check_numbers("the values of a blend", [] if self.values is None else self.values)
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"the trim of a blend must lie in [0, 0.5), got {self.trim!r}")
        check_n_answers(self.n_points)

    @property
    def atoms(self) -> Tensor | None:
        """The only values of the targets, in standardised units."""
        return None if self.values is None else self.targets.standardised(self.values[:, None])[:, 0]

    @property
    def n_answers(self) -> int:
        """The number of answers for a row."""
        return self.n_points if self.values is None else min(self.n_points, len(self.values))

    @property
    def member_weights(self) -> dict[str, float]:
        """The weights by the names of the members."""
        names = ["networks", "networks with bins"][: len(self.encoders)] + ["forest"] * (self.forest is not None)
        return dict(zip([*names, "background"], map(float, self.weights), strict=True))

    def members(self, X: NDArray[Any]) -> list[Kernels]:
        """Return the kernels that each member gives to rows, each with the whole probability, in standardised units."""
        parts = [
            network_kernels(networks, encoder, X, self.device)
            for encoder, networks in zip(self.encoders, self.networks, strict=True)
        ]
        if self.stretches is not None:
            parts = [part.stretched(by) for part, by in zip(parts, self.stretches, strict=True)]
        if self.forest is not None:
            values, spreads = self.forest.answers(dense_inputs(self.encoders[0], X))
            parts.append(forest_kernels(values, spreads, self.factor, self.floor))
        return [*parts, background(parts[0])]

    def kernels(self, X: NDArray[Any], *, knowing: bool = False) -> Kernels:
        """Return all kernels of rows, in standardised units.

        Args:
            X: [rows, columns]
            knowing: leave out the background and stray kernels. A mean, or points that represent the density, would
                depend on little else: squared distances count what is far.
        """
        whole = self.at_atoms((informed if knowing else mixed)(self.members(X), self.weights))
        return whole.trimmed(self.trim) if knowing and self.trim else whole

    def at_atoms(self, kernels: Kernels) -> Kernels:
        """Return kernels at the atoms, where there are any."""
        return kernels if self.atoms is None else at_atoms(kernels, self.atoms)

    def masses(self, X: NDArray[Any], *, knowing: bool = False) -> Tensor:
        """Return the probability of each of the few values, [rows, values]."""
        return self.kernels(X, knowing=knowing).probabilities

    # ------------------------------------------------------------------ as `torchmcl.sklearn.predictive.Predictive`

    def means(self, X: NDArray[Any]) -> Tensor:
        """Return the standardised mean of each row, [rows, outputs]."""
        kernels = self.kernels(X, knowing=True)
        return (kernels.probabilities.unsqueeze(-1) * kernels.values).sum(dim=1)

    def mean(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the mean of each row in the units of y, [rows, outputs]."""
        if self.values is None:
            return self.targets.restored(self.means(X).numpy())
        return (self.masses(X, knowing=True) @ torch.from_numpy(self.values)).unsqueeze(1).numpy()

    def hypotheses(self, X: NDArray[Any], n_hypotheses: int | None = None) -> Hypotheses:
        """Return answers in the units of y: points that represent the density."""
        kernels, n_points = self.kernels(X, knowing=True), n_hypotheses or self.n_points
        if self.values is None:
            points, masses, _ = best_points(kernels.density(), n_points)
            return Hypotheses(self.targets.restored(self.targets.bounded(points).numpy()), masses.numpy())
        places, masses = best_atoms(torch.from_numpy(self.values), kernels.probabilities, n_points)
        return Hypotheses(self.values[places.numpy()][..., None], masses.numpy())

    def standardised(self, X: NDArray[Any]) -> KernelMixture:
        """Return the density of each row in standardised units."""
        return self.kernels(X).density()

    def density(self, X: NDArray[Any], kind: type[Any] = KernelMixture) -> KernelMixture:
        """Return the density of each row in the units of y; it is always a `KernelMixture`."""
        scaler = self.targets.scaler
        return self.kernels(X).moved(torch.from_numpy(scaler.scale), torch.from_numpy(scaler.mean)).density()

    def sample(self, X: NDArray[Any], n_samples: int, generator: torch.Generator) -> NDArray[np.float64]:
        """Return draws in the units of y, [rows, samples, outputs]."""
        drawn: NDArray[np.float64] = self.density(X).sample((n_samples,), generator).movedim(0, 1).numpy()
        if self.values is None:
            return drawn
        return self.values[np.searchsorted((self.values[1:] + self.values[:-1]) / 2, drawn)]
