"""`python -m fuzz`: all edges, a count for each, and a record of what came out. `make fuzz` runs it.

With atheris installed (`pip install atheris`; it has wheels for x86-64 only and needs Clang's libFuzzer elsewhere),
`python -m fuzz --atheris rules -- -runs=100000` runs an edge under its coverage-guided fuzzer instead.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from fuzz.driver import EDGES, Result, attempt, fuzz_edge

# The shares of the edges add up to a little over a hundred.
DEFAULT_INPUTS = 120_000


def main() -> int:
    """Run the fuzzer; return 1 if it found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=DEFAULT_INPUTS, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides every input (default: %(default)s)")
    parser.add_argument("--edges", nargs="*", choices=EDGES, default=list(EDGES), help="which (default: all)")
    parser.add_argument("--processes", type=int, default=2, help="edges at once (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    parser.add_argument("--again", metavar="HEX", help="try one input of one edge again and show what happens")
    parser.add_argument("--atheris", choices=EDGES, help="run one edge under atheris; its options follow --")
    own = sys.argv[1:]
    theirs = own[own.index("--") + 1 :] if "--" in own else []
    options = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    if options.atheris:
        return _under_atheris(options.atheris, theirs)
    if options.again:
        from fuzz.feed import Feed

        EDGES[options.edges[0]][0](Feed(bytes.fromhex(options.again)))
        return 0
    results = _all(options.edges, options.inputs, options.seed, options.processes)
    if options.out is not None:
        _write(options.out, results, options.seed)
    return int(any(result.findings for result in results))


def _all(edges: list[str], n_inputs: int, seed: int, n_processes: int) -> list[Result]:
    total = sum(EDGES[edge][1] for edge in edges)
    results = []
    shares = [-(-n_inputs * EDGES[edge][1] // total) for edge in edges]
    with ThreadPoolExecutor(n_processes) as threads:  # each waits for a process of its own
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


def _write(path: Path, results: list[Result], seed: int) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    record = {
        "benchmark": "fuzz",
        "machine": {
            "device": platform.machine(),
            "python": platform.python_version(),
            "torch": version("torch"),
            "commit": commit or "unknown",
        },
        "driver": "seeded mutations (fuzz/driver.py)",
        "seed": seed,
        "when": time.strftime("%Y-%m-%d"),
        "inputs": sum(result.n_inputs for result in results),
        "accepted": sum(result.n_accepted for result in results),
        "seconds": round(sum(result.seconds for result in results), 1),
        "findings": sum(len(result.findings) for result in results),
        "rows": [
            {
                "edge": result.edge,
                "inputs": result.n_inputs,
                "accepted": result.n_accepted,
                "refused": result.n_inputs - result.n_accepted - len(result.findings),
                "findings": [finding.what for finding in result.findings],
                "seconds": round(result.seconds, 1),
            }
            for result in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def _under_atheris(edge: str, theirs: list[str]) -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris, or run without --atheris.", file=sys.stderr)
        return 2

    def one_input(content: bytes) -> None:
        _, finding = attempt(edge, content)
        if finding is not None:
            raise RuntimeError(f"{finding.what} at {finding.where}")

    with atheris.instrument_imports(include=["torchmcl"]):
        attempt(edge, b"")
    atheris.Setup([sys.argv[0], *theirs], one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
