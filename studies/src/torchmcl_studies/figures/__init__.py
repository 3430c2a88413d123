"""The figures of the paper: one small file each, which trains and writes records; `run_figure` runs one by name."""

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
        name: one of `FIGURES`.
        folder: for all figures; each gets a subfolder.
        preset: "quick" for two cores, "paper" for the settings of the appendix.
        n_epochs: length of the training, that of the preset by default.
        device: where to train.
        progress: show a bar.

    Returns:
        The claims of the caption, and whether they hold on these records.

    Raises:
        ValueError: if there is no such figure, preset or device.
    """
    check_known("reproduce", "figure", [name], FIGURES)
    available_device("reproduce", device)
    figure = FIGURES[name]
    settings = figure.settings(preset, device)
    if n_epochs is not None:
        settings = settings.lasting(n_epochs)
    return figure.run(folder / name, settings, progress=progress)
