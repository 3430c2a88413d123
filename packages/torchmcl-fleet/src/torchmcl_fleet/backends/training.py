"""Training of one chunk of a fleet on its device: state, epochs and evaluations, on a GPU as CUDA graphs.

A small model's epoch consists of a few hundred kernels of a few microseconds; launching them one by one from
Python takes ten times as long as running them. A captured graph replays them in one go.
"""

import threading
import time
import warnings
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import AssignmentRule, io
from torchmcl.app.progress import Progress
from torchmcl.loop.cuda_graphs import without_garbage_collection
from torchmcl_fleet.backends.annealing import FleetAnnealing
from torchmcl_fleet.backends.step import AutogradStep
from torchmcl_fleet.history import ChunkState, FleetCheckpoint, FleetHistory, note_failures
from torchmcl_fleet.modules.stacked import StackedModules, replace_where, runs_of
from torchmcl_fleet.placement import Placement
from torchmcl_fleet.plan import TrainingPlan
from torchmcl_fleet.problem import TrainingProblem

__all__ = ["CapturedEpochs", "CapturedTraining", "ChunkTraining", "EpochInfo", "train_chunks", "why_not_captured"]


class EpochInfo(NamedTuple):
    """Argument of the `after_epoch` callback of `Fleet.fit`.

    Attributes:
        epoch: Epoch that has just ended, counted from 0.
        models: Slice of the models of the fleet that are in the chunk.
        stacked: Stacked models, called with inputs [models, batch, ...].
        rule: Assignment rule of the models in this epoch, for costs [models, ...].
        temperatures: Temperatures of the models, [models]; 0 for rules without a temperature.
    """

    epoch: int
    models: slice
    stacked: StackedModules
    rule: AssignmentRule
    temperatures: Tensor


