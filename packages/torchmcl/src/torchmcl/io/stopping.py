"""Signals: on SIGTERM and Ctrl-C, the process saves its state and exits with the conventional code."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = [
    "TrainingInterrupted",
    "begin_saving",
    "check_stop",
    "end_saving",
    "saves_when_stopped",
    "stop_on_signals",
    "stop_requested",
]

# Number of active sections that save on request, and the received signal.
_n_savers = 0
_received: int | None = None
_lock = threading.Lock()


class TrainingInterrupted(SystemExit):
    """Raised after a signal; if it is not caught, the process ends with code 128 + signal (143, 130).

    Attributes:
        code: Exit code of the process.
        signal: Number of the signal.
        message: Description of what is saved and how to resume.
    """

    code: int

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(128 + number)
        self.signal = number
        self.message = f"Stopped by {signal.Signals(number).name}. {message}".strip()

    def __str__(self) -> str:
        """Return the message."""
        return self.message


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Stop the work in a `with` block cleanly on SIGTERM and Ctrl-C.

    `Checkpoint`, `Fleet.fit`, Lightning with `Checkpoints`, and the command line then save at the next step, epoch or
    batch and raise `TrainingInterrupted`; other work is interrupted at once, and a second signal interrupts all work.
    Outside of the main thread, where Python delivers no signals, it has no effect.

    Example:
        >>> import os
        >>> try:
        ...     with stop_on_signals():
        ...         os.kill(os.getpid(), signal.SIGTERM)
        ... except TrainingInterrupted as stopped:
        ...     print(stopped.code, stopped)
        143 Stopped by SIGTERM.
    """
    global _received
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    _received = None
    for number in before:
        signal.signal(number, _on_signal)
    hook = sys.unraisablehook

    def lost(error: "sys.UnraisableHookArgs") -> None:  # in a finalizer, or in a callback of the import system
        if isinstance(error.exc_value, TrainingInterrupted):
            threading.Timer(0.01, os.kill, (os.getpid(), error.exc_value.signal)).start()
        else:
            hook(error)

    sys.unraisablehook = lost
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _received = None


def stop_requested() -> bool:
    """Whether a signal requests a save and an exit."""
    return _received is not None


def check_stop(message: str = "") -> None:
    """Raise `TrainingInterrupted` if a signal requests it; call it after everything is saved."""
    if _received is not None:
        raise TrainingInterrupted(_received, message)


@contextmanager
def saves_when_stopped() -> Iterator[None]:
    """Declare that the code inside polls `stop_requested()`, so that signals do not interrupt it.

    Raises:
        TrainingInterrupted: At the end, if a signal arrived after the last check.
    """
    begin_saving()
    try:
        yield
    finally:
        end_saving()
    if _n_savers == 0:
        check_stop("The work had already ended.")


def begin_saving() -> None:
    """Begin a `saves_when_stopped` section without a `with` block."""
    global _n_savers
    with _lock:
        _n_savers += 1


def end_saving() -> None:
    """Undo `begin_saving`."""
    global _n_savers
    with _lock:
        _n_savers -= 1


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _received
    if _received is None and _n_savers:
        _received = number
        # the signal may have interrupted a print
        with contextlib.suppress(OSError):
            os.write(2, b"\ntorchmcl: saving, then stopping; once more to stop at once.\n")
        return
    _received = number
    raise TrainingInterrupted(number, "The last saved state is kept." if _n_savers else "")
