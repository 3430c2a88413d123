"""Forecasts of public series: the forecaster beside seasonal naive, a codebook of past errors and nine quantiles.

All methods of a set run in the same process on the same windows. Nothing is chosen on the test parts: the forecaster
has its defaults everywhere. ``--part inner`` measures the windows before the test part instead, for choices.

    python benchmarks/series.py --data FOLDER --sets weekly,hourly,etth1,exchange --out out/series.json
"""

import csv
import gzip
import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import nn

from _common import parser, report
from torchmcl import Predictions
from torchmcl.metrics import energy_score
from torchmcl_forecast import Forecaster
from torchmcl_forecast.forecast import LEVELS
from torchmcl_forecast.network import PathNetwork
from torchmcl_forecast.training import Training, drawn
from torchmcl_forecast.windows import Source, Window

N_PATHS, N_SAMPLES, N_WINDOWS = 16, 200, 20
LEVEL = torch.tensor(LEVELS, dtype=torch.float64)


class Task(NamedTuple):
    """A set: series to learn from, and what follows the histories of each window.

    Attributes:
        train: a wide frame, or a long one.
        histories: frames, one for each window.
        truths: [windows], each [series, horizon].
        horizon: steps to forecast.
        season: of the seasonal naive forecast in GIFT-Eval.
        joint: whether all series are one path.
    """

    train: pd.DataFrame
    histories: list[pd.DataFrame]
    truths: list[np.ndarray]
    horizon: int
    season: int
    joint: bool = False


class Answer(NamedTuple):
    """What a method gives for one window: paths [series, paths, horizon], their weights, samples, quantiles."""

    paths: torch.Tensor | None
    weights: torch.Tensor | None
    samples: torch.Tensor | None
    quantiles: torch.Tensor


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
        found = forecaster.forecast(history)
        few, weights = found.reduced(N_PATHS)
        quantiles = found.quantiles()[[f"q{level:g}" for level in LEVELS]].to_numpy(copy=True).T
        paths, samples = few.flatten(2) if task.joint else few[:, :, 0], found.sample_paths(N_SAMPLES).flatten(2)
        answers.append(Answer(paths, weights, samples, torch.from_numpy(quantiles).view(9, len(truth), -1)))
        tube = found.tube()
        low, high = (tube[name].to_numpy().reshape(truth.shape) for name in ("low", "high"))
        inside.append(float(((truth >= low) & (truth <= high)).all(axis=1).mean()))
    return forecaster, answers, inside


def past_windows(forecaster: Forecaster, n: int = 20_000) -> Window:
    """Return windows of the training part, in units of the best naive forecast."""
    source = Source(forecaster._panel, forecaster.layout_, forecaster._season)
    places = source.places()
    return source.window(places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0))[:n]])


def ends(forecaster: Forecaster, history: pd.DataFrame) -> Window:
    """Return the windows that follow a history."""
    panel = forecaster.forecast(history).panel
    source = Source(panel, forecaster.layout_, forecaster._season)
    return source.window(source.ends())


