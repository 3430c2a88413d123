"""Training of an estimator's networks: conversion of rows to tensors, and training of all restarts as a fleet.

`Continuation` is the state of `partial_fit` between two calls.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor, nn

from torchmcl import (
    WTA,
    AnnealedWTA,
    AssignmentRule,
    AutoAnnealing,
    Cosine,
    Exponential,
    Linear,
    annealed,
    assign,
    checks,
)
from torchmcl.annealing.model import RuleLike, check_rule_like, rule_at
from torchmcl.annealing.records import cost_scale
from torchmcl.errors import bad_value
from torchmcl.schedules import Schedule
from torchmcl_fleet import (
    Candidate,
    Checkpointing,
    Fleet,
    FleetData,
    FleetHistory,
    FleetSearch,
    HeldOutCost,
    Validation,
    WeightedDistortion,
    even_batch_size,
    hard_distortion,
)
from torchmcl_tables.estimators.rows import Encoder, Rows, Split
from torchmcl_tables.estimators.tables import Targets

# Minimum number of epochs, for large tables, and maximum number of epochs, for small tables.
_MIN_EPOCHS, _MAX_EPOCHS = 20, 1000


class Examples(NamedTuple):
    """Training examples.

    Attributes:
        inputs: Encoded rows, [rows, columns].
        targets: Targets, [rows, 1, ...].
        weights: Weight of each row, [rows].
    """

    inputs: Tensor
    targets: Tensor
    weights: NDArray[np.float64]

    def for_all(self, n_networks: int) -> FleetData:
        """Return the data of a fleet whose networks are all trained on these examples."""
        return FleetData.shared(self.inputs, self.targets, n_networks, weights=mean_one(self.weights))

    def watched(
        self, n_networks: int, *, every: int, patience: int | None, cost_fn: Callable[..., Tensor] | None = None
    ) -> Validation | None:
        """Return a validation by the distortion, or a cost, on these examples; None if there are none."""
        if not len(self.weights):
            return None
        uneven = mean_one(self.weights)
        distortion = hard_distortion if uneven is None else WeightedDistortion(uneven)
        return Validation(
            FleetData.shared(self.inputs, self.targets, n_networks),
            monitor=distortion if cost_fn is None else HeldOutCost(cost_fn, uneven),
            every=every,
            patience=patience,
        )


@dataclass(frozen=True)
class Preprocessor:
    """Conversion of rows to examples.

    Attributes:
        encoder: Encoder of the columns.
        targets: Targets of a regressor; None for class ids, which remain unchanged.
    """

    encoder: Encoder
    targets: Targets | None = None

    def __call__(self, rows: Rows) -> Examples:
        """Convert rows to tensors."""
        targets = rows.targets if self.targets is None else self.targets.scaler(rows.targets)
        inputs = torch.from_numpy(self.encoder(rows.inputs))
        return Examples(inputs, torch.from_numpy(targets).unsqueeze(1), rows.weights)


def mean_one(weights: NDArray[np.float64]) -> Tensor | None:
    """Scale weights to a mean of 1; None if all are equal."""
    if (weights == weights[0]).all():
        return None
    return torch.from_numpy(weights / weights.mean()).float()


def default_n_epochs(n_rows: int, batch_size: int, n_steps: int) -> int:
    """Return the number of epochs for about `n_steps` steps, between 20 and 1000."""
    return max(_MIN_EPOCHS, min(_MAX_EPOCHS, round(n_steps / math.ceil(n_rows / batch_size))))


def seeds_of(seed: int, n_networks: int) -> list[int]:
    """Return a seed for each network."""
    return [int(s) for s in np.random.RandomState(seed).randint(2**31 - 1, size=n_networks)]


# A network whose distortion on held-out rows is this many times the lowest one has failed: its hypotheses collapsed.
_FAILED = 2.0
# Number of checkpoints during training (saving takes about 15 ms), and of evaluations for the validation curve.
_N_SAVES, _N_EVALUATIONS = 5, 100
# Final training on all rows: fraction of the epochs, and fraction of the learning rate from which it falls to 0.
_FINAL_EPOCHS, _FINAL_RATE = 0.3, 0.25


@dataclass(frozen=True)
class Trained:
    """Trained networks of all restarts and their training history.

    Attributes:
        modules: Network of each restart.
        history: Training history.
        held_out_losses: Loss of each network on held-out rows, [restarts]; infinite without held-out rows.
        best_epochs: Selected epoch of each network, [restarts]; -1 for the last one.
        moments: Moments of the optimizer, for continued training.
    """

    modules: list[nn.Module]
    history: FleetHistory
    held_out_losses: Tensor
    best_epochs: Tensor
    moments: dict[str, Tensor]

    def best(self) -> int:
        """Return the index of the restart with the lowest loss on held-out rows, or the lowest last training loss."""
        values = self.held_out_losses
        if not torch.isfinite(values).any():
            values = self.history.losses[-1]
        return int(torch.where(values.isnan(), torch.inf, values).argmin())

    def not_failed(self) -> list[int]:
        """Return the indices of the restarts that are not far worse than the best one and so have not lost modes."""
        known = self.held_out_losses[self.held_out_losses.isfinite()]
        bound = _FAILED * known.min() if len(known) else torch.nan
        kept = [place for place, value in enumerate(self.held_out_losses) if value <= bound]
        return kept or list(range(len(self.modules)))  # all of them, without held-out rows

    def moments_of(self, kept: list[int]) -> dict[str, Tensor]:
        """Return the moments of the optimizer for some of the restarts."""
        return {name: value[kept] for name, value in self.moments.items()}

    def attributes(self, rule: Any) -> dict[str, Any]:
        """Return the fitted attributes of an estimator that describe the training of the best network."""
        history, best = self.history, self.best()
        stopped = int(history.stopped_epoch[best])
        if history.temperatures is not None:  # chosen by `AutoAnnealing`
            temperatures = history.temperatures[:, best].tolist()
        else:
            rules = [rule_at(rule, epoch) for epoch in range(len(history.losses))]
            temperatures = [getattr(rule_of_epoch, "temperature", None) for rule_of_epoch in rules]
        return {
            "rule_": rule,
            "best_restart_": best,
            "loss_curve_": history.losses[:, best].double().numpy(),
            "validation_curve_": history.watched[:, best].double().numpy(),
            "learning_rate_curve_": history.learning_rates[:, best].double().numpy(),
            "temperature_curve_": None if None in temperatures else np.array(temperatures, dtype=np.float64),
            "seconds_": float(history.seconds),
            "validation_losses_": self.held_out_losses.double().numpy(),
            "best_epoch_": int(self.best_epochs[best]),
            "n_epochs_": stopped + 1 if stopped >= 0 else len(history.losses),
        }


@dataclass(frozen=True)
class Trainer:
    """Settings of a training run: all arguments of a fleet except its data.

    Attributes:
        rule: Assignment rule, function epoch -> rule, or `AutoAnnealing`.
        learning_rate: Learning rate, or schedule by epoch.
        weight_decay: Decoupled weight decay, one value or one per network.
        n_epochs: Number of epochs.
        batch_size: Maximum number of rows per step.
        seeds: Seed of each network.
        cost_fn: Cost of hypotheses and targets.
        device: Device for training.
        score_weight: Weight of the score loss.
        keep_best: Whether to keep the best epoch of each network on the validation rows instead of the last one.
        checkpoint: Folder for checkpoints; None for no checkpoints.
        moments: Moments of the optimizer, for continued training.
        models_at_once: Number of networks that must be trained together; None for no constraint.
        progress: Title of the progress bar; False for none.
    """

    rule: Any
    learning_rate: float | Schedule
    weight_decay: float | Sequence[float]
    n_epochs: int
    batch_size: int
    seeds: Sequence[int]
    cost_fn: Callable[..., Tensor]
    device: str | torch.device
    score_weight: float = 1.0
    keep_best: bool = True
    checkpoint: str | Path | None = None
    moments: dict[str, Tensor] | None = None
    models_at_once: int | None = None
    progress: str | bool = False

    def __call__(
        self, factory: Callable[[], nn.Module], data: FleetData, validation: Validation | None = None
    ) -> Trained:
        """Train networks on data."""
        fleet = Fleet(
            factory,
            len(self.seeds),
            rule=self.rule,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            seeds=self.seeds,
            cost_fn=self.cost_fn,
            score_weight=self.score_weight,
            device=self.device,
        )
        fleet.optimizer_state = self.moments
        saves = max(1, self.n_epochs // _N_SAVES)
        history = fleet.fit(
            data,
            self.n_epochs,
            batch_size=even_batch_size(data.inputs.shape[1], self.batch_size),
            validation=validation,
            checkpoint=None if self.checkpoint is None else Checkpointing(self.checkpoint, every=saves),
            models_at_once=self.models_at_once,
            continued=True,
            progress=self.progress,
        )
        keeps = validation is not None and self.keep_best
        modules = fleet.best_models if keeps else fleet.models
        assert fleet.optimizer_state is not None  # continued training keeps it
        values = history.best_value if keeps else _last_values(history)
        best_epochs = history.best_epoch if keeps else torch.full_like(history.best_epoch, -1)
        return Trained([module.eval() for module in modules], history, values, best_epochs, fleet.optimizer_state)

    def watching(
        self, held_out: Examples, patience: int | None, cost_fn: Callable[..., Tensor] | None = None
    ) -> Validation | None:
        """Return a validation on held-out rows, in every epoch if the best epoch is kept; None without held-out rows.

        Args:
            held_out: Held-out examples.
            patience: Number of epochs without improvement after which the training of a network stops.
            cost_fn: Cost by which epochs are compared; None for the distortion.
        """
        every = 1 if self.keep_best else max(1, self.n_epochs // _N_EVALUATIONS)
        return held_out.watched(len(self.seeds), every=every, patience=patience, cost_fn=cost_fn)

    def further(
        self, modules: Sequence[nn.Module], data: Examples, *, epochs: float, rate: float, name: str
    ) -> Trained:
        """Continue the training of networks for a short time at a low learning rate.

        Args:
            modules: Networks to train, one per seed.
            data: Examples for all networks.
            epochs: Number of epochs as a fraction of `n_epochs`.
            rate: Initial learning rate as a fraction of the highest learning rate; it falls to 0.
            name: Name for the progress bar and for the folder inside the checkpoint.
        """
        schedule, n_epochs = self.learning_rate, max(1, round(epochs * self.n_epochs))
        highest = max(map(schedule, range(self.n_epochs))) if callable(schedule) else schedule
        short = replace(
            self,
            learning_rate=Cosine(rate * highest, 0.0, n_epochs),
            n_epochs=n_epochs,
            progress=self.progress and f"{self.progress}, {name}",
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint) / name.replace(" ", "-"),
        )
        return short(iter(modules).__next__, data.for_all(len(modules)))

    def on_all_rows(self, modules: Sequence[nn.Module], data: Examples, moments: dict[str, Tensor]) -> Trained:
        """Continue the training of the selected networks on all rows, including the selection rows."""
        rule = WTA() if isinstance(self.rule, AutoAnnealing) else rule_at(self.rule, self.n_epochs - 1)
        # The moments of Adam are kept, because restarting from zero would undo progress.
        seeds, at_once = seeds_of(self.seeds[0], len(modules)), self.models_at_once and len(modules)
        last = replace(self, rule=rule, seeds=seeds, moments=moments, models_at_once=at_once)
        return last.further(modules, data, epochs=_FINAL_EPOCHS, rate=_FINAL_RATE, name="all rows")


def _last_values(history: FleetHistory) -> Tensor:
    """Return the last validation value of each network; infinity if there is none."""
    values = torch.full_like(history.best_value, torch.inf)
    for evaluated in history.watched:
        values = torch.where(evaluated.isnan(), values, evaluated)
    return values


#: Default horizon of schedules for partial_fit.
PARTIAL_EPOCHS = 200


@dataclass(frozen=True)
class Continuation:
    """State of a training run that `partial_fit` continues with new rows.

    Attributes:
        seed: Seed of splits and shuffles.
        n_epochs: Number of epochs so far.
        borders: Borders of the split.
        held_out: Selection and calibration rows; empty for a model that was saved without them.
        moments: Moments of the optimizer; None for a new optimizer.
        annealing: State of `AutoAnnealing`; None after `fit`, which has already cooled the networks.
    """

    seed: int
    n_epochs: int
    borders: NDArray[np.uint64] | None = None
    held_out: tuple[Rows, ...] = ()
    moments: dict[str, Tensor] | None = None
    annealing: dict[str, Tensor] | None = None

    def holding_out(self, split: Split) -> "Continuation":
        """Append the held-out rows of a split to the held-out rows of earlier splits."""
        held_out = split.held_out
        if self.held_out:
            held_out = tuple(old.joined(new) for old, new in zip(self.held_out, held_out, strict=True))  # type: ignore[assignment]
        return replace(self, held_out=tuple(rows.latest() for rows in held_out))

    def one_epoch(
        self,
        trainer: Trainer,
        modules: Sequence[nn.Module],
        examples: Examples,
        costs_of: Callable[[nn.Module, Examples], Tensor],
        n_coordinates: int,
    ) -> "tuple[list[nn.Module], Continuation]":
        """Train networks for one more epoch; return copies of them and the new state.

        Args:
            trainer: Training settings; the number of epochs is the horizon of schedules.
            modules: Networks to train.
            examples: New training examples.
            costs_of: Function that computes the costs of the hypotheses of a network, [rows, 1, hypotheses], for
                `AutoAnnealing`.
            n_coordinates: Number of coordinates of a hypothesis.
        """
        rule, rate, annealing = trainer.rule, trainer.learning_rate, self.annealing
        modules = copy.deepcopy(list(modules))  # if an error occurs, the networks remain unchanged
        if isinstance(rule, AutoAnnealing):
            with torch.no_grad():
                costs = torch.stack([costs_of(module, examples) for module in modules])
            rule, annealing = self._annealed(rule, costs, n_coordinates, trainer.n_epochs)
        else:
            rule = rule_at(rule, self.n_epochs)
        one = replace(
            trainer,
            rule=rule,
            learning_rate=rate(self.n_epochs) if callable(rate) else rate,
            n_epochs=1,
            seeds=[self.seed + self.n_epochs + i for i in range(len(modules))],
            moments=self.moments,
        )
        trained = one(iter(modules).__next__, examples.for_all(len(modules)))
        state = replace(self, n_epochs=self.n_epochs + 1, moments=trained.moments, annealing=annealing)
        return trained.modules, state

    def _annealed(
        self, policy: AutoAnnealing, costs: Tensor, n_coordinates: int, horizon: int
    ) -> tuple[list[AssignmentRule], dict[str, Any] | None]:
        """Return the rule of each network for the next epoch, and the state of `AutoAnnealing`."""
        if self.n_epochs and self.annealing is None:  # networks from `fit` have been cooled already
            return [WTA()] * len(costs), None
        measured, epoch = cost_scale(assign(costs, WTA()), stacked=True), float(self.n_epochs)
        if self.annealing is None:  # streamed rows cannot be repeated, so the temperature is not held
            state = replace(policy, hold=False).init(measured, horizon, n_coordinates=n_coordinates)
        else:
            state = {name: value.clone() for name, value in self.annealing.items()}
            policy.update(state, measured, epoch, horizon)
        temperatures = policy.value(state, epoch, horizon).temperature.tolist()
        return [AnnealedWTA(t) if t > 0 else WTA() for t in temperatures], state


# ---------------------------------------------------------------------------- parameters

_COUNTS = ("n_hypotheses", "n_restarts", "n_epochs", "batch_size", "patience")
# Parameters that are chosen by a search.
_SEARCHED = ("rule", "learning_rate", "weight_decay")


@dataclass(frozen=True)
class Cooling:
    """`AnnealedWTA` with a temperature that falls during a fraction of the training, for any number of epochs.

    Attributes:
        start: Initial temperature; for a regressor, in units of the variance of the targets.
        end: Final temperature. Afterwards the temperature is 0 for exponential cooling, and `end` for linear cooling.
        share: Fraction of the epochs after which `end` is reached.
        linear: Whether the temperature falls linearly instead of exponentially.
    """

    start: float = 0.5
    end: float = 5e-4
    share: float = 0.7
    linear: bool = False

    def __call__(self, n_epochs: int) -> RuleLike:
        """Return the function epoch -> rule for a training run."""
        n_cooling = max(1, round(self.share * n_epochs))
        if self.linear:
            return annealed(AnnealedWTA, temperature=Linear(self.start, self.end, n_cooling))
        decay = (self.end / self.start) ** (1 / n_cooling)
        return annealed(AnnealedWTA, temperature=Exponential(self.start, decay, cutoff=self.end))


def rule_of(rule: RuleLike | Cooling | None, n_epochs: int) -> RuleLike:
    """Return the assignment rule, function epoch -> rule, or `AutoAnnealing` of a training run."""
    if rule is None:
        return AutoAnnealing()
    return rule(n_epochs) if isinstance(rule, Cooling) else rule


def as_given(
    rule: Any, learning_rate: float | Schedule, weight_decay: float | None, default_decay: float, n_epochs: int
) -> Candidate:
    """Return the training settings from the parameters of an estimator."""
    rule = rule_of(rule, n_epochs)
    policy = rule if isinstance(rule, AutoAnnealing) else AutoAnnealing(rate=False, noise_decay=0.0)
    if policy.noise_decay:
        default_decay = 0.0
    if not (policy.rate or callable(learning_rate)):
        learning_rate = Cosine(learning_rate, 0.0, n_epochs)
    return Candidate("as given", rule, learning_rate, default_decay if weight_decay is None else float(weight_decay))


def seed_of(random_state: Any) -> int:
    """Draw a seed from a `random_state`."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def check_parameters(estimator: Any) -> None:
    """Check the parameters of an estimator."""
    owner, parameters = type(estimator).__name__, estimator.get_params(deep=False)
    for name in _COUNTS:
        if name == "n_hypotheses" or parameters[name] is not None:
            checks.check_positive_int(owner, name, _plain(parameters[name]))
    if parameters["n_bins"] is not None:
        checks.check_non_negative_int(owner, "n_bins", _plain(parameters["n_bins"]))
    if isinstance(parameters["hidden"], (str, bytes)) or not isinstance(parameters["hidden"], Sequence | np.ndarray):
        advice = "One layer of 64 units is (64,)."
        raise TypeError(bad_value(owner, "hidden", "be a sequence of sizes", repr(parameters["hidden"]), advice))
    for size in parameters["hidden"]:
        checks.check_positive_int(owner, "hidden", _plain(size))
    checks.check_interval(owner, "validation_fraction", parameters["validation_fraction"], "[0, 1)")
    checks.available_device(owner, parameters["device"])
    if not callable(parameters["learning_rate"]):
        checks.check_non_negative(owner, "learning_rate", parameters["learning_rate"])
    if parameters["weight_decay"] is not None:
        checks.check_non_negative(owner, "weight_decay", parameters["weight_decay"])
    if parameters.get("rule") is not None and not isinstance(parameters["rule"], Cooling):
        check_rule_like(owner, parameters["rule"])
    if parameters.get("search") is not None:
        _check_search(owner, type(estimator), parameters)
    class_weight = parameters.get("class_weight")
    if not (class_weight is None or isinstance(class_weight, Mapping) or class_weight == "balanced"):
        rule = "be None, 'balanced' or a dictionary of weights by label"
        raise ValueError(bad_value(owner, "class_weight", rule, repr(class_weight)))


