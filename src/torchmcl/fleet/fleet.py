"""The public class: a fleet of models, trained together, used one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value, check_callable, check_choice, check_non_negative, check_positive_int
from torchmcl._progress import Progress
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.assignment import WTA, AssignmentRule
from torchmcl.checkpoints.stopping import saves_when_stopped
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.fleet.checkpoints import FleetCheckpoint, run_chunk, saved_chunk_size
from torchmcl.fleet.courses import RuleAt, RuleCourses, rates_of
from torchmcl.fleet.data import FleetData, FreshRows, batch_rows
from torchmcl.fleet.epochs import ChunkPlan, ChunkTraining, EpochEnd
from torchmcl.fleet.evaluation import evaluate_models, hard_distortion
from torchmcl.fleet.fingerprint import fingerprint_of
from torchmcl.fleet.history import FleetHistory
from torchmcl.fleet.identity import digest_of_tensors
from torchmcl.fleet.optimizers import Adam, FleetOptimizer
from torchmcl.fleet.options import (
    Checkpointing,
    Validation,
    check_data,
    check_moments,
    checkpointing_of,
    per_model,
    seeds_of,
    validation_of,
)
from torchmcl.fleet.placement import Device, Placement, devices_of
from torchmcl.fleet.stacked import FleetModels, StackedModules, build_modules, states_of
from torchmcl.fleet.steps import BACKENDS, StepSpec, choose_backend
from torchmcl.fleet.trial import check_input_type, check_rows_apart, tried
from torchmcl.schedules import Schedule
from torchmcl.types import Predictions

__all__ = ["Fleet"]


@dataclass(frozen=True)
class _Training:
    """Everything that `Fleet.fit` decides before it trains."""

    data: FleetData
    fresh: FreshRows | None
    validation: FleetData | None
    plan: ChunkPlan  # of all models
    placement: Placement
    saved: FleetCheckpoint | None


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
        rule: an assignment rule, a function epoch -> rule, or `AutoAnnealing`, which decides on the temperature, the
            tail of the learning rate and the weight decay in training; a single one, or one per model.
        optimizer: `Adam()` or `SGD()` from `torchmcl.fleet`.
        learning_rate: a number or a schedule epoch -> number; a single value, or one per model in a list, an array or a
            tensor.
        weight_decay: decoupled weight decay, a single value or one per model.
        seeds: of the initial weights and the shuffles; 0, 1, 2, ... by default.
        cost_fn: any `pairwise_*` function.
        score_weight: weight of the score loss.
        device: where to train; the models themselves are kept on the CPU in between. "cuda" is all visible GPUs, as
            far as there are enough models; a sequence names the devices that the models are split across.
        backend: how a step is computed, for tests and bug reports: "autograd" (the definition), "compiled" (C code, for
            small ReLU networks on CPUs) or "captured" (CUDA graphs). By default the fastest that serves the training.

    Example:
        >>> from torchmcl import AnnealedWTA, Exponential, MultiHypothesisMLP, WTA, annealed
        >>> inputs = torch.rand(64, 1)
        >>> targets = torch.where(torch.rand(64, 1, 1) < 0.5, -inputs[:, None], inputs[:, None])
        >>> cooling = annealed(AnnealedWTA(0.5), temperature=Exponential(0.5, 0.8, cutoff=1e-3))
        >>> rules = [WTA(), WTA(), cooling, cooling]
        >>> fleet = Fleet(lambda: MultiHypothesisMLP(1, 1, 2, hidden=(16,)), n_models=4, rule=rules)
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
        rule: AssignmentRule | RuleAt | AutoAnnealing | Sequence[Any] = WTA(),  # noqa: B008  (frozen)
        optimizer: FleetOptimizer = Adam(),  # noqa: B008  (frozen)
        learning_rate: float | Schedule | Sequence[float | Schedule] = 0.01,
        weight_decay: float | Sequence[float] = 0.0,
        seeds: Sequence[int] | None = None,
        cost_fn: Callable[..., Tensor] = pairwise_sq_euclidean,
        score_weight: float = 1.0,
        device: Device | Sequence[Device] = "cpu",
        backend: str | None = None,
    ) -> None:
        check_callable("Fleet", "module_factory", module_factory, "lambda: MultiHypothesisMLP(6, 1, 5)")
        if isinstance(module_factory, nn.Module):
            advice = "For example lambda: MultiHypothesisMLP(6, 1, 5)."
            expected = "be a function that makes a module, not a module"
            raise TypeError(bad_value("Fleet", "module_factory", expected, type(module_factory).__name__, advice))
        check_positive_int("Fleet", "n_models", n_models)
        check_non_negative("Fleet", "score_weight", score_weight)
        self.n_models = n_models
        self.rules = per_model("rule", rule, n_models)
        self.learning_rates = per_model("learning_rate", learning_rate, n_models)
        self.weight_decay = per_model("weight_decay", weight_decay, n_models)
        self.seeds = seeds_of(seeds, n_models)
        for decay in set(self.weight_decay):
            check_non_negative("Fleet", "weight_decay", decay)
        if not isinstance(optimizer, FleetOptimizer):
            advice = "Those of torch.optim take one learning rate for all models."
            expected = "be an optimizer of torchmcl.fleet"
            raise TypeError(bad_value("Fleet", "optimizer", expected, repr(optimizer), advice))
        if backend is not None:
            check_choice("Fleet", "backend", backend, BACKENDS)
        self.optimizer = optimizer
        self.cost_fn = cost_fn
        self.score_weight = score_weight
        self.backend = backend
        self.devices = devices_of(device, n_models)
        self.device = self.devices[0]
        self._last = StackedModules.of(build_modules(module_factory, self.seeds))
        self._best: StackedModules | None = None
        self._first_weights = digest_of_tensors(self._last.state)
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
        validation: Validation | FleetData | None = None,
        checkpoint: Checkpointing | str | Path | None = None,
        models_at_once: int | None = None,
        after_epoch: Callable[[EpochEnd], None] | None = None,
        continued: bool = False,
        progress: bool | str = True,
    ) -> FleetHistory:
        """Train all models.

        Args:
            data: rows for each model, or `FreshRows`, drawn anew for every epoch.
            n_epochs: passes over the data.
            batch_size: rows of a minibatch, the last short one kept. By default `default_batch_size`, or a little fewer
                where the last one would be short; "all" is all rows.
            validation: held-out rows to evaluate on, with the options of `Validation`; each model's best weights are
                kept.
            checkpoint: folder to save to and to resume from, with the options of `Checkpointing`.
            models_at_once: train in chunks of this many; by default derived from memory and cores.
            after_epoch: called with an `EpochEnd` after every epoch of a chunk, for records and pictures.
            continued: begin with `optimizer_state` where there is one, and leave it for the next `fit`.
            progress: show a bar with models per second and the time left; a string stands in front of it.

        Returns:
            FleetHistory. A model whose loss became NaN or infinite is reported in a warning, with its epoch in
            `failed_epoch` and its batch in `failed_batch`; it keeps its last finite weights, and the others are not
            affected.

        Raises:
            ValueError: if the data or validation is for another number of models, a number is out of range, or the
                checkpoint holds another training.
        """
        moments = (self.optimizer_state or {}) if continued else {}
        if moments:
            check_moments(moments, self.optimizer.init(self._last.flat))
        training = self._planned(
            data,
            n_epochs,
            batch_size,
            validation_of(validation),
            checkpointing_of(checkpoint),
            models_at_once,
            in_order=after_epoch is not None,
            moments=moments,
        )
        if training.validation is not None:
            self._best = self._last.subset(slice(0, self.n_models), torch.device("cpu"), copy_rows=True)
        what = progress if isinstance(progress, str) else "fleet"
        with Progress(n_epochs * self.n_models, what, show=bool(progress), unit="model-epoch") as bar:

            def train(number: int, models: slice, device: torch.device) -> tuple[FleetHistory, dict[str, Tensor]]:
                return self._train_chunk(training, number, models, device, bar, after_epoch, continued)

            with saves_when_stopped():
                trained = training.placement.run(train)
        if continued:
            parts = [state for _, state in trained]
            self.optimizer_state = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        history = FleetHistory.joined([history for history, _ in trained])
        n_side_by_side = min(training.placement.n_threads, len(trained))
        history = history._replace(seconds=history.seconds / n_side_by_side)
        history.warn_of_failures()
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

    def _planned(
        self,
        data: FleetData | FreshRows,
        n_epochs: int,
        batch_size: int | Literal["all"] | None,
        validation: Validation | None,
        checkpoint: Checkpointing | None,
        models_at_once: int | None,
        *,
        in_order: bool,
        moments: dict[str, Tensor],
    ) -> _Training:
        """Check what `fit` was given, and decide on sizes, backend and placement."""
        check_positive_int("Fleet.fit", "n_epochs", n_epochs)
        if models_at_once is not None:
            check_positive_int("Fleet.fit", "models_at_once", models_at_once)
        fresh = data if isinstance(data, FreshRows) else None
        rows = data.epoch(0, self.device) if isinstance(data, FreshRows) else data
        check_data("Fleet.fit", "data", rows, self.n_models)
        size = batch_rows("Fleet.fit", batch_size, rows.inputs.shape[1])
        rows, n_hypotheses = tried("data", rows, self._last, training=True)
        held_out = None if validation is None else validation.rows
        if held_out is not None:
            check_data("Fleet.fit", "validation", held_out, self.n_models)
            tried("validation", held_out, self._last, training=False)
        courses = RuleCourses(self.rules, n_epochs)
        courses.check_hypotheses(n_hypotheses)
        kinds: dict[str, Any] = {"per_target": courses.per_target, "fresh": fresh is not None}
        backend = choose_backend(self.backend, self.device, self._last, rows, self.cost_fn, **kinds)
        # The chunks of a saved training stay: memory and threads may differ by now.
        if models_at_once is None and checkpoint is not None:
            models_at_once = saved_chunk_size(Path(checkpoint.folder))
        placement = Placement.of(
            self._last,
            rows,
            self.devices,
            batch_size=size,
            n_hypotheses=n_hypotheses,
            chunk_size=models_at_once,
            compiled=backend == "compiled",
            in_order=in_order,
        )
        plan = self._plan(n_epochs, size, backend, validation)
        training = _Training(rows, fresh, held_out, plan, placement, saved=None)
        return training if checkpoint is None else replace(training, saved=self._saved(training, checkpoint, moments))

    def _saved(self, training: _Training, options: Checkpointing, moments: dict[str, Tensor]) -> FleetCheckpoint:
        fingerprint = fingerprint_of(
            training.plan,
            self._last,
            training.data,
            training.validation,
            fresh=training.fresh,
            models_at_once=training.placement.chunk_size,
            first_weights=self._first_weights,
            first_moments=moments,
        )
        return FleetCheckpoint(options, fingerprint, is_random=not self._last.is_deterministic())

    def _plan(self, n_epochs: int, batch_size: int, backend: str, validation: Validation | None) -> ChunkPlan:
        return ChunkPlan(
            n_epochs=n_epochs,
            batch_size=batch_size,
            backend=backend,
            rules=self.rules,
            learning_rates=rates_of(self.learning_rates, n_epochs),
            weight_decays=torch.tensor([float(decay) for decay in self.weight_decay], dtype=torch.float64),
            seeds=torch.tensor(self.seeds),
            optimizer=self.optimizer,
            spec=StepSpec(
                self.cost_fn, self.score_weight, hard_distortion if validation is None else validation.monitor
            ),
            validate_every=per_model("every", 1 if validation is None else validation.every, self.n_models),
            patience=None if validation is None else validation.patience,
        )

    def _train_chunk(
        self,
        training: _Training,
        number: int,
        models: slice,
        device: torch.device,
        bar: Progress,
        after_epoch: Callable[[EpochEnd], None] | None,
        continued: bool,
    ) -> tuple[FleetHistory, dict[str, Tensor]]:
        """Train the models of a chunk and keep their weights; return its history and the optimizer's state."""
        stacked = self._last.subset(models, device, copy_rows=True)
        held_out = None if training.validation is None else training.validation.subset(models, device)
        chunk = ChunkTraining(
            stacked, training.data.subset(models, device), held_out, training.plan.of_models(models), training.fresh
        )
        if continued and self.optimizer_state is not None:
            for name, value in self.optimizer_state.items():
                chunk.state.optimizer[name].copy_(value[models])

        def note(epoch: int) -> None:
            bar.step(len(stacked))
            if after_epoch is not None:
                after_epoch(EpochEnd(epoch, models, stacked, chunk.courses.rule(), chunk.temperatures(epoch)))

        history = run_chunk(chunk, number, training.saved, bar, note)
        self._take(models, chunk.state.models, chunk.state.best or None)
        return history, {name: value.cpu() for name, value in chunk.state.optimizer.items()}

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
