"""When a step can do without autograd, and when it can be handed to compiled code."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchmcl._checks import value_checks_enabled
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.costs.vector import separable_element
from torchmcl.fleet.data import FleetData
from torchmcl.fleet.feed_forward import is_relu_network
from torchmcl.fleet.monitors import current_loss, hard_distortion
from torchmcl.fleet.stacked import StackedModules
from torchmcl.backends import compiled as native
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.types import StepOutput

__all__ = ["Look", "MeanCost", "compiled_step", "may_compile", "needs_no_graph"]

def may_compile(models: StackedModules, data: FleetData, cost_fn: Callable[..., Tensor]) -> bool:
    """Return whether a training on the CPU can be handed to compiled code, which looks at no values."""
    return native.available() and not value_checks_enabled() and needs_no_graph(models, data, cost_fn)


def needs_no_graph(models: StackedModules, data: FleetData, cost_fn: Callable[..., Tensor]) -> bool:
    """Return whether the passes and the loss of these models can be written out.

    They are ReLU networks on the CPU that train on as many rows each, with a cost that sums over coordinates.
    """
    return (
        models.flat.device.type == "cpu"
        and bool((data.n_rows == data.inputs.shape[1]).all())
        and data.inputs.ndim == 3
        and data.targets.ndim == 4
        and data.inputs.dtype == data.targets.dtype == models.flat.dtype
        and is_relu_network(models.template, data.inputs.shape[-1], data.targets.shape[-1])
        and separable_element(cost_fn, data.targets.shape[-1]) is not None
    )


def compiled_step(models: StackedModules, data: FleetData, cost_fn: Callable[..., Tensor]) -> native.NetworkStep | None:
    """Return the step of models that need no graph as compiled code, or None where that does not serve them."""
    network = _network_of(models.template)
    serves = (
        network is not None
        and cost_fn is pairwise_sq_euclidean
        and data.targets.shape[2] == 1
        and models.flat.dtype == torch.float32
        and network.n_hypotheses <= native.MAX_HYPOTHESES
        and len(network.sizes) <= native.MAX_LAYERS
    )
    if network is None or not serves:
        return None
    return native.NetworkStep(
        network,
        models.flat,
        inputs=data.inputs,
        targets=data.targets,
        row_weights=data.weights,
        set_of_model=data.set_of_model,
    )


def _network_of(module: nn.Module) -> native.Network | None:
    if not isinstance(module, MultiHypothesisMLP):
        return None
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    sizes = (layers[0].in_features, *(layer.out_features for layer in layers))
    head = module.head
    return native.Network(sizes, head.n_hypotheses, head.out_features, head.detach_scores)


class Look:
    """The monitored value of models on held-out rows, by compiled code.

    Args:
        step: of the models on those rows.
        n_rows: how many they are.
        of_rule: whether the value is the current loss, scores included; else it is the hard distortion.
    """

    def __init__(self, step: native.NetworkStep, n_rows: int, *, of_rule: bool) -> None:
        self._step, self._n_rows, self._of_rule = step, n_rows, of_rule

    @classmethod
    def of(
        cls,
        models: StackedModules,
        data: FleetData,
        cost_fn: Callable[..., Tensor],
        monitor: Callable[[StepOutput], Tensor],
    ) -> "Look | None":
        """Return the look at `data`, or None for a monitor that wants to see more."""
        if monitor not in (current_loss, hard_distortion) or not needs_no_graph(models, data, cost_fn):
            return None
        step = compiled_step(models, data._replace(weights=None), cost_fn)
        return None if step is None else cls(step, data.inputs.shape[1], of_rule=monitor is current_loss)

    def __call__(self, rule: Tensor, score_weight: float, models: slice) -> Tensor:
        """Return the values of some models, given temperatures and epsilons of all."""
        if not self._of_rule:
            rule, score_weight = torch.zeros_like(rule), 0.0
        return self._step(rule, score_weight, start=0, stop=self._n_rows, with_gradient=False, models=models)


class MeanCost:
    """The mean cost of all hypotheses of each model on drawn rows, by compiled code.

    Args:
        step: of the models on those rows.
        n_rows: how many they are.
        n_models: how many models there are.
        n_hypotheses: of each.
    """

    def __init__(self, step: native.NetworkStep, n_rows: int, n_models: int, n_hypotheses: int) -> None:
        self._step, self._n_rows = step, n_rows
        # With the same weight for all hypotheses the loss is their mean cost.
        self._rule = torch.tensor([[0.0], [1 - 1 / n_hypotheses]]).repeat(1, n_models)

    @classmethod
    def of(
        cls, models: StackedModules, data: FleetData, drawn: Tensor, cost_fn: Callable[..., Tensor]
    ) -> "MeanCost | None":
        """Return the mean cost on the rows `drawn` [rows] of all sets, or None where compiled code does not serve.

        A row that was drawn twice is computed once and counts twice.
        """
        rows, counts = drawn.unique(return_counts=True)
        inputs, targets = data.inputs[:, rows], data.targets[:, rows]
        finite = bool(inputs.isfinite().all() and targets.isfinite().all())
        if not finite or not needs_no_graph(models, data, cost_fn):
            return None
        weights = (counts * (len(rows) / len(drawn))).to(inputs).expand(len(inputs), -1)
        n_rows = torch.full_like(data.n_rows, len(rows))
        step = compiled_step(models, FleetData(inputs, targets, n_rows, data.set_of_model, weights), cost_fn)
        network = _network_of(models.template)
        return None if step is None or network is None else cls(step, len(rows), len(models), network.n_hypotheses)

    def __call__(self) -> Tensor:
        """Return the values [models]."""
        return self._step(self._rule, 0.0, start=0, stop=self._n_rows, with_gradient=False)
