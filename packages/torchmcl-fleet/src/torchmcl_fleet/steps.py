"""Properties of a training run that determine the backend, and the reference step.

The facts (cost, network, rows, rules) are collected once: only this module interprets cost functions, modules and
monitors, and a backend compares the facts with its limits. The step is `mcl_step` on stacked models,
differentiated by autograd; backends override parts of it, see `torchmcl_fleet.backends`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmcl import (
    WTA,
    AssignmentRule,
    Batch,
    MixtureNLL,
    MultiHypothesisMLP,
    Predictions,
    SigmoidScores,
    StepOutput,
    dispatch,
    mcl_step,
    metrics,
    pairwise_cross_entropy,
)
from torchmcl.annealing.records import CostScale, cost_scale
from torchmcl.costs.declared import NormalMixtureFormula, NormFormula, cost_declaration
from torchmcl.scoring import ScoreObjective
from torchmcl_fleet.courses import RuleCourses
from torchmcl_fleet.data import EpochRows, FleetData
from torchmcl_fleet.models import StackedModules
from torchmcl_fleet.options import StepSpec, current_loss, hard_distortion
from torchmcl_fleet.placement import models_at_once
from torchmcl_fleet.stacked import fast_adam, has_global_hooks, is_feed_forward


class CostFacts(NamedTuple):
    """Properties of a cost function.

    Attributes:
        is_squared: the squared Euclidean distance.
        is_absolute: the sum of absolute differences.
        is_class_mixture: the log-loss of a mixture over classes.
        crps: weight of the CRPS in `MixtureNLLWithCRPS`; None for other costs.
        trains_scores: whether it trains the scores itself.
    """

    is_squared: bool
    is_absolute: bool
    is_class_mixture: bool
    crps: float | None
    trains_scores: bool

    @classmethod
    def of(cls, cost_fn: Callable[..., Tensor]) -> "CostFacts":
        """Return the properties of a cost function."""
        declared = cost_declaration(cost_fn)
        return cls(
            is_squared=declared.formula == NormFormula(order=2, power=2),
            is_absolute=declared.formula == NormFormula(order=1),
            is_class_mixture=cost_fn == MixtureNLL(pairwise_cross_entropy),
            crps=declared.formula.crps if isinstance(declared.formula, NormalMixtureFormula) else None,
            trains_scores="score_logits" in declared.needs,
        )

    @property
    def is_distance(self) -> bool:
        """Whether the cost is one of the distances implemented by backends."""
        return self.is_squared or self.is_absolute


@dataclass(frozen=True)
class NetworkFacts:
    """The shape of a `MultiHypothesisMLP` of linear layers and ReLUs with all parameters trained.

    Attributes:
        sizes: features of the inputs and of the outputs of each layer.
        n_hypotheses: of a row.
        event: shape of a hypothesis.
        has_scores: whether it returns score logits.
        detach_scores: whether gradients of the score loss stop at the last layer.
        has_scales: whether it returns scales.
        min_scale: the smallest scale.
        dropout: the dropout rate after each ReLU; None without such layers.
    """

    sizes: tuple[int, ...]
    n_hypotheses: int
    event: tuple[int, ...]
    has_scores: bool
    detach_scores: bool
    has_scales: bool
    min_scale: float
    dropout: float | None

    @classmethod
    def of(cls, module: nn.Module) -> "NetworkFacts | None":
        """Return the properties of a supported module, or None."""
        if type(module) is not MultiHypothesisMLP or has_global_hooks() or not is_feed_forward(module):
            return None
        head, trunk = module.head, module.trunk
        if head.output_activation is not None or type(trunk) is not nn.Sequential or type(head.linear) is not nn.Linear:
            return None
        kinds = [type(part) for part in trunk]
        layers = [part for part in module.modules() if type(part) is nn.Linear]
        if (
            not any(kinds == each * (len(kinds) // len(each)) for each in _HIDDEN_LAYERS)
            or any(layer.bias is None for layer in layers)
            or not all(parameter.requires_grad for parameter in module.parameters())
            or head.linear.out_features != sum(head.output_sizes)
            or not isinstance(head.scales, bool)
        ):
            return None
        _, n_scores, n_scales = head.output_sizes
        dropped = [part.p if part.training else 0.0 for part in trunk if isinstance(part, nn.Dropout)]
        return cls(
            sizes=(layers[0].in_features, *(layer.out_features for layer in layers)),
            n_hypotheses=head.n_hypotheses,
            event=tuple(head.event),
            has_scores=n_scores > 0,
            detach_scores=head.detach_scores,
            has_scales=n_scales > 0,
            min_scale=head.min_scale,
            dropout=dropped[0] if dropped else None,
        )

    def takes(self, rows: "RowFacts", event: tuple[int | None, ...]) -> bool:
        """Return whether the module accepts the inputs of rows and returns hypotheses of the required shape."""
        return (self.sizes[0], self.event) == (rows.n_features, event)


_HIDDEN_LAYERS = ([nn.Linear, nn.ReLU], [nn.Linear, nn.ReLU, nn.Dropout])


class RowFacts(NamedTuple):
    """Properties of the rows of a fleet.

    Attributes:
        n_rows: of the longest set.
        n_features: of vector inputs; None for others.
        n_targets: of a row.
        n_dims: of vector targets; None for others.
        are_classes: whether targets are ids.
        is_single: whether inputs and targets are float32.
        is_ragged: whether the sets differ in length.
        has_mask: whether some targets are padding.
        has_weights: whether rows are weighted.
        is_sampled: whether new rows are drawn for every epoch.
    """

    n_rows: int
    n_features: int | None
    n_targets: int
    n_dims: int | None
    are_classes: bool
    is_single: bool
    is_ragged: bool
    has_mask: bool
    has_weights: bool
    is_sampled: bool

    @classmethod
    def of(cls, data: FleetData) -> "RowFacts":
        """Return the properties of rows."""
        inputs, targets = data.inputs, data.targets
        return cls(
            n_rows=inputs.shape[1],
            n_features=inputs.shape[-1] if inputs.ndim == 3 else None,
            n_targets=targets.shape[2] if targets.ndim > 2 else 1,
            n_dims=targets.shape[-1] if targets.ndim == 4 else None,
            are_classes=targets.ndim == 3,
            is_single={inputs.dtype, targets.dtype} == {torch.float32},
            is_ragged=data.is_ragged,
            has_mask=data.mask is not None,
            has_weights=data.weights is not None,
            is_sampled=data.source is not None,
        )


@dataclass(frozen=True)
class TrainingFacts:
    """All properties that determine which backends support a training run.

    Attributes:
        device: of the training.
        spec: cost, loss, scores, monitor and optimizer.
        cost: the matched cost.
        network: the models; None if they are not ReLU networks.
        is_single: whether the models are float32.
        rows: to train on.
        held_out: rows to evaluate on.
        per_target_rules: whether all rules are WTA, RelaxedWTA or AnnealedWTA.
        checks_values: whether `debug_checks` is on.
        watches_loss: whether the monitor is `current_loss`.
        watches_distortion: whether the monitor is `hard_distortion`.
    """

    device: torch.device
    spec: StepSpec
    cost: CostFacts
    network: NetworkFacts | None
    is_single: bool
    rows: RowFacts
    held_out: RowFacts | None
    per_target_rules: bool
    checks_values: bool
    watches_loss: bool
    watches_distortion: bool

    @classmethod
    def of(
        cls,
        models: StackedModules,
        data: FleetData,
        held_out: FleetData | None,
        spec: StepSpec,
        *,
        device: torch.device,
        per_target_rules: bool,
    ) -> "TrainingFacts":
        """Return the properties of a training run."""
        return cls(
            device=device,
            spec=spec,
            cost=CostFacts.of(spec.cost_fn),
            network=NetworkFacts.of(models.template),
            is_single=models.flat.dtype == torch.float32,
            rows=RowFacts.of(data),
            held_out=None if held_out is None else RowFacts.of(held_out),
            per_target_rules=per_target_rules,
            checks_values=dispatch.debug_checks_enabled(),
            watches_loss=spec.monitor is current_loss,
            watches_distortion=spec.monitor is hard_distortion,
        )


def why_not_usual(training: TrainingFacts) -> str | None:
    """Return why most backends do not support a training run (the first common reason), or None."""
    spec = training.spec
    if training.rows.is_sampled:
        return "It supports rows that are the same in all epochs."
    if not training.per_target_rules:
        return "It supports the rules WTA, RelaxedWTA and AnnealedWTA."
    if training.checks_values:
        return "It does not read values, which `debug_checks` requires."
    if spec.loss_fn not in (None, spec.cost_fn):
        return "It supports training runs whose matched and trained costs are equal."
    if spec.scores != SigmoidScores():
        return "It supports SigmoidScores() with labels of WTA()."
    return None


# For a measurement of the costs: a few hundred rows take 1 to 2 percent of the training time.
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
        optimizer: in the implementation of this backend.
    """

    gradient: Tensor

    def __init__(
        self, models: StackedModules, rows: EpochRows, validation: FleetData | None, facts: TrainingFacts
    ) -> None:
        self.models, self.rows, self.validation = models, rows, validation
        self.facts, self.spec = facts, facts.spec
        self.optimizer = fast_adam(self.spec.optimizer, models.flat)
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

        The first one measures on held-out rows if there are any, because a network can memorize few rows, and the
        second one then on training rows. Row positions are random, as rows may be sorted, and equal for all models.
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
                batch, _ = rows.rows(index)
                matching = mcl_step(
                    self.models, batch, WTA(), cost_fn=self.spec.cost_fn, score_weight=0, stacked=True
                ).matching
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
