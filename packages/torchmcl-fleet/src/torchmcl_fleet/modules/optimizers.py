"""Optimizers for stacked parameters, one matrix row per model.

They compute the same updates as `torch.optim.AdamW` and `torch.optim.SGD`, with a learning rate and a weight decay for
each model.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from torchmcl import checks
from torchmcl_fleet import native
from torchmcl_fleet.native import compiled

__all__ = ["SGD", "Adam", "CompiledAdam", "FleetOptimizer", "fast_adam", "is_plain_adam"]


@dataclass(frozen=True)
class FleetOptimizer(ABC):
    """Base class of optimizers; their state is a dictionary of tensors [models, ...] that is modified in place."""

    @abstractmethod
    def init(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the state before the first step for parameters [models, parameters]."""

    @abstractmethod
    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change `flat` and `state` by one step.

        Args:
            flat: Parameters, [models, parameters].
            grad: Gradients of the parameters, [models, parameters].
            state: State of the optimizer, as returned by `init`.
            lr: Learning rates, [models, 1].
            decay: Decoupled weight decays, [models, 1]; None if all are 0.
        """


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
        n_steps = torch.zeros(len(flat), 1, dtype=flat.dtype, device=flat.device)
        return {"mean": torch.zeros_like(flat), "square": torch.zeros_like(flat), "n_steps": n_steps}

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change parameters, moments and counts by one step."""
        mean, square, n_steps = state["mean"], state["square"], state["n_steps"]
        n_steps.add_(1)
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        if decay is not None:
            flat.mul_(1 - lr * decay)
        # lr * (mean / c1) / (sqrt(square / c2) + epsilon), with the per-model factors combined.
        root = _correction(self.beta2, n_steps).sqrt_()
        deviation = square.sqrt().add_(self.epsilon * root)
        flat.addcdiv_(mean * (lr * root / _correction(self.beta1, n_steps)), deviation, value=-1)


def is_plain_adam(optimizer: FleetOptimizer) -> TypeGuard[Adam]:
    """Return whether compiled code supports an optimizer: `Adam` itself, not a subclass, with positive betas."""
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
        """Return zero velocities; without momentum an empty state."""
        return {"velocity": torch.zeros_like(flat)} if self.momentum else {}

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change parameters and velocity by one step."""
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

    Compiled code makes a single pass and treats values below 1e-38 as 0; their square roots would take half the time of
    a step on x86.
    """
    if native.supports(flat) and is_plain_adam(optimizer):
        return CompiledAdam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
    return optimizer
