"""Steps of small networks on CPUs: ReLU networks in C, and class mixtures with gradients in closed form.

Autograd dominates the training time of a small network: a step of five class mixtures on a hundred rows has about 30
operations here instead of about 200. The results equal those of `mcl_step`.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchmcl import Batch, MultiHypothesisMLP, annealing
from torchmcl_fleet import native
from torchmcl_fleet.backends.step import AutogradStep, why_not_usual
from torchmcl_fleet.backends.training import ChunkTraining
from torchmcl_fleet.history import note_failures
from torchmcl_fleet.modules.layers import products
from torchmcl_fleet.modules.optimizers import CompiledAdam
from torchmcl_fleet.modules.stacked import StackedModules
from torchmcl_fleet.native import compiled
from torchmcl_fleet.plan import HeldOutCost, MixtureLogLoss, RulePlan, current_loss, hard_distortion
from torchmcl_fleet.problem import CostProperties, EpochRows, FleetData, NetworkShape, RowProperties, TrainingProblem

__all__ = ["ClassStep", "CompiledStep", "CompiledTraining", "why_not_compiled", "why_not_in_closed_form"]

# The compiled step loops over the coordinates, which is fast only for few coordinates.
_MAX_DIMS = 32
# Limits of a call, which has an overhead of about a millisecond: number of epochs; number of multiplications of the
# forward passes, a quarter of a second on a slow core, to react to signals; entries of the permutations, for memory.
_EPOCHS, _PRODUCTS_AT_ONCE, _ORDERS_AT_ONCE = 40, 1_000_000_000, 1_000_000


class CompiledStep(AutogradStep):
    """Step in compiled code, for supported training runs.

    The reference step computes what compiled code does not support, such as other monitors.
    """

    def __init__(
        self, models: StackedModules, rows: EpochRows, validation: FleetData | None, problem: TrainingProblem
    ) -> None:
        super().__init__(models, rows, validation, problem)
        self._network = _network_of(problem)
        self._step = self._step_on(rows.data)
        self._held_out: compiled.NetworkStep | None = None
        watched = _watched(problem, self._network)
        if (
            validation is not None
            and watched is not None
            and _why_not_on_rows(problem, RowProperties.of(validation)) is None
        ):
            self._held_out = self._step_on(validation, watched)

    def __call__(self, rules: RulePlan, batch: slice) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`."""
        order = None if self.rows.order is None else (self.rows.order, self.rows.order_of_model)
        weight = self.spec.score_weight
        losses = self._step(rules.mixed_values, weight, start=batch.start, stop=batch.stop, order=order)
        self.gradient = self._step.gradient
        return losses

    def epoch(
        self, rules: RulePlan, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None, active: Tensor
    ) -> Tensor | None:
        """Train the active models on all batches, and return losses [batches, models]."""
        if not isinstance(self.optimizer, CompiledAdam):
            return None
        orders = None if self.rows.order is None else self.rows.order.unsqueeze(0)
        return self.epochs(rules.mixed_values.unsqueeze(0), orders, state, lr.view(1, -1), decay, active)[0]

    def epochs(
        self,
        rules: Tensor,
        orders: Tensor | None,
        state: dict[str, Tensor],
        lr: Tensor,
        decay: Tensor | None,
        active: Tensor,
    ) -> Tensor:
        """Train the active models for some epochs, and return losses [epochs, batches, models].

        Args:
            rules: Temperatures and epsilons, [epochs, 2, models].
            orders: Permutations of the rows, [epochs, orders, rows], or None.
            state: State of the optimizer.
            lr: Learning rates, [epochs, models].
            decay: Weight decays, [models, 1], or None.
            active: Mask of the models to train, [models].
        """
        assert isinstance(self.optimizer, CompiledAdam)
        rows = self.rows
        return self._step.epochs(
            rules,
            self.spec.score_weight,
            self.optimizer.step(state, lr.contiguous(), decay),
            bounds=[rows.batches[0].start, *(batch.stop for batch in rows.batches)],
            active=active,
            orders=None if orders is None else (orders, rows.order_of_model),
        )

    def evaluate(self, rules: RulePlan, models: slice) -> Tensor:
        """Return the monitored value of a slice of the models on the validation rows."""
        if self._held_out is None or self.validation is None:
            return super().evaluate(rules, models)
        rule, weight = rules.mixed_values, self.spec.score_weight
        if self.spec.monitor is not current_loss:
            rule, weight = torch.zeros_like(rule), 0.0
        n_rows = self.validation.inputs.shape[1]
        return self._held_out(rule, weight, start=0, stop=n_rows, with_gradient=False, models=models)

    def cost_scale_on(self, rows: FleetData, index: Tensor) -> Callable[[], annealing.CostScale]:
        """Return a function that measures the costs of the models on the rows `index` [models, rows].

        A row that was drawn twice is evaluated once and counted twice.
        """
        drawn, counts = index[0].unique(return_counts=True)
        inputs, targets = rows.inputs[:, drawn], rows.targets[:, drawn]
        finite = bool(inputs.isfinite().all() and targets.isfinite().all())
        # The shortcut below is for distances, which have a natural zero. A log-likelihood may be negative.
        is_distance = self.problem.cost.is_distance
        if not (finite and is_distance) or _why_not_on_rows(self.problem, RowProperties.of(rows)) is not None:
            return super().cost_scale_on(rows, index)
        weights = (counts * (len(drawn) / index.shape[1])).to(inputs).expand(len(inputs), -1)
        n_rows = torch.full_like(rows.n_rows, len(drawn))
        data = FleetData(inputs, targets, n_rows, rows.set_of_model, weights)
        step = self._step_on(data)
        n_hypotheses = step.network.n_hypotheses
        # With equal weights the loss is the mean cost of the hypotheses; with hard weights it is the lowest cost.
        hard = inputs.new_zeros(2, len(self.models))
        uniform = hard + inputs.new_tensor([[0.0], [1 - 1 / n_hypotheses]])

        def measure() -> annealing.CostScale:
            mean, best = (
                step(rule, 0.0, start=0, stop=len(drawn), with_gradient=False).clone() for rule in (uniform, hard)
            )
            return annealing.CostScale(
                mean, best, mean - best, torch.ones_like(mean, dtype=torch.bool)
            )  # have a natural zero

        return measure

    def _step_on(self, data: FleetData, network: compiled.Network | None = None) -> compiled.NetworkStep:
        return compiled.NetworkStep(
            network or self._network,
            self.models.flat,
            inputs=data.inputs,
            targets=data.targets,
            row_weights=data.weights,
            set_of_model=data.set_of_model,
        )


