"""Relaxed-WTA with epsilon annealed from 0.98 to 0, and the number of hypotheses that stay near the mean."""

import statistics
import time
from pathlib import Path

import torch

from torchmcl.annealing import AnnealingRecords
from torchmcl.rules.winners import AnnealedWTA, RelaxedWTA
from torchmcl.schedules import annealed
from torchmcl_fleet.demo.gaussians import CENTERS, three_gaussians
from torchmcl_studies.figures.figure1 import frames, starved
from torchmcl_studies.figures.settings import (
    Claim,
    FigureSettings,
    held_out_points,
    train_without_input,
    write_summary,
    write_table,
)

__all__ = ["METHODS", "RADIUS", "START", "run_annealed_epsilon"]

METHODS = ("annealed epsilon", "annealed MCL")
START = 0.98
# Every point within this distance of the mean is more than three standard deviations from all three centers.
RADIUS = 0.2


def run_annealed_epsilon(folder: Path, settings: FigureSettings, *, progress: bool = True) -> list[Claim]:
    """Train both variants; write `counts.csv`, `results.csv`, `frames.csv`, `points.csv`, `summary.json`."""
    start = time.perf_counter()
    epsilon = settings.linear(START)
    rules = [
        annealed(RelaxedWTA, epsilon=epsilon),
        annealed(AnnealedWTA, temperature=settings.exponential()),
    ]
    courses = train_without_input(settings, rules, three_gaussians, progress=progress, what="annealed epsilon")
    points = held_out_points(settings, three_gaussians)
    counts = [
        (method, seed, int(step) + 1, epsilon(int(step)) if method == METHODS[0] else "", count)
        for method, seeds in zip(METHODS, courses, strict=True)
        for seed, course in enumerate(seeds)
        for step, count in zip(course.step, _in_the_middle(course), strict=True)
    ]
    write_table(folder / "counts.csv", ("method", "seed", "epoch", "epsilon", "in_the_middle"), counts)
    results = [
        (method, seed, float(course.distortion[-1]), starved(course, points), _in_the_middle(course)[-1])
        for method, seeds in zip(METHODS, courses, strict=True)
        for seed, course in enumerate(seeds)
    ]
    write_table(folder / "results.csv", ("method", "seed", "distortion", "starved", "in_the_middle"), results)
    rows = frames(METHODS[0], courses[0][0])
    header = ("method", "epoch", "epsilon", "hypothesis", "y1", "y2", "score")
    shown = [(method, epoch, epsilon(int(str(epoch)) - 1), *rest) for method, epoch, _, *rest in rows]
    write_table(folder / "frames.csv", header, shown)
    write_table(folder / "points.csv", ("y1", "y2"), points[:1500].tolist())
    claims = _claims(courses, results, settings)
    write_summary(folder, settings, claims, time.perf_counter() - start, {"radius": RADIUS})
    return claims


def _in_the_middle(course: AnnealingRecords) -> list[int]:
    """Return the number of hypotheses near the mean of the three Gaussians, for each record."""
    middle = torch.tensor(CENTERS).mean(dim=0)
    return [int(n) for n in ((course.hypotheses[:, 0] - middle).norm(dim=-1) < RADIUS).sum(dim=-1)]


def _claims(
    courses: list[list[AnnealingRecords]], results: list[tuple[str, int, float, int, int]], settings: FigureSettings
) -> list[Claim]:
    n = settings.n_hypotheses
    peaks = [max(_in_the_middle(course)) for course in courses[0]]
    left, cooled = ([row for row in results if row[0] == name] for name in METHODS)
    stuck = statistics.fmean(row[4] for row in left)
    distortion = [statistics.fmean(row[2] for row in rows) for rows in (left, cooled)]
    return [
        Claim(f"While epsilon is large, all but a few of the {n} hypotheses are at the mean.", min(peaks) >= 0.9 * n),
        Claim(
            f"Not all leave it: {stuck:.1f} of {n} are still there when epsilon has reached 0.",
            min(row[4] for row in left) > 0,
        ),
        Claim("Annealing the temperature leaves no hypothesis there.", all(row[4] == 0 for row in cooled)),
        Claim(
            f"Its distortion is lower: {distortion[1]:.5f} against {distortion[0]:.5f} on average.",
            max(row[2] for row in cooled) < min(row[2] for row in left),
        ),
    ]
