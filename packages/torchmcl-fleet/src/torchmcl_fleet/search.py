"""Exhaustive search over training settings: one fleet trains all candidates, which are compared on held-out rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchmcl import WTA, AutoAnnealing, Cosine, RelaxedWTA, StepOutput, checks, pairwise_sq_euclidean
from torchmcl.errors import bad_value
from torchmcl.schedules import Schedule
from torchmcl_fleet.fleet import Fleet
from torchmcl_fleet.plan import Validation, WeightedDistortion, even_batch_size, hard_distortion
from torchmcl_fleet.problem import FleetData

__all__ = ["Candidate", "FleetSearch", "SearchResult", "default_candidates"]


@dataclass(frozen=True)
class Candidate:
    """Training settings to compare.

    Args:
        name: Name of the candidate in the records.
        rule: Assignment rule, as in `Fleet`.
        learning_rate: Number, or schedule epoch -> number.
        weight_decay: Decoupled weight decay.
    """

    name: str
    rule: Any
    learning_rate: float | Schedule = 0.01
    weight_decay: float = 0.0


def default_candidates(n_epochs: int) -> list[Candidate]:
    """Return 64 candidates: 48 variants of automatic annealing, 8 of MCL and 8 of Relaxed-WTA.

    Example:
        >>> candidates = default_candidates(100)
        >>> len(candidates), candidates[0].name
        (64, 'auto, hold gain 0.02, noise decay 0, rate 0.003')
    """
    annealed = [
        Candidate(
            f"auto, hold gain {gain:g}, noise decay {decay:g}, rate {rate:g}",
            AutoAnnealing(gain, noise_decay=decay),
            rate,
        )
        for gain in (0.02, 0.05, 0.1, 0.2)
        for decay in (0.0, 1500.0, 5000.0, 15_000.0)
        for rate in (0.003, 0.01, 0.02)
    ]
    others = [
        Candidate(f"{name}, decay {decay:g}, rate {rate:g}", rule, Cosine(rate, 0.0, n_epochs), decay)
        for name, rule in (("MCL", WTA()), ("Relaxed-WTA", RelaxedWTA(0.1)))
        for decay in (0.0, 0.1, 0.3, 1.0)
        for rate in (0.003, 0.01)
    ]
    return annealed + others


class SearchResult(NamedTuple):
    """Result of a search.

    Attributes:
        candidates: Candidates, in the order of `values`.
        values: Monitored value on the held-out rows at the best epoch, [candidates, splits, restarts].
        best: Index of the candidate with the lowest geometric mean.
        seconds: Wall time of the training.
    """

    candidates: list[Candidate]
    values: Tensor
    best: int
    seconds: float

    @property
    def means(self) -> Tensor:
        """Geometric mean distortion of each candidate; distortions of different splits differ by factors."""
        return _geometric_means(self.values)

    def records(self) -> list[dict[str, Any]]:
        """Return one JSON-compatible record per trial."""
        return [
            {"candidate": candidate.name, "split": split, "restart": restart, "distortion": float(value)}
            for candidate, rows in zip(self.candidates, self.values, strict=True)
            for split, row in enumerate(rows)
            for restart, value in enumerate(row)
        ]


@dataclass(frozen=True)
class FleetSearch:
    """Search that trains all candidates at once on inner splits and selects the best one on held-out rows.

    On a GPU, training the fleet of all candidates takes about as long as training one model. Fit the best candidate on
    all rows afterwards.

    Args:
        candidates: Candidates to compare; `default_candidates` by default.
        n_splits: Number of inner splits with different held-out rows; more splits make the selection more stable on
            small tables.
        held_out: Fraction of the rows that is held out in each split.
        n_restarts: Number of restarts of each candidate on each split.

    Example:
        >>> from torchmcl import MultiHypothesisMLP
        >>> inputs, targets = torch.randn(80, 2), torch.randn(80, 1, 1)
        >>> search = FleetSearch([Candidate("auto", AutoAnnealing()), Candidate("MCL", WTA())], n_splits=2)
        >>> trials = search.run(lambda: MultiHypothesisMLP(2, 1, 3, hidden=(8,)), inputs, targets, n_epochs=5)
        >>> trials.values.shape
        torch.Size([2, 2, 1])
    """

    candidates: Sequence[Candidate] | None = None
    n_splits: int = 1
    held_out: float = 0.1
    n_restarts: int = 1

    def __post_init__(self) -> None:
        """Check the fields."""
        checks.check_positive_int("FleetSearch", "n_splits", self.n_splits)
        checks.check_positive_int("FleetSearch", "n_restarts", self.n_restarts)
        checks.check_real("FleetSearch", "held_out", self.held_out)
        if not 0 < self.held_out * self.n_splits <= 1:
            rule = f"be above 0, and at most 1 for all {self.n_splits} splits together"
            raise ValueError(bad_value("FleetSearch", "held_out", rule, self.held_out))
        if self.candidates is not None and not self.candidates:
            raise ValueError(bad_value("FleetSearch", "candidates", "not be empty", "none"))

    def run(
        self,
        factory: Callable[[], nn.Module],
        inputs: Tensor,
        targets: Tensor,
        n_epochs: int,
        *,
        batch_size: int | Literal["all"] | None = None,
        cost_fn: Callable[..., Tensor] = pairwise_sq_euclidean,
        score_weight: float = 1.0,
        monitor: Callable[[Tensor | None], Callable[[StepOutput], Tensor]] | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        validate_every: int = 5,
        progress: bool = False,
        weights: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> SearchResult:
        """Train all candidates on inputs [rows, ...] and targets [rows, targets, dim], and return the result.

        Args:
            factory: Function that builds an untrained model.
            inputs: Inputs, [rows, ...].
            targets: Targets, [rows, targets, dim].
            n_epochs: Number of epochs of each training run.
            batch_size: Largest number of rows per minibatch, as for `Fleet.fit`; no minibatch is much smaller than the
                others.
            cost_fn: Cost, any `pairwise_*` function.
            score_weight: Weight of the score loss.
            monitor: Function that maps the weights of the held-out rows, None for equal weights, to a monitor such as
                `MixtureLogLoss`; the distortion by default.
            seed: Seed for the splits and the initial weights.
            device: Device to train on.
            validate_every: Number of epochs between evaluations on the held-out rows.
            progress: Whether to show a progress bar.
            weights: Weights of the rows in training and in the comparison, [rows]; equal by default.
            groups: Group ids, [rows]; rows of a group are held out together. By default each row is a group.
        """
        candidates = list(self.candidates or default_candidates(n_epochs))
        splits = self._splits(len(inputs), groups, seed)
        # The monitor of a fleet uses the same weights for all models, so weighted splits are trained one by one.
        together = [range(self.n_splits)] if weights is None else [[split] for split in range(self.n_splits)]
        values, seconds = [], 0.0
        for chosen in together:
            tasks = [(c, s, i) for c in candidates for s in chosen for i in range(self.n_restarts)]
            fleet = Fleet(
                factory,
                len(tasks),
                rule=[candidate.rule for candidate, _, _ in tasks],
                learning_rate=[candidate.learning_rate for candidate, _, _ in tasks],
                weight_decay=[candidate.weight_decay for candidate, _, _ in tasks],
                seeds=[seed + s * self.n_restarts + i for _, s, i in tasks],  # same initial weights for all candidates
                cost_fn=cost_fn,
                score_weight=score_weight,
                device=device,
            )
            set_of_model = [s - chosen[0] for _, s, _ in tasks]
            train, held = ([splits[s][part] for s in chosen] for part in (0, 1))
            data, validation = (
                FleetData.of_sets([(inputs[rows], targets[rows]) for rows in sets], set_of_model)
                for sets in (train, held)
            )
            if weights is not None:
                train_weights = weights[train[0]]
                data = data._replace(weights=(train_weights / train_weights.mean()).unsqueeze(0))
            n_rows = max(map(len, train))
            history = fleet.fit(
                data,
                n_epochs,
                batch_size=even_batch_size(n_rows, batch_size) if isinstance(batch_size, int) else batch_size,
                validation=Validation(
                    validation,
                    monitor=(monitor or _distortion)(None if weights is None else weights[held[0]]),
                    every=validate_every,
                ),
                progress=f"search, {len(candidates)} candidates" if progress else False,
            )
            values.append(history.best_value.view(len(candidates), len(chosen), self.n_restarts))
            seconds += history.seconds
        distortions = torch.cat(values, dim=1)
        return SearchResult(candidates, distortions, int(_geometric_means(distortions).argmin()), seconds)

    def _splits(self, n_rows: int, groups: Tensor | None, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return the training rows and the held-out rows of each split."""
        unit = torch.arange(n_rows) if groups is None else groups.unique(return_inverse=True)[1]
        n_units = int(unit.max()) + 1
        n_held = max(1, math.floor(self.held_out * n_units))
        if n_held * self.n_splits > n_units or n_held == n_units:
            what = "rows" if groups is None else "groups"
            rule = f"have more than {n_held} {what} to hold out {self.n_splits} times"
            raise ValueError(bad_value("FleetSearch", "inputs", rule, n_units, "Lower `held_out` or `n_splits`."))
        order = torch.randperm(n_units, generator=torch.Generator().manual_seed(seed))
        place, rows = order.argsort()[unit].sort(stable=True)
        held = [(place >= split * n_held) & (place < (split + 1) * n_held) for split in range(self.n_splits)]
        return [(rows[~chosen], rows[chosen]) for chosen in held]


def _distortion(weights: Tensor | None) -> Callable[[StepOutput], Tensor]:
    return hard_distortion if weights is None else WeightedDistortion(weights)


def _geometric_means(values: Tensor) -> Tensor:
    """Return the means over splits and restarts; failed models rank last."""
    finite = torch.where(values.isnan(), torch.inf, values.clamp_min(1e-30))
    return finite.double().log().flatten(1).mean(dim=1).exp()
