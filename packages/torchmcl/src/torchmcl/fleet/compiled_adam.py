"""Adam for a matrix of parameters in compiled code."""

from torch import Tensor

from torchmcl.accel.native import compiled
from torchmcl.fleet.optimizers import Adam, FleetOptimizer

__all__ = ["CompiledAdam", "fast_adam"]


class CompiledAdam(Adam):
    """Adam in compiled code."""

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> None:
        """Change parameters, moments and counts by one step."""
        state["n_steps"].add_(1)
        self.step(state, lr, decay)(flat, grad)

    def step(self, state: dict[str, Tensor], lr: Tensor, decay: Tensor | None) -> compiled.AdamStep:
        """Return the step in the form of the backend, which counts it."""
        moments = state["mean"], state["square"], state["n_steps"]
        return compiled.AdamStep(*moments, lr, decay, (self.beta1, self.beta2), self.epsilon)


def fast_adam(optimizer: FleetOptimizer) -> FleetOptimizer:
    """Return Adam in compiled code where there is any, other optimizers as they are."""
    if compiled.available() and type(optimizer) is Adam and min(optimizer.beta1, optimizer.beta2) > 0:
        return CompiledAdam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
    return optimizer
