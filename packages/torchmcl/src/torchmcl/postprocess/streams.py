"""Regions for streams with a drifting distribution: adaptive conformal inference."""

import bisect
import math

from torchmcl._checks import check_positive, check_positive_int, check_real
from torchmcl.postprocess._inputs import check_coverage

__all__ = ["AdaptiveLevel"]


class AdaptiveLevel:
    """A level that adapts to a stream: after a miss the next region is larger, after a hit slightly smaller.

    The share of hits tends to `coverage` for every stream, also under drift: after n steps it differs by at most
    (max(coverage, 1 - coverage) + step_size) / (step_size n).

    Args:
        coverage: in (0, 1), the share of targets inside.
        step_size: how fast it follows.
        window: how many of the last values it compares with; all by default.

    Example:
        >>> level = AdaptiveLevel(coverage=0.8, step_size=0.05)
        >>> hits = [level.update(value) for value in (0.3, 0.1, 0.2, 0.5, 0.4, 0.9, 0.2)]
        >>> level.n_misses, level.level
        (1, 0.9)

    Reference:
        Gibbs, Candes: Adaptive conformal inference under distribution shift, 2021, Eq. (2).
    """

    def __init__(self, coverage: float = 0.9, step_size: float = 0.01, window: int | None = None) -> None:
        check_coverage("AdaptiveLevel", coverage)
        check_positive("AdaptiveLevel", "step_size", step_size)
        if window is not None:
            check_positive_int("AdaptiveLevel", "window", window)
        self.coverage, self.step_size, self.window = coverage, step_size, window
        self.current_coverage = coverage
        self.n_steps = self.n_misses = 0
        self._sorted: list[float] = []
        self._recent: list[float] = []

    @property
    def level(self) -> float:
        """The level of the next region; infinite until enough targets were observed."""
        if self.current_coverage <= 0:
            return -math.inf
        n = len(self._sorted)
        rank = math.ceil(self.current_coverage * (n + 1) - 1e-9)
        return self._sorted[rank - 1] if 1 <= rank <= n else math.inf

    def update(self, value: float) -> bool:
        """Record the nonconformity of the observed target; return whether it was in its region."""
        check_real("AdaptiveLevel.update", "value", value)
        hit = bool(value <= self.level)
        self.n_steps += 1
        self.n_misses += not hit
        self.current_coverage += self.step_size * (self.coverage - hit)
        bisect.insort(self._sorted, float(value))
        self._recent.append(float(value))
        if self.window is not None and len(self._recent) > self.window:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._recent.pop(0)))
        return hit
