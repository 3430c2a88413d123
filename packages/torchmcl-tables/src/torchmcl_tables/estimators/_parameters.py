"""The parameters of the estimators: each once, with its default, its check and what it stands for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from torchmcl._checks import (
    available_device,
    bad_value,
    check_choice,
    check_non_negative,
    check_non_negative_int,
    check_positive_int,
    check_real,
)
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.course import RuleLike, check_rule_like
from torchmcl.fleet import Candidate, FleetSearch
from torchmcl.rules.winners import WTA, AnnealedWTA, RelaxedWTA
from torchmcl.schedules import AnnealedRule, Cosine, Exponential, Schedule, annealed

__all__ = ["NAMED_RULES", "Parameters"]

# Targets are standardised, so temperatures are shares of their variance; the paper starts at 0.5 and ends at 5e-4.
_HOT, _COLD = 0.5, 5e-4
# The share of the training after which the temperature is 0: slow cooling, then time to settle.
_COOLING_SHARE = 0.7
# What a search decides on.
_SEARCHED = ("rule", "learning_rate", "weight_decay")


def _cooled(n_epochs: int) -> AnnealedRule:
    n_cooling = max(1, round(_COOLING_SHARE * n_epochs))
    return annealed(AnnealedWTA, temperature=Exponential(_HOT, (_COLD / _HOT) ** (1 / n_cooling), cutoff=_COLD))


NAMED_RULES: dict[str, Callable[[int], RuleLike]] = {
    "annealed": _cooled,
    "auto": lambda n_epochs: AutoAnnealing(),
    "mcl": lambda n_epochs: WTA(),
    "relaxed": lambda n_epochs: RelaxedWTA(0.1),
}
"""The rules that have a name, as functions of the number of epochs; `torchmcl fit --rule` takes the same names."""


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn compares and prints estimators in its own way
class Parameters(BaseEstimator):
    """The parameters and their checks; `MCLRegressor` documents them."""

    _default_weight_decay = 0.4

    n_hypotheses: int = 5
    rule: Any = "annealed"
    hidden: Sequence[int] = (64, 64)
    n_knots: int | None = 0
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | Schedule | None = 0.01
    weight_decay: float | None = None
    keep_best: bool | None = True
    validation_fraction: float = 0.1
    patience: int | None = None
    n_restarts: int | None = 1
    ensemble: bool = False
    final_fit_on_all_rows: bool | None = False
    search: FleetSearch | None = None
    device: str | torch.device = "cpu"
    random_state: Any = None
    progress: bool = False

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        check_positive_int(owner, "n_hypotheses", _plain(self.n_hypotheses))
        for name in ("n_restarts", "n_epochs", "batch_size", "patience"):
            if getattr(self, name) is not None:
                check_positive_int(owner, name, _plain(getattr(self, name)))
        if self.n_knots is not None:
            check_non_negative_int(owner, "n_knots", _plain(self.n_knots))
        if isinstance(self.hidden, (str, bytes)) or not isinstance(self.hidden, Sequence | np.ndarray):
            advice = "One layer of 64 units is (64,)."
            raise TypeError(bad_value(owner, "hidden", "be a sequence of sizes", repr(self.hidden), advice))
        for size in self.hidden:
            check_positive_int(owner, "hidden", _plain(size))
        check_real(owner, "validation_fraction", self.validation_fraction)
        if not 0 <= self.validation_fraction < 1:
            rule = "lie in [0, 1)"
            raise ValueError(bad_value(owner, "validation_fraction", rule, repr(self.validation_fraction)))
        available_device(owner, self.device)
        self._check_way_to_train(owner)

    def _check_way_to_train(self, owner: str) -> None:
        if self.rule is None and type(self).rule is None:
            pass  # not trained by a rule
        elif isinstance(self.rule, str):
            check_choice(owner, "rule", self.rule, tuple(NAMED_RULES))
        else:
            check_rule_like(owner, self.rule)
        if not callable(self._rate):
            check_non_negative(owner, "learning_rate", self._rate)
        if self.weight_decay is not None:
            check_non_negative(owner, "weight_decay", self.weight_decay)
        if self.search is None:
            return
        if not isinstance(self.search, FleetSearch):
            rule, advice = "be None or a FleetSearch", "torchmcl.fleet.FleetSearch() tries 64 ways to train."
            raise TypeError(bad_value(owner, "search", rule, repr(self.search), advice))
        for name in _SEARCHED:
            if (given := getattr(self, name)) != getattr(type(self), name):
                rule = "be left at its default with `search`, which chooses it"
                advice = "Leave out one of the two, or give FleetSearch candidates of your own."
                raise ValueError(bad_value(owner, name, rule, repr(given), advice))

    @property
    def _rate(self) -> float | Schedule:
        """The learning rate that is used."""
        return self._default_rate if self.learning_rate is None else self.learning_rate

    @property
    def _default_rate(self) -> float:
        return 0.01

    def _rule(self, n_epochs: int) -> Any:
        """Return the rule, the function epoch -> rule or the `AutoAnnealing` that `rule` stands for."""
        if self.rule is None and self.search is None:
            return WTA()  # there is one cost for each target, and nothing to choose
        if self.rule is None:  # of partial_fit, which does not search
            return NAMED_RULES["annealed"](n_epochs)
        return NAMED_RULES[self.rule](n_epochs) if isinstance(self.rule, str) else self.rule

    def _way_to_train(self, n_epochs: int) -> Candidate:
        """Return how the parameters say to train."""
        rule, rate = self._rule(n_epochs), self._rate
        if not isinstance(rule, AutoAnnealing) and not callable(rate):  # it decides on the tail of the rate by itself
            rate = Cosine(rate, 0.0, n_epochs)
        return Candidate("as given", rule, rate, self._weight_decay(rule))

    def _weight_decay(self, rule: Any) -> float:
        """Return the weight decay; by default `AutoAnnealing` decides on it, from 0 on."""
        default = 0.0 if isinstance(rule, AutoAnnealing) else self._default_weight_decay
        return default if self.weight_decay is None else float(self.weight_decay)

    def _complete(self) -> None:
        """Add the attributes that a model of an earlier version was saved without."""

    def _forget(self) -> None:
        """Remove the attributes of an earlier fit: with other parameters not all of them would be replaced."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """Return numpy's integers, which grid searches hand out, as Python's."""
    return int(value) if isinstance(value, np.integer) else value
