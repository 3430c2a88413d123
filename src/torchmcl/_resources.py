"""What the process has used so far: time and memory."""

import sys
import time

__all__ = ["peak_mebibytes", "seconds_since_start"]

_START = time.perf_counter()


def seconds_since_start() -> float:
    """Return the seconds since the package was imported."""
    return time.perf_counter() - _START


def peak_mebibytes() -> float | None:
    """Return the largest memory the process has held, None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
