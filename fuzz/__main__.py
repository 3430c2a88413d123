"""`python -m fuzz`: all edges, a count for each, and a record of what came out. `make fuzz` runs it.

With atheris installed (`pip install atheris`; it has wheels for x86-64 only and needs Clang's libFuzzer elsewhere) its
coverage-guided fuzzer runs the same edges: `python -m fuzz --atheris all --seconds 60` all of them side by side, with the
same kind of record; `python -m fuzz --atheris rules -- -runs=100000` one, with options of libFuzzer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Neither may import torchmcl: under atheris that happens where its imports are instrumented.
from fuzz.edges import EDGES
from fuzz.guided import Guided, driver_name, run_edge, run_edges

if TYPE_CHECKING:
    from fuzz.driver import Result

# The shares of the edges add up to a little over a hundred.
DEFAULT_INPUTS = 120_000


def main() -> int:
    """Run the fuzzer; return 1 if it found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=DEFAULT_INPUTS, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides every input (default: %(default)s)")
    parser.add_argument("--edges", nargs="*", choices=EDGES, default=list(EDGES), help="which (default: all)")
    parser.add_argument("--processes", type=int, help="edges at once (default: 2; all under atheris)")
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    parser.add_argument("--again", metavar="HEX", help="try one input of one edge again and show what happens")
    parser.add_argument(
        "--atheris", choices=[*EDGES, "all"], help="run one edge under atheris, its options follow --; or all --edges"
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each edge of --atheris all (default: %(default)s)")
    parser.add_argument("--logs", type=Path, help="write the logs of --atheris all to this file")
    parser.add_argument("--corpus", type=Path, help="where one edge under atheris keeps its inputs")
    parser.add_argument("--keep-going", action="store_true", help="one edge under atheris does not end with a finding")
    own = sys.argv[1:]
    theirs = own[own.index("--") + 1 :] if "--" in own else []
    options = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    if options.atheris == "all":
        return _guided(options)
    if options.atheris:
        return run_edge(options.atheris, theirs, options.corpus, options.keep_going)
    if options.again:
        from fuzz.feed import Feed

        EDGES[options.edges[0]][0](Feed(bytes.fromhex(options.again)))
        return 0
    results = _all(options.edges, options.inputs, options.seed, options.processes or 2)
    if options.out is not None:
        _write(options.out, _record(results, options.seed))
    return int(any(result.findings for result in results))


def _all(edges: list[str], n_inputs: int, seed: int, n_processes: int) -> list[Result]:
    from fuzz.driver import fuzz_edge

    total = sum(EDGES[edge][1] for edge in edges)
    results = []
    shares = [-(-n_inputs * EDGES[edge][1] // total) for edge in edges]
    with ThreadPoolExecutor(n_processes) as threads:  # each waits for a separate process
        running = threads.map(fuzz_edge, edges, shares, [seed] * len(edges))
        for edge, result in zip(edges, running, strict=True):
            results.append(result)
            _say(edge, result)
    return results


def _say(edge: str, result: Result) -> None:
    print(
        f"{edge:<16}{result.n_inputs:>8} inputs {result.n_accepted:>8} accepted {result.seconds:>8.1f} s "
        f"{len(result.findings):>4} findings",
        flush=True,
    )
    for finding in result.findings:
        print(f"    {finding.what}\n      at {finding.where}")
        print(f"      again: python -m fuzz --edges {edge} --again {finding.content.hex()}", flush=True)


def _guided(options: argparse.Namespace) -> int:
    """Run edges under atheris side by side; return 1 if one found something."""
    results = []
    for result in run_edges(options.edges, options.seconds, options.processes or len(options.edges)):
        results.append(result)
        print(
            f"{result.edge:<16}{result.n_inputs:>8} inputs {result.coverage:>8} reached {result.n_corpus:>6} kept "
            f"{result.seconds:>8.1f} s {len(result.findings):>4} findings",
            flush=True,
        )
        for finding in result.findings:
            print(f"    {finding}", flush=True)
    if options.out is not None:
        _write(options.out, _guided_record(results))
    if options.logs is not None:
        options.logs.parent.mkdir(parents=True, exist_ok=True)
        options.logs.write_text("".join(f"==== {result.edge}\n{result.log[-20_000:]}\n" for result in results))
    return int(any(result.findings for result in results))


def _head(driver: str, **more: Any) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "benchmark": "fuzz",
        "machine": {
            "device": platform.machine(),
            "python": platform.python_version(),
            "torch": version("torch"),
            "commit": commit or os.environ.get("TORCHMCL_COMMIT", "unknown"),
        },
        "driver": driver,
        **more,
        "when": time.strftime("%Y-%m-%d"),
    }


def _record(results: list[Result], seed: int) -> dict[str, Any]:
    head = _head("seeded mutations (fuzz/driver.py)", seed=seed) | {"accepted": sum(one.n_accepted for one in results)}
    return head | _totals(
        results,
        lambda one: {
            "accepted": one.n_accepted,
            "refused": one.n_inputs - one.n_accepted - len(one.findings),
            "findings": [finding.what for finding in one.findings],
        },
    )


def _guided_record(results: list[Guided]) -> dict[str, Any]:
    return _head(driver_name()) | _totals(
        results,
        lambda one: {
            "coverage": one.coverage,
            "features": one.features,
            "corpus": one.n_corpus,
            "findings": one.findings,
            "inputs_per_second": round(one.n_inputs / one.seconds, 1) if one.seconds else None,
        },
    )


def _totals(results: list[Any], row: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return what all edges add up to, and a row for each."""
    return {
        "inputs": sum(one.n_inputs for one in results),
        "seconds": round(sum(one.seconds for one in results), 1),
        "findings": sum(len(one.findings) for one in results),
        "rows": [
            {"edge": one.edge, "inputs": one.n_inputs, "seconds": round(one.seconds, 1), **row(one)} for one in results
        ],
    }


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
