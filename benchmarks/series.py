"""Forecasts of public series: the forecaster beside its rivals (`series_rivals.py`).

All methods of a set run in the same process on the same windows. Nothing is chosen on the test parts: the forecaster
has its defaults everywhere. ``--part inner`` measures the windows before the test part instead, for choices.

    python benchmarks/series.py --data FOLDER --sets weekly,hourly,etth1,exchange --out out/series.json
"""

import csv
import gzip
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from _common import parser, report
from series_rivals import LEVEL, N_PATHS, RIVALS, Answer, Task, answer_of, ends, installed
from torchmcl import Predictions
from torchmcl.metrics import energy_score
from torchmcl_forecast import Forecaster

N_WINDOWS = 20


def m4(folder: Path, name: str, inner: bool) -> Task:
    """Return a set of the M4 competition: one window, the official test part."""
    parts = []
    for part in ("train", "test"):
        with gzip.open(folder / f"m4-{name}-{part}.csv.gz", "rt") as file:
            rows = list(csv.reader(file))[1:]
        parts.append([np.array([float(cell) for cell in row[1:] if cell not in ("", "NA")]) for row in rows])
    train, test = parts
    horizon = len(test[0])
    if inner:
        train, test = [s[:-horizon] for s in train], [s[-horizon:] for s in train]
    frames = [pd.DataFrame({"unique_id": k, "ds": np.arange(len(s)), "y": s}) for k, s in enumerate(train)]
    frame = pd.concat(frames, ignore_index=True)
    return Task(frame, [frame], [np.stack(test)], horizon, season={"hourly": 24, "weekly": 1}[name])


def rolled(frame: pd.DataFrame, horizon: int, season: int, inner: bool, joint: bool) -> Task:
    """Return the last windows of a wide frame, one after the other; learned is from what is before all of them."""
    frame = frame.iloc[: -N_WINDOWS * horizon] if inner else frame
    starts = [len(frame) - k * horizon for k in range(N_WINDOWS, 0, -1)]
    truths = [frame.iloc[start : start + horizon].to_numpy().T for start in starts]
    return Task(frame.iloc[: starts[0]], [frame.iloc[:start] for start in starts], truths, horizon, season, joint)


def load(folder: Path, name: str, inner: bool) -> Task:
    """Return a set by its name."""
    if name in ("hourly", "weekly"):
        return m4(folder, name, inner)
    if name == "etth1":
        frame = pd.read_csv(folder / "etth1.csv.gz", index_col=0, parse_dates=True)
        return rolled(frame, 48, 24, inner, joint=False)
    with gzip.open(folder / "exchange-test.json.gz", "rt") as file:
        every = [json.loads(line)["target"] for line in file]
    rates = np.array(every[-8:]).T  # the last window has all days
    frame = pd.DataFrame(rates, columns=[f"rate {k}" for k in range(8)])
    return rolled(
        frame.rename_axis("ds").set_axis(pd.date_range("1990-01-01", periods=len(frame))), 30, 1, inner, joint=True
    )


def ours(task: Task, options: dict[str, object]) -> tuple[Forecaster, list[Answer], list[float]]:
    """Return the fitted forecaster, its answers, and the share of paths inside the tubes of each window."""
    forecaster = Forecaster(N_PATHS, joint=task.joint, **options).fit(task.train, horizon=task.horizon)
    answers, inside = [], []
    for history, truth in zip(task.histories, task.truths, strict=True):
        answers.append(answer_of(forecaster, history, task))
        tube = forecaster.forecast(history).tube()
        low, high = (tube[name].to_numpy().reshape(truth.shape) for name in ("low", "high"))
        inside.append(float(((truth >= low) & (truth <= high)).all(axis=1).mean()))
    return forecaster, answers, inside


