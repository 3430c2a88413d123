"""What the estimators share: the training of their networks, and saving."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted
from torch import Tensor, nn

from torchmcl._checks import bad_value
from torchmcl.annealing.auto import AutoAnnealing, cost_scale
from torchmcl.annealing.course import rule_at
from torchmcl.fleet import Candidate, default_batch_size
from torchmcl.fleet.models import build_modules
from torchmcl.losses import assign
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule
from torchmcl.types import Predictions
from torchmcl_tables.estimators._frames import DataFrames
from torchmcl_tables.estimators._inputs import Bends, Gaps, Scaler, values_repeat
from torchmcl_tables.estimators._networks import Examples, Trained, Training, answers, default_n_epochs, mean_one
from torchmcl_tables.estimators._parameters import Parameters
from torchmcl_tables.estimators._rows import Rows
from torchmcl_tables.estimators.saving import read_estimator, save_estimator

__all__ = ["MANY_ROWS", "N_KNOTS", "N_RESTARTS", "MCLEstimator", "seeds_of"]

# What follows on all rows: this share of the epochs, from this share of the learning rate down to 0.
_LAST_SHARE, _LAST_RATE = 0.3, 0.25
# This many networks are trained by default; one has enough of a table of this many rows, and predicts faster.
N_RESTARTS, MANY_ROWS = 5, 50_000
# Of tables whose values repeat, by default: this many knots in a column, and then half of the steps do.
N_KNOTS = 33
# Of tables with more columns that take more than two values there are none: networks would have too many inputs.
_MAX_KNOTTED = 128
_N_STEPS, _N_STEPS_WITH_KNOTS = 1500, 750
# The horizon of schedules for partial_fit, where no number of epochs is known.
_PARTIAL_EPOCHS = 200


class MCLEstimator(DataFrames, Parameters):
    """Training and saving; `MCLRegressor` and `MCLClassifier` document them."""

    # Of hypotheses and targets; a static method of each estimator.
    _cost_fn: ClassVar[Callable[..., Tensor]]

    # Further options of `FleetSearch.run`.
    _search_options: ClassVar[dict[str, Any]] = {}

    modules_: list[nn.Module]
    n_epochs_: int
    _inputs: Scaler | Bends | Gaps
    _moments: dict[str, Tensor] | None
    _annealing: dict[str, Tensor] | None

    @property
    @abstractmethod
    def _out_features(self) -> int:
        """How many numbers a hypothesis has."""

    @abstractmethod
    def _encoded_targets(self, rows: Rows) -> NDArray[Any]:
        """Return the targets of rows as the networks learn them, [rows, ...]."""

    # ------------------------------------------------------------------ saving

    def save(self, folder: str | Path, *, private: bool = False) -> None:
        """Write the fitted estimator to a folder: `model.safetensors`.

        A saved model in it is replaced; nothing half-written is ever left. By default the file holds rows of the table:
        those that were held out, and of a forest nearly all targets.

        Args:
            folder: new, empty or with a saved model.
            private: leave these rows out and blur the forest. Answers change a little, and `partial_fit` has no
                held-out rows to begin with. Means, quantiles, bounds and categories stay.

        Raises:
            ValueError: if the folder holds something else, or a parameter is not of the kind that JSON can hold.
            OSError: if it cannot be written.
        """
        check_is_fitted(self)
        save_estimator(self, Path(folder), private=private)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the estimator that `save` wrote.

        Raises:
            ValueError: if the folder holds no such model, or one of a newer version.
        """
        loaded: Self = read_estimator(f"{cls.__name__}.load", Path(folder), {cls.__name__: cls})
        return loaded

    # ------------------------------------------------------------------ tables

    def _checked_inputs(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        checked: NDArray[Any] = self._checked_table(X, reset=False)
        return checked

    def _checked_weights(self, sample_weight: Any, X: NDArray[Any]) -> NDArray[np.float64] | None:
        if sample_weight is None:
            return None
        weights: NDArray[np.float64] = _check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=False
        )
        return weights

    def _checked_groups(self, groups: Any, X: NDArray[Any]) -> NDArray[Any] | None:
        if groups is None:
            return None
        labels: NDArray[Any] = check_array(groups, ensure_2d=False, dtype=None, input_name="groups")
        if labels.shape != (len(X),):
            rule = f"have a label for each of {len(X)} rows"
            raise ValueError(bad_value(type(self).__name__, "groups", rule, f"shape {labels.shape}"))
        return labels

    def _encoder(self, train: Rows, default: int | None = None) -> Scaler | Bends | Gaps:
        """Return what makes inputs of columns; `default` is the number of knots, None to look at the rows."""
        filled, gaps = Gaps.filled(train.inputs, train.weights)
        scaler = Scaler.of(filled, train.weights)
        n_knots = default if self.n_knots is None else int(self.n_knots)
        if n_knots is None:
            n_knots = N_KNOTS if len(train) < MANY_ROWS and values_repeat(filled) else 0
        if self.n_knots is None and n_knots and _n_knotted(filled) > _MAX_KNOTTED:
            n_knots = 0
        encoder = Bends.of(scaler, filled, train.weights, n_knots) if n_knots else scaler
        return encoder if gaps is None else gaps.before(encoder)

    def _examples(self, rows: Rows) -> Examples:
        targets = torch.from_numpy(self._encoded_targets(rows)).unsqueeze(1)
        return Examples(torch.from_numpy(self._inputs(rows.inputs)), targets, rows.weights)

    # ------------------------------------------------------------------ networks

    def _module(self) -> nn.Module:
        return MultiHypothesisMLP(
            self._inputs.n_columns,
            self._out_features,
            int(self.n_hypotheses),
            hidden=tuple(int(size) for size in self.hidden),
            detach_scores=True,  # on low-noise targets the score loss would dwarf the cost in the trunk
        )

    def _all_answers(self, X: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Return what all networks say and the probabilities, [rows, networks * hypotheses, ...]."""
        return answers(self.modules_, torch.from_numpy(self._inputs(X, X.dtype)), self.device)

    def _training(self, rule: Any, learning_rate: Any, weight_decay: Any, **how: Any) -> Training:
        bar = type(self).__name__ if self.progress else False
        return Training(
            rule, learning_rate, weight_decay, cost_fn=self._cost_fn, device=self.device, progress=bar, **how
        )

    def _train(self, train: Rows, selection: Rows, seed: int, checkpoint: str | Path | None) -> Training:
        """Train the restarts and keep the best, or all; return how to continue from there.

        Sets the attributes that say how it went.
        """
        batch = int(self.batch_size or default_batch_size(len(train)))
        n_steps = _N_STEPS_WITH_KNOTS if self._inputs.has_knots else _N_STEPS
        n_epochs = int(self.n_epochs or default_n_epochs(len(train), batch, n_steps))
        examples = self._examples(train)
        way = self._way_to_train(n_epochs)
        if self.search is not None:
            way = self._searched(train, examples, seed, n_epochs, batch)
        default = N_RESTARTS if len(train) < MANY_ROWS else 1
        training = self._training(
            *(way.rule, way.learning_rate, way.weight_decay),
            n_epochs=n_epochs,
            batch_size=batch,
            seeds=seeds_of(seed, default if self.n_restarts is None else int(self.n_restarts)),
            keep_best=bool(self.keep_best),
            patience=None if self.patience is None else int(self.patience),
            checkpoint=checkpoint,
        )
        trained = training.run(self._module, examples, self._examples(selection) if len(selection) else None)
        kept = trained.not_failed() if self.ensemble else [trained.best()]
        self._keep(training, trained, kept)
        self._state_seed = seed
        # With fresh moments a training that is continued would first shake what was learned.
        return replace(training, moments={name: value[kept] for name, value in trained.moments.items()})

    def _searched(self, train: Rows, examples: Examples, seed: int, n_epochs: int, batch: int) -> Candidate:
        """Return the best of many ways to train, by rows held out inside the training rows."""
        assert self.search is not None
        units = np.unique(train.units, return_inverse=True)[1].ravel()
        trials = self.search.run(
            self._module,
            examples.inputs,
            examples.targets,
            n_epochs,
            batch_size=batch,
            cost_fn=self._cost_fn,
            **self._search_options,
            seed=seed % 2**31,
            device=self.device,
            progress=bool(self.progress),
            weights=mean_one(train.weights),
            groups=torch.from_numpy(units) if train.in_groups else None,
        )
        self.trials_ = trials.records()
        best = trials.candidates[trials.best]
        self.best_candidate_ = best.name
        return best

    def _train_on_all(self, training: Training, rows: Rows) -> None:
        """Continue with the rows that have served to select: a short training at a small rate, from where it ended."""
        rule = training.rule
        last = replace(
            training.further(epochs=_LAST_SHARE, rate=_LAST_RATE, name="all rows"),
            rule=WTA() if isinstance(rule, AutoAnnealing) else rule_at(rule, training.n_epochs - 1),
            seeds=seeds_of(training.seeds[0], len(self.modules_)),
        )
        made = last.run(iter(self.modules_).__next__, self._examples(rows))
        self.modules_ = made.modules
        self.seconds_ += float(made.history.seconds)

    def _keep(self, training: Training, trained: Trained, kept: list[int]) -> None:
        """Keep networks, and how the training of the best of them went."""
        history, best, rule = trained.history, trained.best(), training.rule
        self._moments = self._annealing = None  # partial_fit begins with fresh moments
        self.modules_ = [trained.modules[place] for place in kept]
        self.rule_ = rule
        self.best_restart_ = best
        self.loss_curve_ = history.losses[:, best].double().numpy()
        self.validation_curve_ = history.watched[:, best].double().numpy()
        self.learning_rate_curve_ = history.learning_rates[:, best].double().numpy()
        self.seconds_ = float(history.seconds)
        self.validation_distortions_ = trained.distortions.double().numpy()
        self.best_epoch_ = int(trained.best_epochs[best])
        stopped = int(history.stopped_epoch[best])
        self.n_epochs_ = stopped + 1 if stopped >= 0 else len(history.losses)
        if history.temperatures is not None:  # as `AutoAnnealing` decided on them
            temperatures = history.temperatures[:, best].tolist()
        else:
            rules = [rule_at(rule, epoch) for epoch in range(len(history.losses))]
            temperatures = [getattr(each, "temperature", None) for each in rules]
        self.temperature_curve_ = None if None in temperatures else np.array(temperatures, dtype=np.float64)

    def _costs(self, predictions: Predictions, targets: Tensor) -> Tensor:
        """Return the cost of each hypothesis, [rows, 1, hypotheses]."""
        return self._cost_fn(hypotheses=predictions.hypotheses, targets=targets)

    # ------------------------------------------------------------------ row by row

    def _train_more(self, train: Rows) -> None:
        """Train one epoch on the rows, from where the last call ended."""
        horizon = int(self.n_epochs or _PARTIAL_EPOCHS)
        if not hasattr(self, "modules_"):
            seeds = seeds_of(self._state_seed, int(self.n_restarts or 1) if self.ensemble else 1)
            self.modules_ = build_modules(self._module, seeds)
            self.n_epochs_ = 0
        epoch, examples = self.n_epochs_, self._examples(train)
        rule: Any = self._rule(horizon)
        decay: Any = self._weight_decay(rule)
        if isinstance(rule, AutoAnnealing):
            rule, decay = self._annealed_further(rule, examples, horizon)
        else:
            rule = rule_at(rule, epoch)
        training = self._training(
            *(rule, self._rate(epoch) if callable(self._rate) else self._rate, decay),
            n_epochs=1,
            batch_size=int(self.batch_size or default_batch_size(len(train))),
            seeds=[self._state_seed + epoch + i for i in range(len(self.modules_))],
            moments=self._moments,
        )
        made = training.run(iter(self.modules_).__next__, examples)
        self._moments, self.modules_ = made.moments, made.modules
        self.n_epochs_ += 1

    def _annealed_further(
        self, policy: AutoAnnealing, examples: Examples, horizon: int
    ) -> tuple[list[AssignmentRule], list[float]]:
        """Return rule and weight decay of each network for some more rows, which are taken to be new to it.

        What `fit` has trained is cold already, and there is nothing left to decide.
        """
        least, epoch, state = self._weight_decay(policy), float(self.n_epochs_), self._annealing
        if epoch and state is None:
            return [WTA()] * len(self.modules_), [least] * len(self.modules_)
        inputs, targets, _ = examples
        with torch.no_grad():
            costs = [self._costs(module(inputs), targets) for module in self.modules_]
        measured = cost_scale(assign(torch.stack(costs), WTA()), stacked=True)
        n_coordinates = self._out_features
        if state is None:  # rows that come one by one are not held for: there is no way back
            state = policy.init(measured, horizon, n_coordinates=n_coordinates, may_hold=False)
        else:
            policy.update(state, measured, epoch, horizon, n_coordinates=n_coordinates)
        values = policy.value(state, epoch, horizon)
        self._annealing = state
        rules: list[AssignmentRule] = [AnnealedWTA(t) if t > 0 else WTA() for t in values.temperature.tolist()]
        return rules, [least] * len(self.modules_)


def _n_knotted(rows: NDArray[Any]) -> int:
    """Return how many columns take more than two values, as far as matters."""
    if rows.shape[1] <= _MAX_KNOTTED:
        return rows.shape[1]
    low, high = rows.min(axis=0), rows.max(axis=0)
    return int(((rows > low) & (rows < high)).any(axis=0).sum())


def seeds_of(seed: int, n_networks: int) -> list[int]:
    return [int(s) for s in np.random.RandomState(seed).randint(2**31 - 1, size=n_networks)]
