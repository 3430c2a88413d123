"""The training of one chunk of a fleet: epochs, minibatches, validation, all on the device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.fleet.adaptive import SelfAnnealing
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.failures import FirstFailures
from torchmcl.fleet.feed_forward import FeedForward
from torchmcl.fleet.fresh import FreshRows
from torchmcl.fleet.graphs import EpochRunner
from torchmcl.fleet.history import FleetHistory
from torchmcl.fleet.optimizers import FleetOptimizer
from torchmcl.fleet.rules import RuleTable, StackedRule
from torchmcl.fleet.shortcuts import Look, compiled_step, needs_no_graph
from torchmcl.fleet.shuffles import shuffled_rows
from torchmcl.fleet.stacked import StackedModules
from torchmcl.training import mcl_step
from torchmcl.training.gradient import loss_and_gradient
from torchmcl.types import Batch, StepOutput

__all__ = ["ChunkTraining", "Plan"]


@dataclass(frozen=True)
class Plan:
    """How a chunk is trained; everything per model is a sequence with an entry each."""

    n_epochs: int
    batch_size: int
    rules: RuleTable
    learning_rates: Tensor
    weight_decays: Tensor
    seeds: Tensor
    optimizer: FleetOptimizer
    cost_fn: Callable[..., Tensor]
    score_weight: float
    monitor: Callable[[StepOutput], Tensor]
    validate_every: Sequence[int]
    patience: int | None
    self_annealing: Sequence[Any] = ()  # the rules, where some of them decide on their temperature in training
    compiled: bool = False  # whether the training is long enough for a C compiler to pay, and there is one


class ChunkTraining:
    """The state of a chunk in training. All of it is in tensors that are changed in place."""

    def __init__(
        self,
        models: StackedModules,
        data: FleetData,
        validation: FleetData | None,
        plan: Plan,
        fresh: FreshRows | None = None,
    ) -> None:
        self.models, self.data, self.validation, self.plan, self.fresh = models, data, validation, plan, fresh
        device, n_models = models.flat.device, len(models)
        self.device = device
        self.n_rows = data.inputs.shape[1]
        self.lengths = data.lengths
        self.same_length = bool((data.n_rows == self.n_rows).all())
        # With one batch an epoch the order of the rows is of no consequence.
        self.one_batch = plan.batch_size >= self.n_rows
        # So it is for fresh rows, which have no order but the one they were drawn in.
        in_order = self.one_batch or fresh is not None
        # Rules that couple targets take longer than any bookkeeping.
        plain = fresh is None and plan.rules.per_target and needs_no_graph(models, data, plan.cost_fn)
        self.annealing: SelfAnnealing | None = None
        if rules := plan.self_annealing:
            sizes = plan.n_epochs, plan.batch_size
            rows = data, validation
            self.annealing = SelfAnnealing(rules, models, *rows, plan.cost_fn, *sizes, fresh=fresh is not None)
        self.compiled = compiled_step(models, data, plan.cost_fn) if plain and plan.compiled else None
        self.written_out = FeedForward(models) if plain and self.compiled is None else None
        if self.annealing is not None and self.compiled is not None:
            self.annealing.compile()
        self.optimizer = plan.optimizer if self.compiled is None else plan.optimizer.compiled()
        self.look: Look | None = None
        if self.compiled is not None and validation is not None:
            self.look = Look.of(models, validation, plan.cost_fn, plan.monitor)
        if self.written_out is not None:
            data = self.data = data._replace(inputs=self.written_out.widened(data.inputs))
        self.whole = data.all_rows() if in_order and self.compiled is None else None
        # Models with the same seed and as many rows share an order.
        streams, stream_of_model = torch.stack([plan.seeds.to(device), self.lengths]).unique(dim=1, return_inverse=True)
        self.seeds, self.stream_lengths = streams
        self.order = (
            torch.zeros(len(self.seeds), self.n_rows, dtype=torch.long, device=device) if not in_order else None
        )
        self.order_of_model = stream_of_model
        self.rule_values = plan.rules.buffers(device, models.flat.dtype)
        # What is decided and recorded keeps at least single precision, whatever the models have.
        dtype = torch.promote_types(models.flat.dtype, torch.float32)
        self.lr = torch.zeros(n_models, 1, dtype=dtype, device=device)
        self.learning_rates = plan.learning_rates.to(self.lr)
        self.given_decay = plan.weight_decays.to(self.lr).view(-1, 1)
        decays = plan.weight_decays.any() or self.annealing is not None
        self.decay = self.given_decay.clone() if decays else None
        frozen = torch.cat([torch.full((v[0].numel(),), not v.requires_grad) for v in models.views.values()])
        self.frozen = frozen.to(device) if frozen.any() else None
        self.failures = FirstFailures(n_models, -(-self.n_rows // plan.batch_size), device)
        # Without validation nothing is kept, and an empty matrix says so.
        best = models.state if validation is not None else {"flat": torch.zeros(n_models, 0, device=device)}
        self.best = {name: value.clone() for name, value in best.items()}
        self.state: dict[str, Tensor] = {
            **models.state,
            **{f"best_{name}": value for name, value in self.best.items()},
            "epoch": torch.zeros((), dtype=torch.long, device=device),
            "losses": torch.zeros(plan.n_epochs, n_models, dtype=dtype, device=device),
            "watched": torch.full((plan.n_epochs, n_models), torch.nan, dtype=dtype, device=device),
            "best_value": torch.full((n_models,), torch.inf, dtype=dtype, device=device),
            "best_epoch": torch.full((n_models,), -1, device=device),
            "stopped_epoch": torch.full((n_models,), -1, device=device),
            "failed_step": self.failures.step,
        }
        if self.annealing is not None:
            self.state |= {f"annealing.{name}": value for name, value in self.annealing.state.items()}
            self.state["temperatures"] = torch.zeros(plan.n_epochs, n_models, device=device)
        self.optimizer_state = plan.optimizer.init(models.flat)
        self.state |= {f"optimizer.{name}": value for name, value in self.optimizer_state.items()}
        self.validation_rows = validation.all_rows() if validation is not None else None
        self.ragged_validation = validation is not None and len(set(validation.n_rows.tolist())) > 1
        self._watched: dict[tuple[int, int], StackedModules] = {}
        self._runner = EpochRunner(self._epoch, list(self.state.values()), device)
        self._measuring = EpochRunner(self._measure, list(self.state.values()), device)

    def run(self, first_epoch: int, last_epoch: int, after_epoch: Callable[[int], None]) -> float:
        """Train from `first_epoch` up to but not including `last_epoch`; return the seconds it took."""
        start = time.perf_counter()
        self.state["epoch"].fill_(first_epoch)
        for epoch in range(first_epoch, last_epoch):
            self._prepare(epoch)
            self._runner((self.plan.rules.pattern(self.rule_values, epoch), self._due(epoch)))
            if self.annealing is not None and self.annealing.is_due(epoch):
                self._measuring(())
            after_epoch(epoch)
            if epoch % 10 == 9 and self.all_stopped():
                break
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return time.perf_counter() - start

    def all_stopped(self) -> bool:
        """Return whether early stopping has ended every model."""
        return self.plan.patience is not None and bool((self.state["stopped_epoch"] >= 0).all())

    def current_rule(self, epoch: int) -> tuple[StackedRule, Tensor]:
        """Return the rule of the epoch that was just trained, and its temperatures [models], 0 for rules without."""
        rule = self.plan.rules.rule(self.rule_values, self.plan.rules.pattern(self.rule_values, epoch))
        temperatures = self.plan.rules.temperatures()[epoch].to(self.lr)
        if self.annealing is None:
            return rule, temperatures
        decided = self.state["temperatures"][epoch].to(temperatures)
        return rule, torch.where(self.annealing.chosen, decided, temperatures)

    def history(self, seconds: float) -> FleetHistory:
        """Return what was recorded so far."""
        losses, value, epoch, stopped = (
            self.state[name].cpu() for name in ("losses", "best_value", "best_epoch", "stopped_epoch")
        )
        # After its end a model has no loss; what its rows gave while others went on is of no interest.
        epochs = torch.arange(len(losses)).unsqueeze(-1)
        after = (stopped >= 0) & (epochs > stopped)
        losses = losses.masked_fill(after, torch.nan)
        watched = self.state["watched"].cpu().masked_fill(after, torch.nan)
        bad = ~losses.isfinite() & ((stopped < 0) | (epochs <= stopped))
        failed = torch.where(bad.any(dim=0), bad.int().argmax(dim=0), -1)
        temperatures = self.state["temperatures"].cpu() if self.annealing is not None else None
        rates = None if self.annealing is None else self.annealing.rates().cpu()
        batches = self.failures.batches(failed)
        return FleetHistory(losses, value, epoch, stopped, failed, seconds, watched, temperatures, batches, rates)

    def _prepare(self, epoch: int) -> None:
        """Write what the host decides from epoch to epoch into the tensors that the epoch reads."""
        self.plan.rules.fill(self.rule_values, epoch)
        if self.order is not None:
            self.order.copy_(shuffled_rows(self.seeds, epoch, self.stream_lengths, self.n_rows))
        if self.fresh is not None:
            self.fresh.refill(self.data, epoch)

    def _due(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of neighbouring models whose validation is due."""
        if self.validation is None:
            return ()
        last = epoch + 1 == self.plan.n_epochs
        due = [last or (epoch + 1) % every == 0 for every in self.plan.validate_every]
        edges = [i for i in range(len(due) + 1) if (i < len(due) and due[i]) != (i > 0 and due[i - 1])]
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    def _epoch(self, key: tuple[Any, ...]) -> None:
        """Go once through the data, then validate: no value is read on the host."""
        pattern, due = key
        # Read through the epoch as a tensor: in a captured graph a Python number would be frozen.
        epoch = self.state["epoch"].view(1)
        torch.index_select(self.learning_rates, 0, epoch, out=self.lr.view(1, -1))
        self.rule_values.read(epoch)
        if self.annealing is not None:
            self._decide(self.annealing, epoch)
        rule = self.plan.rules.rule(self.rule_values, pattern)
        loss: Tensor | None = None
        self.failures.forget()
        for start in range(0, self.n_rows, self.plan.batch_size):
            part = self._step(rule, start, min(start + self.plan.batch_size, self.n_rows))
            loss = part if loss is None else loss + part
            self.failures.see(part, epoch=epoch)
        assert loss is not None
        self.state["losses"].index_copy_(0, epoch, loss.unsqueeze(0).to(self.lr))
        for low, high in due:
            self._validate(pattern, slice(low, high))
        self.state["epoch"].add_(1)

    def _measure(self, _: tuple[()]) -> None:
        """Measure the models that decide by themselves, after an epoch: apart from it, so that it is recorded once."""
        assert self.annealing is not None
        self.annealing.measure(self.state["epoch"].view(1) - 1)

    def _decide(self, annealing: SelfAnnealing, epoch: Tensor) -> None:
        """Take what the policies say of this epoch."""
        values = annealing.values(epoch)
        self.rule_values.set_temperatures(annealing.chosen, values.temperature)
        self.lr.mul_(values.rate.unsqueeze(-1))
        assert self.decay is not None
        torch.maximum(self.given_decay, values.weight_decay.unsqueeze(-1), out=self.decay)
        self.state["temperatures"].index_copy_(0, epoch, values.temperature.unsqueeze(0))

    def _step(self, rule: StackedRule, start: int, stop: int) -> Tensor:
        """Take one optimiser step; return each model's loss times the share of its rows."""
        if self.compiled is not None:
            order = None if self.order is None else (self.order, self.order_of_model)
            assert self.rule_values.by_model is not None
            loss = self.compiled(self.rule_values.by_model, self.plan.score_weight, start=start, stop=stop, order=order)
            self._update(self.compiled.gradient, self.lengths)
            return loss if self.one_batch else loss * ((stop - start) / self.n_rows)
        if self.whole is not None:
            inputs, targets = (part[:, start:stop] for part in self.whole)
            weights = self.data.row_weights()
            weights = None if weights is None else weights[:, start:stop]
        else:
            assert self.order is not None
            index = self.order[:, start:stop].index_select(0, self.order_of_model)
            inputs, targets = self.data.rows(index)
            weights = self.data.row_weights(index)
        if self.written_out is not None:
            loss = self._written_out_step(self.written_out, inputs, targets, rule, weights)
            return loss if self.one_batch else loss * ((stop - start) / self.n_rows)
        mask = None
        n_real = self.lengths
        if not self.same_length:
            n_real = (self.lengths - start).clamp(0, stop - start)
            real = torch.arange(stop - start, device=self.device) < n_real[:, None]
            mask = real.unsqueeze(-1).expand(targets.shape[:3])
            inputs = inputs.masked_fill(~real.view(*real.shape, *[1] * (inputs.ndim - 2)), 0)
        output = self._output(self.models, Batch(inputs, targets, mask), rule, weights)
        gradient = self.models.gradient(output.loss.sum())
        with torch.no_grad():
            self._update(gradient, n_real)
            loss = output.loss.detach()
            if self.one_batch:
                return loss
            # A model without rows in this batch has loss 0 there.
            return loss * ((stop - start) / self.n_rows if self.same_length else n_real / self.lengths)

    @torch.no_grad()
    def _written_out_step(
        self, network: FeedForward, inputs: Tensor, targets: Tensor, rule: StackedRule, weights: Tensor | None
    ) -> Tensor:
        loss = loss_and_gradient(
            network.forward(inputs),
            targets,
            rule,
            cost_fn=self.plan.cost_fn,
            score_weight=self.plan.score_weight,
            gradient=network.slots(inputs.shape[1]),
            sample_weights=weights,
        )
        self._update(network.backward(inputs), self.lengths)
        return loss

    def _update(self, gradient: Tensor, n_real: Tensor) -> None:
        """Change the parameters of those models that have rows in this batch and were not stopped.

        A model whose gradient is not finite keeps its weights: a rate of 0 leaves them, bit for bit. Its buffers stay
        as they were before the batch.
        """
        optimizer = self.optimizer
        lr, good = self.lr, gradient.sum(dim=-1, keepdim=True).isfinite()
        if self.models.buffers:
            self.models.take_buffers(good.squeeze(-1) & (n_real > 0) & (self.state["stopped_epoch"] < 0))
        if self.device.type != "cpu" or not bool(good.all()):  # a look costs nothing on the CPU, and a wait elsewhere
            gradient, lr = gradient.masked_fill(~good, 0), lr * good
        if self.frozen is not None:  # weight decay would move them even without a gradient
            before = self.models.flat.clone()
            self._update_active(optimizer, gradient, lr, n_real)
            self.models.flat.copy_(torch.where(self.frozen, before, self.models.flat))
            return
        self._update_active(optimizer, gradient, lr, n_real)

    def _update_active(self, optimizer: FleetOptimizer, gradient: Tensor, lr: Tensor, n_real: Tensor) -> None:
        if self.same_length and self.plan.patience is None:
            optimizer.update(self.models.flat, gradient, self.optimizer_state, lr, self.decay)
            return
        active = ((n_real > 0) & (self.state["stopped_epoch"] < 0)).unsqueeze(-1)
        flat = self.models.flat.clone()
        state = {name: value.clone() for name, value in self.optimizer_state.items()}
        optimizer.update(flat, gradient, state, lr, self.decay)
        self.models.flat.copy_(torch.where(active, flat, self.models.flat))
        for name, value in self.optimizer_state.items():
            value.copy_(torch.where(active, state[name], value))

    @torch.no_grad()
    def _validate(self, pattern: tuple[bool, ...], rows: slice) -> None:
        """Compare the monitored value of some models with their best, and keep what is better."""
        models = self._some(rows)
        value = self._look(models, pattern, rows).to(self.lr)
        state = {name: self.state[name][rows] for name in ("best_value", "best_epoch", "stopped_epoch")}
        self.state["watched"][:, rows].index_copy_(0, self.state["epoch"].view(1), value.unsqueeze(0))
        annealed = self._still_annealed(rows)
        if annealed is True:
            return
        running = state["stopped_epoch"] < 0
        if isinstance(annealed, Tensor):
            running = running & ~annealed
        better = (value < state["best_value"]) & running
        state["best_value"].copy_(torch.where(better, value, state["best_value"]))
        state["best_epoch"].copy_(torch.where(better, self.state["epoch"], state["best_epoch"]))
        for name, value in models.state.items():
            best = self.best[name][rows]
            best.copy_(torch.where(better.view(-1, *[1] * (best.ndim - 1)), value, best))
        if self.plan.patience is not None:
            waited = self.state["epoch"] - state["best_epoch"].clamp_min(0)
            ends = running & (waited >= self.plan.patience)
            state["stopped_epoch"].copy_(torch.where(ends, self.state["epoch"], state["stopped_epoch"]))

    def _still_annealed(self, rows: slice) -> Tensor | bool:
        """Return which models are before their tail, or one value where the host knows it of all of them.

        There the hypotheses are not yet apart, and a lucky early epoch on few rows means little. The last epoch counts
        in any case: a training of one or two has no tail.
        """
        if self.annealing is None:
            return False
        epoch = self.state["epoch"]
        if (known := self.annealing.all_warm(epoch)) is not None:
            return known and int(epoch) < self.plan.n_epochs - 1
        temperature = self.state["temperatures"].index_select(0, epoch.view(1))[0, rows]
        return (temperature > 0) & (epoch < self.plan.n_epochs - 1)

    def _look(self, models: StackedModules, pattern: tuple[bool, ...], rows: slice) -> Tensor:
        """Return the monitored value of some models."""
        if self.look is not None and self.rule_values.by_model is not None:
            return self.look(self.rule_values.by_model, self.plan.score_weight, rows)
        assert self.validation is not None
        assert self.validation_rows is not None
        inputs, targets = (part[rows] for part in self.validation_rows)
        mask = None
        if self.ragged_validation:
            real = torch.arange(inputs.shape[1], device=self.device) < self.validation.lengths[rows, None]
            mask = real.unsqueeze(-1).expand(targets.shape[:3])
        rule = self.plan.rules.rule(self.rule_values, pattern, rows)
        with models.evaluating():
            return self.plan.monitor(self._output(models, Batch(inputs, targets, mask), rule))

    def _output(
        self, models: StackedModules, batch: Batch, rule: StackedRule, weights: Tensor | None = None
    ) -> StepOutput:
        plan = self.plan
        return mcl_step(
            models,
            batch,
            rule,
            cost_fn=plan.cost_fn,
            score_weight=plan.score_weight,
            stacked=True,
            sample_weights=weights,
        )

    def _some(self, rows: slice) -> StackedModules:
        if (rows.start, rows.stop) == (0, len(self.models)):
            return self.models
        key = (rows.start, rows.stop)
        if key not in self._watched:
            self._watched[key] = self.models.subset(rows, self.device)
        return self._watched[key]
