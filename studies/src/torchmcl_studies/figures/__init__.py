"""Figures of the paper, one file each, which trains and writes records; `run_figure` runs a figure by name."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torchmcl.checks import available_device
from torchmcl_studies.common import check_known
from torchmcl_studies.figures.annealed_epsilon import run_annealed_epsilon
from torchmcl_studies.figures.distortion_vs_temperature import run_distortion_vs_temperature
from torchmcl_studies.figures.figure1 import run_figure1
from torchmcl_studies.figures.phase_transitions import run_phase_transitions
from torchmcl_studies.figures.rate_distortion import run_rate_distortion
from torchmcl_studies.figures.settings import PRESETS, Claim, FigureSettings, conditional, unconditional

__all__ = ["FIGURES", "PRESETS", "Claim", "FigureSettings", "run_figure"]


class _Figure(NamedTuple):
    run: Callable[..., list[Claim]]
    settings: Callable[[str, str], FigureSettings]


FIGURES = {
    "figure1": _Figure(run_figure1, unconditional),
    "rate-distortion": _Figure(run_rate_distortion, unconditional),
    "distortion-vs-temperature": _Figure(run_distortion_vs_temperature, conditional),
    "phase-transitions": _Figure(run_phase_transitions, conditional),
    "annealed-epsilon": _Figure(run_annealed_epsilon, unconditional),
}


def run_figure(
    name: str,
    folder: Path,
    *,
    preset: str = "quick",
    n_epochs: int | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> list[Claim]:
    """Train the networks of a figure and write its records into `folder / name`.

    Args:
        name: Name of a figure, as in `FIGURES`.
        folder: Folder of all figures; each figure has a subfolder.
        preset: "quick" for two cores, "paper" for the settings of the appendix.
        n_epochs: Number of epochs; by default the number of the preset.
        device: Device to train on.
        progress: Whether to show a progress bar.

    Returns:
        Claims of the caption, and whether these records confirm them.

    Raises:
        ValueError: If there is no such figure, preset or device.
    """
    check_known("reproduce", "figure", [name], FIGURES)
    available_device("reproduce", device)
    figure = FIGURES[name]
    settings = figure.settings(preset, device)
    if n_epochs is not None:
        settings = settings.lasting(n_epochs)
    return figure.run(folder / name, settings, progress=progress)