def codebook(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return k-means centres of past errors of the best naive forecast, in its units, around it; no network.

    On exchange rates they are past changes of the logarithm, of all rates together.
    """
    if task.joint:
        logs = np.log(task.train.to_numpy())
        changes = np.stack([logs[t : t + task.horizon] - logs[t - 1] for t in range(1, len(logs) - task.horizon + 1)])
        centres, shares = _centres(changes.transpose(0, 2, 1).reshape(len(changes), -1))
        answers = []
        for history in task.histories:
            last = np.repeat(history.to_numpy()[-1], task.horizon)
            answers.append(_of_atoms(torch.from_numpy(last * np.exp(centres))[None], shares, task))
        return answers
    errors = past_windows(forecaster).targets.flatten(0, 1).numpy()
    errors = np.clip(errors[~np.isnan(errors).any(axis=1)], -20, 20)
    centres, shares = _centres(errors)
    answers = []
    for history in task.histories:
        window = ends(forecaster, history)
        answers.append(_of_atoms(window.naive + window.unit * torch.from_numpy(centres).double(), shares, task))
    return answers


def _centres(rows: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    found = KMeans(N_PATHS, n_init=2, random_state=0).fit(rows)
    return found.cluster_centers_, torch.from_numpy(np.bincount(found.labels_, minlength=N_PATHS) / len(rows))


def _of_atoms(paths: torch.Tensor, shares: torch.Tensor, task: Task) -> Answer:
    """Return an answer of paths [series, paths, steps] with the same shares for all series."""
    steps = paths.transpose(1, 2).reshape(-1, paths.shape[1])
    values, order = steps.sort(dim=1)
    mass = shares[order].cumsum(dim=1).contiguous()
    place = torch.searchsorted(mass, LEVEL.expand(len(mass), -1).contiguous()).clamp_max(paths.shape[1] - 1)
    quantiles = values.gather(1, place).T.reshape(9, -1, task.horizon)
    return Answer(paths, shares.expand(len(paths), -1), None, quantiles)


def seasonal_naive(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return the last season again, with normal errors of the size that it had in each series, as in GIFT-Eval.

    Errors add up from season to season, so that paths drawn from them are those of a seasonal random walk.
    """
    period, horizon = task.season, task.horizon
    noise = torch.randn(N_SAMPLES, -(-horizon // period), period, generator=torch.Generator().manual_seed(1))
    noise = noise.double().cumsum(dim=1).flatten(1)[:, :horizon]
    growth = (torch.arange(horizon) // period + 1).double().sqrt()
    z = torch.distributions.Normal(0.0, 1.0).icdf(LEVEL.float()).double().view(9, 1, 1)
    answers = []
    for history in task.histories:
        values = torch.from_numpy(forecaster.forecast(history).panel.values.copy())
        last = values[:, values.shape[1] - period + torch.arange(horizon) % period]
        error = (values[:, period:] - values[:, :-period]).square().nanmean(dim=1).sqrt().view(-1, 1)
        samples = last.unsqueeze(1) + error.unsqueeze(1) * noise
        samples = samples.transpose(0, 1).flatten(1).unsqueeze(0) if task.joint else samples
        answers.append(Answer(samples[:, :N_PATHS], None, samples, last + z * error * growth))
    return answers


def nine_quantiles(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return nine free quantiles of each step from the same network, trained as long by the quantile loss."""
    source = Source(forecaster._panel, forecaster.layout_, forecaster._season)
    places, networks = source.places(), []
    enough = min(max(40 * len(places) // forecaster.batch_size, 160), 800)
    how = Training(forecaster.n_steps or enough, forecaster.batch_size)
    for member in range(forecaster.n_members):
        torch.manual_seed(member)
        network = PathNetwork(forecaster.layout_, 9, tuple(forecaster.hidden), forecaster.dropout)
        window = past_windows(forecaster)
        network.fit_linear(window.inputs, window.targets)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-2)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.n_steps)
        for _ in range(how.n_steps):
            batch = drawn(source, places, how)
            error = batch.targets.squeeze(-1) - network(batch.inputs).hypotheses.squeeze(-1)
            level = LEVEL.float().view(1, 9, 1)
            loss = (torch.maximum(level * error, (level - 1) * error) * batch.mask).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            cosine.step()
        networks.append(network.eval())
    answers = []
    for history in task.histories:
        window = ends(forecaster, history)
        with torch.no_grad():
            found = torch.stack([network(window.inputs).hypotheses.squeeze(-1) for network in networks]).mean(dim=0)
        values = found.sort(dim=1).values.double().unflatten(-1, (-1, task.horizon))
        quantiles = (window.naive.unsqueeze(1) + window.unit.unsqueeze(1) * values).transpose(0, 1)
        answers.append(Answer(None, None, None, quantiles.reshape(9, -1, task.horizon)))
    return answers


def measures(task: Task, answers: list[Answer], units: list[torch.Tensor]) -> dict[str, float]:
    """Return the CRPS of GIFT-Eval, and of methods with paths the best-of-16 distortion and energy scores.

    Distances of a series are in units of its best naive forecast; on exchange rates the distortion is TimeMCL's, in the
    units of the rates.
    """
    loss, total, best, energy, of_samples = torch.zeros(9, dtype=torch.float64), 0.0, [], [], []
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
    found = {"crps": float((loss / total).mean())}
    if best:
        found |= {"distortion_of_16": float(torch.cat(best).mean()), "energy_of_16": float(torch.stack(energy).mean())}
    if of_samples:
        found["energy_of_samples"] = float(torch.stack(of_samples).mean())
    return found


def measured(folder: Path, name: str, inner: bool, options: dict[str, object]) -> list[dict[str, object]]:
    """Return a record for each method on one set."""
    task = load(folder, name, inner)
    began = time.perf_counter()
    forecaster, answers, inside = ours(task, options)
    seconds = {"forecaster": time.perf_counter() - began}
    methods = {"forecaster": answers}
    for method in (seasonal_naive, codebook, nine_quantiles):
        began = time.perf_counter()
        methods[method.__name__] = method(task, forecaster)
        seconds[method.__name__] = time.perf_counter() - began
    units = [ends(forecaster, history).unit.view(-1, 1) for history in task.histories]
    rows: list[dict[str, object]] = []
    for method, found in methods.items():
        row = {
            "set": name,
            "part": "inner" if inner else "test",
            "method": method,
            "seconds": round(seconds[method], 1),
        }
        rows.append(row | {key: round(value, 5) for key, value in measures(task, found, units).items()})
    rows[0] |= {
        "coverage_of_tubes": round(float(np.mean(inside)), 4),
        "n_paths_in_tubes": len(inside) * len(task.truths[0]),
    }
    return rows


def main() -> None:
    """Run the sets and write the record."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True, help="folder with the series")
    arguments.add_argument("--sets", default="weekly,hourly,etth1,exchange")
    arguments.add_argument("--part", choices=("test", "inner"), default="test")
    arguments.add_argument("--steps", type=int, help="of each training")
    arguments.add_argument("--members", type=int, default=2)
    options = arguments.parse_args()
    rows = []
    for name in options.sets.split(","):
        chosen = {"n_steps": options.steps, "n_members": options.members, "device": options.device}
        rows += measured(options.data, name, options.part == "inner", chosen)
        print(*rows[-4:], sep="\n", flush=True)
    report("series", options.device, rows, options.out)


if __name__ == "__main__":
    main()
