"""Figure 1: 49 hypotheses on three Gaussians by MCL, Relaxed-WTA and annealed MCL, over ten seeds."""

import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl.annealing import AnnealingRecords
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.losses import assign
from torchmcl.rules.winners import WTA, AnnealedWTA, RelaxedWTA
from torchmcl.schedules import annealed
from torchmcl_fleet.demo.gaussians import three_gaussians
from torchmcl_studies.figures.settings import (
    Claim,
    FigureSettings,
    held_out_points,
    train_without_input,
    write_summary,
    write_table,
)

__all__ = ["METHODS", "frames", "run_figure1", "starved"]

METHODS = ("MCL", "Relaxed-WTA", "annealed MCL")
_N_FRAMES = 60


def run_figure1(folder: Path, settings: FigureSettings, *, progress: bool = True) -> list[Claim]:
    """Train networks by three methods; write `results.csv`, `frames.csv`, `points.csv`, `summary.json`."""
    start = time.perf_counter()
    rules = [WTA(), RelaxedWTA(0.1), annealed(AnnealedWTA, temperature=settings.exponential())]
    courses = train_without_input(settings, rules, three_gaussians, progress=progress, what="figure 1")
    points = held_out_points(settings, three_gaussians)
    results = [
        (method, seed, float(course.distortion[-1]), starved(course, points), _pull_to_the_middle(course, points))
        for method, seeds in zip(METHODS, courses, strict=True)
        for seed, course in enumerate(seeds)
    ]
    write_table(folder / "results.csv", ("method", "seed", "distortion", "starved", "pulled_to_the_middle"), results)
    write_table(
        folder / "frames.csv",
        ("method", "epoch", "temperature", "hypothesis", "y1", "y2", "score"),
        (row for method, seeds in zip(METHODS, courses, strict=True) for row in frames(method, seeds[0])),
    )
    write_table(folder / "points.csv", ("y1", "y2"), points[:1500].tolist())
    claims = _claims(results)
    write_summary(folder, settings, claims, time.perf_counter() - start, {})
    return claims


def frames(method: str, course: AnnealingRecords) -> list[tuple[object, ...]]:
    """Return the hypotheses and scores of one network during training, at equal intervals."""
    assert course.scores is not None
    every = max(1, len(course) // _N_FRAMES)
    rows: list[tuple[object, ...]] = []
    for i in range(len(course) - 1, -1, -every):
        head = (method, int(course.step[i]) + 1, float(course.temperature[i]))
        places, scores = course.hypotheses[i, 0].tolist(), course.scores[i, 0].tolist()
        rows[:0] = [(*head, k, *place, score) for k, (place, score) in enumerate(zip(places, scores, strict=True))]
    return rows


def starved(course: AnnealingRecords, points: Tensor) -> int:
    """Return the number of final hypotheses that are not the nearest hypothesis of any point."""
    cost = pairwise_sq_euclidean(hypotheses=course.hypotheses[-1], targets=points[None])
    return int(metrics.n_dead_hypotheses(assign(cost, WTA())))


def _pull_to_the_middle(course: AnnealingRecords, points: Tensor) -> float:
    """Return the fraction of hypotheses that are nearer to the mean of all points than to the nearest 100 points."""
    hypotheses, middle = course.hypotheses[-1, 0], points.mean(dim=0)
    to_points = torch.cdist(hypotheses, points).topk(100, largest=False).values.mean(dim=-1)
    return float(((hypotheses - middle).norm(dim=-1) < to_points).float().mean())


def _claims(results: list[tuple[str, int, float, int, float]]) -> list[Claim]:
    of = {name: [row for row in results if row[0] == name] for name in METHODS}
    mcl, relaxed, cooled = (of[name] for name in METHODS)
    mean = {name: statistics.fmean(row[2] for row in of[name]) for name in METHODS}
    n_starved = {name: statistics.fmean(row[3] for row in of[name]) for name in METHODS}
    middle = {name: statistics.fmean(row[4] for row in of[name]) for name in METHODS}
    n_wins = sum(mine[2] < other[2] for mine, other in zip(cooled, mcl, strict=True))
    return [
        Claim(
            f"Winner-takes-all leaves hypotheses unused: {n_starved['MCL']:.1f} of them on average.",
            min(row[3] for row in mcl) > 0,
        ),
        Claim(
            f"Relaxed-WTA pulls hypotheses to the mean, where there are no data: {100 * middle['Relaxed-WTA']:.0f} % "
            f"are nearer to the mean than to the data, {100 * middle['annealed MCL']:.0f} % with annealing.",
            min(row[4] for row in relaxed) > max(row[4] for row in cooled),
        ),
        Claim(
            f"Annealing leaves the fewest hypotheses unused ({n_starved['annealed MCL']:.1f}).",
            n_starved["annealed MCL"] < min(n_starved["MCL"], n_starved["Relaxed-WTA"]),
        ),
        Claim(
            f"Annealing has the lowest distortion: {mean['annealed MCL']:.5f} on average, against {mean['MCL']:.5f} "
            f"and {mean['Relaxed-WTA']:.5f}; with {n_wins} of {len(mcl)} seeds it beats winner-takes-all.",
            mean["annealed MCL"] < min(mean["MCL"], mean["Relaxed-WTA"]) and n_wins > 0.8 * len(mcl),
        ),
    ]
