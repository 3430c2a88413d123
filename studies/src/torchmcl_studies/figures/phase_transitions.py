"""Hypotheses at three inputs and four temperatures: inputs with larger target variance split first."""

from pathlib import Path

import torch

from torchmcl.annealing import AnnealingRecords, phase_transitions
from torchmcl_fleet.demo.gaussians import CENTERS, three_gaussians
from torchmcl_studies.figures.settings import (
    PROBES,
    Claim,
    FigureSettings,
    local_critical_temperatures,
    train_conditional,
    write_summary,
    write_table,
)

__all__ = ["TEMPERATURES", "run_phase_transitions"]

# The four temperatures of the paper.
TEMPERATURES = (0.950, 0.256, 0.131, 0.001)


def run_phase_transitions(folder: Path, settings: FigureSettings, *, progress: bool = True) -> list[Claim]:
    """Train annealed MCL from T = 1 to 0; write hypotheses, counts and splits as CSV, and `summary.json`."""
    seeds, seconds = train_conditional(settings, progress=progress)
    shown = [_nearest(seeds[0], temperature) for temperature in TEMPERATURES]
    write_table(
        folder / "hypotheses.csv",
        ("temperature", "x", "hypothesis", "y1", "y2", "score"),
        (row for record in shown for row in _places(seeds[0], record)),
    )
    write_table(folder / "points.csv", ("x", "y1", "y2"), _points())
    counts = [course.n_distinct for course in seeds]
    write_table(
        folder / "counts.csv",
        ("seed", "epoch", "temperature", "x", "n_distinct"),
        (
            (seed, int(course.step[i]) + 1, float(course.temperature[i]), x, int(counts[seed][i, probe]))
            for seed, course in enumerate(seeds)
            for i in range(len(course))
            for probe, x in enumerate(PROBES)
        ),
    )
    predicted = local_critical_temperatures(torch.tensor(PROBES)).tolist()
    observed = [[_first_split(course, probe) for probe in range(len(PROBES))] for course in seeds]
    write_table(
        folder / "splits.csv",
        ("seed", "x", "predicted_temperature", "observed_temperature"),
        (
            (seed, x, predicted[probe], observed[seed][probe])
            for seed in range(len(seeds))
            for probe, x in enumerate(PROBES)
        ),
    )
    claims = _claims(seeds, observed)
    marks = {f"critical_temperature_at_{x}": value for x, value in zip(PROBES, predicted, strict=True)}
    write_summary(folder, settings, claims, seconds, marks)
    return claims


def _nearest(course: AnnealingRecords, temperature: float) -> int:
    return int((course.temperature - temperature).abs().argmin())


def _first_split(course: AnnealingRecords, probe: int) -> float:
    """Return the temperature of the first lasting split; 0 if there is none."""
    splits = phase_transitions(course, probe)
    return splits[0].temperature if splits else 0.0


def _places(course: AnnealingRecords, record: int) -> list[tuple[float, ...]]:
    assert course.scores is not None
    temperature = float(course.temperature[record])
    return [
        (temperature, x, k, *course.hypotheses[record, probe, k].tolist(), float(course.scores[record, probe, k]))
        for probe, x in enumerate(PROBES)
        for k in range(course.hypotheses.shape[2])
    ]


def _points() -> list[tuple[float, ...]]:
    """Return targets of each probe input: the Gaussians of Figure 1 with contracted centers."""
    rows: list[tuple[float, ...]] = []
    for x in PROBES:
        generator = torch.Generator().manual_seed(3)
        full = three_gaussians(600, generator)
        centers = torch.tensor(CENTERS)
        nearest = centers[torch.cdist(full, centers).argmin(dim=-1)]
        rows += [(x, *place) for place in (full + (x - 1) * nearest).tolist()]
    return rows


def _claims(seeds: list[AnnealingRecords], observed: list[list[float]]) -> list[Claim]:
    means = [sum(column) / len(column) for column in zip(*observed, strict=True)]
    # Number of distinct hypotheses at each of the four temperatures: [seeds, temperatures, probes]
    counts = torch.stack([course.n_distinct[[_nearest(course, t) for t in TEMPERATURES]] for course in seeds])
    middle = [float(seeds[0].temperature[_nearest(seeds[0], t)]) for t in TEMPERATURES]
    n_parted = sum(low < middle[1] <= high for low, _, high in observed)
    return [
        Claim(
            f"At T = {middle[0]:.3f} the hypotheses of each input coincide.",
            bool((counts[:, 0] <= 2).all()) and float(counts[:, 0].float().mean()) < 1.5,
        ),
        Claim(
            "Inputs with a larger target variance split first, in every run: on average "
            + ", ".join(f"x = {x} at T = {t:.3f}" for x, t in reversed(list(zip(PROBES, means, strict=True))))
            + ".",
            all(low < mid < high for low, mid, high in observed),
        ),
        Claim(
            f"At T = {middle[1]:.3f} x = 0.9 has split and x = 0.1 has not, in {n_parted} of {len(seeds)} runs; "
            f"at T = {middle[2]:.3f} x = 0.6 has as well.",
            n_parted > 0.5 * len(seeds) and all(low < middle[2] <= mid for low, mid, _ in observed),
        ),
        Claim(
            f"At T = {middle[3]:.3f} all inputs have many clusters: {float(counts[:, 3].float().mean()):.0f} of "
            f"{seeds[0].hypotheses.shape[2]} on average.",
            bool((counts[:, 3] > 10).all()),
        ),
    ]
