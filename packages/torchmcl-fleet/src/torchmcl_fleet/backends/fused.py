"""Small networks on GPUs: whole epochs of a chunk in one kernel, one program per model.

The results equal those of `ChunkTraining` with `AutogradStep`, including evaluations and early stopping;
the kernel is in `torchmcl_fleet.gpu.training`.
"""

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchmcl_fleet.courses import TrainingPlan
from torchmcl_fleet.data import mixed
from torchmcl_fleet.epochs import ChunkTraining
from torchmcl_fleet.gpu.support import runs_on
from torchmcl_fleet.stacked import is_plain_adam
from torchmcl_fleet.steps import AutogradStep, NetworkFacts, TrainingFacts, why_not_usual

# Epochs per launch: enough to make the launch negligible, few enough to react to signals soon.
_EPOCHS = 20
# The orders of the rows in these epochs may take this many bytes.
_ORDER_BYTES = 256 << 20
# Rows of a block on devices with little shared memory.
_FEWEST_ROWS = 16
# A program keeps both layers of its model in registers.
_MAX_FEATURES, _MAX_HIDDEN, _MAX_OUTPUTS = 63, 127, 64


class FusedTraining(ChunkTraining):
    """A chunk whose epochs run in one kernel, between the measurements of `AutoAnnealing`."""

    def __init__(self, step: AutogradStep, plan: TrainingPlan) -> None:
        super().__init__(step, plan)
        data, held, device = step.rows.data, step.validation, self.models.flat.device
        rows = [data] if held is None else [data, held]
        self._inputs = torch.cat([part.inputs.flatten(0, 1) for part in rows])
        self._targets = torch.cat([part.targets.flatten(0, 2) for part in rows])
        self._row_weights = data.weights
        zeros = torch.zeros_like(data.set_of_model)
        # For each model: offset and number of its rows, the same for held-out rows, the index of its row order,
        # the epochs between evaluations, whether it uses `AutoAnnealing`, and the seed of its dropout.
        facts = [
            data.set_of_model * data.inputs.shape[1],
            data.lengths,
            zeros if held is None else data.inputs.shape[:2].numel() + held.set_of_model * held.inputs.shape[1],
            zeros if held is None else held.lengths,
            step.rows.order_of_model,
            torch.tensor(plan.validate_every, device=device),
            zeros if self._annealing is None else self._annealing.chosen.long(),
            mixed(mixed(plan.seeds.to(device)) + 1),  # a different stream than that of the shuffles
        ]
        self._facts = torch.stack(facts, dim=1)
        assert step.facts.network is not None
        self._network = step.facts.network
        self._constants = _constants(self._network) | {
            "ABSOLUTE": step.facts.cost.is_absolute,
            "DROPOUT": bool(self._network.dropout),
            "SHUFFLED": step.rows.order is not None,
            "WEIGHTED": data.weights is not None,
        }
        self._launched: torch.cuda.Event | None = None

    def _run_epochs(self, first: int, last: int, after_epochs: Callable[[int, int], None], one_by_one: bool) -> None:
        """Train from epoch `first` up to but not including `last`."""
        at_once = 1 if one_by_one else self._epochs_at_once()
        if first == 0 and self._annealing is not None:
            self._annealing.begin()
        low = first
        while low < last:
            high = self._end_of_launch(low, min(low + at_once, last))
            self._launch(low, high)
            if self._annealing is not None and self._annealing.is_due(high - 1):
                self._annealing.measure(high, active=self.state.stopped_epoch < 0)
            self._wait_for_the_launch_before()
            if one_by_one:
                self._take_rule_of(low)
            after_epochs(low, high)
            low = high
            if self.all_stopped():
                break
        if self.models.flat.is_cuda:
            torch.cuda.current_stream(self.models.flat.device).synchronize()

    def _launch(self, low: int, high: int) -> None:
        """Train the epochs from `low` up to but not including `high`, in blocks of rows that fit in memory."""
        from triton.runtime.errors import OutOfResources

        while True:
            try:
                self._run_kernel(low, high)
                return
            except OutOfResources:
                if self._constants["ROWS"] == _FEWEST_ROWS:
                    raise
                self._constants["ROWS"] //= 2

    def _run_kernel(self, low: int, high: int) -> None:
        from torchmcl_fleet.gpu.training import train_epochs

        state, plan, rows, spec = self.state, self.plan, self._rows, self._step.spec
        adam = spec.optimizer
        assert is_plain_adam(adam)
        order = rows.orders(low, high)
        unused = state.best_value
        network = self._network
        with _compiled_once(frozenset(self._constants.items())):
            train_epochs[(len(self.models),)](
                state.models["flat"], state.optimizer["mean"], state.optimizer["square"], state.optimizer["n_steps"],
                state.best.get("flat", unused), self._inputs, self._targets,
                unused if self._row_weights is None else self._row_weights, self._facts if order is None else order,
                self._facts, *self._tables(low, high),
                state.losses, state.watched, state.temperatures, state.learning_rates,
                state.best_value, state.best_epoch, state.stopped_epoch, state.failed_step,
                low, high, plan.n_epochs, len(self.models), rows.batch_size, len(rows.batches),
                *((0, 0) if order is None else (order.shape[-1], order.shape[-2])),
                -1 if plan.patience is None else plan.patience,
                int(self._step.facts.watches_loss), int(network.has_scores), int(network.detach_scores),
                *network.sizes[:2], network.n_hypotheses, network.event[0],
                float(spec.score_weight) if network.has_scores else 0.0, float(1 - (network.dropout or 0.0)),
                *map(float, (adam.beta1, adam.beta2, math.log(adam.beta1), math.log(adam.beta2), adam.epsilon)),
                **self._constants,
            )  # fmt: skip
        state.epoch.fill_(high)

    def _wait_for_the_launch_before(self) -> None:
        """Keep the host at most one launch ahead, so that it can report progress and handle signals."""
        if self.models.flat.is_cuda:
            launched = torch.cuda.Event()
            launched.record()
            if self._launched is not None:
                self._launched.synchronize()
            self._launched = launched

    def _epochs_at_once(self) -> int:
        bytes_of_one = 0 if self._rows.order is None else self._rows.order.numel() * self._rows.order.element_size()
        return max(1, min(_EPOCHS, _ORDER_BYTES // max(1, bytes_of_one)))

    def _take_rule_of(self, epoch: int) -> None:
        """Set the rule of an epoch, for `after_epoch`."""
        self.courses.read(self.state.epoch.view(1) - 1)
        if self._annealing is not None:
            # Models that stopped early no longer have a temperature.
            self.courses.set_temperatures(self._annealing.chosen, self.state.temperatures[epoch].nan_to_num(0.0))

    def _tables(self, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return learning rates, weight decays and rules of epochs `low` to `high`, one row each."""
        rates, rules = self._learning_rates[low:high], self.courses.table[low:high]
        decays = self._given_decay.view(1, -1).expand_as(rates)
        if self._annealing is not None:
            values = self._annealing.values_of(torch.arange(low, high, device=rates.device).unsqueeze(-1))
            rates, decays = rates * values.rate, torch.maximum(decays, values.weight_decay)
            temperatures = torch.where(self._annealing.chosen, values.temperature, rules[:, : len(self.models)])
            rules = torch.cat([temperatures, rules[:, len(self.models) :]], dim=1)
        return rates.contiguous(), decays.contiguous(), rules.contiguous()

    def _end_of_launch(self, low: int, high: int) -> int:
        """Return the first epoch before `high` at which models are measured, or `high`."""
        if self._annealing is None:
            return high
        return next((epoch + 1 for epoch in range(low, high) if self._annealing.is_due(epoch)), high)


def why_not_fused(training: TrainingFacts) -> str | None:
    """Return the reason why one kernel does not support a training run, or None."""
    spec, network, rows = training.spec, training.network, training.rows
    if not runs_on(training.device) or torch.version.hip is not None:
        return "It runs on CUDA devices, with Triton installed."
    if (reason := why_not_usual(training)) is not None:
        return reason
    if not training.cost.is_distance:
        return "It supports pairwise_sq_euclidean and pairwise_l1."
    if not is_plain_adam(spec.optimizer):
        return "It supports Adam."
    if training.held_out is not None and not (training.watches_loss or training.watches_distortion):
        return "It supports the monitors hard_distortion and current_loss."
    for each in (rows,) if training.held_out is None else (rows, training.held_out):
        if each.n_features is None or each.n_dims is None or each.n_targets != 1 or each.has_mask:
            return "It supports inputs that are vectors, and one vector as the target of each."
        if each.n_rows * max(each.n_features, each.n_dims) >= 2**31:  # offsets are 32-bit integers
            return "It supports sets of fewer than 2**31 numbers."
        if not (each.is_single and training.is_single):
            return "It supports float32."
    if network is None or not network.takes(rows, (rows.n_dims,)) or len(network.sizes) != 3 or network.has_scales:
        return "It supports MultiHypothesisMLP with one hidden layer and ReLU, without scales or frozen parameters."
    if (network.dropout or 0.0) >= 1:
        return "It supports a dropout below 1."
    sizes = *network.sizes[:2], math.prod(_outputs(network))
    if any(size > most for size, most in zip(sizes, (_MAX_FEATURES, _MAX_HIDDEN, _MAX_OUTPUTS), strict=True)):
        return f"It supports up to {_MAX_FEATURES} inputs, {_MAX_HIDDEN} hidden units and about {_MAX_OUTPUTS} outputs."
    return None


@functools.cache
def _compiled_once(constants: frozenset[tuple[str, Any]]) -> threading.Lock:
    """Return the lock of a kernel: without it, threads that need the kernel at the same time would all compile it."""
    return threading.Lock()


def _outputs(network: NetworkFacts) -> tuple[int, int]:
    """Return the number of groups (one per coordinate, one for scores) and columns per group, 16 or more in total."""
    groups = _power_of_2(network.event[0] + 1)
    return groups, max(_power_of_2(network.n_hypotheses), 16 // groups)


def _constants(network: NetworkFacts) -> dict[str, Any]:
    """Return the compile-time constants of the kernel."""
    n_features, n_hidden, _ = network.sizes
    (groups, columns), hidden = _outputs(network), max(16, _power_of_2(n_hidden + 1))
    return {
        "FEATURES": max(16, _power_of_2(n_features + 1)),
        "HIDDEN": hidden,
        "GROUPS": groups,
        "COLUMNS": columns,
        # The fastest among 32, 64 and 128 rows with 4 and 8 warps, on an H200.
        "ROWS": 64 if hidden <= 64 else 128,
        "num_warps": 4 if hidden <= 64 else 8,
        "num_stages": 1,  # prefetching rows costs more in registers than it gains
    }


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
