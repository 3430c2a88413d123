"""Training of the networks of an estimator: conversion of rows to examples, and restarts trained as a fleet.

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
from torchmcl_tables.estimators.preprocessing import Encoder
from torchmcl_tables.estimators.rows import Rows, Split
from torchmcl_tables.estimators.tables import Targets

# Hundreds of epochs for a small table, twenty for a large one.
_MIN_EPOCHS, _MAX_EPOCHS = 20, 1000


class Examples(NamedTuple):
    """Inputs [rows, columns], targets [rows, 1, ...] and weights [rows]."""

    inputs: Tensor
    targets: Tensor
    weights: NDArray[np.float64]

    def for_all(self, n_networks: int) -> FleetData:
        """Return the data of a fleet whose networks are all trained on these rows."""
        return FleetData.shared(self.inputs, self.targets, n_networks, weights=mean_one(self.weights))

    def watched(
        self, n_networks: int, *, every: int, patience: int | None, cost_fn: Callable[..., Tensor] | None = None
    ) -> Validation | None:
        """Return the validation of networks by the distortion, or a cost, on these rows; None without any."""
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
    """Return the weights scaled to a mean of 1; None if all are equal."""
    if (weights == weights[0]).all():
        return None
    return torch.from_numpy(weights / weights.mean()).float()


def default_n_epochs(n_rows: int, batch_size: int, n_steps: int) -> int:
    """Return the number of epochs for about `n_steps` steps, between 20 and 1000."""
    return max(_MIN_EPOCHS, min(_MAX_EPOCHS, round(n_steps / math.ceil(n_rows / batch_size))))


def seeds_of(seed: int, n_networks: int) -> list[int]:
    """Return a seed for each network."""
    return [int(s) for s in np.random.RandomState(seed).randint(2**31 - 1, size=n_networks)]


# A network with this many times the lowest distortion on held-out rows has failed: its hypotheses collapsed.
_FAILED = 2.0
# A save takes about 15 ms, a training run at least a second. Evaluations may serve only for the validation curve.
_N_SAVES, _N_EVALUATIONS = 5, 100
# The final training on all rows: this fraction of the epochs, from this fraction of the learning rate to 0.
_FINAL_EPOCHS, _FINAL_RATE = 0.3, 0.25


@dataclass(frozen=True)
class Trained:
    """The networks of all restarts and their training history.

    Attributes:
        modules: one network for each restart.
        history: of their training.
        distortions: [restarts], on held-out rows; infinite without any.
        best_epochs: [restarts], the selected epoch, -1 if it is the last.
        moments: of the optimizer, for continued training.
    """

    modules: list[nn.Module]
    history: FleetHistory
    distortions: Tensor
    best_epochs: Tensor
    moments: dict[str, Tensor]

    def best(self) -> int:
        """Return the restart with the lowest validation distortion, or the lowest last loss without validation."""
        values = self.distortions
        if not torch.isfinite(values).any():
            values = self.history.losses[-1]
        return int(torch.where(values.isnan(), torch.inf, values).argmin())

    def not_failed(self) -> list[int]:
        """Return the restarts except those far worse than the best one, which have lost modes."""
        known = self.distortions[self.distortions.isfinite()]
        bound = _FAILED * known.min() if len(known) else torch.nan
        kept = [place for place, value in enumerate(self.distortions) if value <= bound]
        return kept or list(range(len(self.modules)))  # unknown without held-out rows

    def moments_of(self, kept: list[int]) -> dict[str, Tensor]:
        """Return the optimizer's moments for the given restarts."""
        return {name: value[kept] for name, value in self.moments.items()}

    def attributes(self, rule: Any) -> dict[str, Any]:
        """Return the fitted attributes of an estimator that describe the training of the best network."""
        history, best = self.history, self.best()
        stopped = int(history.stopped_epoch[best])
        if history.temperatures is not None:  # as set by `AutoAnnealing`
            temperatures = history.temperatures[:, best].tolist()
        else:
            rules = [rule_at(rule, epoch) for epoch in range(len(history.losses))]
            temperatures = [getattr(each, "temperature", None) for each in rules]
        return {
            "rule_": rule,
            "best_restart_": best,
            "loss_curve_": history.losses[:, best].double().numpy(),
            "validation_curve_": history.watched[:, best].double().numpy(),
            "learning_rate_curve_": history.learning_rates[:, best].double().numpy(),
            "temperature_curve_": None if None in temperatures else np.array(temperatures, dtype=np.float64),
            "seconds_": float(history.seconds),
            "validation_distortions_": self.distortions.double().numpy(),
            "best_epoch_": int(self.best_epochs[best]),
            "n_epochs_": stopped + 1 if stopped >= 0 else len(history.losses),
        }


