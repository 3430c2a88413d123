"""Arithmetic of stacked parameters, one matrix row per model: linear layers without torch.vmap, and optimizers.

To run a network of linear layers and activations on parameters [models, ...] and inputs [models, batch, ...],
only the linear layers must be replaced by batched ones; everything else supports leading axes.
This avoids the overhead of torch.vmap, which dominates for small models on CPUs. The optimizers equal
`torch.optim.AdamW` and `torch.optim.SGD`, with a learning rate and a weight decay for each model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from torchmcl import MultiHypothesisHead, MultiHypothesisMLP, checks
from torchmcl_fleet.gpu.support import held_by_program, usable
from torchmcl_fleet.native import compiled

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


# Elementwise functions, which are independent of axes.
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
        rectified: the weights of layers that are followed by a ReLU, which is then fused with the layer.
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
    """inputs @ weight^T + bias for each model, followed by a ReLU."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, rectified: bool) -> Tensor:
        ctx.rectified = rectified
        ctx.fused = held_by_program(*weight.shape[1:]) and usable(inputs, weight, bias)
        if ctx.fused:
            from torchmcl_fleet.gpu.stacked import linear_rows

            inputs = inputs if inputs[0].is_contiguous() else inputs.contiguous()
            outputs = linear_rows(inputs, weight, bias, rectified)
        elif inputs.device.type == "cpu":
            # [models, rows, features] is kept as the transposed view of [models, features, rows]: every later
            # operation follows that order, and a sum over five hypotheses then runs along the rows in full vectors.
            outputs = products(weight, inputs.mT).add_(bias.unsqueeze(-1)).mT
        else:
            outputs = torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)
        if rectified and not ctx.fused:
            outputs.relu_()
        ctx.save_for_backward(inputs, weight, outputs if rectified else None)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        inputs, weight, outputs = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if ctx.fused:
            from torchmcl_fleet.gpu.stacked import linear_rows_backward

            grad = grad.contiguous()
            return *linear_rows_backward(inputs, weight, outputs, grad, ctx.rectified, needs[0]), None
        if ctx.rectified:
            grad = torch.ops.aten.threshold_backward(grad, outputs, 0)
        return (
            products(weight.mT, grad.mT).mT if needs[0] else None,
            products(grad.mT, inputs) if needs[1] else None,
            grad.sum(dim=1) if needs[2] else None,
            None,
        )


