"""Linear layers of stacked models on CPUs.

BLAS libraries for CPUs are written for large products. For many small ones with a transposed right
factor, which is what a linear layer asks for, some take ten times as long as with a plain one;
copying the (small) weights into the plain order first costs next to nothing.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["PlainOrderLinear"]


class PlainOrderLinear(TorchFunctionMode):
    """Inside this `with` block linear layers multiply with a copy of their weights in plain order."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace `torch.nn.functional.linear`, leave everything else."""
        if func is torch.nn.functional.linear:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outputs: Tensor = _Product.apply(inputs, weight)
    return outputs if bias is None else outputs + bias


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> Tensor:
        return inputs @ weight.mT.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        to_inputs = grad @ weight.contiguous() if ctx.needs_input_grad[0] else None
        to_weight = None
        if ctx.needs_input_grad[1]:
            rows = inputs.reshape(-1, inputs.shape[-1])
            to_weight = grad.reshape(-1, grad.shape[-1]).mT @ rows
        return to_inputs, to_weight
