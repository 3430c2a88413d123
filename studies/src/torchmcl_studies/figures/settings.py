"""The training settings of a figure, and two presets: quick, and those of the paper's appendix."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from torchmcl._checks import bad_value, check_choice, check_positive_int
from torchmcl.fleet import SGD, Adam
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.schedules import Cosine, Exponential, Linear

__all__ = ["PRESETS", "FigureSettings", "conditional", "unconditional"]

PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class FigureSettings:
    """The networks of a figure and the length of their training.

    Attributes:
        preset: the name of these settings.
        n_seeds: networks of each method.
        n_epochs: each with fresh points, the same for all networks.
        n_points: points of an epoch.
        batch_size: points of a step; not specified in the paper.
        targets_per_row: where p(y | x) is the same for all x, this many points share one row of input. The gradient is
            that of as many rows; the network is evaluated less often.
        hidden: sizes of the hidden layers.
        n_hypotheses: answers of each network.
        optimizer: of all networks.
        learning_rate: a number, or a schedule of the epochs.
        n_held_out: fresh points to measure on.
        n_records: measurements during the training, equally spaced.
        device: where to train.
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
        """Return the same settings for another number of epochs, with the rate falling over all of them."""
        rate = self.learning_rate
        rate = replace(rate, n_steps=n_epochs) if isinstance(rate, Cosine) else rate
        return replace(self, n_epochs=n_epochs, learning_rate=rate)

    @property
    def record_every(self) -> int:
        """Epochs between records."""
        return max(1, self.n_epochs // self.n_records)

    def exponential(self) -> Exponential:
        """Return 0.6 * 0.99^t of the paper's 1000 epochs, rescaled to the number of epochs."""
        return Exponential(0.6, 0.99 ** (1000 / self.n_epochs))

    def linear(self, start: float) -> Linear:
        """Return the linear schedule from `start` to 0 over all epochs."""
        return Linear(start, 0.0, self.n_epochs)

    def module_factory(self) -> Callable[[], MultiHypothesisMLP]:
        """Return the factory of the network: two hidden layers, answers in the square [-1, 1]^2, and scores."""
        return lambda: MultiHypothesisMLP(1, 2, self.n_hypotheses, hidden=self.hidden, output_activation=torch.tanh)


def unconditional(preset: str, device: str = "cpu") -> FigureSettings:
    """Return the settings of the figures without an input: Figure 1, rate-distortion, annealed epsilon.

    SGD at 0.01 needs the paper's 100 000 steps; the quick preset gets there with Adam and a falling rate in 1500.
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
        # Adam at the paper's 0.01 kills a network now and then with noisier steps than these.
        return replace(settings, n_seeds=5, targets_per_row=1, batch_size=10_000, optimizer=Adam())
    return FigureSettings("quick", 3, 250, 2560, 256, 1, (64, 64), Adam(), 0.004, 4000, 125, device=device)
