"""How a step of a fleet is computed: the definition, and the compiled code that serves small networks on CPUs.

`AutogradStep` is the definition: `mcl_step` on stacked models, differentiated by autograd. `CompiledStep` computes the
same in C. On GPUs epochs of the definition are captured as graphs (`torchmcl.accel.captured`). The choice is made
once, by `choose_backend` in `choice.py`; `class_steps.py` has the step of classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from torchmcl._checks import debug_checks_enabled
from torchmcl.accel.native import compiled
from torchmcl.annealing.auto import CostScale, cost_scale
from torchmcl.costs import MixtureNLLWithCRPS, pairwise_l1, pairwise_sq_euclidean
from torchmcl.fleet.batches import BatchRows, EpochRows
from torchmcl.fleet.compiled_adam import CompiledAdam, fast_adam
from torchmcl.fleet.courses import RuleCourses
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.evaluation import current_loss, hard_distortion, matched
from torchmcl.fleet.linear import is_relu_network
from torchmcl.fleet.optimizers import Adam, FleetOptimizer
from torchmcl.fleet.stacked import StackedModules
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.rules.winners import AssignmentRule
from torchmcl.scoring import ScoreObjective, SigmoidScores
from torchmcl.step import mcl_step
from torchmcl.types import Batch, StepOutput

__all__ = ["AutogradStep", "CompiledStep", "StepSpec", "why_not_compiled", "why_not_usual"]

# The compiled step walks the coordinates one by one, which is fast for few.
_MAX_DIMS = 32
# For a measurement of the costs: some hundred rows take a percent or two of the time of a training.
_N_MEASURED_ROWS = 256


@dataclass(frozen=True)
class StepSpec:
    """What a step computes.

    Attributes:
        cost_fn: the matched cost.
        score_weight: weight of the score loss.
        monitor: what is evaluated on held-out rows, from a step's output.
        loss_fn: the trained cost, None for the matched one.
        scores: how scores are trained.
        optimizer: what is made of the gradient.
    """

    cost_fn: Callable[..., Tensor]
    score_weight: float
    monitor: Callable[[StepOutput], Tensor]
    loss_fn: Callable[..., Tensor] | None = None
    scores: ScoreObjective = field(default_factory=SigmoidScores)
    optimizer: FleetOptimizer = field(default_factory=Adam)


class AutogradStep:
    """Losses and gradients of stacked models by `mcl_step` and autograd.

    Args:
        models: to train.
        rows: to train on, batch by batch.
        validation: rows to evaluate on.
        spec: what is computed.

    Attributes:
        gradient: [models, parameters], of the last batch.
        optimizer: as this backend computes it.
    """

    gradient: Tensor

    def __init__(self, models: StackedModules, rows: EpochRows, validation: FleetData | None, spec: StepSpec) -> None:
        self.models, self.rows, self.validation, self.spec = models, rows, validation, spec
        self.optimizer = spec.optimizer
        self._subsets: dict[tuple[int, int], StackedModules] = {}

    def __call__(self, courses: RuleCourses, batch: BatchRows) -> Tensor:
        """Return the losses [models] of a batch, and leave their gradient in `gradient`."""
        output = self._output(self.models, *self.rows.batch(batch), courses.rule())
        self.gradient = self.models.gradient(output.loss.sum())
        return output.loss.detach()

    def epoch(
        self, courses: RuleCourses, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None, active: Tensor
    ) -> Tensor | None:
        """Train on all batches of an epoch at once, where a backend can: None where it goes batch by batch."""
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
                matching = matched(self.models, rows.rows(index)[0], self.spec.cost_fn)
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


class CompiledStep(AutogradStep):
    """The same by compiled code, for trainings that `choose_backend` gives it.

    What compiled code does not serve, another monitor for example, is left to the definition.
    """

    def __init__(self, models: StackedModules, rows: EpochRows, validation: FleetData | None, spec: StepSpec) -> None:
        super().__init__(models, rows, validation, spec)
        self.optimizer = fast_adam(spec.optimizer)
        self._step = _network_step(models, rows.data, spec.cost_fn)
        served = validation is not None and spec.monitor in (current_loss, hard_distortion)
        self._held_out: compiled.NetworkStep | None = None
        if validation is not None and served and _why_not_served(models, validation, spec.cost_fn) is None:
            self._held_out = _network_step(models, validation._replace(weights=None), spec.cost_fn)

    def __call__(self, courses: RuleCourses, batch: BatchRows) -> Tensor:
        """Return the losses [models] of a batch, and leave their gradient in `gradient`."""
        order = None if self.rows.order is None else (self.rows.order, self.rows.order_of_model)
        weight = self.spec.score_weight
        losses = self._step(courses.mixed_values, weight, start=batch.start, stop=batch.stop, order=order)
        self.gradient = self._step.gradient
        return losses

    def epoch(
        self, courses: RuleCourses, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None, active: Tensor
    ) -> Tensor | None:
        """Train the models that are active on all batches, and return losses [batches, models]."""
        if not isinstance(self.optimizer, CompiledAdam):
            return None
        rows = self.rows
        return self._step.epoch(
            courses.mixed_values,
            self.spec.score_weight,
            self.optimizer.step(state, lr, decay),
            bounds=[rows.batches[0].start, *(batch.stop for batch in rows.batches)],
            active=active,
            order=None if rows.order is None else (rows.order, rows.order_of_model),
        )

    def evaluate(self, courses: RuleCourses, models: slice) -> Tensor:
        """Return the monitored value of a slice of the models on the validation rows."""
        if self._held_out is None or self.validation is None:
            return super().evaluate(courses, models)
        rule, weight = courses.mixed_values, self.spec.score_weight
        if self.spec.monitor is hard_distortion:
            rule, weight = torch.zeros_like(rule), 0.0
        n_rows = self.validation.inputs.shape[1]
        return self._held_out(rule, weight, start=0, stop=n_rows, with_gradient=False, models=models)

    def cost_scale_on(self, rows: FleetData, index: Tensor) -> Callable[[], CostScale]:
        """Return a function that measures the costs of the models on the rows `index` [models, rows].

        A row that was drawn twice is computed once and counts twice.
        """
        drawn, counts = index[0].unique(return_counts=True)
        inputs, targets = rows.inputs[:, drawn], rows.targets[:, drawn]
        finite = bool(inputs.isfinite().all() and targets.isfinite().all())
        # The shortcut below is for distances, which have a natural zero. A log-likelihood may be negative.
        is_distance = not isinstance(self.spec.cost_fn, MixtureNLLWithCRPS)
        if not (finite and is_distance) or _why_not_served(self.models, rows, self.spec.cost_fn) is not None:
            return super().cost_scale_on(rows, index)
        weights = (counts * (len(drawn) / index.shape[1])).to(inputs).expand(len(inputs), -1)
        n_rows = torch.full_like(rows.n_rows, len(drawn))
        data = FleetData(inputs, targets, n_rows, rows.set_of_model, weights)
        step = _network_step(self.models, data, self.spec.cost_fn)
        n_hypotheses = step.network.n_hypotheses
        # With equal weights of all hypotheses the loss is their mean cost, with the weight of the winner the lowest.
        hard = inputs.new_zeros(2, len(self.models))
        uniform = hard + inputs.new_tensor([[0.0], [1 - 1 / n_hypotheses]])

        def measure() -> CostScale:
            mean, best = (
                step(rule, 0.0, start=0, stop=len(drawn), with_gradient=False).clone() for rule in (uniform, hard)
            )
            return CostScale(mean, best, mean - best, torch.ones_like(mean, dtype=torch.bool))  # have a natural zero

        return measure


def why_not_compiled(
    device: torch.device, models: StackedModules, data: FleetData, spec: StepSpec, courses: RuleCourses
) -> str | None:
    """Return why the compiled step cannot serve a training, None if it can."""
    if device.type != "cpu":
        return "It serves CPUs."
    if not compiled.available():
        return "The extension was not built when torchmcl was installed."
    if (reason := why_not_usual(data, spec, courses)) is not None:
        return reason
    if isinstance(spec.cost_fn, MixtureNLLWithCRPS) and spec.score_weight != 0:
        return "It serves MixtureNLLWithCRPS, which trains the scores itself, with a `score_weight` of 0."
    return _why_not_served(models, data, spec.cost_fn)


def why_not_usual(data: FleetData, spec: StepSpec, courses: RuleCourses) -> str | None:
    """Return why a training is none that faster ways are written for, whatever its models; None if it is."""
    if data.source is not None:
        return "It serves rows that stay the same in all epochs."
    if not courses.per_target:
        return "It serves the rules WTA, RelaxedWTA and AnnealedWTA."
    if debug_checks_enabled():
        return "It does not look at values, as `debug_checks` asks for."
    if spec.loss_fn not in (None, spec.cost_fn):
        return "It serves trainings whose matched and trained costs are the same."
    if spec.scores != SigmoidScores():
        return "It serves SigmoidScores() with labels of WTA()."
    return None


def _why_not_served(models: StackedModules, data: FleetData, cost_fn: Callable[..., Tensor]) -> str | None:
    """Return why the compiled step cannot serve these models on these rows, None if it can."""
    scores_mixtures = isinstance(cost_fn, MixtureNLLWithCRPS)
    if not scores_mixtures and cost_fn not in (pairwise_sq_euclidean, pairwise_l1):
        return "It serves pairwise_sq_euclidean, pairwise_l1 and MixtureNLLWithCRPS."
    if data.inputs.ndim != 3 or data.targets.ndim != 4 or data.targets.shape[2] == 0:
        return "It serves inputs and targets that are vectors."
    if {data.inputs.dtype, data.targets.dtype, models.flat.dtype} != {torch.float32}:
        return "It serves float32."
    if data.is_ragged or data.mask is not None:
        return "It serves sets of one length without a mask."
    n_dims = data.targets.shape[-1]
    if n_dims > _MAX_DIMS:
        return f"It serves up to {_MAX_DIMS} coordinates."
    if not is_relu_network(models.template, data.inputs.shape[-1], n_dims):
        return "It serves MultiHypothesisMLP with ReLU, without an output activation, all of it trained."
    if not _has_outputs_for(models.template, scores_mixtures):
        return "It serves MixtureNLLWithCRPS with scores and scales, and other costs without scales."
    network = _network_of(models.template, cost_fn)
    if network.n_hypotheses > compiled.MAX_HYPOTHESES or len(network.sizes) > compiled.MAX_LAYERS:
        return f"It serves up to {compiled.MAX_HYPOTHESES} hypotheses and {compiled.MAX_LAYERS - 1} layers."
    return None


def _has_outputs_for(module: nn.Module, scores_mixtures: bool) -> bool:
    assert isinstance(module, MultiHypothesisMLP)
    head = module.head
    if not scores_mixtures:
        return not head.scales
    n_outputs = head.n_hypotheses * (2 * head.event[0] + 1)
    return head.scales and not head.detach_scores and head.linear.out_features == n_outputs


def _network_of(module: nn.Module, cost_fn: Callable[..., Tensor]) -> compiled.Network:
    assert isinstance(module, MultiHypothesisMLP)
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    sizes = (layers[0].in_features, *(layer.out_features for layer in layers))
    head = module.head
    return compiled.Network(
        sizes,
        head.n_hypotheses,
        head.event[0],
        head.detach_scores,
        absolute=cost_fn is pairwise_l1,
        mixture=compiled.Mixture(cost_fn.crps, head.min_scale) if isinstance(cost_fn, MixtureNLLWithCRPS) else None,
    )


def _network_step(models: StackedModules, data: FleetData, cost_fn: Callable[..., Tensor]) -> compiled.NetworkStep:
    return compiled.NetworkStep(
        _network_of(models.template, cost_fn),
        models.flat,
        inputs=data.inputs,
        targets=data.targets,
        row_weights=data.weights,
        set_of_model=data.set_of_model,
    )
