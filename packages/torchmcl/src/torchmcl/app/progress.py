"""Progress bar, elapsed time and peak memory."""

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress", "peak_mebibytes", "seconds_since_start"]

_START = time.perf_counter()


class Progress:
    """Progress bar of a long task, for a `with` block.

    Args:
        total: Number of steps.
        what: Title of the bar.
        show: Whether to show the bar.
        unit: Name of a step.
    """

    def __init__(self, total: int, what: str, *, show: bool = True, unit: str = "step") -> None:
        self._bar: Any = None
        if show:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=what, unit=unit, mininterval=0.5, dynamic_ncols=True)

    def step(self, n: int = 1, note: str = "") -> None:
        """Advance by n steps, with a note after the bar."""
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(n)

    def __enter__(self) -> "Progress":
        """Return the progress bar."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()


def seconds_since_start() -> float:
    """Return the seconds since the package was imported."""
    return time.perf_counter() - _START


def peak_mebibytes() -> float | None:
    """Return the peak memory of the process, None if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
