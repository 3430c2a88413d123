"""Elapsed time and peak memory of the process."""

import sys
import time

_START = time.perf_counter()


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
