"""Training settings of a figure, with two presets: quick, and the settings of the paper's appendix."""

import csv
import functools
import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.annealing import AnnealingRecords
from torchmcl.checks import check_choice, check_positive_int
from torchmcl.errors import bad_value
from torchmcl.io import write_atomically
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.rules.winners import AnnealedWTA
from torchmcl.schedules import Cosine, Exponential, Linear, annealed
from torchmcl.types import Batch
from torchmcl_fleet import SGD, Adam, Fleet, FleetRecorder, SampledData
from torchmcl_fleet.demo.gaussians import conditional_covariance, conditional_three_gaussians

__all__ = [
    "PRESETS",
    "PROBES",
    "Claim",
    "Draw",
    "FigureSettings",
    "conditional",
    "held_out_points",
    "local_critical_temperatures",
    "train",
    "train_conditional",
    "train_without_input",
    "unconditional",
    "write_summary",
    "write_table",
]

PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class FigureSettings:
    """Networks of a figure and length of their training.

    Attributes:
        preset: Name of the settings.
        n_seeds: Number of networks per method.
        n_epochs: Number of epochs, each with new points, which all networks share.
        n_points: Number of points per epoch.
        batch_size: Number of points per step; not specified in the paper.
        targets_per_row: Number of points that share one row of input if p(y | x) is the same for all x. The gradient
            equals the gradient of separate rows; the network is evaluated less often.
        hidden: Sizes of the hidden layers.
        n_hypotheses: Number of hypotheses of each network.
        optimizer: Optimizer of all networks.
        learning_rate: Number, or schedule over the epochs.
        n_held_out: Number of new points for the evaluation.
        n_records: Number of measurements during training, equally spaced.
        device: Device to train on.
    """

    preset: str
    n_seeds: int
    n_epochs: int
    n_points: int
    batch_size: int
    targets_per_row: int
    hidden: tuple[int, ...]
    optimizer: Adam | SGD
    learning_rate: float | Cosine
    n_held_out: int
    n_records: int
    n_hypotheses: int = 49
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Check that the points divide into rows and steps."""
        for name in ("n_seeds", "n_epochs", "n_points", "batch_size", "targets_per_row", "n_held_out", "n_records"):
            check_positive_int("FigureSettings", name, getattr(self, name))
        if self.n_points % self.batch_size or self.batch_size % self.targets_per_row:
            rule = "divide into steps of `batch_size` and those into rows of `targets_per_row`"
            got = f"{self.n_points}, {self.batch_size} and {self.targets_per_row}"
            raise ValueError(bad_value("FigureSettings", "n_points", rule, got))

    def lasting(self, n_epochs: int) -> "FigureSettings":
        """Return the settings for a different number of epochs, with the learning rate falling over all of them."""
        rate = self.learning_rate
        rate = replace(rate, n_steps=n_epochs) if isinstance(rate, Cosine) else rate
        return replace(self, n_epochs=n_epochs, learning_rate=rate)

    @property
    def record_every(self) -> int:
        """Number of epochs between records."""
        return max(1, self.n_epochs // self.n_records)

    def exponential(self) -> Exponential:
        """Return the paper's schedule 0.6 * 0.99^t over 1000 epochs, rescaled to the number of epochs."""
        return Exponential(0.6, 0.99 ** (1000 / self.n_epochs))

    def linear(self, start: float) -> Linear:
        """Return the linear schedule from `start` to 0 over all epochs."""
        return Linear(start, 0.0, self.n_epochs)

    def module_factory(self) -> Callable[[], MultiHypothesisMLP]:
        """Return the factory of the network: two hidden layers, hypotheses in [-1, 1]^2, and scores."""
        return lambda: MultiHypothesisMLP(1, 2, self.n_hypotheses, hidden=self.hidden, output_activation=torch.tanh)


def unconditional(preset: str, device: str = "cpu") -> FigureSettings:
    """Return the settings of the figures without an input: Figure 1, rate-distortion, annealed epsilon.

    SGD at 0.01 needs the paper's 100 000 steps; the quick preset converges in 1500, with Adam and a falling rate.
    """
    check_choice("reproduce", "preset", preset, PRESETS)
    if preset == "paper":
        return FigureSettings("paper", 10, 1000, 100_000, 1000, 25, (256, 256), SGD(), 0.01, 25_000, 200, device=device)
    rate = Cosine(0.003, 3e-5, 150)
    return FigureSettings("quick", 10, 150, 5000, 500, 500, (64, 64), Adam(), rate, 4000, 50, device=device)


