"""Distortion against temperature on the conditional three Gaussians, with theoretical critical temperatures."""

from pathlib import Path

import torch

from torchmcl.annealing import AnnealingRecords
from torchmcl_fleet.demo.gaussians import DEVIATION, conditional_covariance
from torchmcl_studies.figures.settings import (
    Claim,
    FigureSettings,
    critical_temperatures,
    train_conditional,
    write_summary,
    write_table,
)

__all__ = ["run_distortion_vs_temperature"]

# The network must learn the mean first; the plateau is measured below this temperature.
_HOT = 0.8


def run_distortion_vs_temperature(folder: Path, settings: FigureSettings, *, progress: bool = True) -> list[Claim]:
    """Train annealed MCL from T = 1 linearly to 0; write `curve.csv` and `summary.json`."""
    seeds, seconds = train_conditional(settings, progress=progress)
    write_table(
        folder / "curve.csv",
        ("seed", "epoch", "temperature", "distortion"),
        (
            (seed, int(course.step[i]) + 1, float(course.temperature[i]), float(course.distortion[i]))
            for seed, course in enumerate(seeds)
            for i in range(len(course))
        ),
    )
    inputs = torch.linspace(0, 1, 1001)
    marks = {
        "upper_bound": float(critical_temperatures(inputs).max()),
        "of_one_gaussian": 2 * DEVIATION**2,
        "single_answer": float(conditional_covariance(inputs).diagonal(dim1=-2, dim2=-1).sum(dim=-1).mean()),
    }
    claims = _claims(seeds, marks)
    write_summary(folder, settings, claims, seconds, marks)
    return claims


def _claims(seeds: list[AnnealingRecords], marks: dict[str, float]) -> list[Claim]:
    bound, last = marks["upper_bound"], marks["of_one_gaussian"]
    plateaus, drops, between, ends = [], [], [], []
    for course in seeds:
        t, d = course.temperature, course.distortion
        hot = d[(t > bound) & (t < _HOT)]
        plateaus.append(hot)
        drops.append(max(t[(t < _HOT) & (d < 0.75 * hot.mean())].tolist(), default=0.0))
        between.append(float(d[(t > last) & (t < 2.5 * last)].mean()))
        ends.append(float(d[-1]))
    level = sum(float(hot.mean()) for hot in plateaus) / len(plateaus)
    return [
        Claim(
            f"Above the bound {bound:.2f} the distortion stays on a plateau at {level:.3f}; the distortion of a single "
            f"hypothesis is {marks['single_answer']:.3f}.",
            all(float(hot.std(correction=0)) < 0.08 * float(hot.mean()) for hot in plateaus)
            and 0.75 * marks["single_answer"] < level < 1.1 * marks["single_answer"],
        ),
        Claim(
            f"It falls only below the bound: by a quarter at T = {max(drops):.2f}, "
            f"in the earliest of {len(seeds)} runs.",
            0 < min(drops) <= max(drops) < bound,
        ),
        Claim(
            f"Before the last transition it is near {last:.2f}, the distortion of one hypothesis per Gaussian.",
            all(0.5 * last < value < 1.6 * last for value in between),
        ),
        Claim(
            f"Below T = 2 sigma^2 = {last:.2f} the hypotheses of a Gaussian split, and the distortion falls to "
            f"{sum(ends) / len(ends):.4f}.",
            max(ends) < 0.5 * last,
        ),
    ]
