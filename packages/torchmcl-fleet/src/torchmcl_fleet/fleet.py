"""`Fleet`, which trains many models together, and `FleetRecorder`, which records their training."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchmcl import (
    WTA,
    AssignmentRule,
    AutoAnnealing,
    Batch,
    Predictions,
    SigmoidScores,
    SoftmaxScores,
    annealing,
    checks,
    io,
    mcl_step,
    metrics,
    pairwise_sq_euclidean,
)
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl.schedules import Schedule
from torchmcl.scoring import ScoreObjective, check_score_objective
from torchmcl_fleet.backends import BACKENDS, choose_backend
from torchmcl_fleet.backends.training import ChunkTraining, EpochInfo, train_chunks
from torchmcl_fleet.history import FleetCheckpoint, FleetHistory, chunk_size_of, fingerprint_of
from torchmcl_fleet.modules.optimizers import Adam, FleetOptimizer
from torchmcl_fleet.modules.stacked import (
    N_TRIAL_MODELS,
    FleetModels,
    KeptModels,
    StackedModules,
    build_modules,
    check_as_alone,
    check_input_type,
    check_rows_apart,
    check_stackable,
    random_numbers_apart,
    seed_generators,
    try_rows,
)
from torchmcl_fleet.placement import Device, Placement, devices_of, models_at_once
from torchmcl_fleet.plan import (
    Checkpointing,
    RuleAt,
    TrainingPlan,
    Validation,
    batch_rows,
    check_data,
    check_unweighted,
    hard_distortion,
    moments_of,
    per_model,
    rates_of,
    seeds_of,
)
from torchmcl_fleet.problem import CostProperties, EpochRows, FleetData, SampledData, StepSpec, TrainingProblem

__all__ = ["Fleet", "FleetRecorder"]

_SCALARS = annealing.AnnealingStatistics._fields[:-1]


class Fleet:
    """Many independent models of one architecture, trained in one loop of batched operations.

    Model i is the result of `torch.manual_seed(seeds[i]); module_factory()`, trained with its own rule,
    learning rate, weight decay, shuffles and data, as if trained alone. Buffers, tied weights, parametrizations and
    forward hooks work as in one model. Modules that cannot be trained exactly are rejected: those with backward hooks
    or state outside of buffers, those that `torch.vmap` cannot run, and sets of different length where rows depend on
    one another (BatchNorm). Dropout has the same distribution as in a single model, with different random numbers.

    Args:
        module_factory: Function that builds one module whose forward pass returns `Predictions` or `Distributions`.
        n_models: Number of models.
        rule: Assignment rule, a function epoch -> rule, or `AutoAnnealing`, which sets the temperature, the
            final decay of the learning rate and the weight decay during training; a single value, or one per model.
        optimizer: `Adam()` or `SGD()` from `torchmcl_fleet`.
        learning_rate: Number, or schedule epoch -> number; a single value, or one per model in a list, an array or a
            tensor.
        weight_decay: Decoupled weight decay, a single value or one per model.
        seeds: Seeds for the initial weights and the shuffles; 0, 1, 2, ... by default.
        cost_fn: Cost that is used for matching, any `pairwise_*` function.
        loss_fn: Cost that is minimized, if it differs from the matching cost; see `torchmcl.mcl_step`.
        scores: Score objective, `SigmoidScores()` or `SoftmaxScores()`.
        score_weight: Weight of the score loss.
        device: Device to train on; the models are kept on the CPU between runs. "cuda" means all visible GPUs, if
            there are enough models; a sequence names the devices that the models are split across.
        backend: Implementation of a step, for tests and bug reports: "autograd" (the definition), "compiled" (C code,
            for small ReLU networks on CPUs), "classes" (in closed form, for mixtures over classes on CPUs) or
            "captured" (CUDA graphs). By default the fastest that supports the training run.

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
        loss_fn: Callable[..., Tensor] | None = None,
        scores: ScoreObjective = SigmoidScores(),  # noqa: B008  (frozen)
        score_weight: float = 1.0,
        device: Device | Sequence[Device] = "cpu",
        backend: str | None = None,
    ) -> None:
        checks.check_positive_int("Fleet", "n_models", n_models)
        checks.check_non_negative("Fleet", "score_weight", score_weight)
        check_score_objective("Fleet", scores)
        self.n_models = n_models
        self.rules = per_model("rule", rule, n_models)
        self.learning_rates = per_model("learning_rate", learning_rate, n_models)
        self.weight_decay = per_model("weight_decay", weight_decay, n_models)
        self.seeds = seeds_of(seeds, n_models)
        for decay in set(self.weight_decay):
            checks.check_non_negative("Fleet", "weight_decay", decay)
        if not isinstance(optimizer, FleetOptimizer):
            rule, advice = "be an optimizer of torchmcl_fleet", "torch.optim has one rate for all models."
            raise TypeError(bad_value("Fleet", "optimizer", rule, repr(optimizer), advice))
        if backend is not None:
            checks.check_choice("Fleet", "backend", backend, tuple(BACKENDS))
        self.optimizer = optimizer
        self.cost_fn = cost_fn
        self.loss_fn = loss_fn
        self.scores = scores
        self.score_weight = score_weight
        self.backend = backend
        self.devices = devices_of(device, n_models)
        self.device = self.devices[0]
        modules = build_modules(module_factory, self.seeds)
        check_stackable(modules)
        self._kept = KeptModels(StackedModules.of(modules))
        self._first_weights = io.digest(self._kept.last.state)
        self.optimizer_state: dict[str, Tensor] | None = None

    @property
    def models(self) -> FleetModels:
        """The current models; `fleet.models[i]` is an ordinary module with a copy of the weights."""
        return FleetModels(self._kept.chosen(best=False))

    @property
    def best_models(self) -> FleetModels:
        """The models with the best validation value, after `fit(..., validation=...)`."""
        return FleetModels(self._kept.chosen(best=True))

    @property
    def trained_scores(self) -> ScoreObjective:
        """Objective that reads the score logits: `SoftmaxScores` if the trained cost contains them, as for mixtures."""
        trains_scores = CostProperties.of(self.loss_fn or self.cost_fn).trains_scores
        return SoftmaxScores() if trains_scores else self.scores

    def fit(
        self,
        data: FleetData | SampledData,
        n_epochs: int,
        *,
        batch_size: int | Literal["all"] | None = None,
        validation: Validation | FleetData | None = None,
        checkpoint: Checkpointing | str | Path | None = None,
        models_at_once: int | None = None,
        after_epoch: Callable[[EpochInfo], None] | None = None,
        continued: bool = False,
        progress: bool | str = True,
    ) -> FleetHistory:
        """Train all models.

        Args:
            data: Rows for each model, or `SampledData`, which draws new rows for every epoch.
            n_epochs: Number of passes over the data.
            batch_size: Number of rows per minibatch; a smaller last minibatch is kept. By default
                `default_batch_size`, or slightly fewer rows if the last minibatch would be small; "all" uses all rows.
            validation: Held-out rows to evaluate on, with the options of `Validation`; the best weights of each model
                are kept.
            checkpoint: Folder to save to and to resume from, with the options of `Checkpointing`.
            models_at_once: Number of models per chunk; by default derived from memory and cores.
            after_epoch: Function called with an `EpochInfo` after every epoch of a chunk, for records and figures. Its
                `stacked` has the current weights; `predict`, `evaluate`, `models` and `state_dict` raise an error
                during `fit`.
            continued: Whether to start from `optimizer_state`, if it is set, and to store the final state there for the
                next call of `fit`.
            progress: Whether to show a progress bar with the speed and the remaining time; a string is its title.

        Returns:
            History of the training run. A model whose loss became NaN or infinite is reported in a warning, with its
            epoch in `failed_epoch` and its batch in `failed_batch`; it keeps its last finite weights, and the other
            models are not affected.

        Raises:
            ValueError: If the data or the validation rows are for a different number of models, a number is out of
                range, or the checkpoint belongs to a different training run.
        """
        checks.check_positive_int("Fleet.fit", "n_epochs", n_epochs)
        data = data.epoch(0, self.device)._replace(source=data) if isinstance(data, SampledData) else data
        check_data("Fleet.fit", "data", data, self.n_models)
        validation = validation if isinstance(validation, Validation | None) else Validation(validation)
        checkpoint = checkpoint if isinstance(checkpoint, Checkpointing | None) else Checkpointing(checkpoint)
        held_out = None if validation is None else validation.rows
        if held_out is not None:
            check_data("Fleet.fit", "validation", held_out, self.n_models)
        models, plan = self._kept.chosen(best=False), self._plan(n_epochs, validation)
        moments = moments_of(self.optimizer_state, plan.spec.optimizer.init(models.flat)) if continued else {}
        size = batch_rows("Fleet.fit", batch_size, data.inputs.shape[1])
        data, n_hypotheses = _inspected(models, data, held_out)
        plan.rule_plan.check_hypotheses(n_hypotheses)
        per_target = plan.rule_plan.per_target
        problem = TrainingProblem.of(models, data, held_out, plan.spec, device=self.device, per_target_rules=per_target)
        backend = choose_backend(self.backend, problem)
        placement = Placement.of(
            models,
            data,
            self.devices,
            batch_size=size,
            n_hypotheses=n_hypotheses,
            chunk_size=chunk_size_of(models_at_once, checkpoint),
            splits_models=backend.splits_models,
            in_order=after_epoch is not None,
        )
        saved = None
        if checkpoint is not None:
            sizes = {"batch_size": size, "backend": backend.name, "models_at_once": placement.chunk_size}
            initial = {"first weights": self._first_weights, "first moments": io.digest(moments)}
            fingerprint = fingerprint_of(plan, models, data, held_out, key=checkpoint.key) | sizes | initial
            is_random = not models.is_deterministic()
            saved = FleetCheckpoint(checkpoint, fingerprint, is_random=is_random)
        if held_out is not None:
            self._kept.keep_best()

        def chunk_of(chosen: slice, device: torch.device) -> ChunkTraining:
            chunk_plan, stacked = plan.of_models(chosen), models.subset(chosen, device, copy_rows=True)
            rows = EpochRows(data.subset(chosen, device), chunk_plan.seeds, size)
            held_out_rows = None if held_out is None else held_out.subset(chosen, device)
            chunk = backend.training(backend.step(stacked, rows, held_out_rows, problem), chunk_plan)
            for name, value in moments.items():
                chunk.state.optimizer[name].copy_(value[chosen])
            return chunk

        title, total = progress if isinstance(progress, str) else "fleet", n_epochs * self.n_models
        self._kept.in_training = True
        with ExitStack() as stack, Progress(total, title, show=bool(progress), unit="model-epoch") as bar:
            stack.callback(setattr, self._kept, "in_training", False)
            trained = train_chunks(placement, chunk_of, self._kept.take, saved, bar, after_epoch, moments=continued)
        history = self._gathered(trained, placement, continued=continued)
        self._first_weights = io.digest(self._kept.last.state)  # of the next call
        history.warn_of_failures()
        return history

    def predict(
        self,
        inputs: Tensor,
        *,
        per_model: bool = False,
        best: bool = False,
        stochastic: bool = False,
        seed: int | None = None,
    ) -> Predictions:
        """Return the predictions of all models, [models, batch, ...]; `Distributions` if the modules return them.

        Args:
            inputs: Inputs that all models share, [batch, ...].
            per_model: Whether inputs are [models, batch, ...], separate for each model.
            best: Whether to use the weights with the best validation value instead of the last ones.
            stochastic: Whether to leave dropout on.
            seed: Seed for dropout; the global generator of torch is then left unchanged.
        """
        models = self._kept.chosen(best=best)
        if inputs.ndim < 2:
            rule = "have shape [batch, ...]"
            raise ValueError(bad_value("Fleet.predict", "inputs", rule, tuple(inputs.shape)))
        if not per_model:
            inputs = inputs.expand(self.n_models, *inputs.shape)
        elif inputs.shape[0] != self.n_models:
            rule = f"have {self.n_models} models on its first axis"
            raise ValueError(bad_value("Fleet.predict", "inputs", rule, tuple(inputs.shape)))
        check_input_type("Fleet.predict", "inputs", models, inputs)
        with torch.no_grad(), models.evaluating(stochastic=stochastic), ExitStack() as stack:
            if seed is not None:
                stack.enter_context(random_numbers_apart())
                seed_generators(seed)
            return models(inputs)

    def evaluate(self, data: FleetData, *, best: bool = False) -> dict[str, Tensor]:
        """Return metrics of each model on its rows: distortion, rmse [models] and usage [models, hypotheses].

        Args:
            data: Rows for each model, with Euclidean targets.
            best: Whether to use the weights with the best validation value instead of the last ones.
        """
        check_data("Fleet.evaluate", "data", data, self.n_models)
        check_unweighted("Fleet.evaluate", "data", data, "All rows count equally: data._replace(weights=None).")
        check_input_type("Fleet.evaluate", "data", self._kept.last, data.inputs)
        longest = data.inputs[int(data.n_rows.argmax())]
        check_rows_apart("Fleet.evaluate", "data", self._kept.last, longest, data.lengths, training=False)
        return evaluate_models(self._kept.chosen(best=best), data, self.device, self.cost_fn, self.trained_scores)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights of all models, [models, parameters], and the best weights if there are any.

        Buffers, such as the statistics of BatchNorm, are included by name, [models, ...] each.
        """
        return self._kept.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load weights and buffers from `state_dict`.

        Raises:
            ValueError: If they do not match this fleet.
        """
        self._kept.load_state_dict(state)
        self._first_weights = io.digest(self._kept.last.state)

    def _plan(self, n_epochs: int, validation: Validation | None) -> TrainingPlan:
        monitor = hard_distortion if validation is None else validation.monitor
        return TrainingPlan(
            n_epochs=n_epochs,
            rules=self.rules,
            learning_rates=rates_of(self.learning_rates, n_epochs),
            weight_decays=torch.tensor([float(decay) for decay in self.weight_decay], dtype=torch.float64),
            seeds=torch.tensor(self.seeds),
            spec=StepSpec(self.cost_fn, self.score_weight, monitor, self.loss_fn, self.scores, self.optimizer),
            validate_every=per_model("every", 1 if validation is None else validation.every, self.n_models),
            patience=None if validation is None else validation.patience,
        )

    def _gathered(
        self, trained: list[tuple[FleetHistory, dict[str, Tensor]]], placement: Placement, *, continued: bool
    ) -> FleetHistory:
        """Return the history of all chunks; keep the state of the optimizer for the next `fit`."""
        if continued:
            parts = [state for _, state in trained]
            self.optimizer_state = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        history = FleetHistory.joined([history for history, _ in trained])
        return history._replace(seconds=history.seconds / min(placement.n_threads, len(trained)))


