"""Predictive distribution of a blend of networks, a forest and a background, with weights from held-out rows.

The density of a discrete target is concentrated at its values (atoms); the functions for atoms come last.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.density import Mixture, best_points
from torchmcl.postprocess import effective_counts, quantile
from torchmcl_tables.estimators.calibration import CALIBRATION_ROWS, Calibrator, blocks, reaching, stacked
from torchmcl_tables.estimators.calibration import supported_gaps as gaps_of_density
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.kernels import Kernels, KernelsOfRows, background, informed, mixed, network_pass
from torchmcl_tables.estimators.results import Hypotheses
from torchmcl_tables.estimators.rows import Encoder, Rows, check_n_answers, check_numbers
from torchmcl_tables.estimators.tables import Targets


@dataclass(frozen=True)
class Blend:
    """Map from rows of a table to kernels and hypotheses.

    Attributes:
        encoders: Encoder of each kind of network.
        networks: Networks of each kind.
        weights: Weights of the kinds of networks, the forest if there is one, and the background.
        targets: Names, units and bounds of the targets.
        n_points: Number of hypotheses per row.
        device: Device that computes the kernels.
        forest: Forest of the blend; None if there is none.
        factor: Factor of the spreads in the widths of the forest's kernels.
        floor: Minimum width of the forest's kernels.
        stretches: Factors of the kernel widths, one for each kind of network.
        trim: Probability at each end of the distribution that hypotheses ignore; for one output.
        values: Distinct values of a discrete y, increasing; None if y is not discrete.
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
        """Check the numbers, because a file may come from an untrusted source."""
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
        """Values of discrete targets, in standardized units."""
        return None if self.values is None else self.targets.standardized(self.values[:, None])[:, 0]

    @property
    def encoder(self) -> Encoder:
        """Encoder of the first kind of network."""
        return self.encoders[0]

    @property
    def n_answers(self) -> int:
        """Number of hypotheses per row."""
        return self.n_points if self.values is None else min(self.n_points, len(self.values))

    @property
    def member_weights(self) -> dict[str, float]:
        """Weight of each member, by name."""
        widths = [width_of(networks[0]) for networks in self.networks]
        kinds = ["networks with bins" if width == widths[0] else "wide networks" for width in widths[1:]]
        names = ["networks", *kinds, *["forest"] * (self.forest is not None)]
        return dict(zip([*names, "background"], map(float, self.weights), strict=True))

    def members(self, X: NDArray[Any], *, widths: bool = True) -> list[Kernels]:
        """Compute the kernels of each member in standardized units; the probabilities of each member sum to 1.

        Args:
            X: Rows of a table, [rows, columns].
            widths: Whether widths are needed; the mean of a density depends only on the values.
        """
        parts = [kernels_of(X, widths=widths) for kernels_of in self._passes]
        if self.stretches is not None:
            parts = [part.stretched(by) for part, by in zip(parts, self.stretches, strict=True)]
        if self.forest is not None:
            held = self.held if widths else self.forest.values
            leaves = torch.from_numpy(self.forest.at_leaves(self.encoders[0].dense(X), held))
            values = leaves[..., : self.targets.n_outputs]
            probabilities = torch.full(leaves.shape[:2], 1 / self.forest.n_trees, dtype=torch.float64)
            parts.append(Kernels(values, probabilities, leaves[..., -1:].expand_as(values)))
        return [*parts, background(parts[0])]

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the cached networks, which a pickle does not need."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @cached_property
    def _passes(self) -> list[KernelsOfRows]:
        """Networks of each kind as functions of rows, cached for all blocks of a prediction."""
        kinds = zip(self.networks, self.encoders, strict=True)
        return [network_pass(networks, encoder, self.device) for networks, encoder in kinds]

    @cached_property
    def held(self) -> NDArray[np.float64]:
        """Values and widths of the kernels of the forest's nodes, [nodes, outputs + 1]."""
        assert self.forest is not None
        widths = np.hypot(self.floor, self.factor * self.forest.spreads)
        return np.concatenate([self.forest.values, widths[:, None]], axis=1)

    def kernels(self, X: NDArray[Any], *, knowing: bool = False) -> Kernels:
        """Compute all kernels of the rows, in standardized units.

        Args:
            X: Rows of a table, [rows, columns].
            knowing: Whether to exclude the background. It would dominate the mean, or points that represent the
                density, because both minimize squared distances.
        """
        return self.kernels_of(self.members(X), knowing=knowing)

    def kernels_of(self, members: list[Kernels], *, knowing: bool = False) -> Kernels:
        """Combine the kernels of all members, as `kernels` does."""
        return self.at_atoms((informed if knowing else mixed)(members, self.weights))

    def at_atoms(self, kernels: Kernels) -> Kernels:
        """Move the kernels to the atoms, if the target is discrete."""
        return kernels if self.atoms is None else at_atoms(kernels, self.atoms)

    def masses(self, X: NDArray[Any]) -> Tensor:
        """Compute the probability of each value of a discrete target, [rows, values]."""
        return self.kernels(X).probabilities

    # ------------------------------------------------------------------ interface of `Predictive`

    def means(self, X: NDArray[Any]) -> Tensor:
        """Compute the standardized mean of each row, [rows, outputs]."""
        widths = self.values is not None  # the masses of discrete values are integrals of the kernels
        return self.kernels_of(self.members(X, widths=widths), knowing=True).means()

    def means_of(self, members: list[Kernels]) -> Tensor:
        """Compute the mean of each row from the kernels of all members.

        The means are in standardized units, or in the units of y for a discrete target.
        """
        kernels = self.kernels_of(members, knowing=True)
        if self.values is None:
            return kernels.means()
        return (kernels.probabilities @ torch.from_numpy(self.values)).unsqueeze(1)

    def mean(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Compute the mean of each row in the units of y, [rows, outputs]."""
        if self.values is None:
            return self.targets.restored(self.means(X).numpy())
        return self.means_of(self.members(X)).numpy()

    def hypotheses(self, X: NDArray[Any], n_hypotheses: int | None = None) -> Hypotheses:
        """Compute hypotheses in the units of y: points that represent the density without outlying kernels."""
        kernels, n_points = self.kernels(X, knowing=True), n_hypotheses or self.n_points
        kernels = kernels.trimmed(self.trim) if self.trim else kernels
        if self.values is None:
            points, masses, _ = best_points(kernels.density(), n_points)
            return Hypotheses(self.targets.restored(self.targets.bounded(points).numpy()), masses.numpy())
        places, masses = best_atoms(torch.from_numpy(self.values), kernels.probabilities, n_points)
        return Hypotheses(self.values[places.numpy()][..., None], masses.numpy())

    def standardized(self, X: NDArray[Any]) -> Mixture:
        """Compute the density of each row in standardized units."""
        return self.kernels(X).density()

    def standardized_with_means(self, X: NDArray[Any]) -> tuple[Mixture, Tensor]:
        """Compute the density of each row and its mean, [rows, outputs], in standardized units."""
        members = self.members(X)
        return self.kernels_of(members).density(), self.kernels_of(members, knowing=True).means()

    def density(self, X: NDArray[Any]) -> Mixture:
        """Compute the density of each row in the units of y."""
        scaler = self.targets.scaler
        return self.kernels(X).moved(torch.from_numpy(scaler.scale), torch.from_numpy(scaler.mean)).density()

    def sample(self, X: NDArray[Any], n_samples: int, generator: torch.Generator) -> NDArray[np.float64]:
        """Draw samples in the units of y, clipped to the bounds, [rows, samples, outputs]."""
        drawn: NDArray[np.float64] = self.density(X).sample((n_samples,), generator).movedim(0, 1).numpy()
        if self.values is None:
            return np.clip(drawn, *self.targets.bounds)
        return self.values[np.searchsorted((self.values[1:] + self.values[:-1]) / 2, drawn)]


class AtomCalibrator(Calibrator):
    """Calibrator of prediction sets for a discrete target.

    Attributes:
        fill: Unused, because there are no gaps between discrete values, [1].
        scores: Mass of the values that are more probable than the target, [rows].
        surprise: Negative joint log density of each calibration row, [rows].
        counts: Weight of each calibration row relative to a new row, [rows].
    """

    def __post_init__(self) -> None:
        """Check the attributes as a `Calibrator` of a single output."""
        Calibrator(self.fill, self.scores[None], self.surprise, self.counts)

    @classmethod
    def fit(cls, predictive: Blend, rows: Rows, fill: NDArray[np.float64]) -> "AtomCalibrator":
        """Compute the scores of rows that were used for neither training nor selection."""
        blend, rows = predictive, rows.head(CALIBRATION_ROWS)
        counts = effective_counts(rows.weights, rows.units)
        if not len(rows):
            return cls(fill, np.zeros(0), np.zeros(0), counts)
        inputs, y = rows.inputs.astype(np.float64), rows.targets[:, 0]
        surprise = -blend.standardized(inputs).log_prob(blend.targets.standardized(rows.targets)).numpy()
        assert blend.values is not None
        place = np.searchsorted(blend.values, y).clip(max=len(blend.values) - 1)
        scores = masses_above(blend.masses(inputs)).numpy()[np.arange(len(y)), place]
        # No set contains any other value.
        return cls(fill, np.where(blend.values[place] == y, scores, np.inf), surprise, counts)

    def __call__(self, predictive: Blend, X: NDArray[Any], coverage: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Compute the lower and upper ends of the prediction sets, [rows, 1, pieces]."""
        level = quantile(self.scores, self.counts, 1 - coverage)
        if np.isinf(level):
            ends = np.full((len(X), 1, 1), np.inf)
            return -ends, ends
        lower, upper = stacked([_sets(predictive, rows, level) for rows in blocks(X)])
        return lower.unsqueeze(1).numpy(), upper.unsqueeze(1).numpy()


def width_of(network: Any) -> int:
    """Return the number of units of the first hidden layer; 0 if there is none."""
    return network.trunk[0].out_features if len(network.trunk) else 0


def _sets(blend: Blend, X: NDArray[Any], level: float) -> tuple[Tensor, Tensor]:
    assert blend.values is not None
    members, values = blend.members(X), torch.from_numpy(blend.values)
    masses = blend.kernels_of(members).probabilities
    means = blend.kernels_of(members, knowing=True).probabilities @ values

    def between(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return (masses[rows] * ((low < values) & (values < high))).sum(dim=1)

    return reaching(pieces_of_atoms(masses_above(masses) <= level, blend.values), means.unsqueeze(1), between)


def supported_gaps(blend: Blend, rows: Rows) -> NDArray[np.float64]:
    """Estimate the depth below which gaps in the sets stay open, [outputs]."""
    return np.zeros(1) if blend.values is not None else gaps_of_density(blend, rows)


def calibrated(blend: Blend, rows: Rows, fill: NDArray[np.float64]) -> Calibrator:
    """Fit the calibrator of a blend to calibration rows."""
    return (Calibrator if blend.values is None else AtomCalibrator).fit(blend, rows, fill)


# Targets with at most this many distinct values are discrete: their hypotheses are these values, as kernels with this
# width in standardized units.
_MAX_ATOMS, _ATOM_WIDTH = 64, 1e-3
# Number of rows processed at once.
_AT_ONCE = 1024


def atoms_of(train: NDArray[np.float64], held_out: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the distinct values of targets, [rows, 1], if they are few and repeated; None otherwise.

    A rare value, such as a large count, may occur once if all values are multiples of one step.
    """
    targets = np.concatenate([train, held_out])
    values, counts = np.unique(targets, return_counts=True)
    repeated = values[counts > 1]
    if train.shape[1] != 1 or len(values) > min(_MAX_ATOMS, len(targets) // 4) or len(repeated) < 2:
        return None
    steps = (values - repeated[0]) / np.diff(repeated).min()
    nearly_all = len(repeated) > 0.9 * len(values) and np.isin(held_out, train).all()
    return values if nearly_all or np.abs(steps - steps.round()).max() < 1e-6 else None


def at_atoms(kernels: Kernels, atoms: Tensor) -> Kernels:
    """Concentrate the mass of kernels with one output at the nearest atoms, [atoms]."""
    borders = (atoms[1:] + atoms[:-1]) / 2
    blocks = (
        [kernels] if torch.compiler.is_compiling() else zip(*(part.split(_AT_ONCE) for part in kernels), strict=True)
    )
    probabilities = torch.cat([_masses_at(Kernels(*block), borders) for block in blocks])
    centers = atoms.expand(probabilities.shape[0], -1).unsqueeze(-1)
    width = (atoms.diff().min() / 10).clamp_max(_ATOM_WIDTH)
    return Kernels(centers, probabilities / probabilities.sum(dim=1, keepdim=True), width.expand_as(centers))


def _masses_at(kernels: Kernels, borders: Tensor) -> Tensor:
    """Compute the mass between the borders of neighboring atoms, [rows, atoms]."""
    exporting = torch.compiler.is_compiling()
    z = (borders - kernels.values) / kernels.widths  # [rows, kernels, borders]
    # onnxruntime has the error function in single precision only.
    below = 0.5 + 0.5 * (z * math.sqrt(0.5)).float().erf().double() if exporting else torch.special.ndtr(z)
    upto = torch.einsum("rk,rkb->rb", kernels.probabilities, below)
    ends = torch.cat([torch.zeros_like(upto[:, :1]), upto, torch.ones_like(upto[:, :1])], dim=1)
    return ends.diff(dim=1).clamp_min(0)


def best_atoms(atoms: Tensor, masses: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Select the atoms that minimize the mean squared distance to the masses, and compute the mass nearest to each.

    Args:
        atoms: Increasing values, [atoms].
        masses: Probability masses, [rows, atoms].
        n_points: Maximum number of atoms to select.

    Returns:
        Increasing, distinct indices of the atoms, [rows, points], and their masses, [rows, points].
    """
    n_points = min(n_points, len(atoms))
    blocks = [_best_atoms(atoms, rows, n_points) for rows in masses.split(_AT_ONCE)]
    places, nearest = (torch.cat(part) for part in zip(*blocks, strict=True))
    return places, nearest


def _best_atoms(atoms: Tensor, masses: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Compute `best_atoms` for a block of rows, by dynamic programming over runs of adjacent atoms."""
    n_rows, n_atoms = masses.shape
    if n_points == n_atoms:
        return torch.arange(n_atoms).expand(n_rows, -1), masses
    cost, middle = _runs(atoms, masses)
    least = cost[:, 0]  # [rows, ends], cost of one run from the first atom to each end
    starts = [torch.zeros(n_rows, n_atoms, dtype=torch.int64)]
    for _ in range(n_points - 1):
        before = torch.cat([torch.full_like(least[:, :1], torch.inf), least[:, :-1]], dim=1)
        least, start = (before.unsqueeze(-1) + cost).min(dim=1)
        starts.append(start)
    end = torch.full((n_rows, 1), n_atoms - 1)
    upto, places, nearest = masses.cumsum(dim=1), [], []
    for start in reversed(starts):
        begin = start.gather(1, end)
        places.append(middle.flatten(1).gather(1, begin * n_atoms + end))
        below = torch.where(begin > 0, upto.gather(1, (begin - 1).clamp_min(0)), 0.0)
        nearest.append(upto.gather(1, end) - below)
        end = (begin - 1).clamp_min(0)
    return torch.cat(places[::-1], dim=1), torch.cat(nearest[::-1], dim=1).clamp_min(0)


def _runs(atoms: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the lowest squared distance of each run to one of its atoms, and the index of that atom.

    Both have the shape [rows, starts, ends]. The distance is infinite if a run would end before it starts.
    """
    n_atoms = len(atoms)
    upto = torch.stack([masses, masses * atoms, masses * atoms.square()]).cumsum(dim=-1)
    before = torch.nn.functional.pad(upto, (1, 0))[..., :-1]
    mass, first, second = upto.unsqueeze(-2) - before.unsqueeze(-1)  # all [rows, starts, ends]
    mean = first / mass.clamp_min(1e-300)
    place = torch.searchsorted((atoms[1:] + atoms[:-1]) / 2, mean.contiguous())
    index = torch.arange(n_atoms)
    place = torch.minimum(torch.maximum(place, index[:, None]), torch.maximum(index, index[:, None]))
    at = atoms[place]
    cost = (second - 2 * at * first + at.square() * mass).clamp_min(0)
    return cost.masked_fill(index < index[:, None], torch.inf), place


def masses_above(masses: Tensor) -> Tensor:
    """Compute, for each atom, the total mass of the atoms that are more probable, [rows, atoms].

    Atoms are treated as narrow normal kernels of equal width, so that only a part of the mass of a slightly more
    probable atom counts. This avoids ties between rows, as calibration requires.
    """
    ratios = masses.unsqueeze(-2).clamp_min(1e-300).log() - masses.unsqueeze(-1).clamp_min(1e-300).log()
    return (masses.unsqueeze(-2) * ratios.clamp_min(0).sqrt().erf()).sum(dim=-1)


def pieces_of_atoms(inside: Tensor, values: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Compute the lower and upper ends, [rows, pieces], of the runs of atoms that belong to a set.

    Args:
        inside: Mask of the atoms in the set, [rows, atoms], with at least one atom per row.
        values: Values of the atoms in the units of the ends, [atoms].
    """
    padded = torch.nn.functional.pad(inside, (1, 1))
    ends = torch.from_numpy(values).expand(inside.shape)
    begins, stops = inside & ~padded[:, :-2], inside & ~padded[:, 2:]
    n_pieces = int(begins.sum(dim=1).max())
    lower, upper = (ends.masked_fill(~marks, torch.nan).sort(dim=1).values for marks in (begins, stops))
    return lower[:, :n_pieces], upper[:, :n_pieces]
