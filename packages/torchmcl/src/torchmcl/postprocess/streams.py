"""Regions for streams, whose distribution may drift: adaptive conformal inference."""

import bisect
import math

from torchmcl._checks import bad_value, check_positive, check_positive_int, check_real

__all__ = ["AdaptiveLevel"]


class AdaptiveLevel:
    """A level that follows a stream: after a miss the next region is larger, after a hit a little smaller.

    The share of misses tends to alpha for every stream, also under drift: after n steps it differs by at most
    (max(alpha, 1 - alpha) + step_size) / (step_size n).

    Args:
        alpha: in (0, 1), the share of targets that may lie outside.
        step_size: how fast it follows.
        window: how many of the last values it compares with; all by default.

    Example:
        >>> level = AdaptiveLevel(alpha=0.2, step_size=0.05)
        >>> hits = [level.update(value) for value in (0.3, 0.1, 0.2, 0.5, 0.4, 0.9, 0.2)]
        >>> level.n_misses, level.level
        (1, 0.9)

    Reference:
        Gibbs, Candes: Adaptive conformal inference under distribution shift, 2021, Eq. (2).
    """

    def __init__(self, alpha: float = 0.1, step_size: float = 0.01, window: int | None = None) -> None:
        check_real("AdaptiveLevel", "alpha", alpha)
        if not 0 < alpha < 1:
            raise ValueError(bad_value("AdaptiveLevel", "alpha", "lie in (0, 1)", repr(alpha)))
        check_positive("AdaptiveLevel", "step_size", step_size)
        if window is not None:
            check_positive_int("AdaptiveLevel", "window", window)
        self.alpha, self.step_size, self.window = alpha, step_size, window
        self.current_alpha = alpha
        self.n_steps = self.n_misses = 0
        self._sorted: list[float] = []
        self._recent: list[float] = []

    @property
    def level(self) -> float:
        """The nonconformity up to which the next target is in its region; infinite while too little is known."""
        if self.current_alpha >= 1:
            return -math.inf
        n = len(self._sorted)
        rank = math.ceil((1 - self.current_alpha) * (n + 1) - 1e-9)
        return self._sorted[rank - 1] if 1 <= rank <= n else math.inf

    def update(self, value: float) -> bool:
        """Take the nonconformity of the target that came; return whether it was in its region."""
        check_real("AdaptiveLevel.update", "value", value)
        hit = bool(value <= self.level)
        self.n_steps += 1
        self.n_misses += not hit
        self.current_alpha += self.step_size * (self.alpha - (not hit))
        bisect.insort(self._sorted, float(value))
        self._recent.append(float(value))
        if self.window is not None and len(self._recent) > self.window:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._recent.pop(0)))
        return hit