def _check_search(owner: str, kind: type[Any], parameters: dict[str, Any]) -> None:
    if not isinstance(parameters["search"], FleetSearch):
        rule, advice = "be None or a FleetSearch", "torchmcl_fleet.FleetSearch() trains 64 candidates."
        raise TypeError(bad_value(owner, "search", rule, repr(parameters["search"]), advice))
    for name in _SEARCHED:
        if parameters[name] != getattr(kind, name):
            rule = "have its default value with `search`, which chooses it"
            advice = "Omit one of the two, or pass candidates to FleetSearch."
            raise ValueError(bad_value(owner, name, rule, repr(parameters[name]), advice))


def trainer_of(
    estimator: Any, settings: Candidate, n_epochs: int, batch_size: int, seeds: Sequence[int], **fields: Any
) -> Trainer:
    """Return a trainer with the settings of a candidate, the parameters of an estimator, and additional fields."""
    progress = type(estimator).__name__ if estimator.progress else False
    fields |= {"device": estimator.device, "keep_best": bool(estimator.keep_best), "progress": progress}
    rule, rate, decay = settings.rule, settings.learning_rate, settings.weight_decay
    return Trainer(rule, rate, decay, n_epochs, batch_size, seeds, **fields)


def _plain(value: Any) -> Any:
    """Convert NumPy integers, which grid searches pass, to Python integers; return other values unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def searched(
    estimator: Any,
    factory: Callable[[], nn.Module],
    rows: Rows,
    examples: Examples,
    *,
    seed: int,
    n_epochs: int,
    batch_size: int,
    **options: Any,
) -> tuple[Candidate, dict[str, Any]]:
    """Search training settings on an inner split of the training rows; also return the fitted attributes of the search.

    Args:
        estimator: Estimator with the `FleetSearch`.
        factory: Function that returns an untrained network.
        rows: Training rows.
        examples: Training rows as tensors.
        seed: Seed of the search.
        n_epochs: Number of epochs of each training run.
        batch_size: Maximum number of rows per step.
        **options: Further options of `FleetSearch.run`.
    """
    units = np.unique(rows.units, return_inverse=True)[1].ravel()
    trials = estimator.search.run(
        factory,
        examples.inputs,
        examples.targets,
        n_epochs,
        batch_size=batch_size,
        seed=seed % 2**31,
        device=estimator.device,
        progress=bool(estimator.progress),
        weights=mean_one(rows.weights),
        groups=torch.from_numpy(units) if rows.in_groups else None,
        **options,
    )
    best = trials.candidates[trials.best]
    return best, {"trials_": trials.records(), "best_candidate_": best.name}