class FleetRecorder:
    """Recorder to pass as `after_epoch=` to `Fleet.fit`; records stay on the device until `records` is called.

    Args:
        fleet: Fleet whose rules determine weights and temperatures.
        n_epochs: Number of epochs of the training run.
        data: Held-out inputs [rows, ...] and targets [rows, targets, dim] for the metrics, shared by all models.
        probes: Inputs at which the hypotheses are recorded, [probes, ...].
        every: Number of epochs between records; the last epoch is always recorded.

    Example:
        >>> from torchmcl import AnnealedWTA, Exponential, MultiHypothesisMLP, WTA, annealed
        >>> from torchmcl_fleet.demo.gaussians import conditional_three_gaussians
        >>> from torchmcl_fleet import SampledData
        >>> cooling = annealed(AnnealedWTA(1.0), temperature=Exponential(1.0, 0.5))
        >>> fleet = Fleet(lambda: MultiHypothesisMLP(1, 2, 3, hidden=(8,)), 2, rule=[WTA(), cooling])
        >>> held_out = conditional_three_gaussians(50)
        >>> recorder = FleetRecorder(fleet, 6, data=held_out, probes=torch.tensor([[0.1], [0.9]]), every=2)
        >>> source = SampledData(conditional_three_gaussians, n_rows=64, n_models=2)
        >>> history = fleet.fit(source, 6, after_epoch=recorder, progress=False)
        >>> plain, annealed_ = recorder.records()
        >>> annealed_.step.tolist(), annealed_.temperature.tolist(), annealed_.hypotheses.shape
        ([1, 3, 5], [0.5, 0.125, 0.03125], torch.Size([3, 2, 3, 2]))
    """

    def __init__(self, fleet: Fleet, n_epochs: int, *, data: Batch, probes: Tensor, every: int = 10) -> None:
        checks.check_positive_int("FleetRecorder", "n_epochs", n_epochs)
        checks.check_positive_int("FleetRecorder", "every", every)
        if len(data.inputs) != len(data.targets) or len(data.inputs) == 0:
            got = f"{len(data.inputs)} and {len(data.targets)}"
            raise ValueError(bad_value("FleetRecorder", "data", "have as many inputs as targets, at least one", got))
        self._fleet, self._n_epochs, self.every = fleet, n_epochs, every
        self._data = Batch(*(None if part is None else part.to(fleet.device) for part in data))  # type: ignore[arg-type]
        self._probes = probes.to(fleet.device)
        self._records: dict[int, list[tuple[int, Tensor, Tensor, Tensor, Tensor, Tensor]]] = {}

    @torch.no_grad()
    def __call__(self, end: EpochInfo) -> None:
        """Record the models of a chunk, if the epoch is due."""
        epoch, rows, models, rule, temperatures = end
        if (epoch + 1) % self.every and epoch + 1 != self._n_epochs:
            return
        batch = Batch(*(None if p is None else p.expand(len(models), *p.shape) for p in self._data))  # type: ignore[arg-type]
        with models.evaluating():
            matching = mcl_step(models, batch, rule, cost_fn=self._fleet.cost_fn, score_weight=0, stacked=True).matching
            probed = models(self._probes.expand(len(models), *self._probes.shape))
        logits = probed.score_logits
        none = probed.hypotheses.new_empty(len(models), 0)
        scores = none if logits is None else self._fleet.trained_scores.probabilities(logits)
        measured = torch.vmap(annealing.annealing_statistics)(matching, temperatures)
        scalars = torch.stack([getattr(measured, name) for name in _SCALARS], dim=-1)
        record = (temperatures, scalars, measured.usage, probed.hypotheses.flatten(3), scores)
        self._records.setdefault(rows.start, []).append((epoch, *record))

    def records(self) -> list[annealing.AnnealingRecords]:
        """Return the records of each model, on the CPU.

        Raises:
            ValueError: If nothing has been recorded.
        """
        if not self._records:
            rule = "hold at least one record"
            raise ValueError(bad_value("FleetRecorder", "records", rule, "none", "Pass it as after_epoch= of fit."))
        records: list[annealing.AnnealingRecords] = []
        for start in sorted(self._records):
            epochs = [epoch for epoch, *_ in self._records[start]]
            temperatures, scalars, usage, probed, scores = (
                torch.stack(parts).cpu() for parts in zip(*(rest for _, *rest in self._records[start]), strict=True)
            )
            records += [
                annealing.AnnealingRecords(
                    torch.tensor(epochs),
                    temperatures[:, i],
                    **dict(zip(_SCALARS, scalars[:, i].unbind(dim=-1), strict=True)),
                    usage=usage[:, i],
                    hypotheses=probed[:, i],
                    probes=self._probes.cpu(),
                    scores=scores[:, i] if scores.numel() else None,
                )
                for i in range(scalars.shape[1])
            ]
        return records


