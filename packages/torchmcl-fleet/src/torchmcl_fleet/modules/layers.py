"""Layers of stacked modules: batched linear layers, and formulas for layers that `torch.vmap` cannot run.

To run a network of linear layers and activations on parameters [models, ...] and inputs [models, batch, ...], only the
linear layers must be replaced by batched ones; everything else supports leading axes. This avoids the overhead of
torch.vmap, which dominates for small models on CPUs. Recurrent layers and weight norm fail under torch.vmap or run once
per model; formulas replace them. The same holds for attention kernels, which `formula_of_attention` avoids.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, linear
from torch.overrides import TorchFunctionMode

from torchmcl import MultiHypothesisHead, MultiHypothesisMLP

__all__ = [
    "Stackable",
    "StackedLinear",
    "formula_of_attention",
    "has_global_hooks",
    "is_feed_forward",
    "products",
    "rectified_weights",
    "without_cudnn",
]

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


# Elementwise functions, which do not depend on the number of axes.
_OF_EACH_NUMBER = (
    None,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.exp,
    nn.functional.tanh,
    nn.functional.sigmoid,
    nn.functional.relu,
    nn.functional.softplus,
)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def is_feed_forward(module: nn.Module) -> bool:
    """Return whether a module is known to support leading axes if linear layers do.

    Known types are not enough: a hook or a replaced `forward` may do anything, an output activation may refer to an
    axis by number, and layers that share weights cannot be distinguished by them.
    """
    parts = list(module.modules())
    tensors = [tensor for part in parts for tensor in part._parameters.values() if tensor is not None]
    names = list(module.named_modules(remove_duplicate=False))
    return (
        all(type(part) in _ANY_AXES and _is_as_its_class_says(part) for part in parts)
        and len(names) == len(parts)
        and len({id(tensor) for tensor in tensors}) == len(tensors)
    )


def has_global_hooks() -> bool:
    """Return whether any global module hook is registered."""
    return any(getattr(nn.modules.module, f"_global{name}") for name in _HOOKS)


def _is_as_its_class_says(part: nn.Module) -> bool:
    plain = not any(getattr(part, name) for name in _HOOKS) and "forward" not in vars(part)
    if isinstance(part, MultiHypothesisHead) and not isinstance(part.output_activation, nn.Module):
        return plain and part.output_activation in _OF_EACH_NUMBER
    return plain


def rectified_weights(module: nn.Module) -> frozenset[str]:
    """Return the weight names of linear layers whose output goes directly into a ReLU."""
    return frozenset(
        f"{prefix}.{name}.weight" if prefix else f"{name}.weight"
        for prefix, part in module.named_modules()
        if type(part) is nn.Sequential
        for (name, first), (_, second) in pairwise(part.named_children())
        if type(first) is nn.Linear and type(second) is nn.ReLU
    )


class StackedLinear(TorchFunctionMode):
    """Let `torch.nn.functional.linear` accept stacked weights [models, out, in] inside a `with` block.

    Args:
        rectified: Weights of layers that are followed by a ReLU; layer and ReLU are fused.
    """

    def __init__(self, rectified: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._rectified = {id(weight) for weight in rectified}
        self._done: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace linear layers and fused ReLUs, and leave everything else unchanged."""
        if func is torch.nn.functional.linear:
            rectified = id(args[1]) in self._rectified
            outputs = _linear(*args, **(kwargs or {}), rectified=rectified)
            self._done = outputs if rectified else None
            return outputs
        if func is torch.nn.functional.relu and args[0] is self._done:
            return self._done
        return func(*args, **(kwargs or {}))


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None, *, rectified: bool = False) -> Tensor:
    if bias is None:
        outputs = inputs @ weight.mT
        return outputs.relu() if rectified else outputs
    outputs = _StackedLayer.apply(inputs, weight, bias, rectified)
    return outputs


class _StackedLayer(torch.autograd.Function):
    """Linear layer of each model, inputs @ weight^T + bias, optionally followed by a ReLU."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, rectified: bool) -> Tensor:
        ctx.rectified = rectified
        if inputs.device.type == "cpu":
            # [models, rows, features] is stored as the transposed view of [models, features, rows]. Later operations
            # keep that memory order, so that a sum over five hypotheses is vectorized along the rows.
            outputs = products(weight, inputs.mT).add_(bias.unsqueeze(-1)).mT
        else:
            outputs = torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)
        if rectified:
            outputs.relu_()
        ctx.save_for_backward(inputs, weight, outputs if rectified else None)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        inputs, weight, outputs = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if ctx.rectified:
            grad = torch.ops.aten.threshold_backward(grad, outputs, 0)
        return (
            products(weight.mT, grad.mT).mT if needs[0] else None,
            products(grad.mT, inputs) if needs[1] else None,
            grad.sum(dim=1) if needs[2] else None,
            None,
        )


_HAS_BATCHED_BLAS = torch.backends.mkl.is_available()
# Products with more multiplications than this justify a separate call and several cores.
_SMALL_PRODUCT = 1 << 20


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix products left[i] @ right[i].

    Without MKL, torch.bmm runs one tensor operation per product, whose overhead exceeds the cost of a small product
    (2.5 times the training time of 16 small networks); NumPy calls BLAS in a loop.
    """
    small = left.shape[1] * left.shape[2] * right.shape[2] <= _SMALL_PRODUCT
    supported = left.device.type == "cpu" and left.dtype in (torch.float32, torch.float64)
    if _HAS_BATCHED_BLAS or not small or not supported:
        return torch.bmm(left, right)
    outputs = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    with np.errstate(all="ignore"):  # a model that overflows is reported by the fleet
        np.matmul(left.numpy(), right.numpy(), out=outputs.numpy())
    return outputs


