"""Scheduler of assignment rules for training loops, like `torch.optim.lr_scheduler` for learning rates."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.annealing.driver import AnnealingEvent
from torchmcl.annealing.model import (
    ModelAnnealing,
    RuleLike,
    check_optimizer_of,
    check_rule_like,
    rule_at,
    rule_description,
)
from torchmcl.checks import check_positive_int
from torchmcl.errors import bad_value
from torchmcl.rules.winners import AssignmentRule
from torchmcl.types import StepOutput

__all__ = ["RuleScheduler"]


class RuleScheduler:
    """Scheduler of the assignment rule of a training loop.

    An assignment rule remains constant, a function is called with the number of calls of `step`, and `AutoAnnealing`
    depends on the batches passed to `observe`. `AutoAnnealing` also sets the learning rate of `optimizer` for the next
    epoch, relative to its initial value; it falls to 0 at the end. If held-out batches are observed, they decide, and
    the weight decay of AdamW is raised where they show that the network overfits; the number of rows is counted in the
    first epoch. Calls of `step` may reset `model` to its initial
    weights early in the training, and change the hypotheses of its head. On a GPU, only a few numbers are read on the
    host in each call of `step`. With `torch.distributed`, all processes make the same decisions.

    Args:
        rule: Assignment rule, function step -> rule such as those of `annealed`, or `AutoAnnealing`.
        optimizer: Optimizer whose learning rate `AutoAnnealing` sets; other rules do not need it.
        model: Model that is trained. `AutoAnnealing` holds, and moves hypotheses, if the model ends in a
            `MultiHypothesisHead`; without a model, cooling begins with the first batch.
        n_epochs: Number of calls of `step`, required by `AutoAnnealing`. An epoch may be any part of a run; with ten
            or more, the policy can decide whether to hold.
        n_optimizer_steps: Number of optimizer steps in the whole training. If given, `AutoAnnealing` also lowers the
            rate of a long training run, as in a fleet.

    Raises:
        TypeError: If `rule` has another type.
        ValueError: If `AutoAnnealing` lacks `optimizer` or `n_epochs`, or the optimizer trains another model.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=2, hidden=(8,))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> scheduler = RuleScheduler(mcl.AutoAnnealing(), optimizer, model=model, n_epochs=20)
        >>> for epoch in range(20):
        ...     for batch in [mcl.Batch(torch.rand(8, 1), torch.rand(8, 1, 1))] * 3:
        ...         output = mcl.mcl_step(model, batch, scheduler.rule)
        ...         optimizer.zero_grad()
        ...         output.loss.backward()
        ...         optimizer.step()
        ...         scheduler.observe(output)
        ...     scheduler.step()
        >>> print(scheduler.rule, optimizer.param_groups[0]["lr"])
        AnnealedWTA(temperature=tensor(0.)) 0.0
        >>> scheduler.phase
        'winner-takes-all: the learning rate is at 0 %'
    """

    def __init__(
        self,
        rule: RuleLike,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        model: nn.Module | None = None,
        n_epochs: int | None = None,
        n_optimizer_steps: int | None = None,
    ) -> None:
        check_rule_like("RuleScheduler", rule)
        for name, number in {"n_epochs": n_epochs, "n_optimizer_steps": n_optimizer_steps}.items():
            if number is not None:
                check_positive_int("RuleScheduler", name, number)
        self.n_steps = 0  # calls of `step`
        self._rule = rule
        self._automatic: _Automatic | None = None
        if isinstance(rule, AutoAnnealing):
            if optimizer is None or n_epochs is None:
                name = "optimizer" if optimizer is None else "n_epochs"
                advice = "For example RuleScheduler(AutoAnnealing(), optimizer, model=model, n_epochs=100)."
                raise ValueError(f"RuleScheduler: `AutoAnnealing` requires `{name}`. {advice}")
            if model is not None:
                check_optimizer_of("RuleScheduler", optimizer, model)
            annealing = ModelAnnealing(rule, model, n_steps=n_optimizer_steps or 0)
            self._automatic = _Automatic(annealing, optimizer, n_epochs)
            self._automatic.annealing.begin(optimizer)
            self._automatic.set_rates(0)

    @property
    def rule(self) -> AssignmentRule:
        """Assignment rule of the current step."""
        if self._automatic is not None:
            return self._automatic.annealing.rule(self.n_steps, self._automatic.n_epochs)
        assert not isinstance(self._rule, AutoAnnealing)
        return rule_at(self._rule, self.n_steps)

    @property
    def events(self) -> tuple[AnnealingEvent, ...]:
        """Changes of the model by `AutoAnnealing` so far: rewinds, separations and moves."""
        return () if self._automatic is None else tuple(self._automatic.annealing.events)

    @property
    def phase(self) -> str:
        """Description of what happens in the current epoch under `AutoAnnealing`; the rule itself otherwise."""
        auto = self._automatic
        return repr(self.rule) if auto is None else auto.annealing.phase(self.n_steps, auto.n_epochs)

    def observe(self, output: StepOutput, *, held_out: bool = False) -> None:
        """Pass a batch to `AutoAnnealing` after its training step; other rules ignore it.

        Args:
            output: Result of `mcl_step`.
            held_out: Whether the batch was held out from training.

        Raises:
            ValueError: If `n_epochs` epochs have ended, after which `AutoAnnealing` leaves a learning rate of 0.
        """
        if self._automatic is not None:
            n_epochs = self._automatic.n_epochs
            if self.n_steps >= n_epochs:
                advice = "The learning rate is 0 after it."
                raise ValueError(bad_value("RuleScheduler", "n_epochs", "be the length of the run", n_epochs, advice))
            self._automatic.annealing.observe(output, self.n_steps, n_epochs, held_out=held_out)

    def step(self) -> None:
        """Advance to the next step, which with `AutoAnnealing` is an epoch.

        Raises:
            RuntimeError: If `AutoAnnealing` has not observed a batch.
        """
        auto = self._automatic
        if auto is not None and not auto.annealing.has_observed:
            raise RuntimeError("RuleScheduler: AutoAnnealing has no data. Call `observe(output)` after each batch.")
        self.n_steps += 1
        if auto is not None:
            auto.annealing.end_epoch(auto.optimizer, self.n_steps, auto.n_epochs)
            auto.set_rates(self.n_steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resumption; save the state of the optimizer too."""
        annealing = None if self._automatic is None else self._automatic.annealing.state_dict()
        return {"n_steps": self.n_steps, "rule": rule_description(self._rule, self.n_steps), "annealing": annealing}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, after the state of the optimizer is loaded.

        Raises:
            ValueError: If it is not the state of a scheduler, or was saved under a different rule.
        """
        if set(state) != {"n_steps", "rule", "annealing"}:
            rule = "have the keys ['annealing', 'n_steps', 'rule']"
            raise ValueError(bad_value("RuleScheduler", "state", rule, sorted(state)))
        n_steps = state["n_steps"]
        if isinstance(n_steps, bool) or not isinstance(n_steps, int) or n_steps < 0:
            raise ValueError(bad_value("RuleScheduler", "state", "have an integer n_steps >= 0", repr(n_steps)))
        if state["rule"] != (described := rule_description(self._rule, n_steps)):
            rule = f"have been saved under the same rule, {described}"
            raise ValueError(bad_value("RuleScheduler", "state", rule, state["rule"]))
        if self._automatic is not None:
            self._automatic.annealing.load_state_dict(state["annealing"])
            self._automatic.set_rates(n_steps)
        self.n_steps = n_steps


class _Automatic(NamedTuple):
    """Attributes of a training run with `AutoAnnealing`."""

    annealing: ModelAnnealing
    optimizer: torch.optim.Optimizer
    n_epochs: int

    def set_rates(self, epoch: int) -> None:
        """Set the learning rate of the next epoch."""
        self.annealing.to(self.optimizer.param_groups[0]["params"][0].device)
        self.annealing.set_rates(self.optimizer, epoch, self.n_epochs)
