"""Parameters of the estimators: checks, and the corresponding training settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import nn

from torchmcl import AnnealedWTA, AutoAnnealing, Cosine, Exponential, Linear, annealed, checks
from torchmcl.annealing.model import RuleLike, check_rule_like
from torchmcl.errors import bad_value
from torchmcl.schedules import Schedule
from torchmcl_fleet import Candidate, FleetSearch
from torchmcl_tables.estimators.rows import Rows
from torchmcl_tables.estimators.training import Examples, Trainer, mean_one

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
