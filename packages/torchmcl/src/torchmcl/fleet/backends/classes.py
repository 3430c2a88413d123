"""A step of mixtures over classes with its gradient in closed form, for small networks on CPUs.

Of a small network autograd takes most of the time: a step of five networks on a hundred rows has some 30 operations
here instead of some 200. It equals `mcl_step` with `MixtureNLL(pairwise_cross_entropy)`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl.fleet.courses import RuleCourses
from torchmcl.fleet.data import EpochRows, FleetData
from torchmcl.fleet.eligibility import NetworkFacts, RowFacts, TrainingFacts
from torchmcl.fleet.models import StackedModules
from torchmcl.fleet.optimizers import fast_adam
from torchmcl.fleet.options import MixtureLogLoss
from torchmcl.fleet.stacked_linear import products
from torchmcl.fleet.steps import AutogradStep
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.types import Batch

__all__ = ["ClassStep", "why_not_in_closed_form"]


_NETWORKS = "It serves MultiHypothesisMLP with ReLU and scores, without an output activation, all of it trained."


class _ClassNetworks:
    """Costs of stacked networks with distributions over classes, and the gradient of their losses.

    Tensors are laid out [models, values, rows], so that sums over few hypotheses or classes run along the rows.

    Args:
        models: a `MultiHypothesisMLP` each, with ReLUs.
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
        _, log_shares, log_scores = self._forward(batch.inputs)
        return self._costs(batch, log_shares, log_scores)

    def losses(self, batch: Batch, weights: Tensor | None, rule: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`."""
        layers, log_shares, log_scores = self._forward(batch.inputs)
        cost = self._costs(batch, log_shares, log_scores)
        assigned = rule(cost)
        losses = (assigned * cost).sum(dim=-1).squeeze(-1)  # [models, rows]
        share = assigned.squeeze(2).mT / losses.shape[1]  # [models, hypotheses, rows]
        if weights is not None:
            losses, share = losses * weights, share * weights.unsqueeze(1)
        off = log_shares.exp_()
        places = _places(batch, self.n_hypotheses)
        off.scatter_add_(2, places, off.new_full((), -1.0).expand(places.shape))
        off.mul_(share.unsqueeze(2))
        off_scores = log_scores.exp_().mul_(share.sum(dim=1, keepdim=True)).sub_(share)
        self._backward(layers, torch.cat([off.flatten(1, 2), off_scores], dim=1))
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
        log_shares = logits.unflatten(1, (self.n_hypotheses, self.n_classes)).log_softmax(dim=2)
        return layers, log_shares, scores.log_softmax(dim=1)

    def _costs(self, batch: Batch, log_shares: Tensor, log_scores: Tensor) -> Tensor:
        chosen = log_shares.gather(2, _places(batch, self.n_hypotheses)).squeeze(2)
        return -(chosen + log_scores).mT.unsqueeze(2)

    def _backward(self, layers: list[Tensor], slope: Tensor) -> None:
        weights = list(self.models.views.values())[::2]
        for place in reversed(range(len(layers))):
            self._slopes[2 * place].copy_(products(slope, layers[place].mT))
            torch.sum(slope, dim=-1, out=self._slopes[2 * place + 1])
            if place:
                slope = products(weights[place].detach().mT, slope).mul_(layers[place] > 0)


def _places(batch: Batch, n_hypotheses: int) -> Tensor:
    """Return the class ids, [models, hypotheses, 1, rows]."""
    ids = batch.targets.squeeze(-1)
    return ids[:, None, None, :].expand(-1, n_hypotheses, 1, -1)


class ClassStep(AutogradStep):
    """Losses and gradients of class mixtures in closed form, for supported training runs."""

    def __init__(
        self, models: StackedModules, rows: EpochRows, validation: FleetData | None, facts: TrainingFacts
    ) -> None:
        super().__init__(models, rows, validation, facts)
        self.optimizer = fast_adam(self.spec.optimizer)
        self._networks = _ClassNetworks(models)
        served = facts.held_out is not None and _why_not_on_rows(facts.network, facts.held_out) is None
        self._evaluates = served and isinstance(self.spec.monitor, MixtureLogLoss)

    @torch.no_grad()
    def __call__(self, courses: RuleCourses, batch: slice) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`."""
        losses = self._networks.losses(*self.rows.batch(batch), courses.rule())
        self.gradient = self._networks.gradient
        return losses

    @torch.no_grad()
    def evaluate(self, courses: RuleCourses, models: slice) -> Tensor:
        """Return the monitored value of a slice of the models on the validation rows."""
        if not self._evaluates or (models.start, models.stop) != (0, len(self.models)):
            return super().evaluate(courses, models)
        assert isinstance(self.spec.monitor, MixtureLogLoss)
        return self.spec.monitor.of_costs(self._networks.costs(self._held_out_batch))


def why_not_in_closed_form(training: TrainingFacts) -> str | None:
    """Return the reason why `ClassStep` does not support a training run, or None."""
    if training.device.type != "cpu":
        return "It serves CPUs."
    if not training.cost.is_class_mixture or training.spec.loss_fn is not None or training.spec.score_weight != 0:
        return "It serves MixtureNLL(pairwise_cross_entropy) with score_weight=0."
    if training.checks_values:
        return "It does not look at values, as `debug_checks` asks for."
    return _why_not_on_rows(training.network, training.rows)


def _why_not_on_rows(network: NetworkFacts | None, rows: RowFacts) -> str | None:
    if rows.n_features is None or not rows.are_classes or rows.n_targets != 1:
        return "It serves inputs that are vectors, with one class each."
    if rows.is_sampled or rows.is_ragged or rows.has_mask:
        return "It serves sets of one length without a mask, that stay the same in all epochs."
    serves = network is not None and network.dropout is None and len(network.event) == 1
    if network is None or not serves or not network.takes(rows, network.event):
        return _NETWORKS
    return _NETWORKS if not network.has_scores or network.detach_scores or network.has_scales else None
