"""A step and the metrics of a fleet by their definition: `mcl_step` on stacked models, differentiated by autograd.

Backends override parts of it, see `torchmcl.fleet.backends`.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl.annealing.auto import CostScale, cost_scale
from torchmcl.fleet.courses import RuleCourses
from torchmcl.fleet.data import EpochRows, FleetData
from torchmcl.fleet.eligibility import TrainingFacts
from torchmcl.fleet.models import StackedModules
from torchmcl.fleet.placement import models_at_once
from torchmcl.rules.winners import WTA, AssignmentRule
from torchmcl.scoring import ScoreObjective
from torchmcl.step import mcl_step
from torchmcl.types import Batch, Matching, Predictions, StepOutput

__all__ = ["AutogradStep", "evaluate_models"]

# For a measurement of the costs: some hundred rows take a percent or two of the time of a training.
_N_MEASURED_ROWS = 256


class AutogradStep:
    """Losses and gradients of stacked models by `mcl_step` and autograd.

    Args:
        models: to train.
        rows: to train on, batch by batch.
        validation: rows to evaluate on.
        facts: of the training, with the definition of a step.

    Attributes:
        gradient: [models, parameters], of the last batch.
        optimizer: as this backend computes it.
    """

    gradient: Tensor

    def __init__(
        self, models: StackedModules, rows: EpochRows, validation: FleetData | None, facts: TrainingFacts
    ) -> None:
        self.models, self.rows, self.validation = models, rows, validation
        self.facts, self.spec = facts, facts.spec
        self.optimizer = self.spec.optimizer
        self._subsets: dict[tuple[int, int], StackedModules] = {}

    def __call__(self, courses: RuleCourses, batch: slice) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`."""
        output = self._output(self.models, *self.rows.batch(batch), courses.rule())
        self.gradient = self.models.gradient(output.loss.sum())
        return output.loss.detach()

    def epoch(
        self, courses: RuleCourses, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None, active: Tensor
    ) -> Tensor | None:
        """Train on all batches of an epoch at once if the backend supports it, otherwise return None."""
        return None

    @torch.no_grad()
    def evaluate(self, courses: RuleCourses, models: slice) -> Tensor:
        """Return the monitored value of a slice of the models on the validation rows."""
        stacked = self._subset(models)
        batch = Batch(*(None if part is None else part[models] for part in self._held_out_batch))  # type: ignore[arg-type]
        with stacked.evaluating():
            return self.spec.monitor(self._output(stacked, batch, None, courses.rule(models)))

    def measurements(self) -> tuple[Callable[[], CostScale], Callable[[], CostScale] | None]:
        """Return functions that measure the costs of the models.

        The first one measures on held-out rows where there are any, as a network memorizes few rows, and the second
        one then on rows that are trained on. The same places for all models, drawn, as rows may be sorted.
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

    def _cost_scale_of(self, rows: FleetData) -> Callable[[], CostScale]:
        places = torch.rand(_N_MEASURED_ROWS, generator=torch.Generator().manual_seed(0)).to(rows.inputs.device)
        return self.cost_scale_on(rows, (places * rows.lengths.unsqueeze(-1)).long())

    def cost_scale_on(self, rows: FleetData, index: Tensor) -> Callable[[], CostScale]:
        """Return a function that measures the costs of the models on the rows `index` [models, rows]."""

        @torch.no_grad()
        def measure() -> CostScale:
            with self.models.evaluating():
                matching = _matched(self.models, rows.rows(index)[0], self.spec.cost_fn)
            return cost_scale(matching, stacked=True)

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
        given = events if logits is None else (*events, logits)
        parts.append(
            {
                "distortion": torch.vmap(metrics.distortion)(matching).cpu(),
                "rmse": torch.vmap(rmse)(*given).cpu(),
                "usage": torch.vmap(metrics.hypothesis_usage)(matching).cpu(),
            }
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _matched(models: StackedModules, batch: Batch, cost_fn: Callable[..., Tensor]) -> Matching:
    """Return the cost of a batch [models, rows, ...] under winner-takes-all."""
    return mcl_step(models, batch, WTA(), cost_fn=cost_fn, score_weight=0, stacked=True).matching
