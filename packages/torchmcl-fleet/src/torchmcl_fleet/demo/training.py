"""Training of the demonstration: MCL, Relaxed-WTA and annealed MCL with 49 hypotheses on three Gaussians.

The distribution of the Gaussians does not depend on the input, so every training row has the input 1 and
a thousand targets, and all methods and seeds train as one fleet.
"""

import inspect
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchmcl as mcl
from torchmcl import (
    WTA,
    AnnealedWTA,
    Cosine,
    Exponential,
    Matching,
    MultiHypothesisMLP,
    Predictions,
    RelaxedWTA,
    annealed,
    assign,
    io,
    metrics,
    optional,
    pairwise_sq_euclidean,
)
from torchmcl_fleet.backends.training import EpochInfo
from torchmcl_fleet.demo.gaussians import three_gaussians
from torchmcl_fleet.fleet import Fleet
from torchmcl_fleet.problem import FleetData

__all__ = ["DemoSettings", "run_demo", "train_fork"]


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the training runs of the demonstration."""

    n_hypotheses: int = 49
    n_seeds: int = 5
    n_epochs: int = 150
    n_rows: int = 8
    n_points_per_row: int = 1024
    n_held_out: int = 10_000
    n_restarts: int = 50
    n_frames: int = 60
    # From above both critical temperatures, 0.50 and 2 lambda_max = 0.46, to far below the variance of a Voronoi cell.
    start_temperature: float = 0.6
    end_temperature: float = 5e-5
    cooled_share: float = 0.85
    learning_rate: float = 2e-3

    def methods(self) -> list[tuple[str, str, Any]]:
        """Return the key, the label and the rule (or epoch -> rule) of each method."""
        decay = (self.end_temperature / self.start_temperature) ** (1 / (self.cooled_share * self.n_epochs))
        cooling = Exponential(self.start_temperature, decay, cutoff=self.end_temperature)
        return [
            ("mcl", "MCL (winner takes all)", WTA()),
            ("relaxed", "Relaxed-WTA (ε = 0.1)", RelaxedWTA(0.1)),
            ("amcl", "Annealed MCL", annealed(AnnealedWTA, temperature=cooling)),
        ]


def run_demo(folder: Path, settings: DemoSettings, *, progress: bool = True) -> dict[str, Any]:
    """Train and evaluate all methods, write `records.json` into `folder`, and return the records."""
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(0)
    points = three_gaussians(settings.n_rows * settings.n_points_per_row, generator)
    held_out = three_gaussians(settings.n_held_out, generator)
    methods = settings.methods()
    rules = [rule for _, _, rule in methods for _ in range(settings.n_seeds)]
    fleet = Fleet(
        lambda: MultiHypothesisMLP(1, 2, settings.n_hypotheses, output_activation=torch.tanh),
        n_models=len(rules),
        rule=rules,
        learning_rate=Cosine(settings.learning_rate, settings.learning_rate / 100, settings.n_epochs),
        seeds=list(range(settings.n_seeds)) * len(methods),
    )
    recorder = _Recorder(settings, held_out)
    data = FleetData.shared(
        torch.ones(settings.n_rows, 1), points.view(settings.n_rows, settings.n_points_per_row, 2), n_models=len(rules)
    )
    fleet.fit(
        data,
        settings.n_epochs,
        batch_size=1,
        after_epoch=recorder,
        models_at_once=len(rules),
        progress=f"training {len(rules)} networks" if progress else False,
    )
    matching = recorder.matching(fleet.predict(torch.ones(1, 1)))
    distortion = torch.vmap(metrics.distortion)(matching).view(len(methods), -1)
    starved = torch.vmap(metrics.n_dead_hypotheses)(matching).view(len(methods), -1)
    records = {
        "settings": vars(settings) | {"n_points": len(points)},
        "kmeans": _kmeans(points, held_out, settings),
        "points": held_out[:1500].tolist(),
        "epochs": recorder.epochs,
        "methods": [
            {
                "key": key,
                "label": label,
                "distortion": distortion[number].tolist(),
                "starved": starved[number].tolist(),
                "curves": [
                    [values[number * settings.n_seeds + seed] for values in recorder.distortions]
                    for seed in range(settings.n_seeds)
                ],
                "temperature": [_temperature(rule, epoch) for epoch in recorder.epochs],
                "frames": [frame[number] for frame in recorder.frames],
            }
            for number, (key, label, rule) in enumerate(methods)
        ],
        "seconds": time.perf_counter() - start,
        "conditional": conditional_records(),
    }
    io.write_atomically(folder / "records.json", json.dumps(records))
    return records


class _Recorder:
    """Records the distortions of all models, and the hypotheses of the first seed, during training."""

    def __init__(self, settings: DemoSettings, held_out: Tensor) -> None:
        self.settings, self.held_out = settings, held_out
        self.every = max(1, settings.n_epochs // settings.n_frames)
        self.epochs: list[int] = []
        self.distortions: list[list[float]] = []
        self.frames: list[list[list[list[float]]]] = []

    def __call__(self, end: EpochInfo) -> None:
        epoch, models = end.epoch, end.stacked
        if (epoch + 1) % self.every and epoch + 1 != self.settings.n_epochs:
            return
        with torch.no_grad():
            predictions: Predictions = models(torch.ones(len(models), 1, 1))
        self.epochs.append(epoch + 1)
        # The curve does not need high precision; a fifth of the points is enough.
        matching = self.matching(predictions, self.held_out[: len(self.held_out) // 5])
        self.distortions.append(torch.vmap(metrics.distortion)(matching).tolist())
        assert predictions.score_logits is not None
        scored = torch.cat([predictions.hypotheses, predictions.score_logits.sigmoid().unsqueeze(-1)], dim=-1)
        first_seeds = scored[:: self.settings.n_seeds, 0]
        self.frames.append([[[round(v, 4) for v in row] for row in model] for model in first_seeds.tolist()])

    def matching(self, predictions: Predictions, points: Tensor | None = None) -> Matching:
        """Return the hard matching of held-out points to the hypotheses of each model."""
        points = self.held_out if points is None else points
        return assign(pairwise_sq_euclidean(hypotheses=predictions.hypotheses, targets=points[None, None]), WTA())


def _temperature(rule: Any, epoch: int) -> float:
    current = rule if isinstance(rule, (WTA, RelaxedWTA)) else rule(epoch - 1)
    return float(getattr(current, "temperature", 0.0))


def _kmeans(points: Tensor, held_out: Tensor, settings: DemoSettings) -> dict[str, float]:
    """Return the held-out distortion of the best of many restarts of k-means on the training points."""
    cluster = optional.optional_import(
        "sklearn.cluster", package="torchmcl-fleet", extra="demo", needed_by="torchmcl demo"
    )
    model = cluster.KMeans(settings.n_hypotheses, n_init=settings.n_restarts, random_state=0).fit(points.numpy())
    centers = torch.from_numpy(model.cluster_centers_)
    matching = assign(pairwise_sq_euclidean(hypotheses=centers, targets=held_out), WTA())
    return {"distortion": float(metrics.distortion(matching)), "starved": int(metrics.n_dead_hypotheses(matching))}


def train_fork(n_hypotheses: int) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Train on a fork: y is on the upper or on the lower branch, independent of x."""
    torch.manual_seed(0)
    x = 2 * torch.rand(1000, 1) - 1
    side = torch.where(torch.rand(1000, 1) < 0.5, 1.0, -1.0)
    y = side * (x + 1) / 2 + 0.03 * torch.randn(1000, 1)

    model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=n_hypotheses, hidden=(64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, decay=0.98, cutoff=1e-3))
    for epoch in range(500):
        output = mcl.mcl_step(model, mcl.Batch(x, y.unsqueeze(1)), rule(epoch))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    return x, y, model


def conditional_records(n_grid: int = 41) -> dict[str, Any]:
    """Train with one hypothesis and with four; return data and hypotheses (value, score) over a grid of inputs."""
    grid = torch.linspace(-1, 1, n_grid).unsqueeze(-1)
    hypotheses_of: dict[str, Any] = {}
    with torch.random.fork_rng():
        for n in (1, 4):
            x, y, model = train_fork(n)
            with torch.no_grad():
                hypotheses, score_logits = model(grid)
            scored = torch.cat([hypotheses, mcl.normalized_scores(score_logits).unsqueeze(-1)], dim=-1)
            hypotheses_of[str(n)] = [[[round(v, 4) for v in pair] for pair in row] for row in scored.tolist()]
    pairs = torch.cat([x, y], dim=-1)
    return {
        "code": inspect.getsource(train_fork),
        "points": [[round(v, 4) for v in pair] for pair in pairs.tolist()],
        "grid": [round(v, 4) for v in grid.flatten().tolist()],
        "answers": hypotheses_of,
    }
