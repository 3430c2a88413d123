"""Continuations in the transformers Trainer (the extra `language`)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchmcl._checks import check_positive_int
from torchmcl._optional import optional_import
from torchmcl.adapters.language import given_cost
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.course import RuleLike, check_rule_like
from torchmcl.loop import RuleScheduler
from torchmcl.rules.winners import WTA, AssignmentRule
from torchmcl.step import mcl_step
from torchmcl.types import Batch, StepOutput

transformers = optional_import("transformers", extra="language", needed_by="torchmcl.adapters.trainer")


class TrainerModel(nn.Module):
    """A model with the interface of `transformers.Trainer`: inputs with labels in, a dictionary with the loss out.

    Args:
        model: `Continuations`, or a `TwoPass` of them.
        **options: of `mcl_step`, such as `scores` and `score_weight`.

    Attributes:
        rule: the current rule; `RuleCallback` sets it.
        output: the last `StepOutput` of training, detached.
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options
        self.rule: AssignmentRule = WTA()
        self.output: StepOutput | None = None

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **others: Tensor
    ) -> dict[str, Tensor]:
        """Return the loss, and the cost of each hypothesis [batch, hypotheses]; hard winners in evaluation mode."""
        inputs: Any = {"input_ids": input_ids, "labels": labels, **others}
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask
        batch = Batch(inputs, labels.unsqueeze(1))
        rule = self.rule if self.training else WTA()
        output = mcl_step(self.model, batch, rule, cost_fn=given_cost, **self.options)
        if self.training:
            matching = output.matching._replace(cost=output.matching.cost.detach())
            self.output = StepOutput(
                output.loss.detach(), output.assignment_loss.detach(), None, matching, output.predictions
            )
        return {"loss": output.loss, "cost": output.matching.cost.squeeze(-2)}


class RuleCallback(transformers.TrainerCallback):  # type: ignore[name-defined]
    """Set the rule of a `TrainerModel` during training.

    Args:
        rule: an assignment rule, a function step -> rule, or `AutoAnnealing`.
        every: optimizer steps per step of the rule. `AutoAnnealing` decides at these times; give it 20 of them or more.

    Example:
        >>> from torchmcl import AnnealedWTA, Linear, annealed
        >>> RuleCallback(annealed(AnnealedWTA, temperature=Linear(1.0, 0.0, 100))).every
        1
    """

    def __init__(self, rule: RuleLike, every: int = 1) -> None:
        super().__init__()
        check_rule_like("RuleCallback", rule)
        check_positive_int("RuleCallback", "every", every)
        self.rule, self.every = rule, every
        self.scheduler: RuleScheduler | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Create the scheduler, with the number of steps of this training run."""
        optimizer = _inner(given["optimizer"], "optimizer")
        n_epochs = max(state.max_steps // self.every, 1)
        self.scheduler = RuleScheduler(self.rule, optimizer, n_epochs=n_epochs)
        self._set(given)

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Pass a part of an accumulated batch to the scheduler."""
        self._observe(given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Pass the batch to the scheduler, and advance it."""
        assert self.scheduler is not None
        self._observe(given["model"])
        if state.global_step % self.every == 0:
            self.scheduler.step()
            self._set(given)

    def _observe(self, model: Any) -> None:
        output = _trained(model).output
        if output is not None and self.scheduler is not None:
            self.scheduler.observe(output)

    def _set(self, given: Mapping[str, Any]) -> None:
        assert self.scheduler is not None
        _trained(given["model"]).rule = self.scheduler.rule
        schedule = _inner(given["lr_scheduler"], "scheduler")
        if isinstance(self.rule, AutoAnnealing) and hasattr(schedule, "base_lrs"):
            # The Trainer's schedule multiplies these after each step.
            schedule.base_lrs = [group["lr"] for group in schedule.optimizer.param_groups]


def _inner(wrapped: Any, attribute: str) -> Any:
    """Return the optimizer or schedule inside accelerate's wrapper."""
    return getattr(wrapped, attribute) if type(wrapped).__module__.startswith("accelerate.") else wrapped


def _trained(model: Any) -> TrainerModel:
    """Return the TrainerModel inside parallel wrappers."""
    return next(module for module in model.modules() if isinstance(module, TrainerModel))
