"""The forward pass of stacked models made of linear layers and activations, without torch.vmap.

All such a network needs to run on parameters [models, ...] and inputs [models, batch, ...] is a
linear layer that multiplies model by model; everything else in it works on any leading axes.
That saves the bookkeeping of torch.vmap, which is most of the time of small models on CPUs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchmcl.nn import MultiHypothesisHead, MultiHypothesisMLP

__all__ = ["StackedLinear", "is_feed_forward"]

_ANY_AXES = (
    nn.Sequential,
    nn.Linear,
    nn.ReLU,
    nn.Tanh,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Identity,
    nn.Dropout,
    MultiHypothesisMLP,
    MultiHypothesisHead,
)


def is_feed_forward(module: nn.Module) -> bool:
    """Return whether every part of a module works on any leading axes once linear layers do."""
    return all(type(part) in _ANY_AXES for part in module.modules())


class StackedLinear(TorchFunctionMode):
    """Inside this `with` block `torch.nn.functional.linear` takes stacked weights [models, out, in]."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace linear layers, leave everything else."""
        if func is torch.nn.functional.linear:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if inputs.device.type != "cpu":
        if bias is None:
            return inputs @ weight.mT
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)
    outputs: Tensor = _PlainOrderProduct.apply(inputs, weight, bias)
    return outputs


class _PlainOrderProduct(torch.autograd.Function):
    """inputs @ weight^T + bias on CPUs, with the (small) weights copied into plain order first.

    For many small products with a transposed right factor some BLAS libraries take ten times as long.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        outputs = torch.bmm(inputs, weight.mT.contiguous())
        return outputs if bias is None else outputs.add_(bias.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight.contiguous()) if needs[0] else None,
            torch.bmm(grad.mT, inputs) if needs[1] else None,
            grad.sum(dim=1) if needs[2] else None,
        )
