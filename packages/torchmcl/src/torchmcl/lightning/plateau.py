"""Lowering the learning rate when the validation stops improving."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchmcl._checks import check_fraction, check_positive_int

__all__ = ["Plateau"]


@dataclass
class Plateau:
    """Lower the learning rate after some epochs without a new best value.

    Lightning steps its own schedulers after it has written the checkpoint of an epoch, and skips that step when it
    resumes; this one is stepped before.

    Args:
        monitor: the logged value to watch.
        patience: epochs without improvement until the rate is lowered, 5 in the paper.
        factor: by which it is lowered.
        higher_is_better: whether a larger value is an improvement.

    Example:
        >>> plateau = Plateau("val_distortion", patience=2)
        >>> [plateau.update(value) for value in (3.0, 2.0, 2.5, 2.0, 1.0)]
        [1.0, 1.0, 1.0, 0.5, 1.0]
    """

    monitor: str
    patience: int = 5
    factor: float = 0.5
    higher_is_better: bool = False
    best: float = field(default=math.inf, init=False)
    n_stale: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_positive_int("Plateau", "patience", self.patience)
        check_fraction("Plateau", "factor", self.factor)

    def update(self, value: float) -> float:
        """Return what to multiply the learning rate with after an epoch with this value."""
        value = -value if self.higher_is_better else value
        if value < self.best:
            self.best, self.n_stale = value, 0
            return 1.0
        self.n_stale += 1
        if self.n_stale < self.patience:
            return 1.0
        self.n_stale = 0
        return self.factor

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume."""
        return {"best": self.best, "n_stale": self.n_stale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""
        self.best, self.n_stale = float(state["best"]), int(state["n_stale"])
