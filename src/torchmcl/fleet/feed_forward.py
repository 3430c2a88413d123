"""Forward and backward pass of stacked ReLU networks on CPUs, written out.

Everything is kept as [models, features, rows] in memory that is used again in each step. A layer's bias stands
beside its weight, and a row of ones below its inputs, so that the matrix products add it and sum its gradient.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmcl.fleet.linear import has_global_hooks, is_feed_forward, products
from torchmcl.fleet.stacked import StackedModules
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.types import Predictions

__all__ = ["FeedForward", "is_relu_network"]

# BLAS kernels work on this many columns at once; a product of seven takes longer than one of eight.
_COLUMNS = 4


def is_relu_network(module: nn.Module, n_features: int, n_dims: int) -> bool:
    """Return whether a module is made of linear layers with ReLUs between them, all trained, for data of this size."""
    if type(module) is not MultiHypothesisMLP or has_global_hooks() or not is_feed_forward(module):
        return False
    if module.head.output_activation is not None or type(module.trunk) is not nn.Sequential:
        return False
    kinds = [type(part) for part in module.trunk]
    layers = [part for part in module.modules() if type(part) is nn.Linear]
    return (
        kinds == [nn.Linear, nn.ReLU] * (len(kinds) // 2)
        and type(module.head.linear) is nn.Linear
        and (layers[0].in_features, module.head.out_features) == (n_features, n_dims)
        and all(layer.bias is not None for layer in layers)
        and all(parameter.requires_grad for parameter in module.parameters())
    )


class _Layer(NamedTuple):
    """A linear layer of all models with the bias as a column behind the weight, then filling."""

    n_in: int
    n_out: int
    weight: Tensor  # [models, n_out, wide_columns(n_in)]
    gradient: Tensor


class _Memory(NamedTuple):
    """What a batch of some size needs: of each layer the outputs, [models, features, rows], and their gradient."""

    outputs: list[Tensor]
    inputs_above: list[Tensor]  # the outputs with the row of ones, as the layer above takes them
    slopes: list[Tensor]
    predictions: Predictions
    slots: Predictions


class FeedForward:
    """The passes of stacked models that `is_relu_network` recognised.

    Args:
        models: on the CPU.
    """

    def __init__(self, models: StackedModules) -> None:
        assert isinstance(models.template, MultiHypothesisMLP)
        head = models.template.head
        self._flat = models.flat
        self._head = (head.n_hypotheses, head.out_features)
        self._n_values = head.n_hypotheses * head.out_features
        self._detach_scores = head.detach_scores
        self.gradient = torch.zeros_like(models.flat)
        # Where each entry of the wide weights stands in `flat`, and the other way round.
        places = models.split(torch.arange(models.flat.shape[1]).unsqueeze(0))
        names = [name.removesuffix(".weight") for name in places if name.endswith(".weight")]
        wide = [_wide(places[f"{name}.weight"][0], places[f"{name}.bias"][0]) for name in names]
        self._to_wide = torch.cat([place.flatten() for place in wide])
        self._to_flat = torch.empty_like(self._to_wide[: models.flat.shape[1]])
        # Filling repeats the bias; written backwards, the first of the same places counts.
        self._to_flat[self._to_wide.flip(0)] = torch.arange(len(self._to_wide)).flip(0)
        self._weights = models.flat.new_empty(len(models), len(self._to_wide))
        self._gradients = torch.empty_like(self._weights)
        sizes = [place.numel() for place in wide]
        self._layers = [
            _Layer(places[f"{name}.weight"].shape[2], len(place), *(p.unflatten(1, place.shape) for p in parts))
            for name, place, *parts in zip(
                names, wide, self._weights.split(sizes, dim=1), self._gradients.split(sizes, dim=1), strict=True
            )
        ]
        self._memory: dict[int, _Memory] = {}

    def widened(self, inputs: Tensor) -> Tensor:
        """Return inputs [..., features] as the passes take them: with a column of ones, then zeros."""
        ones = inputs.new_ones(*inputs.shape[:-1], 1)
        n_zeros = wide_columns(inputs.shape[-1]) - inputs.shape[-1] - 1
        return torch.cat([inputs, ones, inputs.new_zeros(*inputs.shape[:-1], n_zeros)], dim=-1)

    def forward(self, inputs: Tensor) -> Predictions:
        """Return the predictions for widened inputs [models, batch, width]; the next call overwrites them."""
        torch.index_select(self._flat, 1, self._to_wide, out=self._weights)
        memory = self._of_size(inputs.shape[1])
        below = inputs.mT
        for layer, out, above in zip(self._layers, memory.outputs, memory.inputs_above, strict=True):
            products(layer.weight, below, out=out)
            if layer is not self._layers[-1]:
                out.relu_()
            below = above
        return memory.predictions

    def slots(self, n_rows: int) -> Predictions:
        """Return where `backward` finds the gradient of the predictions of a batch of so many rows."""
        return self._of_size(n_rows).slots

    def backward(self, inputs: Tensor) -> Tensor:
        """Return the gradient like `flat`, given the inputs of the last forward pass and what is in `slots`."""
        memory = self._of_size(inputs.shape[1])
        for number in range(len(self._layers) - 1, -1, -1):
            layer, slope = self._layers[number], memory.slopes[number]
            products(slope, memory.inputs_above[number - 1].mT if number else inputs, out=layer.gradient)
            if number:
                weight, back = layer.weight[:, :, : layer.n_in], memory.slopes[number - 1]
                if self._detach_scores and layer is self._layers[-1]:
                    weight, slope = weight[:, : self._n_values], slope[:, : self._n_values]
                products(weight.mT, slope, out=back)
                torch.ops.aten.threshold_backward.grad_input(back, memory.outputs[number - 1], 0, grad_input=back)
        return torch.index_select(self._gradients, 1, self._to_flat, out=self.gradient)

    def _of_size(self, n_rows: int) -> _Memory:
        if n_rows not in self._memory:
            above = [
                layer.weight.new_zeros(len(layer.weight), wide_columns(layer.n_out), n_rows) for layer in self._layers
            ]
            for layer, rows in zip(self._layers, above, strict=True):
                rows[:, layer.n_out] = 1
            outputs = [rows[:, : layer.n_out] for layer, rows in zip(self._layers, above, strict=True)]
            slopes = [torch.empty(out.shape, dtype=out.dtype) for out in outputs]
            ends = (self._predictions(outputs[-1]), self._predictions(slopes[-1]))
            self._memory[n_rows] = _Memory(outputs, above, slopes, *ends)
        return self._memory[n_rows]

    def _predictions(self, outputs: Tensor) -> Predictions:
        rows = outputs.mT  # [models, batch, features]
        hypotheses = rows[..., : self._n_values].unflatten(-1, self._head)
        return Predictions(hypotheses, rows[..., self._n_values :] if rows.shape[-1] > self._n_values else None)


def _wide(weight: Tensor, bias: Tensor) -> Tensor:
    """Return a weight [out, in] with its bias behind it, again and again until the columns are full.

    The filling meets inputs that are zero, so it does not matter what it is.
    """
    n_more = wide_columns(weight.shape[1]) - weight.shape[1]
    return torch.cat([weight, bias.unsqueeze(1).expand(-1, n_more)], dim=1)


def wide_columns(n_features: int) -> int:
    """Return how many columns a layer's inputs have with the ones and the filling."""
    return -(-(n_features + 1) // _COLUMNS) * _COLUMNS
