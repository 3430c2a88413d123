"""How many seconds of audio `torchmcl separation separate` takes in a second: the command but its start and its page.

python -m benchmarks.speech.separate_speed [--models two-speakers] [--seconds 60] [--threads 1,2] [--device cpu]
    [--cards] [--out results/separate-speed-cpu.json]

Reading, resampling, the network, joining the chunks, and writing the files; not the page, the import of torch and the
loading of the weights, which are the row "start". Each is the shortest of --repeats, since what other processes take
comes on top; `load` is the load average before. `times_real_time_of_a_core` counts processor time, which a busy machine
distorts less.
`--untrained 4x96` adds a network of that many blocks and units. `--cards` also writes the numbers of the last number of
threads into the cards of the models, where `torchmcl separation models` finds them.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._common import report
from torchmcl.io import write_atomically
from torchmcl_speech import load_separator, model_card, separate_recording, shipped_models
from torchmcl_speech.data import write_audio
from torchmcl_speech.nn import DPRNN, save_model

RATE = 8000
MODELS = Path(__file__).parents[2] / "packages/torchmcl-speech/src/torchmcl_speech/models"


def speech_like(seconds: float) -> np.ndarray:
    """Return noise in syllables: no number depends on what is said."""
    random, time_of = np.random.default_rng(0), np.arange(round(seconds * RATE)) / RATE
    return (0.05 * random.standard_normal(len(time_of)) * np.sin(8 * time_of) ** 2).astype(np.float32)


def seconds_of(folder: Path, model: str, device: str, chunk: float) -> tuple[float, float]:
    """Return wall time and processor time of separating once."""
    start = time.perf_counter(), time.process_time()
    separate_recording(folder / "talk.wav", folder / "out", model, device=device, chunk_seconds=chunk)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def rows_of(folder: Path, name: str, model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each number of threads."""
    begin = time.perf_counter()
    network = load_separator(model)[0]
    rows: list[dict[str, Any]] = [{"model": name, "what": "start", "seconds": round(time.perf_counter() - begin, 3)}]
    for threads in options.threads:
        torch.set_num_threads(threads)
        row: dict[str, Any] = {"model": name, "what": "separate", "device": options.device, "threads": threads}
        row |= {"audio_seconds": options.seconds, "load": round(os.getloadavg()[0], 1)}
        row |= {"parameters": sum(weight.numel() for weight in network.parameters())}
        seconds_of(folder, model, options.device, options.chunk)
        times = [seconds_of(folder, model, options.device, options.chunk) for _ in range(options.repeats)]
        row["times_real_time"] = round(options.seconds / min(wall for wall, _ in times), 2)
        row["times_real_time_of_a_core"] = round(options.seconds / min(own for _, own in times), 2)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def write_into_card(name: str, row: dict[str, Any]) -> None:
    """Write the speed into the card of a bundled model."""
    speed = {"times_real_time": row["times_real_time"], "threads": row["threads"], "device": row["device"]}
    write_atomically(MODELS / name / "card.json", json.dumps(model_card(name) | {"speed": speed}, indent=1) + "\n")


def main() -> None:
    """Measure."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", default=",".join(shipped_models()), help="names, separated by commas")
    arguments.add_argument("--untrained", action="append", default=[], metavar="BLOCKSxUNITS", help="more networks")
    arguments.add_argument("--seconds", type=float, default=60.0, help="of audio")
    arguments.add_argument("--chunk", type=float, default=10.0, help="seconds of a chunk (default: %(default)s)")
    arguments.add_argument("--threads", default="1,2", help="separated by commas")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--cards", action="store_true", help="also write the numbers into the cards")
    arguments.add_argument("--out", type=Path, help="write the record to this JSON file")
    options = arguments.parse_args()
    options.threads = [int(number) for number in options.threads.split(",")]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_audio(folder / "talk.wav", speech_like(options.seconds), RATE)
        for name in (name for name in options.models.split(",") if name):
            rows += rows_of(folder, name, name, options)
            if options.cards and options.device == "cpu":
                write_into_card(name, rows[-1])
        for sizes in options.untrained:
            n_blocks, hidden_size = (int(number) for number in sizes.split("x"))
            torch.manual_seed(0)
            save_model(folder / sizes, DPRNN(2, n_blocks=n_blocks, hidden_size=hidden_size), {"sample_rate": RATE})
            rows += rows_of(
                folder, f"untrained, {n_blocks} blocks of {hidden_size} units", str(folder / sizes), options
            )
    report("separate-speed", options.device, rows, options.out)


if __name__ == "__main__":
    main()