def variogram_score(samples: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the variogram score of order 1/2 over steps 1, 2, 4, 8 ... apart, [series].

    Args:
        samples: [series, samples, steps]
        truth: [series, steps]
    """
    parts, lag = [], 1
    while lag < truth.shape[-1]:
        given = (samples[..., lag:] - samples[..., :-lag]).abs().sqrt().mean(dim=1)
        parts.append(((truth[..., lag:] - truth[..., :-lag]).abs().sqrt() - given).square())
        lag *= 2
    return torch.cat(parts, dim=-1).mean(dim=-1)


def measures(task: Task, answers: list[Answer], units: list[torch.Tensor]) -> dict[str, float]:
    """Return the CRPS of GIFT-Eval, and of methods with paths the best-of-16 distortion, energy and variogram scores.

    Distances of a series are in units of its best naive forecast; on exchange rates the distortion is TimeMCL's, in the
    units of the rates.
    """
    loss, total, best, energy, of_samples, variogram = torch.zeros(9, dtype=torch.float64), 0.0, [], [], [], []
    for answer, truth, unit in zip(answers, task.truths, units, strict=True):
        actual = torch.tensor(truth, dtype=torch.float64)
        error, level = actual - answer.quantiles, LEVEL.view(9, 1, 1)
        loss += 2 * torch.maximum(level * error, (level - 1) * error).sum(dim=(1, 2))
        total += float(actual.abs().sum())
        if answer.paths is None:
            continue
        flat = actual.reshape(len(answer.paths), 1, -1)
        scale = unit.expand(*actual.shape).reshape(flat.shape) * task.horizon**0.5
        scale = torch.full_like(scale, task.horizon**0.5) if task.joint else scale
        best.append((((answer.paths - flat) / scale).square().sum(dim=-1)).amin(dim=1).sqrt())
        weights = None if answer.weights is None else answer.weights.clamp(1e-9, 1 - 1e-9).logit()
        energy.append(energy_score(Predictions(answer.paths / scale, weights), flat / scale))
        if answer.samples is not None:
            of_samples.append(energy_score(Predictions(answer.samples / scale), flat / scale))
            of_series = (answer.samples / scale * task.horizon**0.5).unflatten(-1, (-1, task.horizon)).transpose(1, 2)
            truths = (flat / scale * task.horizon**0.5).view(-1, task.horizon)
            variogram.append(variogram_score(of_series.flatten(0, 1), truths).mean())
    found = {"crps": float((loss / total).mean())}
    if best:
        found |= {"distortion_of_16": float(torch.cat(best).mean()), "energy_of_16": float(torch.stack(energy).mean())}
    if of_samples:
        found["energy_of_samples"] = float(torch.stack(of_samples).mean())
        found["variogram_of_samples"] = float(torch.stack(variogram).mean())
    return found


def measured(
    task: Task, name: str, part: str, rivals: list[str], options: dict[str, object]
) -> list[dict[str, object]]:
    """Return a record for each method on one set."""
    began = time.perf_counter()
    forecaster, answers, inside = ours(task, options)
    units = [ends(forecaster, history).unit.view(-1, 1) for history in task.histories]
    rows: list[dict[str, object]] = []

    def note(method: str, found: list[Answer]) -> None:
        row = {"set": name, "part": part, "method": method, "seconds": round(time.perf_counter() - began, 1)}
        rows.append(row | {key: round(value, 5) for key, value in measures(task, found, units).items()})

    note("forecaster", answers)
    rows[0] |= {
        "coverage_of_tubes": round(float(np.mean(inside)), 4),
        "n_paths_in_tubes": len(inside) * len(task.truths[0]),
        "codebook_share": forecaster.codebook_share_,
        "correlation": round(forecaster.correlation_, 3),
    }
    print(rows[-1], flush=True)
    for rival in rivals:
        began = time.perf_counter()
        note(rival, RIVALS[rival](task, forecaster))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run the sets and write the record."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True, help="folder with the series")
    arguments.add_argument("--sets", default="weekly,hourly,etth1,exchange")
    arguments.add_argument("--part", choices=("test", "inner"), default="test")
    arguments.add_argument("--rivals", default=",".join(RIVALS), help="those that are installed are run")
    arguments.add_argument("--steps", type=int, help="of each training")
    arguments.add_argument("--members", type=int, default=1)
    options = arguments.parse_args()
    rivals = installed([name for name in options.rivals.split(",") if name])
    rows = []
    for name in options.sets.split(","):
        chosen = {"n_steps": options.steps, "n_members": options.members, "device": options.device}
        task = load(options.data, name, options.part == "inner")
        rows += measured(task, name, options.part, rivals, chosen)
        report("series", options.device, rows, options.out)


if __name__ == "__main__":
    main()
