"""Common functions of the benchmarks: time, peak memory, and a JSON record with machine and commit."""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def parser(description: str) -> argparse.ArgumentParser:
    """Return an argument parser with the options of all benchmarks."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--out", type=Path, help="write the record to this JSON file")
    return arguments


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """Return a function that replays `run` as a CUDA graph, without the gaps between launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    gc.disable()  # the end of an earlier graph would spoil this capture
    try:
        with torch.cuda.graph(graph):
            run()
    finally:
        gc.enable()
    return graph.replay


def milliseconds(run: Callable[[], object], device: str, repeats: int = 11, warm_ups: int = 3) -> float:
    """Return the median time of `run`, after a warm-up."""
    for _ in range(warm_ups):
        run()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def compared_milliseconds(
    ours: Callable[[], object], baseline: Callable[[], object], device: str
) -> tuple[float, float]:
    """Return the median times of both functions, measured in turn so that other load affects both."""
    pairs = [(milliseconds(ours, device, 5), milliseconds(baseline, device, 5)) for _ in range(5)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def in_turn_milliseconds(
    runs: Mapping[str, Callable[[], object]], device: str, rounds: int = 11, warm_ups: int = 2
) -> dict[str, float]:
    """Return the median time of each function, called once per round so that other load affects all of them."""
    for run in list(runs.values()) * warm_ups:
        run()
    times = [{name: milliseconds(run, device, 1, 0) for name, run in runs.items()} for _ in range(rounds)]
    return {name: statistics.median(of_round[name] for of_round in times) for name in runs}


def peak_extra_megabytes(run: Callable[[], object], device: str) -> float:
    """Return the increase of the allocated memory during `run`, as counted by the allocator."""
    run()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    now = peak = 0
    for event in events:
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak / 1e6


def machine(device: str) -> dict[str, object]:
    """Return a description of the machine, the software and the commit."""
    here = Path(__file__).resolve().parent
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        # A copy inside another checkout would name that one's commit: the variable says it first.
        "commit": os.environ.get("TORCHMCL_COMMIT") or git.stdout.strip() or "unknown",
    }


def report(name: str, device: str, rows: list[dict[str, object]], out: Path | None) -> None:
    """Print the record as JSON, and write it to `out` if it is not None."""
    record = {"benchmark": name, "machine": machine(device), "rows": rows}
    text = json.dumps(record, indent=2)
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = out.with_suffix(".tmp")
        temporary.write_text(text + "\n")
        temporary.replace(out)