@dataclass(frozen=True)
class Trainer:
    """The settings of a training run: all arguments of a fleet except its data.

    Attributes:
        rule: an assignment rule, a function epoch -> rule or `AutoAnnealing`.
        learning_rate: a number or a schedule by epoch.
        weight_decay: a single value, or one per network.
        n_epochs: passes over the rows, at most `batch_size` of them in a step.
        seeds: one per network.
        cost_fn: of hypotheses and targets; `score_weight` is the weight of the score loss.
        device: where to train.
        keep_best: keep each network's best epoch on the validation rows instead of the last.
        checkpoint: folder for checkpoints, or None.
        moments: of the optimizer, for continued training.
        models_at_once: number of networks that must be trained together; None for no constraint.
        progress: title of a progress bar; False for none.
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
        """Return a validation on held-out rows, run in every epoch if the best networks are kept; None without rows.

        Args:
            held_out: the rows.
            patience: epochs without improvement after which a network stops.
            cost_fn: to compare epochs by; None for the distortion.
        """
        every = 1 if self.keep_best else max(1, self.n_epochs // _N_EVALUATIONS)
        return held_out.watched(len(self.seeds), every=every, patience=patience, cost_fn=cost_fn)

    def further(
        self, modules: Sequence[nn.Module], data: Examples, *, epochs: float, rate: float, name: str
    ) -> Trained:
        """Return the networks after a short training run at a low learning rate.

        Args:
            modules: to continue training, one per seed.
            data: rows shared by all of them.
            epochs: as a share of the epochs.
            rate: as a share of the highest rate; it falls to 0.
            name: for the progress bar, and of the folder inside the checkpoint.
        """
        given, n_epochs = self.learning_rate, max(1, round(epochs * self.n_epochs))
        highest = max(map(given, range(self.n_epochs))) if callable(given) else given
        short = replace(
            self,
            learning_rate=Cosine(rate * highest, 0.0, n_epochs),
            n_epochs=n_epochs,
            progress=self.progress and f"{self.progress}, {name}",
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint) / name.replace(" ", "-"),
        )
        return short(iter(modules).__next__, data.for_all(len(modules)))

    def on_all_rows(self, modules: Sequence[nn.Module], data: Examples, moments: dict[str, Tensor]) -> Trained:
        """Return the kept networks after a final training run that includes the selection rows."""
        rule = WTA() if isinstance(self.rule, AutoAnnealing) else rule_at(self.rule, self.n_epochs - 1)
        # Keep Adam's moments: restarting from zero would undo progress.
        seeds, at_once = seeds_of(self.seeds[0], len(modules)), self.models_at_once and len(modules)
        last = replace(self, rule=rule, seeds=seeds, moments=moments, models_at_once=at_once)
        return last.further(modules, data, epochs=_FINAL_EPOCHS, rate=_FINAL_RATE, name="all rows")


def _last_values(history: FleetHistory) -> Tensor:
    """Return the last monitored value of each model on held-out rows; infinity if there is none."""
    values = torch.full_like(history.best_value, torch.inf)
    for evaluated in history.watched:
        values = torch.where(evaluated.isnan(), values, evaluated)
    return values


#: The horizon of schedules for partial_fit, if no number of epochs is given.
PARTIAL_EPOCHS = 200


@dataclass(frozen=True)
class Continuation:
    """The state of a training run that `partial_fit` continues with further rows.

    Attributes:
        seed: of splits and shuffles.
        n_epochs: epochs so far.
        borders: of the split.
        held_out: selection and calibration rows; none in a model that was saved without them.
        moments: of the optimizer; None for fresh ones.
        annealing: the state of `AutoAnnealing`; None after `fit`, which has already cooled the networks.
    """

    seed: int
    n_epochs: int
    borders: NDArray[np.uint64] | None = None
    held_out: tuple[Rows, ...] = ()
    moments: dict[str, Tensor] | None = None
    annealing: dict[str, Tensor] | None = None

    def holding_out(self, split: Split) -> "Continuation":
        """Return the state with the held-out rows of a split appended to those of earlier splits."""
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
        """Return networks after one more epoch, and the new state.

        Args:
            trainer: rule, rate and decay over its number of epochs, the horizon of schedules.
            modules: to continue training.
            examples: new training rows.
            costs_of: returns the costs of the hypotheses of a network, [rows, 1, hypotheses], for `AutoAnnealing`.
            n_coordinates: coordinates of a hypothesis.
        """
        rule, rate, annealing = trainer.rule, trainer.learning_rate, self.annealing
        modules = copy.deepcopy(list(modules))  # a failing epoch changes nothing
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
        """Return the rule of each network for the next epoch, and the state of the policy."""
        if self.n_epochs and self.annealing is None:  # networks from `fit` are cold already
            return [WTA()] * len(costs), None
        measured, epoch = cost_scale(assign(costs, WTA()), stacked=True), float(self.n_epochs)
        if self.annealing is None:  # no hold on streamed rows: a rewind is impossible
            state = policy.init(measured, horizon, n_coordinates=n_coordinates, may_hold=False)
        else:
            state = {name: value.clone() for name, value in self.annealing.items()}
            policy.update(state, measured, epoch, horizon, n_coordinates=n_coordinates)
        temperatures = policy.value(state, epoch, horizon).temperature.tolist()
        return [AnnealedWTA(t) if t > 0 else WTA() for t in temperatures], state


# ---------------------------------------------------------------------------- parameters

_COUNTS = ("n_hypotheses", "n_restarts", "n_epochs", "batch_size", "patience")
# Parameters set by a search.
_SEARCHED = ("rule", "learning_rate", "weight_decay")


@dataclass(frozen=True)
class Cooling:
    """`AnnealedWTA` with a temperature that falls over a share of the training run, for any number of epochs.

    Attributes:
        start: the first temperature; for a regressor, in units of the variance of the targets.
        end: the last temperature. After it, exponential cooling continues at 0, linear cooling stays at `end`.
        share: fraction of the epochs after which `end` is reached.
        linear: fall linearly instead of exponentially.
    """

    start: float = 0.5
    end: float = 5e-4
    share: float = 0.7
    linear: bool = False

    def __call__(self, n_epochs: int) -> RuleLike:
        """Return the function epoch -> rule of a training run."""
        n_cooling = max(1, round(self.share * n_epochs))
        if self.linear:
            return annealed(AnnealedWTA, temperature=Linear(self.start, self.end, n_cooling))
        decay = (self.end / self.start) ** (1 / n_cooling)
        return annealed(AnnealedWTA, temperature=Exponential(self.start, decay, cutoff=self.end))


def rule_of(rule: RuleLike | Cooling | None, n_epochs: int) -> RuleLike:
    """Return the rule, the function epoch -> rule or the `AutoAnnealing` of a training run."""
    if rule is None:
        return AutoAnnealing()
    return rule(n_epochs) if isinstance(rule, Cooling) else rule


def as_given(
    rule: Any, learning_rate: float | Schedule, weight_decay: float | None, default_decay: float, n_epochs: int
) -> Candidate:
    """Return the training settings described by the parameters."""
    rule = rule_of(rule, n_epochs)
    if isinstance(rule, AutoAnnealing):  # `AutoAnnealing` sets the tail of the rate, and the decay, starting from 0
        default_decay = 0.0
    elif not callable(learning_rate):
        learning_rate = Cosine(learning_rate, 0.0, n_epochs)
    return Candidate("as given", rule, learning_rate, default_decay if weight_decay is None else float(weight_decay))


def seed_of(random_state: Any) -> int:
    """Return a seed drawn from a `random_state`."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def check_parameters(estimator: Any) -> None:
    """Check the parameters of an estimator."""
    owner, given = type(estimator).__name__, estimator.get_params(deep=False)
    for name in _COUNTS:
        if name == "n_hypotheses" or given[name] is not None:
            checks.check_positive_int(owner, name, _plain(given[name]))
    if given["n_bins"] is not None:
        checks.check_non_negative_int(owner, "n_bins", _plain(given["n_bins"]))
    if isinstance(given["hidden"], (str, bytes)) or not isinstance(given["hidden"], Sequence | np.ndarray):
        advice = "One layer of 64 units is (64,)."
        raise TypeError(bad_value(owner, "hidden", "be a sequence of sizes", repr(given["hidden"]), advice))
    for size in given["hidden"]:
        checks.check_positive_int(owner, "hidden", _plain(size))
    checks.check_interval(owner, "validation_fraction", given["validation_fraction"], "[0, 1)")
    checks.available_device(owner, given["device"])
    if not callable(given["learning_rate"]):
        checks.check_non_negative(owner, "learning_rate", given["learning_rate"])
    if given["weight_decay"] is not None:
        checks.check_non_negative(owner, "weight_decay", given["weight_decay"])
    if given.get("rule") is not None and not isinstance(given["rule"], Cooling):
        check_rule_like(owner, given["rule"])
    if given.get("search") is not None:
        _check_search(owner, type(estimator), given)
    class_weight = given.get("class_weight")
    if not (class_weight is None or isinstance(class_weight, Mapping) or class_weight == "balanced"):
        rule = "be None, 'balanced' or a dictionary of weights by label"
        raise ValueError(bad_value(owner, "class_weight", rule, repr(class_weight)))