class ChunkTraining:
    """A chunk in training.

    Args:
        step: Training step of the models of the chunk on their rows.
        plan: Plan of the models of the chunk.
    """

    def __init__(self, step: AutogradStep, plan: TrainingPlan) -> None:
        models = step.models
        self.models, self.plan, self._step, self._rows = models, plan, step, step.rows
        self._validated = step.validation is not None
        self.rules = plan.rule_plan.on(models.flat.device, models.flat.dtype)
        moments = step.optimizer.init(models.flat)
        self._annealing: FleetAnnealing | None = None
        if plan.policies:
            self._annealing = FleetAnnealing(plan.rules, step, moments, plan.seeds, plan.n_epochs)
        self.state = ChunkState.of(
            models,
            plan.n_epochs,
            optimizer=moments,
            annealing={} if self._annealing is None else self._annealing.state,
            keep_best=self._validated,
        )
        self._rate = self.state.losses.new_zeros(len(models), 1)
        self._learning_rates = plan.learning_rates.full(self._rate.device, self._rate.dtype)
        self._base_decay = plan.weight_decays.to(self._rate).view(-1, 1)
        decays = bool(plan.weight_decays.any()) or bool(plan.policies)
        self._decay = self._base_decay.clone() if decays else None
        self._run_epoch: Callable[[Any], None] = self._epoch

    def run(
        self,
        number: int,
        saved: FleetCheckpoint | None,
        bar: Progress,
        after_epochs: Callable[[int, int], None],
        *,
        one_by_one: bool = False,
    ) -> FleetHistory:
        """Train to the end from the last checkpoint, saving checkpoints regularly and on signals.

        Args:
            number: Number of the chunk.
            saved: Checkpoints to resume from and to save to; None saves nothing.
            bar: Progress bar, advanced by the epochs that the checkpoint contains.
            after_epochs: Function called with the first epoch of those just trained, and the epoch after the last one.
            one_by_one: Whether to call `after_epochs` after every single epoch.

        Raises:
            TrainingInterrupted: If a signal requested a stop; the completed epochs are then saved.
            OSError: If a state cannot be written; the previous state is then untouched.
        """
        n_epochs, device, state = self.plan.n_epochs, self.models.flat.device, self.state.tensors()
        first, seconds = (0, 0.0) if saved is None else saved.load(number, state, device)
        bar.step(first * len(self.models))
        begin = time.perf_counter()

        def note_or_stop(low: int, high: int) -> None:
            after_epochs(low, high)
            if io.stop_requested():
                if saved is None:
                    io.check_stop("Nothing was saved, because `fit` was called without `checkpoint`.")
                else:
                    saved.save(number, high, seconds + time.perf_counter() - begin, state, device)
                    io.check_stop(f"Saved in {str(saved.folder)!r}: run the same again to resume.")

        while first < n_epochs and not self.all_stopped():
            last = n_epochs if saved is None else min(n_epochs, first + saved.options.every)
            begin = time.perf_counter()
            self._run_epochs(first, last, note_or_stop, one_by_one)
            seconds += time.perf_counter() - begin
            first = last
            if saved is not None:
                saved.save(number, first, seconds, state, device)
        decided = None if self._annealing is None else self.state.temperatures
        return FleetHistory.of(self.state, len(self._rows.batches), decided, seconds)

    def _run_epochs(self, first: int, last: int, after_epochs: Callable[[int, int], None], one_by_one: bool) -> None:
        """Train from epoch `first` up to but not including `last`, one epoch at a time."""
        if first == 0 and self._annealing is not None:
            self._annealing.begin()
        self.state.epoch.fill_(first)
        for epoch in range(first, last):
            self._rows.begin(epoch)
            self._run_epoch(self._due(epoch))
            if self._annealing is not None and self._annealing.is_due(epoch):
                self._annealing.measure(epoch + 1, active=self.state.stopped_epoch < 0)
            after_epochs(epoch, epoch + 1)
            if epoch % 10 == 9 and self.all_stopped():
                break
        if self.models.flat.is_cuda:
            torch.cuda.current_stream(self.models.flat.device).synchronize()

    def all_stopped(self) -> bool:
        """Return whether early stopping has ended every model."""
        return self.plan.patience is not None and bool((self.state.stopped_epoch >= 0).all())

    def temperatures(self, epoch: int) -> Tensor:
        """Return the temperatures [models] of a trained epoch, 0 for rules without a temperature."""
        scheduled = self.rules.temperatures[epoch].to(self.state.temperatures)
        if self._annealing is None:
            return scheduled
        return torch.where(self._annealing.chosen, self.state.temperatures[epoch], scheduled)

    def _due(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of consecutive models whose evaluation is due."""
        if not self._validated:
            return ()
        last = epoch + 1 == self.plan.n_epochs
        due = [last or (epoch + 1) % every == 0 for every in self.plan.validate_every]
        return tuple((run.start, run.stop) for run in runs_of(due))

    def _epoch(self, due: tuple[tuple[int, int], ...]) -> None:
        """Train on all batches once, then evaluate; on a GPU no value is read on the host."""
        # The epoch is a tensor: a captured graph would freeze a Python number.
        epoch = self.state.epoch.view(1)
        torch.index_select(self._learning_rates, 0, epoch, out=self._rate.view(1, -1))
        self.rules.read(epoch)
        if self._annealing is not None:
            self._decide(self._annealing, epoch)
        self.state.learning_rates.index_copy_(0, epoch, self._rate.view(1, -1))
        total = self._trained(epoch)
        self.state.losses.index_copy_(0, epoch, total.unsqueeze(0).to(self.state.losses))
        for low, high in due:
            self._evaluate(slice(low, high))
        self.state.epoch.add_(1)

    def _trained(self, epoch: Tensor) -> Tensor:
        """Train on all batches, and return the mean losses [models] of the epoch."""
        active = self.state.stopped_epoch < 0
        losses = self._step.epoch(self.rules, self.state.optimizer, self._rate, self._decay, active)
        if losses is None:
            losses = torch.stack([self._trained_on(batch) for batch in self._rows.batches])
        if len(losses) == 1:
            return losses[0]
        note_failures(self.state.failed_step, losses, n_batches=len(losses), epoch=epoch)
        return (losses * self._row_fractions).sum(dim=0)

    def _trained_on(self, batch: slice) -> Tensor:
        """Take a step on a batch, and return its losses [models]."""
        loss = self._step(self.rules, batch)
        with torch.no_grad():
            self._update(self._step.gradient, batch)
        return loss

    @cached_property
    def _row_fractions(self) -> Tensor:
        """Fraction of the rows of each model in each batch, [batches, models or 1]."""
        fractions = (self._rows.fraction(batch) for batch in self._rows.batches)
        device = self.models.flat.device  # not the default device of torch
        return torch.stack(
            [torch.as_tensor(part, dtype=self.state.losses.dtype, device=device).view(-1) for part in fractions]
        )

    def _decide(self, annealing: FleetAnnealing, epoch: Tensor) -> None:
        """Apply the decisions of the policies for this epoch."""
        values = annealing.values(epoch)
        self.rules.set_temperatures(annealing.chosen, values.temperature)
        self._rate.mul_(values.rate.unsqueeze(-1))
        assert self._decay is not None
        torch.maximum(self._base_decay, values.weight_decay.unsqueeze(-1).to(self._decay), out=self._decay)
        self.state.temperatures.index_copy_(0, epoch, values.temperature.unsqueeze(0).to(self.state.temperatures))

    def _update(self, gradient: Tensor, batch: slice) -> None:
        """Update the parameters of the active models with rows in this batch.

        A model with a non-finite gradient keeps its weights and buffers: a rate of 0 leaves them bit-identical.
        """
        flat, rate = self.models.flat, self._rate
        finite = gradient.sum(dim=-1, keepdim=True).isfinite()
        active = None  # all models
        if self._rows.is_ragged or self.plan.patience is not None:
            active = (self._rows.n_real(batch) > 0) & (self.state.stopped_epoch < 0)
        if self.models.buffers:
            self.models.take_buffers(finite.squeeze(-1) if active is None else finite.squeeze(-1) & active)
        if flat.is_cuda or not bool(finite.all()):  # reading a value is free on the CPU, and synchronizes elsewhere
            gradient, rate = gradient.masked_fill(~finite, 0), rate * finite
        # Weight decay would change parameters without a gradient, which torch.optim leaves unchanged.
        untrained = self.models.untrained()
        before = flat.clone() if untrained is not None else None
        if active is not None and flat.is_cuda:
            self._update_where(gradient, rate, active)
        else:
            for models in [slice(None)] if active is None else runs_of(active.tolist()):
                self._update_slice(gradient, rate, models)
        if untrained is not None and before is not None:
            flat.copy_(torch.where(untrained, before, flat))

    def _update_slice(self, gradient: Tensor, rate: Tensor, models: slice) -> None:
        state = {name: value[models] for name, value in self.state.optimizer.items()}
        decay = None if self._decay is None else self._decay[models]
        self._step.optimizer.update(self.models.flat[models], gradient[models], state, rate[models], decay)

    def _update_where(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:
        """Update all models, and keep the result for the active ones; on a GPU no value is read on the host."""
        flat = self.models.flat.clone()
        moments = {name: value.clone() for name, value in self.state.optimizer.items()}
        self._step.optimizer.update(flat, gradient, moments, rate, self._decay)
        replace_where(active, self.models.flat, flat)
        for name, value in self.state.optimizer.items():
            replace_where(active, value, moments[name])

    @torch.no_grad()
    def _evaluate(self, models: slice) -> None:
        """Compare the monitored value of a slice of the models with the best so far, and keep the better models."""
        state = self.state
        value = self._step.evaluate(self.rules, models).to(state.best_value)
        state.watched[:, models].index_copy_(0, state.epoch.view(1), value.unsqueeze(0))
        counts = state.stopped_epoch[models] < 0
        if self._annealing is not None:
            annealed = self._still_annealed(self._annealing, models)
            if annealed is True:
                return
            counts = counts & ~torch.as_tensor(annealed, device=counts.device)
        better = (value < state.best_value[models]) & counts
        replace_where(better, state.best_value[models], value)
        replace_where(better, state.best_epoch[models], state.epoch)
        for name, best in state.best.items():
            replace_where(better, best[models], state.models[name][models])
        if self.plan.patience is not None:
            waited = state.epoch - state.best_epoch[models].clamp_min(0)
            replace_where(counts & (waited >= self.plan.patience), state.stopped_epoch[models], state.epoch)

    def _still_annealed(self, annealing: FleetAnnealing, models: slice) -> Tensor | bool:
        """Return a mask of the models that are still annealed, or a single value if it is the same for all.

        The hypotheses are not yet separated then, and a good early value on few rows means little. The last epoch
        always counts: a training run of one or two epochs has no tail.
        """
        epoch = self.state.epoch
        if (warm := annealing.all_warm(epoch)) is not None:
            return warm and int(epoch) < self.plan.n_epochs - 1
        temperature = self.state.temperatures.index_select(0, epoch.view(1))[0, models]
        return (temperature > 0) & (epoch < self.plan.n_epochs - 1)


def train_chunks(
    placement: Placement,
    chunk_of: Callable[[slice, torch.device], ChunkTraining],
    keep: Callable[[slice, dict[str, Tensor], dict[str, Tensor] | None], None],
    saved: FleetCheckpoint | None,
    bar: Progress,
    after_epoch: Callable[[EpochInfo], None] | None,
    *,
    moments: bool,
) -> list[tuple[FleetHistory, dict[str, Tensor]]]:
    """Train all chunks; return the history and the optimizer state of each chunk.

    Args:
        placement: Placement of the chunks.
        chunk_of: Function that returns the chunk of a slice of the models on a device.
        keep: Function called with the slice of the models of a chunk, their last state and their best state.
        saved: Checkpoints to resume from and to save to; None saves nothing.
        bar: Progress bar, advanced by each epoch of each model.
        after_epoch: Function called after every epoch of a chunk.
        moments: Whether to copy the state of the optimizer to the CPU and return it.
    """

    def train(number: int, models: slice, device: torch.device) -> tuple[FleetHistory, dict[str, Tensor]]:
        chunk = chunk_of(models, device)

        def note(low: int, high: int) -> None:
            bar.step((high - low) * len(chunk.models))
            if after_epoch is not None:
                rule, temperatures = chunk.rules.rule(), chunk.temperatures(low)
                after_epoch(EpochInfo(low, models, chunk.models, rule, temperatures))

        history = chunk.run(number, saved, bar, note, one_by_one=after_epoch is not None)
        keep(models, chunk.state.models, chunk.state.best or None)
        kept = chunk.state.optimizer if moments else {}
        return history, {name: value.cpu() for name, value in kept.items()}

    with io.saves_when_stopped():
        return placement.run(train)


# While one thread captures, no other may synchronize the device or draw random numbers on it.
_CAPTURING = threading.Lock()


class CapturedEpochs:
    """Runner of `epoch(key)` as a CUDA graph, captured once for each key and replayed afterwards.

    Args:
        epoch: Function that changes tensors in place, reads nothing on the host, and depends on Python values
            only through its key.
        state: Tensors that `epoch` changes; they are restored after the warm-up before a capture.
        device: Device that stores the tensors.
    """

    def __init__(self, epoch: Callable[[Any], None], state: list[Tensor], device: torch.device) -> None:
        self._epoch, self._state, self._device = epoch, state, device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}

    def __call__(self, key: Hashable) -> None:
        """Run one epoch."""
        with _CAPTURING:
            if key not in self._graphs:
                self._graphs[key] = self._capture(key)
            graph = self._graphs[key]
            if graph is None:
                self._epoch(key)
            else:
                graph.replay()

    def _capture(self, key: Hashable) -> torch.cuda.CUDAGraph | None:
        before = [tensor.clone() for tensor in self._state]
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._epoch(key)  # libraries initialize on first use, which a capture does not allow
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        captured: torch.cuda.CUDAGraph | None = graph
        try:
            torch.cuda.synchronize(self._device)
            # A separate stream: the default stream of torch is on one device, and other threads may use other devices.
            with (
                without_garbage_collection(),
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._epoch(key)
        except RuntimeError as error:
            warnings.warn(
                f"Fleet: this epoch cannot be captured as a CUDA graph and runs eagerly: {error}", stacklevel=2
            )
            captured = None
            torch.cuda.synchronize(self._device)
        for tensor, value in zip(self._state, before, strict=True):
            tensor.copy_(value)
        return captured


class CapturedTraining(ChunkTraining):
    """A chunk whose epochs run as CUDA graphs, captured once and then replayed."""

    def __init__(self, step: AutogradStep, plan: TrainingPlan) -> None:
        super().__init__(step, plan)
        changed, device = list(self.state.tensors().values()), self.models.flat.device
        self._run_epoch = CapturedEpochs(self._epoch, changed, device)


def why_not_captured(training: TrainingProblem) -> str | None:
    """Return the reason why CUDA graphs do not support a training run, or None."""
    return None if training.device.type == "cuda" else f"CUDA graphs require a CUDA device, not {training.device}."
