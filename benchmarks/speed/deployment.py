"""Deployment: installed size, cold start and throughput of exported estimators, and the speed of exported separators.

python -m benchmarks.speed.deployment [--out results/deployment.json] [--seconds 10]

Beside each row that runs in onnxruntime stands the same in torch, in the same process and with as many threads. In
onnxruntime, each thread answers its own blocks of rows, as a server does.
"""

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import torchmcl
from benchmarks._common import parser, report
from torchmcl_speech import load_separator
from torchmcl_tables import DensityRegressor, MCLClassifier, MCLRegressor

# Rows at a time: points and sets need more memory for each than means.
_BLOCKS = {"predict": 1000, "predict_proba": 1000}
_BLOCK, _REPEATS = 200, 5
_COLD = (
    "import numpy, onnxruntime; s = onnxruntime.InferenceSession({path!r}); "
    "print(s.run(['{output}'], {{'X': numpy.zeros((1, 8))}})[0])"
)
_COLD_TORCH = "from {home} import {kind}; import numpy; print({kind}.load({folder!r}).predict(numpy.zeros((1, 8))))"


def installed_megabytes(*names: str) -> float:
    """Return the size of packages including their dependencies."""
    waiting, seen, size = list(names), set(), 0
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        paths = (Path(package.locate_file(file)) for file in package.files or ())
        size += sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")
        needed = (text for text in package.requires or () if "extra ==" not in text)
        waiting += ["".join(c if c.isalnum() or c in "-_." else " " for c in text).split()[0] for text in needed]
    return size / 1e6


def cold_seconds(program: str) -> float:
    """Return the median time of fresh processes from their start to the first prediction."""
    spent = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        spent.append(time.perf_counter() - start)
    return sorted(spent)[_REPEATS // 2]


def rows_per_second(ask, rows, seconds: float, block: int, n_threads: int) -> float:
    """Return the rows per second that several threads predict in blocks."""
    ask(rows[:block])
    start, stop = time.perf_counter(), time.perf_counter() + seconds

    def asked(_) -> int:
        n_rows = 0
        while time.perf_counter() < stop:
            for at in range(0, len(rows), block):
                ask(rows[at : at + block])
                n_rows += block
                if time.perf_counter() >= stop:
                    break
        return n_rows

    with ThreadPoolExecutor(n_threads) as pool:
        return sum(pool.map(asked, range(n_threads))) / (time.perf_counter() - start)


def session_of(path: Path, n_threads: int) -> onnxruntime.InferenceSession:
    """Return an inference session of a file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    return onnxruntime.InferenceSession(str(path), options)


def asking(path: Path, outputs):
    """Return a function that computes some outputs of rows on one thread: blocks are split across threads."""
    session = session_of(path, 1)
    return lambda rows: session.run(outputs, {"X": rows})


def estimators(folder: Path, seconds: float, n_threads: int) -> list[dict]:
    """Return rows of fitted estimators on a table of 1000 rows and 8 columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 8))
    y = np.where(rng.random(1000) < 0.5, 1, -1) * X[:, 0] + 0.1 * rng.normal(size=1000)
    fits = {
        "DensityRegressor": (DensityRegressor(n_epochs=20, random_state=0).fit(X, y), "torchmcl_tables"),
        "MCLRegressor": (MCLRegressor(n_epochs=20, random_state=0).fit(X, y), "torchmcl_tables.estimators"),
        "MCLRegressor, one network": (
            MCLRegressor(n_epochs=20, n_restarts=1, random_state=0).fit(X, y),
            "torchmcl_tables.estimators",
        ),
        "MCLClassifier": (MCLClassifier(n_epochs=20, random_state=0).fit(X, y > 0), "torchmcl_tables.estimators"),
    }
    rows, many = [], rng.normal(size=(20 * _BLOCK, 8))
    for name, (model, home) in fits.items():
        kind = type(model).__name__
        path = model.export(folder / "model.onnx")
        model.save(folder / name)
        outputs = {"predict": (["mean"], model.predict)}
        if kind == "MCLClassifier":
            outputs = {"predict_proba": (["probabilities"], model.predict_proba)}
        elif "one" in name:
            outputs["predict_hypotheses"] = ["hypotheses"], model.predict_hypotheses
        cold = _COLD.format(path=str(path), output="probabilities" if kind == "MCLClassifier" else "mean")
        cold_torch = _COLD_TORCH.format(home=home, kind=kind, folder=str(folder / name))
        rows.append(
            {
                "name": f"{name}: cold start",
                "onnxruntime_s": cold_seconds(cold),
                "torch_s": cold_seconds(cold_torch),
                "file_mb": path.stat().st_size / 1e6,
                "must_show": "onnxruntime_s < 1",
            }
        )
        for method, (names, ask) in outputs.items():
            block = _BLOCKS.get(method, _BLOCK)
            served = asking(path, names)
            rows.append(
                {
                    "name": f"{name}: {method}",
                    "rows_at_once": block,
                    "onnxruntime_rows_s": rows_per_second(served, many, seconds, block, n_threads),
                    "torch_rows_s": rows_per_second(ask, many, seconds, block, 1),  # it has its own threads
                    "must_show": "onnxruntime_rows_s >= 100000" if method == "predict" else "",
                }
            )
    return rows


def separators(folder: Path, length_s: float, n_threads: int) -> list[dict]:
    """Return the seconds of sound that bundled separators take in a second."""
    rows, sound = [], torch.randn(1, round(length_s * 8000))
    for name, least in (("two-speakers", 3.3), ("two-speakers-small", 7.5)):
        model, _ = load_separator(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = torchmcl.export(model, folder / "separator.onnx", torch.randn(1, 8000))
        session = session_of(path, n_threads)
        found = {"file_mb": path.stat().st_size / 1e6}
        with torch.inference_mode():
            asks = (
                ("onnxruntime", lambda run=session.run: run(None, {"waveform": sound.numpy()})),
                ("torch", lambda run=model: run(sound)),
            )
            for runtime, ask in asks:
                ask()
                start = time.perf_counter()
                ask()
                found[f"{runtime}_real_time"] = length_s / (time.perf_counter() - start)
        rows.append({"name": f"separator {name}", **found, "must_show": f"onnxruntime_real_time >= {least}"})
    return rows


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument(
        "--seconds", type=float, default=10.0, help="of sound, and of each measurement of rows a fifth"
    )
    options.add_argument("--threads", type=int, default=2)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    sizes = {
        "name": "installed",
        "onnxruntime_mb": installed_megabytes("onnxruntime", "numpy"),
        "torch_mb": installed_megabytes("torch", "numpy", "scikit-learn", "safetensors", "tqdm"),
        "must_show": "onnxruntime_mb < 150",
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        measured = [sizes, *estimators(folder, given.seconds / 5, given.threads)]
        measured += separators(folder, given.seconds, given.threads)
    report("deployment", "cpu", measured, given.out)
