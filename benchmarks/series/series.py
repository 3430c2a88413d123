"""Forecasts of public series: the forecaster and its baselines (`_baselines.py`).

All methods run on the same windows of a data set in the same process. Nothing is chosen on the test parts: the
forecaster always has default arguments. ``--part inner`` evaluates the windows before the test part, for choices.

    python -m benchmarks.series.series --data FOLDER --sets weekly,hourly,etth1,exchange --out out/series.json
"""

import csv
import gzip
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks._common import parser, report
from benchmarks.series._baselines import (
    BASELINES,
    LEVEL,
    N_PATHS,
    SIMULATED,
    Answer,
    Task,
    answer_of,
    ends,
    installed,
    of_samples,
    part_of,
)
from torchmcl import Predictions
from torchmcl.metrics import energy_score
from torchmcl_forecast import Forecaster

N_WINDOWS = 20


def m4(folder: Path, name: str, inner: bool) -> Task:
    """Return a data set of the M4 competition: one window, the official test part."""
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
    """Return the last windows of a wide data frame; the training part is everything before the first window."""
    frame = frame.iloc[: -N_WINDOWS * horizon] if inner else frame
    starts = [len(frame) - k * horizon for k in range(N_WINDOWS, 0, -1)]
    truths = [frame.iloc[start : start + horizon].to_numpy().T for start in starts]
    return Task(frame.iloc[: starts[0]], [frame.iloc[:start] for start in starts], truths, horizon, season, joint)


def load(folder: Path, name: str, inner: bool) -> Task:
    """Return a data set by its name."""
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


def ours(task: Task, options: dict[str, object]) -> tuple[Forecaster, list[Answer], dict[str, object]]:
    """Return the fitted forecaster, its predictions, and other values to record: fit time and coverage of tubes."""
    began = time.perf_counter()
    forecaster = Forecaster(N_PATHS, joint=task.joint, **options).fit(task.train, horizon=task.horizon)
    seconds = time.perf_counter() - began
    answers, inside = [], []
    for history, truth in zip(task.histories, task.truths, strict=True):
        found = forecaster.forecast(history)
        answers.append(answer_of(found, task))
        tube = found.tube()
        low, high = (tube[name].to_numpy().reshape(truth.shape) for name in ("low", "high"))
        inside.append(float(((truth >= low) & (truth <= high)).all(axis=1).mean()))
    more = {
        "fit_seconds": round(seconds, 1),
        "coverage_of_tubes": round(float(np.mean(inside)), 4),
        "shares": [round(share, 2) for share in forecaster.shares_],
        "spread": forecaster.spread_,
        "correlation": round(forecaster.correlation_, 3),
    }
    return forecaster, answers, more


