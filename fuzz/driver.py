"""Our own driver: seeded inputs, each edge in a separate process, so that a crash is a finding like any other.

It mutates inputs that came far (that ended without an error), which is what a coverage-guided fuzzer does better; under
atheris the same edges run in that one.
"""

import faulthandler
import importlib
import mmap
import multiprocessing
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.edges import EDGES
from fuzz.feed import Feed
from fuzz.judge import Finding, judged

__all__ = ["EDGES", "Result", "attempt", "fuzz_edge", "generated"]

# Seconds for one input, a hundred times what the slowest takes on an idle machine.
PATIENCE = 60
_LONGEST = 96
_SLOT = 256


def _run_of(edge: str) -> Callable[[Feed], None]:
    """Return what an edge does: one of ours by its name, another as `module:function`."""
    if edge in EDGES:
        return EDGES[edge][0]
    module, _, function = edge.partition(":")
    found: Callable[[Feed], None] = getattr(importlib.import_module(module), function)
    return found


class Result(NamedTuple):
    """What came of an edge.

    Attributes:
        edge: its name.
        n_inputs: how many were tried.
        n_accepted: how many ended without an error.
        seconds: it took.
        findings: the first of each kind.
    """

    edge: str
    n_inputs: int
    n_accepted: int
    seconds: float
    findings: list[Finding]


class _TooLong(BaseException):
    """An input that takes longer than any should."""


@contextmanager
def _patience(seconds: float) -> Any:
    def end(*_: Any) -> None:
        raise _TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(edge: str, content: bytes) -> tuple[bool, Finding | None]:
    """Try one input; return whether it was accepted, and what is wrong, if anything is."""
    try:
        with _patience(PATIENCE), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _run_of(edge)(Feed(content))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return False, judged(edge, error, content)
    return True, None


def generated(chance: random.Random, accepted: list[bytes]) -> bytes:
    """Return a new input: of chance alone, or one that came far with a few bytes changed."""
    if not accepted or chance.random() < 0.5:
        return chance.randbytes(chance.choice((6, 12, 24, 48, _LONGEST)))
    content = bytearray(chance.choice(accepted))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(content) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            content[place : place + 1] = chance.randbytes(1)
        elif kind == 1:
            content[place:place] = chance.randbytes(chance.randint(1, 4))
        elif kind == 2:
            del content[place : place + chance.randint(1, 4)]
        else:
            other = chance.choice(accepted)
            content[place:] = other[place:]
    return bytes(content[:_LONGEST])


def _work(edge: str, n_inputs: int, seed: int, slot: str, pipe: Connection) -> None:
    """Run in a separate process: try inputs, with the current one in a file that outlives a crash."""
    import torch

    sys.setrecursionlimit(1000)
    torch.set_num_threads(1)
    faulthandler.enable(open(os.devnull, "w"))  # noqa: SIM115  (the crash itself is reported by the parent)
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # panics of Rust write there
    with suppress(Exception):  # imports and seeds, which take longer than any input may
        _run_of(edge)(Feed(b""))
    chance = random.Random(f"{edge} {seed}")
    accepted: list[bytes] = []
    found: dict[str, Finding] = {}
    n_accepted = 0
    with Path(slot).open("r+b") as file, mmap.mmap(file.fileno(), _SLOT) as current:
        for _ in range(n_inputs):
            content = generated(chance, accepted)
            current[: 1 + len(content)] = bytes([len(content)]) + content
            good, finding = attempt(edge, content)
            n_accepted += good
            if good and content and (len(accepted) < 500 or chance.random() < 0.05):
                accepted.append(content)
                del accepted[: max(0, len(accepted) - 1000)]
            if finding is not None:
                found.setdefault(f"{finding.what[:60]} {finding.where}", finding)
    pipe.send((n_accepted, list(found.values())))
    from fuzz.files import forget_folder

    forget_folder()


def fuzz_edge(edge: str, n_inputs: int, seed: int = 0) -> Result:
    """Return the outcome of this many inputs, tried in a separate process."""
    import tempfile

    began = time.perf_counter()
    with tempfile.NamedTemporaryFile() as slot:
        slot.write(bytes(_SLOT))
        slot.flush()
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(edge, n_inputs, seed, slot.name, there))
        process.start()
        there.close()
        answer: tuple[int, list[Finding]] = (0, [])
        with suppress(EOFError):
            answer = here.recv()
        process.join()
        n_accepted, findings = answer
        if process.exitcode != 0:
            current = Path(slot.name).read_bytes()
            content = current[1 : 1 + current[0]]
            findings = [*findings, Finding(edge, f"the process ended with {process.exitcode}", "?", content)]
    return Result(edge, n_inputs, n_accepted, time.perf_counter() - began, findings)
