"""The reference step of all backends: `mcl_step` on stacked models, differentiated by autograd.

Backends override parts of it, see `torchmcl_fleet.backends`.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from torchmcl import WTA, AssignmentRule, Batch, SigmoidScores, StepOutput, annealing, mcl_step
from torchmcl_fleet.modules.optimizers import fast_adam
from torchmcl_fleet.modules.stacked import StackedModules
from torchmcl_fleet.plan import RulePlan
from torchmcl_fleet.problem import EpochRows, FleetData, TrainingProblem

__all__ = ["AutogradStep", "why_not_usual"]


def why_not_usual(training: TrainingProblem) -> str | None:
    """Return the first reason, common to several backends, why a training run is not supported, or None."""
    spec = training.spec
    if training.rows.is_sampled:
        return "It requires the same rows in all epochs."
    if not training.per_target_rules:
        return "It supports the rules WTA, RelaxedWTA and AnnealedWTA."
    if training.checks_values:
        return "It does not support `debug_checks`."
    if spec.loss_fn not in (None, spec.cost_fn):
        return "It requires equal costs for matching and training."
    if spec.scores != SigmoidScores():
        return "It supports SigmoidScores() with labels of WTA()."
    return None


class AutogradStep:
    """Losses and gradients of stacked models by `mcl_step` and autograd.

    Args:
        models: Models to train.
        rows: Training rows, split into batches.
        validation: Validation rows.
        problem: Training run, with the definition of a step.

    Attributes:
        gradient: Gradient of the last batch, [models, parameters].
        optimizer: Optimizer in the implementation of this backend.
    """

    gradient: Tensor

    def __init__(
        self, models: StackedModules, rows: EpochRows, validation: FleetData | None, problem: TrainingProblem
    ) -> None:
        self.models, self.rows, self.validation = models, rows, validation
        self.problem, self.spec = problem, problem.spec
        self.optimizer = fast_adam(self.spec.optimizer, models.flat)
        self._subsets: dict[tuple[int, int], StackedModules] = {}

    def __call__(self, rules: RulePlan, batch: slice) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`."""
        output = self._output(self.models, *self.rows.batch(batch), rules.rule())
        self.gradient = self.models.gradient(output.loss.sum())
        return output.loss.detach()

    def epoch(
        self, rules: RulePlan, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None, active: Tensor
    ) -> Tensor | None:
        """Train on all batches of an epoch at once if the backend supports it, otherwise return None."""
        return None

    @torch.no_grad()
    def evaluate(self, rules: RulePlan, models: slice) -> Tensor:
        """Return the monitored value of a slice of the models on the validation rows."""
        stacked = self._subset(models)
        batch = Batch(*(None if part is None else part[models] for part in self._held_out_batch))  # type: ignore[arg-type]
        with stacked.evaluating():
            return self.spec.monitor(self._output(stacked, batch, None, rules.rule(models)))

    def measurements(self) -> tuple[Callable[[], annealing.CostScale], Callable[[], annealing.CostScale] | None]:
        """Return functions that measure the costs of the models.

        The first function uses held-out rows if there are any, because a network can memorize a small training set; the
        second one then uses training rows. Row positions are random, as rows may be sorted, and equal for all models.
        """
        trained = self._cost_scale_of(self.rows.data)
        return (trained, None) if self.validation is None else (self._cost_scale_of(self.validation), trained)

    def hypotheses_shape(self) -> torch.Size:
        """Return the shape of the hypotheses of a row, [hypotheses, ...]."""
        batch, _ = self.rows.data.rows(
            torch.zeros(len(self.models), 1, dtype=torch.long, device=self.models.flat.device)
        )
        with torch.no_grad(), self.models.evaluating():
            return self.models(batch.inputs).hypotheses.shape[2:]

    def _cost_scale_of(self, rows: FleetData) -> Callable[[], annealing.CostScale]:
        n_rows = annealing.AnnealingDriver.n_samples
        places = torch.rand(n_rows, generator=torch.Generator().manual_seed(0)).to(rows.inputs.device)
        return self.cost_scale_on(rows, (places * rows.lengths.unsqueeze(-1)).long())

    def cost_scale_on(self, rows: FleetData, index: Tensor) -> Callable[[], annealing.CostScale]:
        """Return a function that measures the costs of the models on the rows `index` [models, rows]."""

        @torch.no_grad()
        def measure() -> annealing.CostScale:
            with self.models.evaluating():
                batch, _ = rows.rows(index)
                matching = mcl_step(
                    self.models, batch, WTA(), cost_fn=self.spec.cost_fn, score_weight=0, stacked=True
                ).matching
            return annealing.cost_scale(matching, stacked=True)

        return measure

    @cached_property
    def _held_out_batch(self) -> Batch:
        assert self.validation is not None
        return self.validation.batch()

    def _output(self, models: StackedModules, batch: Batch, weights: Tensor | None, rule: AssignmentRule) -> StepOutput:
        return mcl_step(
            models,
            batch,
            rule,
            cost_fn=self.spec.cost_fn,
            loss_fn=self.spec.loss_fn,
            scores=self.spec.scores,
            score_weight=self.spec.score_weight,
            stacked=True,
            sample_weights=weights,
        )

    def _subset(self, models: slice) -> StackedModules:
        if (models.start, models.stop) == (0, len(self.models)):
            return self.models
        key = (models.start, models.stop)
        if key not in self._subsets:
            self._subsets[key] = self.models.subset(models, self.models.flat.device)
        return self._subsets[key]
