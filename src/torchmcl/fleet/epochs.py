"""The training of one chunk of a fleet: its state, an epoch, an evaluation, all on the device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.assignment import AssignmentRule
from torchmcl.backends.captured import CapturedEpochs
from torchmcl.fleet.adaptive import N_MEASURED_ROWS, SelfAnnealing
from torchmcl.fleet.courses import RuleCourses
from torchmcl.fleet.data import FleetData, FreshRows, shuffled_rows
from torchmcl.fleet.history import FirstFailures, FleetHistory
from torchmcl.fleet.optimizers import FleetOptimizer
from torchmcl.fleet.stacked import StackedModules
from torchmcl.fleet.state import ChunkState
from torchmcl.fleet.steps import AutogradStep, BatchRows, CompiledStep, StepSpec

__all__ = ["ChunkPlan", "ChunkTraining", "EpochEnd"]


@dataclass(frozen=True)
class ChunkPlan:
    """How the models of a chunk are trained; sequences and tensors have an entry per model."""

    n_epochs: int
    batch_size: int
    backend: str
    rules: Sequence[Any]
    learning_rates: Tensor  # [epochs, models]
    weight_decays: Tensor
    seeds: Tensor
    optimizer: FleetOptimizer
    spec: StepSpec
    validate_every: Sequence[int]
    patience: int | None

    def of_models(self, models: slice) -> "ChunkPlan":
        """Return the plan of a slice of the models."""
        return replace(
            self,
            rules=self.rules[models],
            learning_rates=self.learning_rates[:, models],
            weight_decays=self.weight_decays[models],
            seeds=self.seeds[models],
            validate_every=self.validate_every[models],
        )


class EpochEnd(NamedTuple):
    """What `after_epoch` of `Fleet.fit` is called with.

    Attributes:
        epoch: the one that was just trained, counted from 0.
        models: the models of the chunk.
        stacked: these models; call it with inputs [models, batch, ...].
        rule: their rule in that epoch, for costs [models, ...].
        temperatures: [models], 0 for rules without one.
    """

    epoch: int
    models: slice
    stacked: StackedModules
    rule: AssignmentRule
    temperatures: Tensor


class ChunkTraining:
    """A chunk in training.

    Args:
        models: of the chunk, on their device.
        data: their rows, on the same device.
        validation: rows to evaluate on.
        plan: how they are trained.
        fresh: where the rows of later epochs come from.
    """

    def __init__(
        self,
        models: StackedModules,
        data: FleetData,
        validation: FleetData | None,
        plan: ChunkPlan,
        fresh: FreshRows | None = None,
    ) -> None:
        device = models.flat.device
        self.models, self.data, self.plan, self._fresh = models, data, plan, fresh
        self._validated = validation is not None
        backend = CompiledStep if plan.backend == "compiled" else AutogradStep
        self.step = backend(models, data, validation, plan.spec)
        self.optimizer = self.step.optimizer_for(plan.optimizer)
        self.courses = RuleCourses(plan.rules, plan.n_epochs, device, models.flat.dtype)
        self.annealing = self._self_annealing(data if validation is None else validation)
        self.state = ChunkState.of(
            models,
            plan.n_epochs,
            optimizer=plan.optimizer.init(models.flat),
            annealing={} if self.annealing is None else self.annealing.state,
            keep_best=self._validated,
        )
        self.failures = FirstFailures(self.state.failed_step, -(-data.inputs.shape[1] // plan.batch_size))
        self._rate = torch.zeros(len(models), 1, dtype=self.state.losses.dtype, device=device)
        self._learning_rates = plan.learning_rates.to(self._rate)
        self._given_decay = plan.weight_decays.to(self._rate).view(-1, 1)
        decays = plan.weight_decays.any() or self.annealing is not None
        self._decay = self._given_decay.clone() if decays else None
        frozen = torch.cat([torch.full((v[0].numel(),), not v.requires_grad) for v in models.views.values()])
        self._frozen = frozen.to(device) if frozen.any() else None
        # Models with the same seed and the same number of rows share an order.
        streams = torch.stack([plan.seeds.to(device), data.lengths])
        (self._seeds, self._stream_lengths), self._order_of_model = streams.unique(dim=1, return_inverse=True)
        # With one batch an epoch the order does not matter, and fresh rows have none but the one they were drawn in.
        in_order = plan.batch_size >= data.inputs.shape[1] or fresh is not None
        shape = (len(self._seeds), data.inputs.shape[1])
        self._order = None if in_order else torch.zeros(shape, dtype=torch.long, device=device)
        captured = plan.backend == "captured"
        changed = list(self.state.tensors().values())
        self._run_epoch = CapturedEpochs(self._epoch, changed, device) if captured else self._epoch
        self._run_measurement = CapturedEpochs(self._measure, changed, device) if captured else self._measure

    def _self_annealing(self, rows: FleetData) -> SelfAnnealing | None:
        """Return the policies, measured on rows that are not trained on where there are any.

        A network memorises few rows, and then they tell nothing about the noise. The same places for all models,
        drawn, as rows may be sorted.
        """
        if not any(isinstance(rule, AutoAnnealing) for rule in self.plan.rules):
            return None
        places = torch.rand(N_MEASURED_ROWS, generator=torch.Generator().manual_seed(0)).to(rows.inputs.device)
        index = (places * rows.lengths.unsqueeze(-1)).long()
        lengths, n_times = self.data.lengths, self.plan.n_epochs if self._fresh is not None else 1
        return SelfAnnealing(
            self.plan.rules,
            self.step.cost_scale_on(rows, index),
            lengths=lengths,
            n_points=lengths * self.data.targets.shape[2] * n_times,
            n_epochs=self.plan.n_epochs,
            batch_size=self.plan.batch_size,
        )

    def run(self, first_epoch: int, last_epoch: int, after_epoch: Callable[[int], None]) -> float:
        """Train from `first_epoch` up to but not including `last_epoch`; return the seconds it took."""
        start = time.perf_counter()
        self.state.epoch.fill_(first_epoch)
        for epoch in range(first_epoch, last_epoch):
            if self._order is not None:
                shape = self._stream_lengths, self._order.shape[1]
                self._order.copy_(shuffled_rows(self._seeds, epoch, *shape))
            if self._fresh is not None:
                self._fresh.refill(self.data, epoch)
            self._run_epoch(self._due(epoch))
            if self.annealing is not None and self.annealing.is_due(epoch):
                self._run_measurement(())
            after_epoch(epoch)
            if epoch % 10 == 9 and self.all_stopped():
                break
        if self.models.flat.is_cuda:
            torch.cuda.current_stream(self.models.flat.device).synchronize()
        return time.perf_counter() - start

    def all_stopped(self) -> bool:
        """Return whether early stopping has ended every model."""
        return self.plan.patience is not None and bool((self.state.stopped_epoch >= 0).all())

    def temperatures(self, epoch: int) -> Tensor:
        """Return the temperatures [models] of an epoch that was trained, 0 for rules without."""
        given = self.courses.temperatures[epoch].to(self.state.temperatures)
        if self.annealing is None:
            return given
        return torch.where(self.annealing.chosen, self.state.temperatures[epoch], given)

    def history(self, seconds: float) -> FleetHistory:
        """Return what was recorded so far."""
        decided = None if self.annealing is None else self.state.temperatures.cpu()
        return FleetHistory.of(self.state, self.failures, decided, seconds)

    def _due(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of neighbouring models whose evaluation is due."""
        if not self._validated:
            return ()
        last = epoch + 1 == self.plan.n_epochs
        due = [last or (epoch + 1) % every == 0 for every in self.plan.validate_every]
        edges = [i for i in range(len(due) + 1) if (i < len(due) and due[i]) != (i > 0 and due[i - 1])]
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    def _epoch(self, due: tuple[tuple[int, int], ...]) -> None:
        """Go once through the data, then evaluate: no value is read on the host of a GPU."""
        # Read through the epoch as a tensor: in a captured graph a Python number would be frozen.
        epoch = self.state.epoch.view(1)
        torch.index_select(self._learning_rates, 0, epoch, out=self._rate.view(1, -1))
        self.courses.read(epoch)
        if self.annealing is not None:
            self._decide(self.annealing, epoch)
        self.state.learning_rates.index_copy_(0, epoch, self._rate.view(1, -1))
        n_rows, size = self.data.inputs.shape[1], self.plan.batch_size
        total: Tensor | None = None
        self.failures.forget()
        for start in range(0, n_rows, size):
            batch = BatchRows(start, min(start + size, n_rows), self._order, self._order_of_model)
            loss = self.step(self.courses, batch)
            with torch.no_grad():
                self._update(self.step.gradient, batch)
                loss = loss if size >= n_rows else loss * self.step.share_of_rows(batch)
                total = loss if total is None else total + loss
                self.failures.see(loss, epoch=epoch)
        assert total is not None
        self.state.losses.index_copy_(0, epoch, total.unsqueeze(0).to(self.state.losses))
        for low, high in due:
            self._evaluate(slice(low, high))
        self.state.epoch.add_(1)

    def _measure(self, _: tuple[()]) -> None:
        """Measure the models that decide themselves; apart from the epoch, so that this is captured once."""
        assert self.annealing is not None
        self.annealing.measure(self.state.epoch.view(1) - 1)

    def _decide(self, annealing: SelfAnnealing, epoch: Tensor) -> None:
        """Apply what the policies say about this epoch."""
        values = annealing.values(epoch)
        self.courses.set_temperatures(annealing.chosen, values.temperature)
        self._rate.mul_(values.rate.unsqueeze(-1))
        assert self._decay is not None
        torch.maximum(self._given_decay, values.weight_decay.unsqueeze(-1).to(self._decay), out=self._decay)
        self.state.temperatures.index_copy_(0, epoch, values.temperature.unsqueeze(0).to(self.state.temperatures))

    def _update(self, gradient: Tensor, batch: BatchRows) -> None:
        """Change the parameters of those models that have rows in this batch and were not stopped.

        A model whose gradient is not finite keeps its weights and buffers: a rate of 0 leaves them, bit for bit.
        """
        flat, rate = self.models.flat, self._rate
        finite = gradient.sum(dim=-1, keepdim=True).isfinite()
        active = None  # all models
        if self.step.is_ragged or self.plan.patience is not None:
            active = (self.step.n_real(batch) > 0) & (self.state.stopped_epoch < 0)
        if self.models.buffers:
            self.models.take_buffers(finite.squeeze(-1) if active is None else finite.squeeze(-1) & active)
        if flat.is_cuda or not bool(finite.all()):  # reading a value is free on the CPU, and a wait elsewhere
            gradient, rate = gradient.masked_fill(~finite, 0), rate * finite
        # Weight decay would move frozen parameters even without a gradient.
        before = flat.clone() if self._frozen is not None else None
        if active is None:
            self.optimizer.update(flat, gradient, self.state.optimizer, rate, self._decay)
        else:
            self._update_active(gradient, rate, active.unsqueeze(-1))
        if self._frozen is not None and before is not None:
            flat.copy_(torch.where(self._frozen, before, flat))

    def _update_active(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:
        flat = self.models.flat.clone()
        moments = {name: value.clone() for name, value in self.state.optimizer.items()}
        self.optimizer.update(flat, gradient, moments, rate, self._decay)
        self.models.flat.copy_(torch.where(active, flat, self.models.flat))
        for name, value in self.state.optimizer.items():
            value.copy_(torch.where(active, moments[name], value))

    @torch.no_grad()
    def _evaluate(self, models: slice) -> None:
        """Compare the monitored value of a slice of the models with their best, and keep what is better."""
        state = self.state
        value = self.step.evaluate(self.courses, models).to(state.best_value)
        state.watched[:, models].index_copy_(0, state.epoch.view(1), value.unsqueeze(0))
        counts = state.stopped_epoch[models] < 0
        if self.annealing is not None:
            annealed = self._still_annealed(self.annealing, models)
            if annealed is True:
                return
            counts = counts & ~torch.as_tensor(annealed, device=counts.device)
        better = (value < state.best_value[models]) & counts
        _replace_where(better, state.best_value[models], value)
        _replace_where(better, state.best_epoch[models], state.epoch)
        for name, best in state.best.items():
            _replace_where(better, best[models], state.models[name][models])
        if self.plan.patience is not None:
            waited = state.epoch - state.best_epoch[models].clamp_min(0)
            _replace_where(counts & (waited >= self.plan.patience), state.stopped_epoch[models], state.epoch)

    def _still_annealed(self, annealing: SelfAnnealing, models: slice) -> Tensor | bool:
        """Return which models are before their tail, as a single value where it is known for all of them.

        There the hypotheses are not yet apart, and a lucky early epoch on few rows means little. The last epoch counts
        in any case: a training of one or two epochs has no tail.
        """
        epoch = self.state.epoch
        if (warm := annealing.all_warm(epoch)) is not None:
            return warm and int(epoch) < self.plan.n_epochs - 1
        temperature = self.state.temperatures.index_select(0, epoch.view(1))[0, models]
        return (temperature > 0) & (epoch < self.plan.n_epochs - 1)


def _replace_where(chosen: Tensor, kept: Tensor, new: Tensor) -> None:
    """Write `new` over `kept` [models, ...] for the models that are chosen."""
    kept.copy_(torch.where(chosen.view(-1, *[1] * (kept.ndim - 1)), new, kept))
