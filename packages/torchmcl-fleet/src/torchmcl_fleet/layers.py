"""Functions of torch that `torch.vmap` cannot run, or runs model by model, as formulas for all models at once."""

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.overrides import TorchFunctionMode

State = tuple[Tensor, ...]


class Stackable(TorchFunctionMode):
    """Compute recurrent layers, attention and weight norm by formulas inside a `with` block.

    Kernels of attention fail in the backward pass of stacked models on GPUs, and are called for each model on CPUs. Any
    mode also keeps transformer layers from their fused functions for evaluation, which torch.vmap calls for each model.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the functions below, and leave everything else unchanged."""
        return _FORMULAS.get(func, func)(*args, **(kwargs or {}))


def without_cudnn(module: nn.Module) -> nn.Module:
    """Return a module whose recurrent layers leave weights in place: those of stacked models have no address."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters = lambda: None  # type: ignore[method-assign]
    return module


def _recurrent(cell: Callable[..., State]) -> Callable[..., State]:
    """Return a function like `torch.lstm`: outputs, then the last states of all layers."""

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
                own: Sequence[Any] = weights[len(last) * n_weights : (len(last) + 1) * n_weights]
                w_in, w_own, *rest = own if has_biases else (*own[:2], None, None, *own[2:])
                # The inputs of all steps in one product.
                steps, state, hidden = linear(x, w_in, rest[0]).unbind(), tuple(s[len(last)] for s in first), []
                for step in reversed(steps) if direction else steps:
                    state = cell(step, state, w_own, *rest[1:])
                    hidden.append(state[0])
                outputs.append(torch.stack(hidden[::-1] if direction else hidden))
                last.append(state)
            x = torch.cat(outputs, dim=-1)
            x = dropout(x, dropped, training) if layer + 1 < n_layers else x
        return x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*last, strict=True))

    return run


class _FusedCell(torch.autograd.Function):
    """The gates of a cell in one kernel of torch, forward and backward, for the rows of all models at once."""

    @staticmethod
    def forward(kernel: Callable[..., State], *given: Tensor) -> State:
        """Return the new state of one model."""
        return kernel(*given)[:-1]  # without the workspace of the backward pass

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: in a fleet, torch records the kernel below."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, kernel: Callable[..., State], *given: Tensor) -> tuple[State, Any]:
        """Return the new states of all models, on their first axis."""
        dims = in_dims[1:]
        stacked = [
            part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip(given, dims, strict=True)
        ]
        found = kernel(*(part.reshape(-1, part.shape[-1]) for part in stacked))[:-1]
        return tuple(part.view(*stacked[0].shape[:-1], -1) for part in found), (0,) * len(found)


def _gru(given: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    (h,) = state
    own, n = linear(h, weight, bias), h.shape[-1]
    if given.is_cuda:
        return _FusedCell.apply(torch.ops.aten._thnn_fused_gru_cell, given, own, h)
    (given, new), (own, own_new) = given.split([2 * n, n], dim=-1), own.split([2 * n, n], dim=-1)
    reset, kept = torch.sigmoid(given + own).chunk(2, dim=-1)
    return (torch.lerp(torch.tanh(new + reset * own_new), h, kept),)


def _lstm(given: Tensor, state: State, weight: Tensor, bias: Tensor | None, projection: Tensor | None = None) -> State:
    (h, c), own = state, linear(state[0], weight, bias)
    if given.is_cuda:
        h, c = _FusedCell.apply(torch.ops.aten._thnn_fused_lstm_cell, given, own, c)
    else:
        taken, kept, new, shown = (given + own).chunk(4, dim=-1)
        c = torch.sigmoid(kept) * c + torch.sigmoid(taken) * torch.tanh(new)
        h = torch.sigmoid(shown) * torch.tanh(c)
    return h if projection is None else linear(h, projection), c


def _plain(activation: Callable[[Tensor], Tensor]) -> Callable[..., State]:
    return lambda given, state, weight, bias: (activation(given + linear(state[0], weight, bias)),)


def _single(cell: Callable[..., State]) -> Callable[..., Tensor | State]:
    """Return a function like `torch.lstm_cell`: the state after one step."""

    def run(x: Tensor, state: Any, w_in: Tensor, w_own: Tensor, b_in: Any = None, b_own: Any = None) -> Any:
        one = isinstance(state, Tensor)
        new = cell(linear(x, w_in, b_in), (state,) if one else state, w_own, b_own)
        return new[0] if one else new

    return run


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # the formula adds every mask
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -math.inf)
    return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, *args, **kwargs)[0]


def _with_formula(layer: Any) -> Callable[..., Any]:
    """Return a function of torch that calls `_attention`: modes do not reach the functions inside of it."""
    names = {**vars(nn.functional), "scaled_dot_product_attention": _attention}
    found = types.FunctionType(layer.__code__, names, layer.__name__, layer.__defaults__, layer.__closure__)
    found.__kwdefaults__ = layer.__kwdefaults__
    return found


def _weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    others = [axis for axis in range(direction.ndim) if dim == -1 or axis != dim % direction.ndim]
    norm = torch.linalg.vector_norm(direction, dim=others, keepdim=True) if others else direction.abs()
    return direction * (length / norm)


_CELLS = {"gru": _gru, "lstm": _lstm, "rnn_tanh": _plain(torch.tanh), "rnn_relu": _plain(torch.relu)}
_FORMULAS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): _recurrent(cell) for name, cell in _CELLS.items()},
    **{getattr(torch, f"{name}_cell"): _single(cell) for name, cell in _CELLS.items()},
    nn.functional.scaled_dot_product_attention: _attention,
    nn.functional.multi_head_attention_forward: _with_formula(nn.functional.multi_head_attention_forward),
    torch._nested_tensor_from_mask_left_aligned: lambda *_: False,  # padding stays: nested tensors cannot be stacked
    torch._weight_norm: _weight_norm,
}
