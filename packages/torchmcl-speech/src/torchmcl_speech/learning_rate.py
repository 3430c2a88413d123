"""Learning rates that fall to 0 over the epochs or over a budget of time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torchmcl.schedules import Schedule
from torchmcl_speech.config import TrainingConfig

__all__ = ["CosineBudget", "rate_schedule"]


@dataclass
class CosineBudget:
    """Epoch -> learning rate: a warm-up, then a cosine to 0.

    Args:
        rate: the highest.
        n_epochs: after which it is 0.
        warmup: epochs until it is highest.
        seconds: after which it is 0 in any case, from the making of this object; a training that resumes has as many
            again, and what is left of its epochs.
        clock: returns the time.

    Example:
        >>> falling = CosineBudget(1.0, n_epochs=8, warmup=1)
        >>> [round(falling(epoch), 2) for epoch in (0, 1, 4, 8)]
        [0.5, 0.96, 0.5, 0.0]
    """

    rate: float
    n_epochs: int
    warmup: int = 0
    seconds: float = math.inf
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._began = self.clock()

    def __call__(self, step: float) -> float:
        """Return the rate of the epoch `step`, which begins now."""
        done = step / self.n_epochs
        if math.isfinite(self.seconds):
            done = max(done, (self.clock() - self._began) / max(self.seconds, 1e-9))
        falling = (1 + math.cos(math.pi * min(done, 1.0))) / 2
        return self.rate * falling * min((step + 1) / (self.warmup + 1), 1.0)


def rate_schedule(training: TrainingConfig, minutes: float) -> float | Schedule:
    """Return the learning rate of a configuration: a number, or one per epoch."""
    if training.schedule == "plateau":
        return training.learning_rate
    seconds = 60 * minutes if training.schedule == "budget" else math.inf
    return CosineBudget(training.learning_rate, training.epochs, training.warmup, seconds)
