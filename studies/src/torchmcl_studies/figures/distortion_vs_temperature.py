"""Distortion against temperature on the conditional three Gaussians, with both critical temperatures and hysteresis."""

from pathlib import Path

import torch

from torchmcl import pairwise_sq_euclidean, theory
from torchmcl.annealing import AnnealingRecords
from torchmcl_fleet.demo.gaussians import CENTERS, DEVIATION, conditional_covariance
from torchmcl_studies.figures.settings import (
    Claim,
    FigureSettings,
    local_critical_temperatures,
    train_conditional,
    write_summary,
    write_table,
)

__all__ = ["run_distortion_vs_temperature"]

# The network must learn the mean first; the plateau is measured below this temperature.
_HOT = 0.8
_N_UPDATES = 600  # of free hypotheses at each temperature


def run_distortion_vs_temperature(folder: Path, settings: FigureSettings, *, progress: bool = True) -> list[Claim]:
    """Train annealed MCL from T = 1 linearly to 0; write `curve.csv`, `hysteresis.csv` and `summary.json`."""
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
    hysteresis = _hysteresis(settings.n_hypotheses)
    write_table(folder / "hysteresis.csv", ("direction", "temperature", "distortion"), hysteresis)
    separate = [temperature for _, temperature, distortion in hysteresis if distortion < 0.99 * hysteresis[0][2]]
    inputs, noise = torch.linspace(0, 1, 1001), DEVIATION**2 * torch.eye(2)
    marks = {
        "critical": theory.critical_temperature(torch.tensor(CENTERS), covariances=noise.expand(3, 2, 2)).temperature,
        "local": float(local_critical_temperatures(inputs).max()),
        "separate_cooling": separate[0],
        "separate_heating": max(separate),
        "of_one_gaussian": 2 * DEVIATION**2,
        "single_answer": float(conditional_covariance(inputs).diagonal(dim1=-2, dim2=-1).sum(dim=-1).mean()),
    }
    claims = _claims(seeds, marks)
    write_summary(folder, settings, claims, seconds, marks)
    return claims


def _claims(seeds: list[AnnealingRecords], marks: dict[str, float]) -> list[Claim]:
    bound, last = marks["critical"], marks["of_one_gaussian"]
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
            f"Above T = {bound:.2f} the distortion stays on a plateau at {level:.3f}; the distortion of a single "
            f"hypothesis is {marks['single_answer']:.3f}.",
            all(float(hot.std(correction=0)) < 0.08 * float(hot.mean()) for hot in plateaus)
            and 0.75 * marks["single_answer"] < level < 1.1 * marks["single_answer"],
        ),
        Claim(
            f"It falls only below it: by a quarter at T = {max(drops):.2f}, in the earliest of {len(seeds)} runs.",
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
        Claim(
            f"Free hypotheses at x = 1 separate at T = {marks['separate_cooling']:.2f} while the temperature falls, "
            f"and stay separate up to T = {marks['separate_heating']:.2f} while it rises again.",
            0.95 * marks["local"] < marks["separate_cooling"] < marks["local"] < marks["separate_heating"] < bound,
        ),
    ]


def _hysteresis(n_hypotheses: int) -> list[tuple[str, float, float]]:
    """Cool and heat free hypotheses at x = 1; return the direction, temperature and soft distortion at each step."""
    noise = torch.cartesian_prod(*[torch.special.ndtri((torch.arange(6) + 0.5) / 6)] * 2)  # quantiles of a normal
    samples = (torch.tensor(CENTERS).unsqueeze(1) + DEVIATION * noise / noise.std(correction=0)).flatten(0, 1)
    points, push = samples.mean(dim=0), 1e-3 * torch.randn(n_hypotheses, 2, generator=torch.Generator().manual_seed(0))
    path, rows = torch.linspace(0.52, 0.43, 10).tolist(), []
    for step, temperature in enumerate(path + path[::-1]):
        points = points + push
        for _ in range(_N_UPDATES):
            cost = pairwise_sq_euclidean(hypotheses=points, targets=samples)
            weights = theory.boltzmann_weights(cost, temperature)
            points = theory.soft_barycenters(samples, weights)
        direction = "cooling" if step < len(path) else "heating"
        rows.append((direction, temperature, float(theory.soft_distortion(cost, weights))))
    return rows
