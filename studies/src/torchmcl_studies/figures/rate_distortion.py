"""MCL and annealed MCL on a single Gaussian, in the rate-distortion plane."""

import math
import time
from pathlib import Path

import torch
from torch import Tensor

from torchmcl import theory
from torchmcl.annealing import AnnealingRecords
from torchmcl.rules.winners import WTA, AnnealedWTA
from torchmcl.schedules import annealed
from torchmcl_studies.figures.settings import Claim, FigureSettings, train_without_input, write_summary, write_table

__all__ = ["METHODS", "STDS", "run_rate_distortion"]

METHODS = ("MCL", "annealed MCL")
# The paper does not specify the Gaussian. With two different standard deviations, R(D) and the Shannon lower bound
# differ where the narrow direction has zero rate, and the data lie far inside the square of possible hypotheses.
STDS = (0.3, 0.15)
# Tolerance for the error of a finite held-out set, in bits.
_SLACK = 0.1


def run_rate_distortion(folder: Path, settings: FigureSettings, *, progress: bool = True) -> list[Claim]:
    """Train both methods; write `trajectories.csv`, `curve.csv`, `summary.json`."""
    start = time.perf_counter()
    rules = [WTA(), annealed(AnnealedWTA, temperature=settings.exponential())]
    courses = train_without_input(settings, rules, _gaussian, progress=progress, what="rate-distortion")
    write_table(
        folder / "trajectories.csv",
        ("method", "seed", "epoch", "temperature", "distortion", "soft_distortion", "rate"),
        (
            (method, seed, int(course.step[i]) + 1, *(float(column[i]) for column in _columns(course)))
            for method, seeds in zip(METHODS, courses, strict=True)
            for seed, course in enumerate(seeds)
            for i in range(len(course))
        ),
    )
    covariance = torch.diag(torch.tensor(STDS, dtype=torch.float64) ** 2)
    largest = float(covariance.trace())
    highest = math.log2(settings.n_hypotheses)
    best = float(theory.gaussian_distortion(highest, covariance))
    distortions = torch.logspace(math.log10(best / 2), math.log10(largest), 200, dtype=torch.float64)
    rates = theory.gaussian_rate(distortions, covariance)
    entropy = 0.5 * torch.logdet(2 * math.pi * math.e * covariance) / math.log(2)
    bound = theory.shannon_lower_bound(distortions, entropy=entropy, dim=2)
    write_table(
        folder / "curve.csv",
        ("distortion", "rate", "shannon_lower_bound"),
        zip(distortions.tolist(), rates.tolist(), bound.tolist(), strict=True),
    )
    claims = _claims(courses, covariance, best, highest, settings.n_held_out)
    marks = {"max_distortion": largest, "best_distortion": best, "highest_rate": highest}
    write_summary(folder, settings, claims, time.perf_counter() - start, marks)
    return claims


def _gaussian(n_points: int, generator: torch.Generator) -> Tensor:
    device = generator.device
    return torch.randn(n_points, 2, generator=generator, device=device) * torch.tensor(STDS, device=device)


def _columns(course: AnnealingRecords) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return course.temperature, course.distortion, course.soft_distortion, course.rate


def _claims(
    courses: list[list[AnnealingRecords]], covariance: Tensor, best: float, highest: float, n_held_out: int
) -> list[Claim]:
    plain, cooled = courses
    excess = [
        [course.rate - theory.gaussian_rate(course.soft_distortion.double(), covariance) for course in seeds]
        for seeds in courses
    ]
    low = min(float(rates.min()) for seeds in excess for rates in seeds)
    # From the moment the hypotheses have merged to the end of training.
    lowest = [int(course.rate.argmin()) for course in cooled]
    gaps = [float(gap[start:].median()) for gap, start in zip(excess[1], lowest, strict=True)]
    sampled = max(0.05, 4 / math.sqrt(n_held_out))  # sampling error of the mean square of held-out samples
    at_rest = [float(c.soft_distortion[i]) / float(covariance.trace()) for c, i in zip(cooled, lowest, strict=True)]
    ends = [[float(course.distortion[-1]) for course in seeds] for seeds in courses]
    last = [sum(values) / len(values) for values in ends]
    rates = [float(course.rate.max()) for seeds in courses for course in seeds]
    return [
        Claim(
            "No point of either trajectory lies below R(D), in agreement with theory.",
            low > -_SLACK,
        ),
        Claim(
            f"Winner-takes-all stays at a high rate, at most log2(n) = {highest:.2f} bits.",
            max(rates) <= highest + 1e-3 and min(float(c.rate.min()) for c in plain) > 0.4 * highest,
        ),
        Claim(
            "Annealing first reduces the rate to 0, at the distortion of a single hypothesis.",
            all(float(course.rate.min()) < _SLACK for course in cooled) and all(abs(x - 1) < sampled for x in at_rest),
        ),
        Claim(
            f"From there it follows R(D), half of the time within {max(gaps):.2f} bits.",
            max(gaps) < 0.6,
        ),
        Claim(
            f"It ends at a distortion of {last[1]:.5f}, winner-takes-all at {last[0]:.5f} (with one Gaussian, no "
            f"hypothesis stays unused for long); the lower bound, marked +, is {best:.5f}.",
            last[1] < 1.02 * last[0] and min(ends[1]) > best,
        ),
    ]