class CompiledTraining(ChunkTraining):
    """A chunk whose epochs up to the next evaluation run in one call: a call from Python takes as long as a step."""

    def _run_epochs(self, first: int, last: int, after_epochs: Callable[[int, int], None], one_by_one: bool) -> None:
        """Train from epoch `first` up to but not including `last`."""
        decided = self._annealing is not None or self._rows.data.source is not None
        if one_by_one or decided or not isinstance(self._step.optimizer, CompiledAdam):
            super()._run_epochs(first, last, after_epochs, one_by_one)
            return
        n_orders = len(self.models.flat) * self._rows.data.inputs.shape[1]
        n_at_once = min(_PRODUCTS_AT_ONCE // (n_orders * self.models.flat.shape[1]), _ORDERS_AT_ONCE // n_orders)
        while first < last:
            end = min(first + max(1, n_at_once), first - first % _EPOCHS + _EPOCHS, last)
            end = next((epoch + 1 for epoch in range(first, end) if self._due(epoch)), end)
            self._train(first, end)
            after_epochs(first, end)
            first = end
            if self.all_stopped():
                break

    def _train(self, low: int, high: int) -> None:
        """Train from epoch `low` up to but not including `high`, then evaluate."""
        state, step, rates = self.state, self._step, self._learning_rates[low:high]
        assert isinstance(step, CompiledStep)
        rules, orders = self.rules.table[low:high].view(high - low, 2, -1), self._rows.orders(low, high)
        losses = step.epochs(rules, orders, state.optimizer, rates, self._decay, state.stopped_epoch < 0)
        state.learning_rates[low:high] = rates
        state.losses[low:high] = (losses * self._row_fractions).sum(dim=1)
        state.epoch.fill_(low)
        note_failures(state.failed_step, losses.flatten(0, 1), n_batches=losses.shape[1], epoch=state.epoch.view(1))
        state.epoch.fill_(high - 1)
        self.rules.read(state.epoch.view(1))
        for models in self._due(high - 1):
            self._evaluate(slice(*models))
        state.epoch.fill_(high)


def why_not_compiled(training: TrainingProblem) -> str | None:
    """Return the reason why the compiled step does not support a training run, or None."""
    if training.device.type != "cpu":
        return "It requires a CPU."
    if not native.available():
        return "The extension was not built when torchmcl was installed."
    if (reason := why_not_usual(training)) is not None:
        return reason
    if training.cost.crps is not None and training.spec.score_weight != 0:
        return "It supports MixtureNLLWithCRPS, which trains the scores itself, with a `score_weight` of 0."
    return _why_not_on_rows(training, training.rows)


def _why_not_on_rows(training: TrainingProblem, rows: RowProperties) -> str | None:
    """Return the reason why the compiled step does not support the models on the given rows, or None."""
    cost, network = training.cost, training.network
    if cost.crps is None and not cost.is_distance:
        return "It supports pairwise_sq_euclidean, pairwise_l1 and MixtureNLLWithCRPS."
    if rows.n_features is None or rows.n_dims is None or rows.n_targets == 0:
        return "It requires inputs and targets that are vectors."
    if not (rows.is_single and training.is_single):
        return "It requires float32."
    if rows.is_ragged or rows.has_mask:
        return "It requires sets of equal length without a mask."
    if rows.n_dims > _MAX_DIMS:
        return f"It supports up to {_MAX_DIMS} coordinates."
    if network is None or network.dropout is not None or not network.takes(rows, (rows.n_dims,)):
        return "It supports MultiHypothesisMLP with ReLU, without an output activation or frozen parameters."
    is_mixture = network.has_scales and network.has_scores and not network.detach_scores
    if not (is_mixture if cost.crps is not None else not network.has_scales):
        return "It supports MixtureNLLWithCRPS with scores and scales, and other costs without scales."
    if network.n_hypotheses > compiled.MAX_HYPOTHESES or len(network.sizes) > compiled.MAX_LAYERS:
        return f"It supports up to {compiled.MAX_HYPOTHESES} hypotheses and {compiled.MAX_LAYERS - 1} layers."
    return None


def _network_of(training: TrainingProblem) -> compiled.Network:
    cost, network = training.cost, training.network
    assert network is not None
    return compiled.Network(
        network.sizes,
        network.n_hypotheses,
        network.event[0],
        network.detach_scores,
        absolute=cost.is_absolute,
        mixture=None if cost.crps is None else compiled.Mixture(cost.crps, network.min_scale),
    )


def _watched(training: TrainingProblem, network: compiled.Network) -> compiled.Network | None:
    """Return the network with the cost that the monitor evaluates; None if compiled code does not support it."""
    monitor = training.spec.monitor
    if monitor in (current_loss, hard_distortion):
        return network
    if network.mixture is None or not isinstance(monitor, HeldOutCost) or monitor.weights is not None:
        return None
    crps = CostProperties.of(monitor.cost_fn).crps
    return None if crps is None else replace(network, mixture=replace(network.mixture, crps=crps))


_NETWORKS = "It supports MultiHypothesisMLP with ReLU and scores, without an output activation or frozen parameters."


class _ClassNetworks:
    """Costs of stacked networks with distributions over classes, and the gradient of their losses.

    Tensors are laid out [models, values, rows], so that sums over few hypotheses or classes vectorize over the rows.

    Args:
        models: Stacked `MultiHypothesisMLP` networks with ReLUs.
    """

    def __init__(self, models: StackedModules) -> None:
        template = models.template
        assert isinstance(template, MultiHypothesisMLP)
        self.models = models
        self.n_hypotheses, (self.n_classes,) = template.head.n_hypotheses, template.head.event
        self.gradient = torch.zeros_like(models.flat)
        self._slopes = list(models.split(self.gradient).values())

    def costs(self, batch: Batch) -> Tensor:
        """Return -log(score p(class)) of each hypothesis, [models, rows, 1, hypotheses]."""
        _, log_probabilities, log_scores = self._forward(batch.inputs)
        return self._costs(batch, log_probabilities, log_scores)

    def losses(self, batch: Batch, weights: Tensor | None, rule: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`."""
        layers, log_probabilities, log_scores = self._forward(batch.inputs)
        cost = self._costs(batch, log_probabilities, log_scores)
        assigned = rule(cost)
        losses = (assigned * cost).sum(dim=-1).squeeze(-1)  # [models, rows]
        factor = assigned.squeeze(2).mT / losses.shape[1]  # [models, hypotheses, rows]
        if weights is not None:
            losses, factor = losses * weights, factor * weights.unsqueeze(1)
        slope = log_probabilities.exp_()
        ids = _class_ids(batch, self.n_hypotheses)
        slope.scatter_add_(2, ids, slope.new_full((), -1.0).expand(ids.shape))
        slope.mul_(factor.unsqueeze(2))
        score_slope = log_scores.exp_().mul_(factor.sum(dim=1, keepdim=True)).sub_(factor)
        self._backward(layers, torch.cat([slope.flatten(1, 2), score_slope], dim=1))
        return losses.mean(dim=1)

    def _forward(self, inputs: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return the inputs of each layer, log-probabilities [models, hypotheses, classes, rows] and log-scores."""
        parameters = list(self.models.views.values())
        values, layers = inputs.mT, []
        for place in range(0, len(parameters), 2):
            layers.append(values)
            weight, bias = parameters[place].detach(), parameters[place + 1].detach()
            values = products(weight, values).add_(bias.unsqueeze(-1))
            if place + 2 < len(parameters):
                values.relu_()
        logits, scores = values.split([self.n_hypotheses * self.n_classes, self.n_hypotheses], dim=1)
        log_probabilities = logits.unflatten(1, (self.n_hypotheses, self.n_classes)).log_softmax(dim=2)
        return layers, log_probabilities, scores.log_softmax(dim=1)

    def _costs(self, batch: Batch, log_probabilities: Tensor, log_scores: Tensor) -> Tensor:
        chosen = log_probabilities.gather(2, _class_ids(batch, self.n_hypotheses)).squeeze(2)
        return -(chosen + log_scores).mT.unsqueeze(2)

    def _backward(self, layers: list[Tensor], slope: Tensor) -> None:
        weights = list(self.models.views.values())[::2]
        for place in reversed(range(len(layers))):
            self._slopes[2 * place].copy_(products(slope, layers[place].mT))
            torch.sum(slope, dim=-1, out=self._slopes[2 * place + 1])
            if place:
                slope = products(weights[place].detach().mT, slope).mul_(layers[place] > 0)


def _class_ids(batch: Batch, n_hypotheses: int) -> Tensor:
    """Return the class ids, [models, hypotheses, 1, rows]."""
    ids = batch.targets.squeeze(-1)
    return ids[:, None, None, :].expand(-1, n_hypotheses, 1, -1)


class ClassStep(AutogradStep):
    """Losses and gradients of class mixtures in closed form, for supported training runs."""

    def __init__(
        self, models: StackedModules, rows: EpochRows, validation: FleetData | None, problem: TrainingProblem
    ) -> None:
        super().__init__(models, rows, validation, problem)
        self._networks = _ClassNetworks(models)
        supported = problem.held_out is not None and _why_not_classes(problem.network, problem.held_out) is None
        self._evaluates = supported and isinstance(self.spec.monitor, MixtureLogLoss)

    @torch.no_grad()
    def __call__(self, rules: RulePlan, batch: slice) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`."""
        losses = self._networks.losses(*self.rows.batch(batch), rules.rule())
        self.gradient = self._networks.gradient
        return losses

    @torch.no_grad()
    def evaluate(self, rules: RulePlan, models: slice) -> Tensor:
        """Return the monitored value of a slice of the models on the validation rows."""
        if not self._evaluates or (models.start, models.stop) != (0, len(self.models)):
            return super().evaluate(rules, models)
        assert isinstance(self.spec.monitor, MixtureLogLoss)
        cost = self._networks.costs(self._held_out_batch)
        return self.spec.monitor.of_costs(cost, torch.ones_like(cost[..., 0], dtype=torch.bool))


def why_not_in_closed_form(training: TrainingProblem) -> str | None:
    """Return the reason why `ClassStep` does not support a training run, or None."""
    if training.device.type != "cpu":
        return "It requires a CPU."
    if not training.cost.is_class_mixture or training.spec.loss_fn is not None or training.spec.score_weight != 0:
        return "It supports MixtureNLL(pairwise_cross_entropy) with score_weight=0."
    if training.checks_values:
        return "It does not support `debug_checks`."
    return _why_not_classes(training.network, training.rows)


def _why_not_classes(network: NetworkShape | None, rows: RowProperties) -> str | None:
    if rows.n_features is None or not rows.are_classes or rows.n_targets != 1:
        return "It requires inputs that are vectors, with one class each."
    if rows.is_sampled or rows.is_ragged or rows.has_mask:
        return "It requires sets of equal length without a mask, which are the same in all epochs."
    if (
        network is None
        or network.dropout is not None
        or len(network.event) != 1
        or not network.takes(rows, network.event)
    ):
        return _NETWORKS
    return _NETWORKS if not network.has_scores or network.detach_scores or network.has_scales else None
