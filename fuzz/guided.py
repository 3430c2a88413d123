"""The edges under atheris: coverage of torchmcl decides which inputs are worth changing further.

Each edge runs in a separate process, for this many seconds; libFuzzer's log of it becomes a row of the record.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Guided", "driver_name", "read_log", "run_edge", "run_edges"]

# Imports and seeds of an edge, under instrumentation; a process that needs longer than that hangs.
_GRACE = 240
_OPTIONS = ("-max_len=512", "-len_control=0", "-rss_limit_mb=8192", "-print_final_stats=1")
_FOUND = "FINDING "


class Guided(NamedTuple):
    """What libFuzzer says of an edge.

    Attributes:
        edge: its name.
        n_inputs: how many were tried.
        coverage: counters of torchmcl and of the edge that were reached.
        features: the same with how often, and with the values that were compared.
        n_corpus: inputs kept since each reached something new.
        seconds: it ran, without the imports.
        findings: what was found, as text, the first of each kind.
        log: all that was printed.
    """

    edge: str
    n_inputs: int
    coverage: int
    features: int
    n_corpus: int
    seconds: float
    findings: list[str]
    log: str


def driver_name() -> str:
    """Return the name and version of the fuzzer, as the record gives it."""
    try:
        return f"atheris {version('atheris')}"
    except PackageNotFoundError:
        return "atheris (unknown version)"


# ---- one edge, in this process


def run_edge(edge: str, theirs: Sequence[str], corpus: Path | None = None, keep_going: bool = False) -> int:
    """Run one edge under atheris in this process, which ends with it.

    Args:
        edge: its name.
        theirs: options for libFuzzer.
        corpus: a folder where inputs are kept; what the warm-up tried is put there to begin with.
        keep_going: a finding is printed, once for each kind, instead of ending the run.
    """
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris, or run without --atheris.", file=sys.stderr)
        return 2
    import torch  # before the block: only what is ours is to be instrumented

    torch.set_num_threads(1)
    # What an input imports later is not instrumented, so that a few run in the block; on the way the seeds are made.
    with atheris.instrument_imports(include=["torchmcl", "fuzz"]):
        from fuzz.driver import attempt

        tried = list(_warm_up(edge))
    if corpus is not None:
        corpus.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(tried):
            (corpus / f"seed-{number}").write_bytes(content)
        theirs = [*theirs, str(corpus)]
    said: set[str] = set()

    def one_input(content: bytes) -> None:
        _, finding = attempt(edge, content)
        if finding is None:
            return
        if not keep_going:
            raise RuntimeError(f"{finding.what} at {finding.where}")
        kind = f"{finding.what[:60]} {finding.where}"
        if kind not in said:
            said.add(kind)
            text = f"{finding.what} at {finding.where}"
            print(_FOUND + json.dumps({"what": text, "input": content.hex()}), file=sys.stderr, flush=True)

    atheris.Setup([sys.argv[0], *theirs], one_input)
    atheris.Fuzz()
    return 0


def _warm_up(edge: str, n_inputs: int = 64, seconds: float = 15) -> Iterator[bytes]:
    """Try a few inputs of chance and give them back."""
    from fuzz.driver import attempt, generated

    chance = random.Random(f"{edge} guided")
    attempt(edge, b"")
    began = time.monotonic()
    for _ in range(n_inputs):
        content = generated(chance, [])
        attempt(edge, content)
        yield content
        if time.monotonic() - began > seconds:
            return


# ---- all edges, each in a separate process


def run_edges(edges: Sequence[str], seconds: int, n_processes: int, grace: float = _GRACE) -> Iterator[Guided]:
    """Run edges side by side for this many seconds each; return the outcomes in order."""
    with ThreadPoolExecutor(n_processes) as threads:  # each waits for a separate process
        yield from threads.map(_in_a_process, edges, [seconds] * len(edges), [grace] * len(edges))


def _in_a_process(edge: str, seconds: int, grace: float) -> Guided:
    # libFuzzer leaves without cleaning up, so that the folder of the process is ours.
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="torchmcl-fuzz-", dir=shared if os.access(shared, os.W_OK) else None
    ) as place:
        command = [sys.executable, "-m", "fuzz", "--atheris", edge, "--keep-going", "--corpus", f"{place}/corpus"]
        command += ["--", f"-max_total_time={seconds}", f"-artifact_prefix={place}/", *_OPTIONS]
        environment = {**os.environ, "TMPDIR": place, "OMP_NUM_THREADS": "1"}
        log = Path(place) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[1],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                code: int | None = process.wait(seconds + grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
        guided = read_log(edge, log.read_text(errors="replace"))
        left = [path.read_bytes().hex() for path in Path(place).glob("*-*") if path.is_file()]
    if code is None:
        guided.findings.append(f"no end after {seconds + grace:g} s")
    elif code != 0 and not guided.findings:
        guided.findings.append(f"the process ended with {code}: {guided.log.strip()[-300:]}")
    if left:  # libFuzzer's own: a crash, a timeout, memory; with the input
        guided.findings[-1] += f" (again: python -m fuzz --edges {edge} --again {left[0]})"
    return guided


# ---- the log

_STATUS = re.compile(r"^#(\d+)\t(\w+) *(?:cov: (\d+) )?(?:ft: (\d+) )?(?:corp: (\d+)/)?", re.MULTILINE)
_DONE = re.compile(r"^Done (\d+) runs in (\d+) second", re.MULTILINE)
_EXECUTED = re.compile(r"^stat::number_of_executed_units: *(\d+)", re.MULTILINE)
_UNCAUGHT = re.compile(r"=== Uncaught Python exception: ===\n(.*)")
_ERROR = re.compile(r"ERROR: libFuzzer: (.*)")


def read_log(edge: str, log: str) -> Guided:
    """Return what libFuzzer's log says of a run.

    Args:
        edge: its name.
        log: all that the process printed.
    """
    n_inputs = coverage = features = n_corpus = 0
    for line in _STATUS.finditer(log):
        n_inputs = int(line[1])
        coverage, features, n_corpus = (
            int(line[group] or before) for group, before in ((3, coverage), (4, features), (5, n_corpus))
        )
    seconds = 0.0
    if executed := _EXECUTED.search(log):
        n_inputs = int(executed[1])
    if done := _DONE.search(log):
        n_inputs, seconds = int(done[1]), float(done[2])
    findings = [_told(line.removeprefix(_FOUND), edge) for line in log.splitlines() if line.startswith(_FOUND)]
    uncaught = [match[1].strip() for match in _UNCAUGHT.finditer(log)]
    # An exception of Python ends in an error of libFuzzer too, which says less.
    findings += uncaught or [match[1].strip() for match in _ERROR.finditer(log)]
    return Guided(edge, n_inputs, coverage, features, n_corpus, seconds, findings, log)


def _told(line: str, edge: str) -> str:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:  # another line was printed in the middle of it
        return line
    return f"{found['what']} (again: python -m fuzz --edges {edge} --again {found['input']})"
