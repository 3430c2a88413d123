"""The process: the time and memory that it has used, and a pause of its garbage collector."""

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector from running: the end of an earlier training's graph or event would spoil a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