_HAS_BATCHED_BLAS = torch.backends.mkl.is_available()
# Products with more multiplications than this are worth a separate call, and several cores.
_SMALL_PRODUCT = 1 << 20


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix products left[i] @ right[i] of two stacks.

    Without MKL, torch.bmm runs a tensor operation per product of the stack, which takes longer than a small
    product itself (2.5 times as long in training 16 small networks); NumPy passes them to BLAS in one loop.
    """
    small = left.shape[1] * left.shape[2] * right.shape[2] <= _SMALL_PRODUCT
    served = left.device.type == "cpu" and left.dtype in (torch.float32, torch.float64)
    if _HAS_BATCHED_BLAS or not small or not served:
        return torch.bmm(left, right)
    outputs = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    with np.errstate(all="ignore"):  # a model that overflows is reported by the fleet
        np.matmul(left.numpy(), right.numpy(), out=outputs.numpy())
    return outputs


_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class FleetOptimizer(ABC):
    """An update rule. Its state is a dictionary of tensors with a leading model axis, modified in place."""

    @abstractmethod
    def init(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the state before the first step for parameters [models, parameters]."""

    @abstractmethod
    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change `flat` and `state` by one step.

        Args:
            flat: parameters [models, parameters].
            grad: their gradient.
            state: from `init`.
            lr: learning rates [models, 1].
            decay: decoupled weight decays [models, 1]; None when all are 0.
        """

    def _in_single(
        self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None
    ) -> None:
        """Update half-precision parameters in single precision and round once, as torch.optim does."""
        wide = {name: value.float() for name, value in state.items()}
        new = flat.float()
        self.update(new, grad.float(), wide, lr, decay)
        flat.copy_(new)
        for name, value in state.items():
            value.copy_(wide[name])


@dataclass(frozen=True)
class Adam(FleetOptimizer):
    """Adam with decoupled weight decay (AdamW), as in `torch.optim.AdamW`."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("beta1", "beta2"):
            checks.check_interval("Adam", name, getattr(self, name), "[0, 1)")
        checks.check_non_negative("Adam", "epsilon", self.epsilon)

    def init(self, flat: Tensor) -> dict[str, Tensor]:
        """Return zero moments and step counts."""
        # bfloat16 cannot count beyond 256.
        dtype = torch.float32 if flat.dtype in _HALF else flat.dtype
        n_steps = torch.zeros(len(flat), 1, dtype=dtype, device=flat.device)
        return {"mean": torch.zeros_like(flat), "square": torch.zeros_like(flat), "n_steps": n_steps}

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change parameters, moments and counts by one step."""
        if flat.dtype in _HALF:
            self._in_single(flat, grad, state, lr, decay)
            return
        mean, square, n_steps = state["mean"], state["square"], state["n_steps"]
        n_steps.add_(1)
        if min(self.beta1, self.beta2) > 0 and flat.is_contiguous() and usable(flat, grad):
            from torchmcl_fleet.gpu.stacked import adam_rows

            adam_rows(flat, grad, mean, square, n_steps, lr, decay, (self.beta1, self.beta2), self.epsilon)
            return
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        if decay is not None:
            flat.mul_(1 - lr * decay)
        # lr * (mean / c1) / (sqrt(square / c2) + epsilon), with the per-model factors combined.
        root = _correction(self.beta2, n_steps).sqrt_()
        deviation = square.sqrt().add_(self.epsilon * root)
        flat.addcdiv_(mean * (lr * root / _correction(self.beta1, n_steps)), deviation, value=-1)


def is_plain_adam(optimizer: FleetOptimizer) -> TypeGuard[Adam]:
    """Return whether compiled code and kernels support an optimizer: `Adam`, not a subclass, with positive betas."""
    return type(optimizer) is Adam and min(optimizer.beta1, optimizer.beta2) > 0


def _correction(beta: float, n_steps: Tensor) -> Tensor:
    """Return 1 - beta^steps without cancellation for beta near 1."""
    return torch.expm1(n_steps * (math.log(beta) if beta > 0 else -math.inf)).neg_()


@dataclass(frozen=True)
class SGD(FleetOptimizer):
    """Stochastic gradient descent with momentum and decoupled weight decay."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        """Check the field."""
        checks.check_interval("SGD", "momentum", self.momentum, "[0, 1)")

    def init(self, flat: Tensor) -> dict[str, Tensor]:
        """Return a zero velocity, if there is momentum."""
        return {"velocity": torch.zeros_like(flat)} if self.momentum else {}

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change parameters and velocity by one step."""
        if flat.dtype in _HALF:
            self._in_single(flat, grad, state, lr, decay)
            return
        if decay is not None:
            flat.mul_(1 - lr * decay)
        if self.momentum:
            grad = state["velocity"].mul_(self.momentum).add_(grad)
        flat.sub_(lr * grad)


class CompiledAdam(Adam):
    """Adam in compiled code."""

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change parameters, moments and counts by one step."""
        state["n_steps"].add_(1)
        self.step(state, lr, decay)(flat, grad)

    def step(self, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> compiled.AdamStep:
        """Return the step in the format of the backend, including the step count."""
        moments = state["mean"], state["square"], state["n_steps"]
        return compiled.AdamStep(*moments, lr, decay, (self.beta1, self.beta2), self.epsilon)


def fast_adam(optimizer: FleetOptimizer, flat: Tensor) -> FleetOptimizer:
    """Return Adam in compiled code if it supports these parameters, other optimizers unchanged.

    Besides being one pass, it takes numbers below 1e-38 as 0: their roots take half the time of a step on x86.
    """
    if compiled.serves(flat) and is_plain_adam(optimizer):
        return CompiledAdam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
    return optimizer
