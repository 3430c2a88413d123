"""The public class: a fleet of models, trained together, used one by one."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value, check_callable, check_non_negative, check_positive_int
from torchmcl._progress import Progress
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.assignment import WTA, AssignmentRule
from torchmcl.checkpoints.stopping import saves_when_stopped
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.fleet.checkpoints import FleetCheckpoint, saved_chunk_size
from torchmcl.fleet.chunks import is_small_step, models_at_once, one_core
from torchmcl.fleet.data import FleetData, batch_rows
from torchmcl.fleet.evaluation import evaluate_models
from torchmcl.fleet.fingerprint import fingerprint_of
from torchmcl.fleet.fresh import FreshRows
from torchmcl.fleet.history import FleetHistory
from torchmcl.fleet.identity import digest_of_tensors
from torchmcl.fleet.loop import ChunkTraining, Plan
from torchmcl.fleet.monitors import hard_distortion
from torchmcl.fleet.optimizers import Adam, FleetOptimizer
from torchmcl.fleet.options import check_data, check_fit, check_moments, per_model, rates_of, seeds_of
from torchmcl.fleet.rules import RuleAt, RuleTable, StackedRule
from torchmcl.fleet.running import run_chunk
from torchmcl.fleet.sharding import Device, chunks_of, devices_of, on_devices
from torchmcl.fleet.shortcuts import may_compile
from torchmcl.fleet.stacked import FleetModels, StackedModules, build_modules, states_of
from torchmcl.fleet.trial import check_input_type, check_rows_apart, tried
from torchmcl.schedules import Schedule
from torchmcl.types import Predictions, StepOutput

__all__ = ["Fleet"]

# A chunk of fewer models is not worth a thread.
_MIN_CHUNK = 8


class Fleet:
    """Many independent models of one architecture, trained in one loop of batched operations.

    Model i is the model that `torch.manual_seed(seeds[i]); module_factory()` makes, trained with its own rule,
    learning rate, weight decay, shuffles and data, as if it were alone. Buffers, tied weights, parametrizations and
    forward hooks count as they do alone. What cannot be exact is refused: backward hooks, state outside of buffers,
    modules that `torch.vmap` cannot run, and sets of different length where rows depend on one another (BatchNorm).
    Dropout is exact in law: the numbers that models draw side by side are others than alone.

    Args:
        module_factory: makes one module that returns `Predictions`.
        n_models: how many.
        rules: an assignment rule, a function epoch -> rule, or `AutoAnnealing`, which decides on the temperature, the
            tail of the learning rate and the weight decay in training; for all models or one for each.
        optimizer: `Adam()` or `SGD()` from `torchmcl.fleet`.
        lr: learning rate: a number or a schedule epoch -> number; a single value, or one per model in a list, an array
            or a tensor.
        weight_decay: decoupled weight decay, a single value or one per model.
        seeds: of the initial weights and the shuffles; 0, 1, 2, ... by default.
        cost_fn: any `pairwise_*` function.
        score_weight: weight of the score loss.
        device: where to train; the models themselves are kept on the CPU in between. "cuda" is all visible GPUs, as
            far as there are models for them; a sequence names the devices to share the models out to.

    Example:
        >>> from torchmcl import AnnealedWTA, Exponential, MultiHypothesisMLP, WTA, annealed
        >>> inputs = torch.rand(64, 1)
        >>> targets = torch.where(torch.rand(64, 1, 1) < 0.5, -inputs[:, None], inputs[:, None])
        >>> cooling = annealed(AnnealedWTA(0.5), temperature=Exponential(0.5, 0.8, cutoff=1e-3))
        >>> rules = [WTA(), WTA(), cooling, cooling]
        >>> fleet = Fleet(lambda: MultiHypothesisMLP(1, 1, 2, hidden=(16,)), n_models=4, rules=rules)
        >>> history = fleet.fit(FleetData.shared(inputs, targets, n_models=4), n_epochs=20, progress=False)
        >>> history.losses.shape, fleet.predict(inputs).hypotheses.shape
        (torch.Size([20, 4]), torch.Size([4, 64, 2, 1]))
        >>> type(fleet.models[3]).__name__
        'MultiHypothesisMLP'
    """

    def __init__(
        self,
        module_factory: Callable[[], nn.Module],
        n_models: int,
        *,
        rules: AssignmentRule | RuleAt | AutoAnnealing | Sequence[Any] = WTA(),  # noqa: B008  (frozen)
        optimizer: FleetOptimizer = Adam(),  # noqa: B008  (frozen)
        lr: float | Schedule | Sequence[float | Schedule] = 0.01,
        weight_decay: float | Sequence[float] = 0.0,
        seeds: Sequence[int] | None = None,
        cost_fn: Callable[..., Tensor] = pairwise_sq_euclidean,
        score_weight: float = 1.0,
        device: Device | Sequence[Device] = "cpu",
    ) -> None:
        check_callable("Fleet", "module_factory", module_factory, "lambda: MultiHypothesisMLP(6, 1, 5)")
        if isinstance(module_factory, nn.Module):
            advice = "For example lambda: MultiHypothesisMLP(6, 1, 5)."
            rule = "be a function that makes a module, not a module"
            raise TypeError(bad_value("Fleet", "module_factory", rule, type(module_factory).__name__, advice))
        check_positive_int("Fleet", "n_models", n_models)
        check_non_negative("Fleet", "score_weight", score_weight)
        self.n_models = n_models
        self.rules = per_model("rules", rules, n_models)
        self.lr = per_model("lr", lr, n_models)
        self.weight_decay = per_model("weight_decay", weight_decay, n_models)
        self.seeds = seeds_of(seeds, n_models)
        for decay in set(self.weight_decay):
            check_non_negative("Fleet", "weight_decay", decay)
        if not isinstance(optimizer, FleetOptimizer):
            advice = "Those of torch.optim take one learning rate for all models."
            rule = "be an optimiser of torchmcl.fleet"
            raise TypeError(bad_value("Fleet", "optimizer", rule, repr(optimizer), advice))
        self.optimizer = optimizer
        self.cost_fn = cost_fn
        self.score_weight = score_weight
        self.devices = devices_of(device, n_models)
        self.device = self.devices[0]
        self._last = StackedModules.of(build_modules(module_factory, self.seeds))
        self._best: StackedModules | None = None
        self._first_weights = digest_of_tensors(self._last.state)
        self._in_training: dict[int, ChunkTraining] = {}
        self.optimizer_state: dict[str, Tensor] | None = None

    @property
    def models(self) -> FleetModels:
        """The models as they are now; `fleet.models[i]` is an ordinary module with a copy of the weights."""
        return FleetModels(self._last)

    @property
    def best_models(self) -> FleetModels:
        """The models at their best validation, after `fit(..., validation=...)`."""
        return FleetModels(self._chosen(best=True))

    def fit(
        self,
        data: FleetData | FreshRows,
        n_epochs: int,
        *,
        batch_size: int | Literal["all"] | None = None,
        validation: FleetData | None = None,
        monitor: Callable[[StepOutput], Tensor] = hard_distortion,
        validate_every: int | Sequence[int] = 1,
        patience: int | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 100,
        keep_checkpoints: int = 2,
        max_models_at_once: int | None = None,
        after_epoch: Callable[[int, slice, StackedModules], None] | None = None,
        continued: bool = False,
        expected_epochs: int | None = None,
        progress: bool = True,
        what: str = "fleet",
    ) -> FleetHistory:
        """Train all models.

        Args:
            data: rows for each model, or `FreshRows`, drawn anew for every epoch.
            n_epochs: passes over the data.
            batch_size: rows of a minibatch, the last short one kept. By default `default_batch_size`, or a little fewer
                where the last one would be short; "all" is all rows.
            validation: rows to watch; each model's best weights are kept.
            monitor: what is watched, lower is better: `hard_distortion` or `current_loss`.
            validate_every: epochs between looks, for all or one for each; the last epoch is always looked at.
            patience: stop a model after this many epochs without improvement.
            checkpoint: folder to save to, and to go on from if it holds a state of the same training.
            checkpoint_every: epochs between saves; `torchmcl.checkpoints.stop_on_signals` saves at once.
            keep_checkpoints: how many states to keep; when the newest is damaged the one before it is used.
            max_models_at_once: train in chunks of this many; chosen by memory unless told.
            after_epoch: called with the epoch, the models of the chunk (a slice) and the stacked models, which
                can be called with inputs [models, batch, ...]; for records and pictures.
            continued: begin with `optimizer_state` where there is one, and leave it for the next `fit`.
            expected_epochs: of this and other calls together, where there are more to come: long trainings on a CPU are
                worth the wait for a compiler.
            progress: show a bar with models per second and the time left.
            what: the words in front of the bar.

        Returns:
            FleetHistory. A model whose loss became NaN or infinite is reported in a warning, with its epoch in
            `failed_epoch` and its batch in `failed_batch`; it keeps its last finite weights, and the others are not
            affected.

        Raises:
            ValueError: if the data or validation is for another number of models, or a number is out of range.
        """
        fresh = data if isinstance(data, FreshRows) else None
        data = data.epoch(0, self.device) if isinstance(data, FreshRows) else data
        every = per_model("validate_every", validate_every, self.n_models)
        check_fit(n_epochs, validation, every, patience)
        check_positive_int("Fleet.fit", "checkpoint_every", checkpoint_every)
        check_positive_int("Fleet.fit", "keep_checkpoints", keep_checkpoints)
        if max_models_at_once is not None:
            check_positive_int("Fleet.fit", "max_models_at_once", max_models_at_once)
        moments = (self.optimizer_state or {}) if continued else {}
        if moments:
            check_moments(moments, self.optimizer.init(self._last.flat))
        check_data("Fleet.fit", "data", data, self.n_models)
        size = batch_rows("Fleet.fit", batch_size, data.inputs.shape[1])
        data, n_hypotheses = tried("data", data, self._last, training=True)
        if validation is not None:
            check_data("Fleet.fit", "validation", validation, self.n_models)
            tried("validation", validation, self._last, training=False)
        on_cpu = self.device.type == "cpu"
        in_all = max(n_epochs, expected_epochs or 0)
        compiled = on_cpu and fresh is None and may_compile(self._last, data, self.cost_fn, in_all, size)
        n_pairs = data.targets.shape[2] * n_hypotheses if data.targets.ndim > 2 else n_hypotheses
        alone = on_cpu and not compiled and is_small_step(self._last, size, n_pairs)
        n_threads = 1 if alone else self._n_threads(after_epoch)
        # The chunks of a saved training stay: memory and threads may be others by now.
        chunk = max_models_at_once or (None if checkpoint is None else saved_chunk_size(Path(checkpoint)))
        if chunk is None:
            n_shares = max(n_threads, len(self.devices))
            room = min(models_at_once(self._last, data, size, device) for device in set(self.devices))
            chunk = min(room, -(-self.n_models // n_shares))
        saved = None
        if checkpoint is not None:
            plan = fingerprint_of(
                self._plan(slice(0, self.n_models), n_epochs, size, monitor, every, patience, compiled),
                self._last,
                data,
                validation,
                rules=self.rules,
                rates=self.lr,
                fresh=fresh,
                models_at_once=chunk,
                first_weights=self._first_weights,
                first_moments=moments,
            )
            generator = None if self._last.is_deterministic() else self.device
            saved = FleetCheckpoint(Path(checkpoint), plan, keep=keep_checkpoints, generator_of=generator)
        chunks = chunks_of(self.n_models, chunk)
        if validation is not None:
            self._best = self._last.subset(slice(0, self.n_models), torch.device("cpu"), copy_rows=True)
        last_moments: dict[int, dict[str, Tensor]] = {}
        with Progress(n_epochs * self.n_models, what, show=progress, unit="model-epoch") as bar:

            def train(number: int, rows: slice, device: torch.device) -> FleetHistory:
                chunk_plan = self._plan(rows, n_epochs, size, monitor, every[rows], patience, compiled)
                chunk_plan.rules.check_hypotheses(n_hypotheses)
                held_out = None if validation is None else validation.subset(rows, device)
                models = self._last.subset(rows, device, copy_rows=True)
                training = ChunkTraining(models, data.subset(rows, device), held_out, chunk_plan, fresh)
                for name, value in moments.items():
                    training.optimizer_state[name].copy_(value[rows])

                self._in_training[rows.start] = training

                def note(epoch: int) -> None:
                    bar.step(len(models))
                    if after_epoch is not None:
                        after_epoch(epoch, rows, models)

                here = None if saved is None else saved.on(device)
                history = run_chunk(training, number, here, checkpoint_every, bar, note)
                self._take(rows, models.state, None if validation is None else training.best)
                if continued:
                    last_moments[number] = {name: value.cpu() for name, value in training.optimizer_state.items()}
                return history

            try:
                with saves_when_stopped(), one_core() if alone or compiled else nullcontext():
                    histories = on_devices(train, chunks, self.devices, n_threads)
            finally:
                self._in_training.clear()
        if parts := [last_moments[number] for number in sorted(last_moments)]:
            self.optimizer_state = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        history = FleetHistory.joined(histories)
        history = history._replace(seconds=history.seconds / min(n_threads, len(chunks)))  # chunks share their time
        if (message := history.failures()) is not None:
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return history

    def predict(
        self, inputs: Tensor, *, per_model: bool = False, best: bool = False, stochastic: bool = False
    ) -> Predictions:
        """Return the predictions of all models, [models, batch, ...].

        Args:
            inputs: [batch, ...] for all models.
            per_model: inputs are [models, batch, ...], for each model its own.
            best: use the weights of the best validation instead of the last ones.
            stochastic: leave dropout on.
        """
        models = self._chosen(best=best)
        if inputs.ndim < 2:
            rule = "have shape [batch, ...]"
            raise ValueError(bad_value("Fleet.predict", "inputs", rule, tuple(inputs.shape)))
        if not per_model:
            inputs = inputs.expand(self.n_models, *inputs.shape)
        elif inputs.shape[0] != self.n_models:
            rule = f"have {self.n_models} models on its first axis"
            raise ValueError(bad_value("Fleet.predict", "inputs", rule, tuple(inputs.shape)))
        check_input_type("Fleet.predict", "inputs", models, inputs)
        with torch.no_grad(), models.evaluating(stochastic=stochastic):
            return models(inputs)

    def evaluate(self, data: FleetData, *, best: bool = False) -> dict[str, Tensor]:
        """Return metrics of each model on its rows: distortion, rmse [models] and usage [models, hypotheses].

        Args:
            data: rows for each model, with Euclidean targets.
            best: use the weights of the best validation instead of the last ones.
        """
        check_data("Fleet.evaluate", "data", data, self.n_models)
        check_input_type("Fleet.evaluate", "data", self._last, data.inputs)
        check_rows_apart("Fleet.evaluate", "data", self._last, data, training=False)
        return evaluate_models(self._chosen(best=best), data, self.device, self.cost_fn)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights of all models, [models, parameters], and the best ones where there are any.

        Buffers, such as the statistics of BatchNorm, stand beside them by name, [models, ...] each.
        """
        kept = {"last": self._last} | ({} if self._best is None else {"best": self._best})
        return {
            name if part == "flat" else f"{name}.{part}": value
            for name, models in kept.items()
            for part, value in models.state.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take weights and buffers from `state_dict`.

        Raises:
            ValueError: if they are not those of such a fleet.
        """
        given = states_of(state, self._last)
        if "best" in given:
            self._best = self._last.subset(slice(0, self.n_models), torch.device("cpu"), copy_rows=True)
        self._take(slice(0, self.n_models), given["last"], given.get("best"))
        self._first_weights = digest_of_tensors(self._last.state)

    def current_rule(self, epoch: int, models: slice) -> tuple[StackedRule, Tensor]:
        """Return the rule of the epoch just trained and its temperatures [models], 0 for rules without.

        Call it in `after_epoch`, with the epoch and the models that it is called with.
        """
        if models.start not in self._in_training:
            raise ValueError(bad_value("Fleet.current_rule", "models", "be a chunk in training", models))
        return self._in_training[models.start].current_rule(epoch)

    def _n_threads(self, after_epoch: object) -> int:
        """Return how many chunks to train side by side: one on each device, or on each core of a single CPU.

        CPU libraries give a batch of small products one core.

        One after the other where the order of random numbers or of calls of `after_epoch` matters.
        """
        if after_epoch is not None:
            return 1
        if self.device.type != "cpu":
            return len(self.devices)
        if not self._last.is_deterministic():
            return 1
        if len(self.devices) > 1:
            return len(self.devices)
        return max(1, min(torch.get_num_threads(), self.n_models // _MIN_CHUNK))

    @torch.no_grad()
    def _take(self, rows: slice, last: dict[str, Tensor], best: dict[str, Tensor] | None) -> None:
        """Keep the trained weights and buffers of a chunk."""
        for models, trained in ((self._last, last), (self._best, best)):
            if models is not None and trained is not None:
                for name, kept in models.state.items():
                    kept[rows] = trained[name].to(kept.device)

    def _chosen(self, *, best: bool) -> StackedModules:
        if not best:
            return self._last
        if self._best is None:
            rule = "be asked for after fit(..., validation=...)"
            raise ValueError(bad_value("Fleet", "best", rule, "a fleet that was not validated"))
        return self._best

    def _plan(
        self,
        rows: slice,
        n_epochs: int,
        batch_size: int,
        monitor: Callable[[StepOutput], Tensor],
        every: Sequence[int],
        patience: int | None,
        compiled: bool,
    ) -> Plan:
        rules = self.rules[rows]
        return Plan(
            n_epochs=n_epochs,
            batch_size=batch_size,
            rules=RuleTable(rules, n_epochs),
            learning_rates=rates_of(self.lr[rows], n_epochs),
            weight_decays=torch.tensor([float(decay) for decay in self.weight_decay[rows]], dtype=torch.float64),
            seeds=torch.tensor(list(self.seeds[rows])),
            optimizer=self.optimizer,
            cost_fn=self.cost_fn,
            score_weight=self.score_weight,
            monitor=monitor,
            validate_every=every,
            patience=patience,
            self_annealing=rules if any(isinstance(rule, AutoAnnealing) for rule in rules) else (),
            compiled=compiled,
        )