@torch.no_grad()
def evaluate_models(
    models: StackedModules,
    data: FleetData,
    device: torch.device,
    cost_fn: Callable[..., Tensor],
    scores: ScoreObjective,
) -> dict[str, Tensor]:
    """Return distortion, rmse [models] and usage [models, hypotheses] on the CPU."""

    def rmse(targets: Tensor, hypotheses: Tensor, mask: Tensor, logits: Tensor | None = None) -> Tensor:
        return metrics.rmse_of_mean(Predictions(hypotheses, logits), targets, mask, scores=scores)

    chunk = models_at_once(models, data, data.inputs.shape[1], device)
    parts = []
    for low in range(0, len(models), chunk):
        chosen = slice(low, min(low + chunk, len(models)))
        stacked, rows = models.subset(chosen, device), data.subset(chosen, device)
        batch = rows.batch()
        with stacked.evaluating():
            output = mcl_step(stacked, batch, WTA(), cost_fn=cost_fn, score_weight=0, stacked=True)
        matching, (hypotheses, logits, *_) = output.matching, output.predictions
        events = (batch.targets, hypotheses, matching.mask if batch.mask is None else batch.mask)
        arguments = events if logits is None else (*events, logits)
        parts.append(
            {
                "distortion": torch.vmap(metrics.distortion)(matching).cpu(),
                "rmse": torch.vmap(rmse)(*arguments).cpu(),
                "usage": torch.vmap(metrics.hypothesis_usage)(matching).cpu(),
            }
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _inspected(models: StackedModules, data: FleetData, validation: FleetData | None) -> tuple[FleetData, int]:
    """Check some rows before training; return the data with weights in the models' dtype, and the number of hypotheses.

    Raises:
        TypeError: If the models do not accept the dtype of the rows.
        ValueError: If stacked training would differ from training each model alone.
    """
    if nn.modules.module._global_backward_hooks or nn.modules.module._global_backward_pre_hooks:
        reason = "Gradients of stacked modules do not reach them: remove the hooks, or train with mcl_step."
        raise TypeError(f"Fleet.fit: global backward hooks are not supported. {reason}")
    n_hypotheses = _try_rows("data", data, models, training=True)
    if validation is not None:
        _try_rows("validation", validation, models, training=False)
    weights = None if data.weights is None else data.weights.to(models.flat.dtype)
    return data._replace(weights=weights), n_hypotheses


def _try_rows(name: str, data: FleetData, models: StackedModules, *, training: bool) -> int:
    """Check rows by the predictions for some of them, and return the number of hypotheses."""
    sets = data.set_of_model[:N_TRIAL_MODELS]
    inputs = data.inputs[sets, : int(data.n_rows[sets].min())].cpu()
    hypotheses = try_rows("Fleet.fit", name, models, inputs).hypotheses
    if data.targets.is_floating_point() and data.targets.dtype != hypotheses.dtype:
        rule = f"have targets of the dtype of the hypotheses, {hypotheses.dtype}"
        advice = f"Convert them: targets.to({hypotheses.dtype})."
        raise TypeError(bad_value("Fleet.fit", name, rule, data.targets.dtype, advice))
    if data.weights is not None and (data.weights.dtype == torch.bool or data.weights.is_complex()):
        raise TypeError(bad_value("Fleet.fit", name, "have weights that are numbers", data.weights.dtype))
    if training:
        check_as_alone(models, inputs)
    longest = data.inputs[int(data.n_rows.argmax())]
    check_rows_apart("Fleet.fit", name, models, longest, data.lengths, training=training)
    return hypotheses.shape[-2]