def variogram_score(samples: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the variogram score of order 1/2 over steps 1, 2, 4, 8 ... apart, [series].

    Args:
        samples: Sampled paths, [series, samples, steps].
        truth: True values, [series, steps].
    """
    parts, lag = [], 1
    while lag < truth.shape[-1]:
        given = (samples[..., lag:] - samples[..., :-lag]).abs().sqrt().mean(dim=1)
        parts.append(((truth[..., lag:] - truth[..., :-lag]).abs().sqrt() - given).square())
        lag *= 2
    return torch.cat(parts, dim=-1).mean(dim=-1)


def measures(task: Task, answers: list[Answer], units: list[torch.Tensor]) -> dict[str, float]:
    """Return the CRPS of GIFT-Eval; for methods with paths also best-of-16 distortion, energy and variogram scores.

    Distances are measured for each series in units of the error of its best naive forecast, but for exchange rates in
    the units of the rates, as in TimeMCL.
    """
    loss, total, best, energy, of_samples, variogram = torch.zeros(9, dtype=torch.float64), 0.0, [], [], [], []
    for answer, truth, unit in zip(answers, task.truths, units, strict=True):
        if not len(truth):  # a window without a series of the part
            continue
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


def selected(answers: list[Answer], pairs: list[tuple[int, int]]) -> list[Answer]:
    """Select the predictions for some (window, series) pairs."""
    found = []
    for window, answer in enumerate(answers):
        rows = torch.tensor([series for other, series in pairs if other == window], dtype=torch.long)
        parts = (None if part is None else part[rows] for part in answer[:3])
        found.append(Answer(*parts, answer.quantiles[:, rows]))
    return found


def in_part(task: Task, units: list[torch.Tensor], pairs: list[tuple[int, int]]) -> tuple[Task, list[torch.Tensor]]:
    """Select the true values and units for some (window, series) pairs."""
    rows = [[series for other, series in pairs if other == window] for window in range(len(task.truths))]
    truths = [truth[row] for truth, row in zip(task.truths, rows, strict=True)]
    return task._replace(truths=truths), [unit[row] for unit, row in zip(units, rows, strict=True)]


def simulated(task: Task, path: Path) -> tuple[list[Answer], list[tuple[int, int]], float]:
    """Return predictions from the paths saved by `simulated.py`, their (window, series) pairs, and the seconds."""
    with np.load(path) as saved:
        pairs, samples, seconds = (saved[name] for name in ("pairs", "samples", "seconds"))
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    pairs, samples = pairs[order], samples[order]
    nothing = Answer(None, None, None, torch.zeros(9, 0, task.horizon))  # for windows without a series of the part
    own = [samples[pairs[:, 0] == window] for window in range(len(task.truths))]
    answers = [of_samples(given, task) if len(given) else nothing for given in own]
    return answers, [(int(w), int(s)) for w, s in pairs], float(seconds.sum())


class Bench:
    """Evaluation of methods on one data set, and the records of their metrics.

    Args:
        task: Data set.
        labels: Labels of the data set and its part, for the records.
        options: Options of the forecaster.
    """

    def __init__(self, task: Task, labels: dict[str, object], options: dict[str, object]) -> None:
        self.task, self.labels, self.options = task, labels, options
        self.rows: list[dict[str, object]] = []
        self.forecaster = Forecaster(joint=task.joint, **options | {"n_steps": 1, "hidden": (2,)})
        self.fitted = False

    def run(self, method: str, folder: Path | None) -> None:
        """Evaluate a method; baselines read the windows of a forecaster, which needs no training for this purpose.

        Args:
            method: Name of the method.
            folder: Folder that contains simulated paths.
        """
        task, more, complete = self.task, {}, True
        if method != "forecaster" and not self.fitted:
            self.forecaster.fit(task.train, horizon=task.horizon)
            self.forecaster.set_params(**self.options, hidden=Forecaster().hidden)
        self.fitted, began = True, time.perf_counter()
        if method == "forecaster":
            self.forecaster, answers, more = ours(task, self.options)
        elif method in SIMULATED:
            assert folder is not None
            answers, pairs, seconds = simulated(task, folder / f"{self.labels['set']}-{SIMULATED[method]}.npz")
            began, complete = time.perf_counter() - seconds, len(pairs) == sum(len(truth) for truth in task.truths)
        else:
            answers = BASELINES[method](task, self.forecaster)
        self._note(method, round(time.perf_counter() - began, 1), answers, complete, more)

    def _note(
        self, method: str, seconds: float, answers: list[Answer], complete: bool, more: dict[str, object]
    ) -> None:
        """Add a record for all series, and another for the part that slow methods forecast."""
        task, few = self.task, sorted(part_of(self.task))
        units = [ends(self.forecaster, history).unit.view(-1, 1) for history in task.histories]
        n_all = sum(len(truth) for truth in task.truths)
        if complete:
            self._add(method, seconds, n_all, measures(task, answers, units) | more)
        if len(few) < n_all:
            part, own_units = in_part(task, units, few)
            self._add(
                method, seconds, len(few), measures(part, selected(answers, few) if complete else answers, own_units)
            )

    def _add(self, method: str, seconds: float, n_paths: int, found: dict[str, object]) -> None:
        values = {key: round(value, 5) if isinstance(value, float) else value for key, value in found.items()}
        self.rows.append(self.labels | {"method": method, "seconds": seconds, "n_paths": n_paths} | values)
        print(self.rows[-1], flush=True)


def main() -> None:
    """Evaluate all data sets and write the record."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True, help="folder with the series")
    arguments.add_argument("--sets", default="weekly,hourly,etth1,exchange")
    arguments.add_argument("--part", choices=("test", "inner"), default="test")
    arguments.add_argument("--methods", default=",".join(["forecaster", *BASELINES]), help="those installed are run")
    arguments.add_argument("--simulated", type=Path, help="folder that simulated.py wrote")
    arguments.add_argument("--steps", type=int, help="of each training")
    arguments.add_argument("--members", type=int, default=1)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    methods = installed([name for name in options.methods.split(",") if name])
    methods += [] if options.simulated is None else list(SIMULATED)
    chosen = {"n_steps": options.steps, "n_members": options.members, "device": options.device}
    chosen |= {"random_state": options.seed}
    rows: list[dict[str, object]] = []
    for name in options.sets.split(","):
        labels = {"set": name, "part": options.part, "seed": options.seed}
        bench = Bench(
            load(options.data, name, options.part == "inner"), labels, chosen | {"random_state": options.seed}
        )
        for method in methods:
            bench.run(method, options.simulated)
            report("series", options.device, rows + bench.rows, options.out)
        rows += bench.rows


if __name__ == "__main__":
    main()
