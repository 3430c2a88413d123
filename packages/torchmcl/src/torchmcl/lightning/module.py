"""A LightningModule around `mcl_step`: any model that returns Predictions, any cost, any rule."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.model import ModelAnnealing, RuleLike, check_rule_like, rule_at, rule_description
from torchmcl.checks import check_non_negative
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.errors import bad_value
from torchmcl.loop import CUDAGraphModel, FiniteGuard
from torchmcl.loop.finite import first_not_finite, largest_gradient, parts_of
from torchmcl.metrics import distortion
from torchmcl.optional import optional_import
from torchmcl.rules.winners import WTA, AssignmentRule
from torchmcl.schedules import Schedule
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.step import mcl_step
from torchmcl.types import Batch, Predictions, StepOutput, as_batch, inputs_of

__all__ = ["MCLModule"]

pl = optional_import("lightning.pytorch", extra="lightning", needed_by="torchmcl.lightning")

_SIGMOID_SCORES = SigmoidScores()


def _distortion(output: StepOutput) -> Tensor:
    return distortion(output.matching)


class MCLModule(pl.LightningModule):  # type: ignore[name-defined]
    """Train a model with multiple choice learning.

    The rule of an epoch, like everything else outside the weights, depends only on the epoch or on state in the
    checkpoint: a killed run resumes from its checkpoint with the same results. With several processes, the
    gradients are those of one process with the joint batch, even if the processes have different numbers of real
    targets.

    A loader may yield `Batch`, `(inputs, targets)`, `(inputs, targets, mask)` or a dictionary with these names, see
    `torchmcl.types.as_batch`; a single target per sample needs no target axis. `trainer.validate` and
    `trainer.test` log `metrics` as `val_<name>` and `test_<name>`; `trainer.predict` returns `Predictions`, from inputs
    with or without targets.

    Args:
        model: Module that takes `batch.inputs` and returns `Predictions`.
        rule: Assignment rule; a function epoch -> rule, for example from `annealed`; or `torchmcl.AutoAnnealing`,
            which sets the temperature and the tail of the learning rate from the observed costs, over the
            `max_epochs` or `max_steps` of the trainer, whichever ends first. It acts at the ends of epochs, so use ten
            or more: `limit_train_batches` makes them shorter. Its decisions are based on validation batches if there
            are any, and the weight decay of AdamW is raised where they show that the network overfits.
        cost_fn: Matched cost, any `pairwise_*` function.
        loss_fn: Trained cost, if it differs from the matched one, see `mcl_step`.
        scores: Objective of the scores, `SigmoidScores()` or `SoftmaxScores()`.
        score_weight: Weight of the score loss.
        learning_rate: Learning rate of Adam; or a schedule, epoch -> learning rate, for any optimizer.
        make_optimizer: Function parameters -> optimizer, instead of Adam.
        plateau: Function optimizer -> torch scheduler that lowers the learning rate when `monitor` does not improve,
            for example `functools.partial(ReduceLROnPlateau, factor=0.5, patience=4)`; None keeps the rate.
        monitor: Logged value that the plateau scheduler monitors.
        metrics: Functions of a `StepOutput` by name; each is logged as `val_<name>` and `test_<name>`, averaged over
            valid targets; the distortion by default. Validation and test steps use `WTA()`.
        cuda_graphs: Whether to replay, on a GPU, the training passes of the model as CUDA graphs, see
            `torchmcl.loop.CUDAGraphModel`; not with several processes.
        max_skipped: Maximum number of batches with a non-finite loss or gradient to skip, with a warning for each. The
            next one raises `torchmcl.loop.NonFiniteLossError`, before the weights are updated.
        seed: Seed that determines, with the epoch and the process, the order of a shuffled loader without its own
            generator, and the random numbers of dropout and similar layers. Torch's generators are restored after
            training.

    Example:
        >>> import torchmcl as mcl
        >>> from torchmcl.lightning import MCLModule
        >>> model = mcl.MultiHypothesisMLP(in_features=2, out_features=1, n_hypotheses=3)
        >>> rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 10))
        >>> MCLModule(model, rule).rule_at(epoch=5)
        AnnealedWTA(temperature=0.5)
    """

    def __init__(
        self,
        model: Callable[..., Predictions],
        rule: RuleLike,
        *,
        cost_fn: Callable[..., Tensor] = pairwise_sq_euclidean,
        loss_fn: Callable[..., Tensor] | None = None,
        scores: ScoreObjective = _SIGMOID_SCORES,
        score_weight: float = 1.0,
        learning_rate: float | Schedule = 1e-3,
        make_optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        plateau: Callable[[torch.optim.Optimizer], ReduceLROnPlateau] | None = None,
        monitor: str = "val_distortion",
        metrics: Mapping[str, Callable[[StepOutput], Tensor]] | None = None,
        cuda_graphs: bool = False,
        max_skipped: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(bad_value("MCLModule", "model", "be a torch.nn.Module", type(model).__name__))
        check_rule_like("MCLModule", rule)
        check_non_negative("MCLModule", "score_weight", score_weight)
        check_score_objective("MCLModule", scores)
        if not callable(learning_rate):
            check_non_negative("MCLModule", "learning_rate", learning_rate)
        elif plateau is not None:
            raise ValueError("MCLModule: `plateau` requires a constant `learning_rate`. Choose one of the two.")
        self.model = model
        self.rule = rule
        self.cost_fn = cost_fn
        self.loss_fn = loss_fn
        self.scores = scores
        self.score_weight = score_weight
        self.learning_rate = learning_rate
        self.make_optimizer = make_optimizer
        self.plateau = plateau
        self.monitor = monitor
        self._plateau: ReduceLROnPlateau | None = None
        self._plateau_state: dict[str, Any] = {}  # from a checkpoint, which may be loaded before the optimizer exists
        self.metrics = dict(metrics or {"distortion": _distortion})
        self.seed = seed
        self._first_epoch = 0
        self._graph_model = CUDAGraphModel(model) if cuda_graphs else None
        self._guard = FiniteGuard(model.parameters(), max_skipped=max_skipped)
        self._waiting: list[tuple[int, StepOutput, Batch]] = []  # until the optimizer step
        self.annealing = ModelAnnealing(rule, model) if isinstance(rule, AutoAnnealing) else None
        sets_rate = isinstance(rule, AutoAnnealing) and bool(rule.rate)
        if sets_rate and (plateau is not None or callable(learning_rate)):
            message = "`AutoAnnealing` requires a constant `learning_rate` and no `plateau`, because it sets the rate."
            raise ValueError(f"MCLModule: {message} To use yours, pass AutoAnnealing(rate=False).")

    def rule_at(self, epoch: float) -> AssignmentRule:
        """Return the rule of an epoch; AutoAnnealing also accepts fractions of epochs."""
        if isinstance(self.rule, AutoAnnealing):
            assert self.annealing is not None
            return self.annealing.rule(epoch, self._n_epochs())
        return rule_at(self.rule, epoch)

    @property
    def phase(self) -> str:
        """Description of what happens in the current epoch under `AutoAnnealing`; the rule itself otherwise."""
        if self.annealing is None:
            return repr(self.rule_at(self.current_epoch))
        if self._trainer is None and (ended := int(self.annealing.state["seen"])):  # from a checkpoint
            return f"not in training: {ended} epochs have ended"
        return self.annealing.phase(self.current_epoch, self._n_epochs())

    def _n_epochs(self) -> float:
        """Return the number of epochs of the training run, fractional if `max_steps` ends it within an epoch.

        Raises:
            ValueError: If it is unknown.
        """
        trainer = self._trainer
        if trainer is None:
            return 1.0
        n_epochs = math.inf if trainer.max_epochs in (None, -1) else float(trainer.max_epochs)
        if trainer.max_steps != -1 and trainer.num_training_batches:
            n_epochs = min(n_epochs, trainer.max_steps / self._steps_of_an_epoch())
        if math.isinf(n_epochs):
            advice = "They are arguments of the Trainer."
            raise ValueError(f"MCLModule: `AutoAnnealing` requires `max_epochs` or `max_steps`. {advice}")
        return n_epochs

    def _steps_of_an_epoch(self) -> int:
        n_batches = self.trainer.num_training_batches
        if math.isinf(n_batches):
            message = "`max_steps` requires `limit_train_batches` for a loader without a length."
            advice = "It is the number of batches in an epoch of AutoAnnealing."
            raise ValueError(f"MCLModule: {message} {advice}")
        return math.ceil(n_batches / self.trainer.accumulate_grad_batches)

    def forward(self, inputs: Tensor) -> Predictions:
        """Return the predictions of the model."""
        return self.model(inputs)

    def step(self, batch: Batch, rule: AssignmentRule) -> StepOutput:
        """Return the result of `mcl_step` with this module's model and cost."""
        # Hooks synchronize gradients between processes, and a CUDA graph would not call them.
        graph_model = self._graph_model if self._is_alone() else None
        return mcl_step(
            graph_model or self.model,
            batch,
            rule,
            cost_fn=self.cost_fn,
            loss_fn=self.loss_fn,
            scores=self.scores,
            score_weight=self.score_weight,
        )

    def training_step(self, batch: Any, index: int) -> Tensor:
        """Return the loss of a batch."""
        batch = as_batch(batch)
        epoch: float = self.current_epoch
        if self.annealing is not None and self._trainer is not None:  # the temperature also falls within an epoch
            epoch += index / max(float(self.trainer.num_training_batches), index + 1)
        output = self.step(batch, self.rule_at(epoch))
        loss = self._joint_loss(output)
        self._waiting.append((index, output, batch))
        if self._guard.max_skipped and self._is_alone() and not bool(loss.isfinite()):
            return loss  # will be skipped, and must affect neither the annealing nor the epoch mean
        if self.annealing is not None:
            self.annealing.observe(output, epoch, self._n_epochs())
        when = {"on_step": True, "on_epoch": True, "prog_bar": True, "sync_dist": True}
        self.log("train_loss", loss.detach(), batch_size=output.matching.mask.numel(), **when)
        return loss

    def validation_step(self, batch: Any, index: int) -> StepOutput:
        """Log the metrics of a batch, and return the step for the callbacks."""
        output = self._evaluated(batch, "val")
        if self.annealing is not None and self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.annealing.observe(output, self.current_epoch, self._n_epochs(), held_out=True)
        return output

    def test_step(self, batch: Any, index: int) -> StepOutput:
        """Log the metrics of a batch, and return the step for the callbacks."""
        return self._evaluated(batch, "test")

    def predict_step(self, batch: Any, index: int) -> Predictions:
        """Return the predictions for a batch of inputs, with or without targets."""
        return self(inputs_of(batch))

    def _evaluated(self, batch: Any, stage: str) -> StepOutput:
        output = self.step(as_batch(batch), WTA())
        n_real = int(output.matching.mask.sum())
        for name, metric in self.metrics.items():
            # The mean of no values is NaN, and stays NaN even with a weight of 0.
            value = metric(output) if n_real else torch.zeros((), device=self.device)
            self.log(f"{stage}_{name}", value, prog_bar=True, on_epoch=True, batch_size=n_real, sync_dist=True)
        return output

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the loss and the gradient before they reach the weights.

        Raises:
            NonFiniteLossError: If they are not finite, and no more batches may be skipped.
        """
        waiting, self._waiting = self._waiting, []
        losses = [output.loss.detach().float() for _, output, _ in waiting]
        if self.trainer.precision != "16-mixed":  # whose scaler encounters infinities while it adjusts its scale
            losses.append(largest_gradient(self._guard.parameters).to(self.device))
        bad = ~torch.stack(losses).isfinite().all()
        if not self._is_alone():  # all processes skip the batch, or none
            bad = self.trainer.strategy.reduce(bad.float(), reduce_op="sum") > 0
        if not bool(bad):
            return
        index, output, batch = next((entry for entry in waiting if not bool(entry[1].loss.isfinite())), waiting[-1])
        cause = first_not_finite(parts_of(output, batch, self._guard.parameters))
        place = f"batch {index} of epoch {self.current_epoch}"
        self._guard.skip(place, float(output.loss.detach()), cause)
        if self.trainer.precision != "16-mixed":  # whose scaler skips the step anyway
            for parameter in self._guard.parameters:
                parameter.grad = None

    def _is_alone(self) -> bool:
        return self._trainer is None or self.trainer.world_size == 1

    def _joint_loss(self, output: StepOutput) -> Tensor:
        """Return a loss whose mean over the processes is the loss of the joint batch."""
        n_processes = self.trainer.world_size if self._trainer is not None else 1
        if n_processes == 1:
            return output.loss
        mask = output.matching.mask
        counts = torch.stack([mask.sum(), mask.any(dim=-1).sum()]).to(torch.float32)
        total = self.trainer.strategy.reduce(counts.clone(), reduce_op="sum")
        weights = n_processes * counts / total.clamp_min(1)
        loss = weights[0] * output.assignment_loss
        return loss if output.score_loss is None else loss + self.score_weight * weights[1] * output.score_loss

    # The optimizer, and the state saved besides the weights

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam, or the result of `make_optimizer`."""
        self._guard.parameters = list(self.model.parameters())
        parameters = [parameter for parameter in self._guard.parameters if parameter.requires_grad]
        if self.make_optimizer is not None:
            return self.make_optimizer(parameters)
        rate = self.learning_rate
        return torch.optim.Adam(parameters, lr=float(rate(0)) if callable(rate) else rate)

    def on_train_start(self) -> None:
        """Create the plateau scheduler of the optimizer, and restore its state from the checkpoint."""
        if self.plateau is not None:
            self._plateau = self.plateau(self.trainer.optimizers[0])
            self._plateau.load_state_dict(self._plateau_state)

    def on_train_epoch_start(self) -> None:
        """Seed the order of the rows, and set the learning rate if it is scheduled or set during training."""
        self._seed(self.current_epoch)
        loop = self.trainer.fit_loop
        if self.current_epoch == 0 or getattr(loop, "is_resuming", False) or loop.epoch_loop.restarting:
            torch.empty((), dtype=torch.int64).random_()  # as drawn by the start of the loader, here before this hook
        if isinstance(self.rule, AutoAnnealing) and self.current_epoch == 0:
            assert self.annealing is not None
            if float(self.annealing.state["seen"]) > 0:  # epochs of an earlier training run
                self.annealing = ModelAnnealing(self.rule, self.model)
        for optimizer in self.trainer.optimizers:
            if self.annealing is not None:
                self.annealing.to(self.device)
                if self.current_epoch == 0:
                    self.annealing.begin(optimizer)
                self.annealing.set_rates(optimizer, self.current_epoch, self._n_epochs())
            if callable(self.learning_rate):
                for group in optimizer.param_groups:
                    group["lr"] = float(self.learning_rate(self.current_epoch))

    def on_fit_start(self) -> None:
        """Save the state of torch's generators, which each epoch seeds, and seed the first one."""
        # Not `fork_rng`: after an exception it would restore them at garbage collection, at an arbitrary time.
        self._generators = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        # Lightning may start the loader of the first epoch, and only of that one, before `on_train_epoch_start`.
        self._seed(max(self._first_epoch, self.current_epoch))
        self._first_epoch = 0

    def on_fit_end(self) -> None:
        """Restore the state of torch's generators from before the training run."""
        torch.set_rng_state(self._generators[0])
        for device, state in enumerate(self._generators[1]):
            torch.cuda.set_rng_state(state, device)

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        """Seed the random numbers of an epoch, for dropout and similar layers; end the previous epoch if necessary.

        If a checkpoint was written after the last step of an epoch, Lightning resumes without ending that epoch.
        """
        if index > 0:
            return
        self._seed(self.current_epoch)
        if self.annealing is not None and float(self.annealing.state["seen"]) < self.current_epoch:
            self.annealing.to(self.device)
            for optimizer in self.trainer.optimizers:
                self.annealing.end_epoch(optimizer, self.current_epoch, self._n_epochs())
                self.annealing.set_rates(optimizer, self.current_epoch, self._n_epochs())

    def _seed(self, epoch: int) -> None:
        key = np.random.SeedSequence((self.seed, epoch, self.global_rank))
        torch.manual_seed(int(key.generate_state(1)[0]))

    def on_train_epoch_end(self) -> None:
        """End the epoch of AutoAnnealing, or step the plateau scheduler.

        Lightning steps schedulers after it has written the checkpoint of an epoch, and skips that step when it resumes.
        """
        if self.annealing is not None:
            for optimizer in self.trainer.optimizers:
                self.annealing.end_epoch(optimizer, self.current_epoch + 1, self._n_epochs())
        if self._plateau is None:
            return
        value = self.trainer.callback_metrics.get(self.monitor)
        if value is None:
            known = sorted(name for name in self.trainer.callback_metrics if name.startswith("val_"))
            raise ValueError(bad_value("MCLModule", "monitor", f"be one of {known}", self.monitor))
        self._plateau.step(float(value))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state that neither the weights nor the optimizer contain."""
        checkpoint["torchmcl"] = {
            "epoch": self.current_epoch,
            "rule": rule_description(self.rule, self.current_epoch),
            "annealing": None if self.annealing is None else self.annealing.state_dict(),
            "plateau": None if self._plateau is None else self._plateau.state_dict(),
            "n_skipped": self._guard.n_skipped,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state saved by `on_save_checkpoint`.

        Raises:
            ValueError: If the checkpoint is from a training run under a different rule.
        """
        state = checkpoint.get("torchmcl")
        if state is None:
            return
        if "loops" in checkpoint:  # not only weights
            self._first_epoch = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        if state["rule"] != (described := rule_description(self.rule, state["epoch"])):
            demand = f"have been saved under the same rule, {described}"
            raise ValueError(bad_value("MCLModule", "checkpoint", demand, state["rule"], "Start in another folder."))
        self._guard.n_skipped = state["n_skipped"]
        if self.annealing is not None:
            self.annealing.load_state_dict(state["annealing"])
        self._plateau_state = state["plateau"] or {}