State = tuple[Tensor, ...]


class Stackable(TorchFunctionMode):
    """Compute recurrent layers and weight norm by formulas inside a `with` block.

    The active mode also prevents transformer layers from using their fused evaluation kernels, which torch.vmap would
    run once per model.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the functions below, and leave everything else unchanged."""
        return _FORMULAS.get(func, func)(*args, **(kwargs or {}))


def formula_of_attention() -> AbstractContextManager[None]:
    """Compute attention by its formula inside a `with` block.

    Attention kernels fail in the backward pass of stacked models on GPUs, and run once per model on CPUs.
    """
    manager: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return manager


def without_cudnn(module: nn.Module) -> nn.Module:
    """Disable the flattening of weights in recurrent layers: the weights of stacked models have no memory address."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = lambda: None  # type: ignore[method-assign]
    return module


def _recurrent(cell: Callable[..., State]) -> Callable[..., State]:
    """Return a function like `torch.lstm`, which returns the outputs and the last states of all layers."""

    def run(
        inputs: Tensor,
        states: Sequence[Tensor] | Tensor,
        weights: Sequence[Tensor],
        has_biases: bool,
        n_layers: int,
        dropped: float,
        training: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> State:
        x = inputs.transpose(0, 1) if batch_first else inputs
        first = (states,) if isinstance(states, Tensor) else tuple(states)
        n_directions = 2 if bidirectional else 1
        n_weights = len(weights) // (n_layers * n_directions)
        last: list[State] = []
        for layer in range(n_layers):
            outputs = []
            for direction in range(n_directions):
                parts: Sequence[Any] = weights[len(last) * n_weights : (len(last) + 1) * n_weights]
                w_in, w_state, *rest = parts if has_biases else (*parts[:2], None, None, *parts[2:])
                # The inputs of all steps in one product.
                steps, state, hidden = linear(x, w_in, rest[0]).unbind(), tuple(s[len(last)] for s in first), []
                for step in reversed(steps) if direction else steps:
                    state = cell(step, state, w_state, *rest[1:])
                    hidden.append(state[0])
                outputs.append(torch.stack(hidden[::-1] if direction else hidden))
                last.append(state)
            x = torch.cat(outputs, dim=-1)
            x = dropout(x, dropped, training) if layer + 1 < n_layers else x
        return x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*last, strict=True))

    return run


class _FusedCell(torch.autograd.Function):
    """Gates of a recurrent cell in one kernel of torch, forward and backward, for the rows of all models at once."""

    @staticmethod
    def forward(kernel: Callable[..., State], *inputs: Tensor) -> State:
        """Return the new state of one model."""
        return kernel(*inputs)[:-1]  # without the workspace of the backward pass

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing for backward: in a fleet, autograd differentiates the batched call in `vmap`."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, kernel: Callable[..., State], *inputs: Tensor) -> tuple[State, Any]:
        """Return the new states of all models, on their first axis."""
        dims = in_dims[1:]
        stacked = [
            part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip(inputs, dims, strict=True)
        ]
        states = kernel(*(part.reshape(-1, part.shape[-1]) for part in stacked))[:-1]
        return tuple(part.view(*stacked[0].shape[:-1], -1) for part in states), (0,) * len(states)


def _gru(from_input: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    (h,) = state
    from_state, n = linear(h, weight, bias), h.shape[-1]
    if from_input.is_cuda:
        return _FusedCell.apply(torch.ops.aten._thnn_fused_gru_cell, from_input, from_state, h)
    from_input, new_input = from_input.split([2 * n, n], dim=-1)
    from_state, new_state = from_state.split([2 * n, n], dim=-1)
    reset, update = torch.sigmoid(from_input + from_state).chunk(2, dim=-1)
    return (torch.lerp(torch.tanh(new_input + reset * new_state), h, update),)


def _lstm(
    from_input: Tensor, state: State, weight: Tensor, bias: Tensor | None, projection: Tensor | None = None
) -> State:
    (h, c), from_state = state, linear(state[0], weight, bias)
    if from_input.is_cuda:
        h, c = _FusedCell.apply(torch.ops.aten._thnn_fused_lstm_cell, from_input, from_state, c)
    else:
        update, forget, new, output = (from_input + from_state).chunk(4, dim=-1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(update) * torch.tanh(new)
        h = torch.sigmoid(output) * torch.tanh(c)
    return h if projection is None else linear(h, projection), c


def _plain(activation: Callable[[Tensor], Tensor]) -> Callable[..., State]:
    return lambda from_input, state, weight, bias: (activation(from_input + linear(state[0], weight, bias)),)


def _weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    others = [axis for axis in range(direction.ndim) if dim == -1 or axis != dim % direction.ndim]
    norm = torch.linalg.vector_norm(direction, dim=others, keepdim=True) if others else direction.abs()
    return direction * (length / norm)


_CELLS = {"gru": _gru, "lstm": _lstm, "rnn_tanh": _plain(torch.tanh), "rnn_relu": _plain(torch.relu)}
_FORMULAS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): _recurrent(cell) for name, cell in _CELLS.items()},
    torch._nested_tensor_from_mask_left_aligned: lambda *_: False,  # padding stays: nested tensors cannot be stacked
    torch._weight_norm: _weight_norm,
}