def conditional(preset: str, device: str = "cpu") -> FigureSettings:
    """Return the settings of the figures with an input: distortion against temperature, phase transitions."""
    check_choice("reproduce", "preset", preset, PRESETS)
    if preset == "paper":
        settings = unconditional("paper", device)
        # With smaller batches, Adam at the paper's rate of 0.01 occasionally destroys a network.
        return replace(settings, n_seeds=5, targets_per_row=1, batch_size=10_000, optimizer=Adam())
    return FigureSettings("quick", 3, 250, 2560, 256, 1, (64, 64), Adam(), 0.004, 4000, 125, device=device)


class Claim(NamedTuple):
    """A sentence of a caption, and whether the records of this run confirm it."""

    text: str
    holds: bool


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_atomically(path, text.getvalue())


def write_summary(
    folder: Path, settings: FigureSettings, claims: Sequence[Claim], seconds: float, marks: dict[str, float]
) -> None:
    """Write `summary.json`: settings, claims, and the scalar values of the figure."""
    shown = asdict(settings) | {"optimizer": repr(settings.optimizer)}
    summary = {
        "settings": shown,
        "claims": [claim._asdict() for claim in claims],
        "seconds": seconds,
        "marks": marks,
    }
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1))


Draw = Callable[[int, torch.Generator], Tensor]


def train(
    settings: FigureSettings,
    rules: Sequence[Any],
    draw: Callable[[int, torch.Generator], Batch],
    *,
    held_out: Batch,
    probes: Tensor,
    progress: bool,
    what: str,
) -> list[list[AnnealingRecords]]:
    """Return the records of each method and seed.

    Args:
        settings: Training settings.
        rules: Rule, or function epoch -> rule, of each method.
        draw: Function that draws the rows of an epoch.
        held_out: Rows for the evaluation.
        probes: Inputs at which the hypotheses are recorded.
        progress: Whether to show a progress bar.
        what: Label of the progress bar.
    """
    n_models = len(rules) * settings.n_seeds
    fleet = Fleet(
        settings.module_factory(),
        n_models,
        rule=[rule for rule in rules for _ in range(settings.n_seeds)],
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        seeds=list(range(settings.n_seeds)) * len(rules),
        device=settings.device,
    )
    recorder = FleetRecorder(fleet, settings.n_epochs, data=held_out, probes=probes, every=settings.record_every)
    fleet.fit(
        SampledData(draw, settings.n_points // settings.targets_per_row, n_models),
        settings.n_epochs,
        batch_size=settings.batch_size // settings.targets_per_row,
        after_epoch=recorder,
        models_at_once=n_models,
        progress=what if progress else False,
    )
    records = recorder.records()
    return [records[low : low + settings.n_seeds] for low in range(0, n_models, settings.n_seeds)]


def train_without_input(
    settings: FigureSettings, rules: Sequence[Any], points: Draw, *, progress: bool, what: str
) -> list[list[AnnealingRecords]]:
    """Return the records of networks with constant input 1 and targets from one distribution."""

    def draw(n_rows: int, generator: torch.Generator) -> Batch:
        targets = points(n_rows * settings.targets_per_row, generator)
        return Batch(torch.ones(n_rows, 1, device=generator.device), targets.view(n_rows, settings.targets_per_row, 2))

    held_out = Batch(torch.ones(1, 1), held_out_points(settings, points).unsqueeze(0))
    one = torch.ones(1, 1)
    return train(settings, rules, draw, held_out=held_out, probes=one, progress=progress, what=what)


def held_out_points(settings: FigureSettings, points: Draw) -> Tensor:
    """Return the test points of a figure without an input."""
    return points(settings.n_held_out, torch.Generator().manual_seed(1))


# The inputs of the paper's figures.
PROBES = (0.1, 0.6, 0.9)


@functools.lru_cache(maxsize=1)
def train_conditional(settings: FigureSettings, *, progress: bool) -> tuple[list[AnnealingRecords], float]:
    """Return the records of each seed and the training time in seconds; cached because two figures share the run."""
    start = time.perf_counter()
    cooling = annealed(AnnealedWTA, temperature=settings.linear(1.0))
    (seeds,) = train(
        settings,
        [cooling],
        conditional_three_gaussians,
        held_out=conditional_three_gaussians(settings.n_held_out, torch.Generator().manual_seed(1)),
        probes=torch.tensor(PROBES).unsqueeze(-1),
        progress=progress,
        what="conditional three Gaussians",
    )
    return seeds, time.perf_counter() - start


def local_critical_temperatures(inputs: Tensor) -> Tensor:
    """Return the temperature at which merged hypotheses become unstable at each input, 2 lambda_max(C(x)), Eq. (14)."""
    return 2 * torch.linalg.eigvalsh(conditional_covariance(inputs))[..., -1]
