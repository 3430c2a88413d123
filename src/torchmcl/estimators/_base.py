"""What the estimators share: their parameters, how a rule is made of them, and the training of a fleet."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted
from torch import Tensor, nn

from torchmcl._checks import (
    bad_value,
    check_choice,
    check_non_negative,
    check_positive_int,
    check_real,
    device_of,
)
from torchmcl.annealing.auto import AutoAnnealing, cost_scale
from torchmcl.assignment import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA
from torchmcl.estimators._inputs import Bends, Scaler, values_repeat
from torchmcl.estimators._networks import (
    TrainedNetworks,
    Training,
    default_batch_size,
    default_n_epochs,
    mean_one,
)
from torchmcl.estimators._rows import Rows
from torchmcl.estimators.saving import read_estimator, save_estimator
from torchmcl.fleet import Candidate, Fleet, FleetData, FleetSearch, even_batch_size
from torchmcl.fleet.stacked import build_modules
from torchmcl.losses import match
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.schedules import Cosine, Exponential, Schedule, annealed

__all__ = ["MCLEstimator"]

_RULES = ("annealed", "mcl", "relaxed")
# Targets are standardised, so temperatures are shares of their variance; the paper starts at 0.5 and ends at 5e-4.
_HOT, _COLD = 0.5, 5e-4
# The share of the training after which the temperature is 0: slow cooling, then time to settle.
_COOLING_SHARE = 0.7
_EPSILON = 0.1
# What follows with all rows: this share of the epochs, from this share of the learning rate down to 0.
_LAST_SHARE, _LAST_RATE = 0.3, 0.25
# So many networks are trained unless told; one has enough of a table of this many rows, and predicts faster.
_N_INIT, _MANY_ROWS = 5, 50_000
# Of tables whose values repeat, unless told: so many knots in a column, and then half of the steps do.
_N_KNOTS = 33
_N_STEPS, _N_STEPS_WITH_KNOTS = 1500, 750
# The horizon of schedules for partial_fit, where no number of epochs is known.
_PARTIAL_EPOCHS = 200


class MCLEstimator(BaseEstimator):
    """Parameters and training; `MCLRegressor` and `MCLClassifier` document them."""

    # Decoupled weight decay unless told.
    _usual_decay = 0.4

    modules_: list[nn.Module]
    n_epochs_: int
    _inputs: Scaler | Bends
    _moments: dict[str, Tensor] | None
    _annealing: dict[str, Tensor] | None
    temperature_curve_: NDArray[np.float64] | None
    _state_seed: int

    def __init__(
        self,
        *,
        n_hypotheses: int = 5,
        rule: Any = "annealed",
        schedule: Schedule | str | None = None,
        hidden: Sequence[int] = (64, 64),
        n_knots: int | None = 0,
        n_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | Schedule = 0.01,
        weight_decay: float | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.2,
        n_iter_no_change: int | None = None,
        n_init: int | None = 1,
        ensemble: bool = False,
        refit: bool = False,
        search: FleetSearch | str | None = None,
        device: str | torch.device = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_hypotheses = n_hypotheses
        self.rule = rule
        self.schedule = schedule
        self.hidden = hidden
        self.n_knots = n_knots
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.n_init = n_init
        self.ensemble = ensemble
        self.refit = refit
        self.search = search
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------ saving

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder: `model.safetensors`.

        A saved model in it is replaced; nothing half-written is ever left.

        Raises:
            ValueError: if the folder holds something else, or a parameter is not of the kind that JSON can hold.
            OSError: if it cannot be written.
        """
        check_is_fitted(self)
        save_estimator(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the estimator that `save` wrote.

        Raises:
            ValueError: if the folder holds no such model, or one of a newer version.
        """
        loaded: Self = read_estimator(f"{cls.__name__}.load", Path(folder), {cls.__name__: cls})
        return loaded

    # ------------------------------------------------------------------ parameters

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        check_positive_int(owner, "n_hypotheses", _plain(self.n_hypotheses))
        for name in ("n_init", "n_epochs", "batch_size", "n_iter_no_change"):
            if getattr(self, name) is not None:
                check_positive_int(owner, name, _plain(getattr(self, name)))
        if self.n_knots is not None and (isinstance(self.n_knots, bool) or _plain(self.n_knots) != 0):
            check_positive_int(owner, "n_knots", _plain(self.n_knots))
        if isinstance(self.hidden, (str, bytes)) or not isinstance(self.hidden, Sequence | np.ndarray):
            advice = "One layer of 64 units is (64,)."
            raise TypeError(bad_value(owner, "hidden", "be a sequence of sizes", repr(self.hidden), advice))
        for size in self.hidden:
            check_positive_int(owner, "hidden", _plain(size))
        if not callable(self.learning_rate):
            check_non_negative(owner, "learning_rate", self.learning_rate)
        if self.weight_decay is not None:
            check_non_negative(owner, "weight_decay", self.weight_decay)
        if isinstance(self.schedule, str):
            check_choice(owner, "schedule", self.schedule, ("auto",))
        if isinstance(self.search, str):
            check_choice(owner, "search", self.search, ("fleet",))
        check_real(owner, "validation_fraction", self.validation_fraction)
        if not 0 <= self.validation_fraction < 1:
            rule = "lie in [0, 1)"
            raise ValueError(bad_value(owner, "validation_fraction", rule, repr(self.validation_fraction)))
        if isinstance(self.rule, str):
            check_choice(owner, "rule", self.rule, _RULES)
        if device_of(owner, self.device).type == "cuda" and not torch.cuda.is_available():
            rule = "be at hand"
            raise ValueError(bad_value(owner, "device", rule, "'cuda' without a CUDA device", "Use 'cpu'."))

    def _rule(self, n_epochs: int) -> Any:
        """Return the rule, or epoch -> rule, that the parameters stand for."""
        owner = type(self).__name__
        rule: Any = self.rule
        schedule: Any = self.schedule
        if schedule == "auto":
            if rule == "annealed" or isinstance(rule, AnnealedWTA):
                return AutoAnnealing()
            advice = "For example rule='annealed', schedule='auto'."
            raise ValueError(bad_value(owner, "schedule", "go with an annealed `rule`", f"'auto' for {rule!r}", advice))
        if rule == "annealed":
            n_cooling = max(1, round(_COOLING_SHARE * n_epochs))
            cooling = Exponential(_HOT, (_COLD / _HOT) ** (1 / n_cooling), cutoff=_COLD)
            return annealed(AnnealedWTA, temperature=schedule or cooling)
        if rule == "mcl":
            rule = WTA()
        elif rule == "relaxed":
            rule = RelaxedWTA(_EPSILON)
        if schedule is None:
            if isinstance(rule, AssignmentRule) or callable(rule):
                return rule
            advice = f"Or one of {', '.join(map(repr, _RULES))}."
            raise TypeError(bad_value(owner, "rule", "be a rule or epoch -> rule", repr(rule), advice))
        names = [field.name for field in fields(rule)] if isinstance(rule, AssignmentRule) else []
        if len(names) != 1:
            rule_text = "be None unless `rule` has exactly one field to change"
            advice = "Pass annealed(rule, field=schedule) as `rule`."
            raise ValueError(bad_value(owner, "schedule", rule_text, repr(schedule), advice))
        return annealed(rule, **{names[0]: schedule})

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

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

    # ------------------------------------------------------------------ training

    def _encoder(self, train: Rows, usual: int | None = None) -> Scaler | Bends:
        """Return what makes inputs of columns; `usual` is the number of knots unless told, None to look at the rows."""
        scaler = Scaler.of(train.inputs, train.weights)
        n_knots = usual if self.n_knots is None else int(self.n_knots)
        if n_knots is None:
            n_knots = _N_KNOTS if len(train) < _MANY_ROWS and values_repeat(train.inputs) else 0
        return Bends.of(scaler, train.inputs, train.weights, n_knots) if n_knots else scaler

    def _module(self, out_features: int) -> nn.Module:
        return MultiHypothesisMLP(
            self._inputs.n_columns,
            out_features,
            int(self.n_hypotheses),
            hidden=tuple(int(size) for size in self.hidden),
            detach_scores=True,  # on low-noise targets the score loss would dwarf the cost in the trunk
        )

    def _train(
        self,
        train: Rows,
        selection: Rows,
        seed: int,
        out_features: int,
        tensor_of: Callable[[Rows], tuple[Tensor, Tensor]],
        cost_fn: Callable[..., Tensor],
        checkpoint: str | Path | None,
    ) -> Training:
        """Train the restarts and keep the best, or all; return what goes on from there.

        Sets the attributes that say how it went.
        """
        n_rows = len(train)
        batch = int(self.batch_size or default_batch_size(n_rows))
        n_steps = _N_STEPS_WITH_KNOTS if isinstance(self._inputs, Bends) else _N_STEPS
        n_epochs = int(self.n_epochs or default_n_epochs(n_rows, batch, n_steps))
        watched = selection if len(selection) else None
        how = self._way(n_epochs)
        if self.search is not None:
            how = self._searched(train, seed, out_features, tensor_of, cost_fn, n_epochs, batch)
        seeds = self._seeds(seed, self._n_networks(n_rows))
        training = Training(
            n_models=len(seeds),
            rule=how.rule,
            learning_rate=how.learning_rate,
            weight_decay=how.weight_decay,
            n_epochs=n_epochs,
            batch_size=batch,
            patience=None if self.n_iter_no_change is None else int(self.n_iter_no_change),
            seeds=seeds,
            cost_fn=cost_fn,
            device=self.device,
            verbose=bool(self.verbose),
            what=type(self).__name__,
            checkpoint=checkpoint,
            early_stopping=bool(self.early_stopping),
        )
        trained = training.run(
            lambda: self._module(out_features),
            (*tensor_of(train), train.weights),
            None if watched is None else (*tensor_of(watched), watched.weights),
        )
        kept = trained.not_failed() if self.ensemble else [trained.best()]
        self._keep(trained, kept)
        self._keep_course(training, trained)
        self._state_seed = seed
        # With fresh moments a training that goes on would first shake what was learned.
        return replace(training, n_models=len(kept), moments={k: v[kept] for k, v in trained.moments.items()})

    def _train_on_all(self, training: Training, rows: Rows, tensor_of: Callable[[Rows], tuple[Tensor, Tensor]]) -> None:
        """Go on with the rows that have served to select: a short training at a small rate, from where it ended."""
        n_epochs = _last_epochs(training.n_epochs)
        rate, rule = training.learning_rate, training.rule
        if isinstance(rule, AutoAnnealing):
            rule = WTA()
        highest = max(map(rate, range(training.n_epochs))) if callable(rate) else rate
        last = replace(
            training,
            rule=rule if isinstance(rule, AssignmentRule) else rule(training.n_epochs - 1),
            learning_rate=Cosine(_LAST_RATE * highest, 0.0, n_epochs),
            n_epochs=n_epochs,
            patience=None,
            seeds=self._seeds(training.seeds[0], training.n_models),
            what=f"{type(self).__name__}, all rows",
            checkpoint=None if training.checkpoint is None else Path(training.checkpoint) / "all-rows",
        )
        made = last.run(iter(self.modules_).__next__, (*tensor_of(rows), rows.weights), None)
        self.modules_ = made.modules
        self.seconds_ += float(made.history.seconds)

    def _way(self, n_epochs: int) -> Candidate:
        """Return how the parameters say to train."""
        rule = self._rule(n_epochs)
        decides = isinstance(rule, AutoAnnealing)  # on the tail of the rate and on the decay
        rate: Any = self.learning_rate
        if not decides and not callable(rate):
            rate = Cosine(rate, 0.0, n_epochs)
        usual = 0.0 if decides else self._usual_decay
        return Candidate("as told", rule, rate, usual if self.weight_decay is None else float(self.weight_decay))

    def _searched(
        self,
        train: Rows,
        seed: int,
        out_features: int,
        tensor_of: Callable[[Rows], tuple[Tensor, Tensor]],
        cost_fn: Callable[..., Tensor],
        n_epochs: int,
        batch: int,
    ) -> Candidate:
        """Return the best of many ways to train, by rows held out inside the training rows."""
        search = self.search if isinstance(self.search, FleetSearch) else FleetSearch()
        trials = search.run(
            lambda: self._module(out_features),
            *tensor_of(train),
            n_epochs,
            batch_size=batch,
            cost_fn=cost_fn,
            seed=seed % 2**31,
            device=self.device,
            progress=bool(self.verbose),
            weights=mean_one(train.weights),
            groups=torch.from_numpy(np.unique(train.units, return_inverse=True)[1].ravel())
            if train.in_groups
            else None,
        )
        self.trials_ = trials.records()
        self.best_candidate_ = trials.candidates[trials.best].name
        return trials.candidates[trials.best]

    def _train_more(
        self, train: Rows, out_features: int, tensor_of: Callable[[Rows], tuple[Tensor, Tensor]], cost_fn: Any
    ) -> None:
        """Go once through the rows, from where the last call ended."""
        horizon = int(self.n_epochs or _PARTIAL_EPOCHS)
        if not hasattr(self, "modules_"):
            seeds = self._seeds(self._state_seed, int(self.n_init or 1) if self.ensemble else 1)
            make = partial(self._module, out_features)
            self.modules_ = build_modules(make, seeds)
            self.n_epochs_ = 0
        tensors = tensor_of(train)
        rule = self._rule(horizon)
        rules: Any
        decays: Any
        if isinstance(rule, AutoAnnealing):
            rules, decays = self._annealed_further(rule, tensors, horizon, cost_fn)
        else:
            rules = rule if isinstance(rule, AssignmentRule) else rule(self.n_epochs_)
            decays = self._usual_decay if self.weight_decay is None else float(self.weight_decay)
        rate = self.learning_rate(self.n_epochs_) if callable(self.learning_rate) else self.learning_rate
        fleet = Fleet(
            iter(self.modules_).__next__,
            len(self.modules_),
            rule=rules,
            learning_rate=rate,
            weight_decay=decays,
            seeds=[self._state_seed + self.n_epochs_ + i for i in range(len(self.modules_))],
            cost_fn=cost_fn,
            device=self.device,
        )
        fleet.optimizer_state = self._moments
        batch = even_batch_size(len(train), int(self.batch_size or default_batch_size(len(train))))
        data = FleetData.shared(*tensors, len(self.modules_), weights=mean_one(train.weights))
        fleet.fit(data, 1, batch_size=batch, continued=True, progress=type(self).__name__ if self.verbose else False)
        self._moments = fleet.optimizer_state
        self.modules_ = [module.eval() for module in fleet.models]
        self.n_epochs_ += 1

    def _annealed_further(
        self, policy: AutoAnnealing, tensors: tuple[Tensor, Tensor], horizon: int, cost_fn: Callable[..., Tensor]
    ) -> tuple[list[AssignmentRule], list[float]]:
        """Return rule and weight decay of each network for some more rows, which are taken to be new to it.

        What `fit` has trained is cold already, and there is nothing left to decide.
        """
        given = 0.0 if self.weight_decay is None else float(self.weight_decay)
        n_networks, epoch = len(self.modules_), float(self.n_epochs_)
        state = getattr(self, "_annealing", None)
        if epoch and state is None:
            return [WTA()] * n_networks, [given] * n_networks
        inputs, targets = tensors
        with torch.no_grad():
            costs = [cost_fn(hypotheses=module(inputs).hypotheses, targets=targets) for module in self.modules_]
        measured = cost_scale(match(torch.stack(costs), WTA()), stacked=True)
        state = policy.init(measured.scale.nan_to_num(0.0)) if state is None else state
        policy.release(state, measured, epoch)
        policy.update(state, measured.scale, epoch, horizon)
        values = policy.value(state, epoch, horizon, horizon * len(inputs))
        self._annealing = state
        rules: list[AssignmentRule] = [AnnealedWTA(t) if t > 0 else WTA() for t in values.temperature.tolist()]
        return rules, [max(given, decay) for decay in values.weight_decay.tolist()]

    def _n_networks(self, n_rows: int) -> int:
        if self.n_init is not None:
            return int(self.n_init)
        return _N_INIT if n_rows < _MANY_ROWS else 1

    def _seeds(self, seed: int, n_networks: int) -> list[int]:
        return [int(s) for s in np.random.RandomState(seed).randint(2**31 - 1, size=n_networks)]

    def _keep(self, trained: TrainedNetworks, kept: list[int]) -> None:
        history = trained.history
        self._moments = self._annealing = None  # partial_fit begins with fresh moments
        best = trained.best()
        self.modules_ = [trained.modules[place] for place in kept]
        self.best_init_ = best
        self.loss_curve_ = history.losses[:, best].double().numpy()
        self.validation_curve_ = None if history.watched is None else history.watched[:, best].double().numpy()
        self.seconds_ = float(history.seconds)
        self.validation_distortions_ = trained.distortions.double().numpy()
        self.best_epoch_ = int(history.best_epoch[best]) if trained.stopped_early else -1
        stopped = int(history.stopped_epoch[best])
        self.n_epochs_ = stopped + 1 if stopped >= 0 else len(history.losses)

    def _keep_course(self, training: Training, trained: TrainedNetworks) -> None:
        """Keep what was used in each epoch, by the schedule, the search or the training itself."""
        history, best = trained.history, trained.best()
        epochs = range(len(history.losses))
        rule = training.rule
        self.rule_ = rule
        self.learning_rate_curve_ = history.learning_rates[:, best].double().numpy()
        if isinstance(rule, AutoAnnealing):
            assert history.temperatures is not None
            self.temperature_curve_ = history.temperatures[:, best].double().numpy()
            return
        rules = [rule if isinstance(rule, AssignmentRule) else rule(epoch) for epoch in epochs]
        temperatures = [getattr(each, "temperature", None) for each in rules]
        self.temperature_curve_ = None if None in temperatures else np.array(temperatures, dtype=np.float64)


def _last_epochs(n_epochs: int) -> int:
    return max(1, round(_LAST_SHARE * n_epochs))


def _plain(value: Any) -> Any:
    """Return numpy's whole numbers, which grid searches hand out, as Python's."""
    return int(value) if isinstance(value, np.integer) else value