def _check_search(owner: str, kind: type[Any], given: dict[str, Any]) -> None:
    if not isinstance(given["search"], FleetSearch):
        rule, advice = "be None or a FleetSearch", "torchmcl_fleet.FleetSearch() trains 64 candidates."
        raise TypeError(bad_value(owner, "search", rule, repr(given["search"]), advice))
    for name in _SEARCHED:
        if given[name] != getattr(kind, name):
            rule = "be left at its default with `search`, which chooses it"
            advice = "Leave out one of the two, or pass your own candidates to FleetSearch."
            raise ValueError(bad_value(owner, name, rule, repr(given[name]), advice))


def trainer_of(
    estimator: Any, way: Candidate, n_epochs: int, batch_size: int, seeds: Sequence[int], **own: Any
) -> Trainer:
    """Return a trainer with the parameters of an estimator and the additional `Trainer` fields `own`."""
    progress = type(estimator).__name__ if estimator.progress else False
    how = {"device": estimator.device, "keep_best": bool(estimator.keep_best), "progress": progress}
    return Trainer(way.rule, way.learning_rate, way.weight_decay, n_epochs, batch_size, seeds, **how, **own)


def _plain(value: Any) -> Any:
    """Return a value; NumPy integers, which grid searches pass, become Python integers."""
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
    """Return the training settings that are best on an inner hold-out of the training rows, and the fitted attributes.

    Args:
        estimator: with the `FleetSearch`.
        factory: returns an untrained network.
        rows: to train on.
        examples: the same as tensors.
        seed: of the search.
        n_epochs: of each training.
        batch_size: of each training.
        **options: further options of `FleetSearch.run`.
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
