"""The parts of a configuration, one class for each: what they hold and what their options may be."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchmcl._checks import (
    bad_value,
    check_choice,
    check_fraction,
    check_non_negative,
    check_non_negative_int,
    check_positive,
    check_positive_int,
    check_real,
)

__all__ = ["DataConfig", "ObjectiveConfig", "TrainingConfig"]

RULES = ("pit", "mcl", "relaxed-wta", "amcl", "sinkhorn", "auto")
LAYOUTS = ("auto", "tables", "wsj0", "librimix", "speakers")


@dataclass(frozen=True)
class DataConfig:
    """Where the speech is, and how samples are made of it.

    Args:
        layout: "tables" (utterances and gains), "wsj0", "librimix", or "speakers" (clean recordings, a folder for each
            speaker); "auto" recognises it from the folder.
        root: folder of the data.
        pack: file of packed utterances to read instead of the recordings below `root`.
        tables: for "librimix", part -> metadata table, relative to `root`.
        n_speakers: numbers of speakers; several are mixed, with a mask.
        sample_rate: everything is resampled to it.
        crop: seconds of a training sample.
        dynamic: new mixtures in every epoch.
        on_device: make them, and what `augmentation` asks for, on the device of the training; needs `dynamic`.
        spread_db: gains of new mixtures lie between -spread_db and spread_db.
        samples_per_epoch: all of them by default.
        validation_samples: how many mixtures of the validation part to use; all by default.
        n_workers: processes that prepare samples.
        skip_bad: leave out recordings that cannot be used, with a count.
        outside: also read recordings outside of `root`, if the list of them is one that you trust.
    """

    layout: str = "auto"
    root: str | None = None
    pack: str | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    n_speakers: Sequence[int] = (2,)
    sample_rate: int = 8000
    crop: float = 5.0
    dynamic: bool = False
    on_device: bool = False
    spread_db: float = 2.5
    samples_per_epoch: int | None = None
    validation_samples: int | None = None
    n_workers: int = 0
    skip_bad: bool = False
    outside: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice("data", "layout", self.layout, LAYOUTS)
        numbers = [self.n_speakers] if isinstance(self.n_speakers, int) else list(self.n_speakers)
        for number in numbers:
            check_positive_int("data", "n_speakers", number)
        if not numbers:
            raise ValueError(bad_value("data", "n_speakers", "not be empty", numbers, "Two speakers are [2]."))
        object.__setattr__(self, "n_speakers", tuple(numbers))
        check_positive_int("data", "sample_rate", self.sample_rate)
        _check_finite("data", "crop", self.crop)
        check_positive("data", "crop", self.crop, "It is given in seconds.")
        _check_finite("data", "spread_db", self.spread_db)
        check_non_negative("data", "spread_db", self.spread_db)
        if self.on_device and not self.dynamic:
            advice = "Set data.dynamic=true: listed mixtures come from a loader."
            raise ValueError(bad_value("data", "on_device", "go with data.dynamic", self.on_device, advice))
        check_non_negative_int("data", "n_workers", self.n_workers)
        for name in ("samples_per_epoch", "validation_samples"):
            if getattr(self, name) is not None:
                check_positive_int("data", name, getattr(self, name))


@dataclass(frozen=True)
class ObjectiveConfig:
    """Which rule trains the separator, on the negative SI-SDR in decibels.

    Args:
        rule: "pit", "mcl" (winner takes all), "relaxed-wta", "amcl" (annealed), "sinkhorn", or "auto": annealed by
            `torchmcl.AutoAnnealing`, which decides on temperature and tail of the learning rate in training.
        epsilon: of "relaxed-wta".
        temperature: where "amcl" begins, or the one of "sinkhorn", in decibels.
        annealing_epochs: epochs after which the temperature of "amcl" is 0.
        decay: cool "amcl" by this factor an epoch, Eq. (44), instead of linearly, Eq. (43).
        in_order: let "pit" give n sources to the first n outputs, so that scores can tell how many there are.
        score_weight: of the score loss, if the model gives scores.
        limit_db: SI-SDR at which a source is good enough, so that easy ones, a single speaker for example, leave the
            gradient to the others; no limit by default.
    """

    rule: str = "amcl"
    epsilon: float = 0.05
    temperature: float = 0.1
    annealing_epochs: int = 100
    decay: float | None = None
    in_order: bool = False
    score_weight: float = 1.0
    limit_db: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice("objective", "rule", self.rule, RULES)
        check_positive_int("objective", "annealing_epochs", self.annealing_epochs)
        check_non_negative("objective", "temperature", self.temperature)
        check_fraction("objective", "epsilon", self.epsilon)
        if self.decay is not None:
            check_fraction("objective", "decay", self.decay)
        if self.in_order and self.rule != "pit":
            advice = "Set objective.rule=pit: the other rules let sources share an output."
            raise ValueError(bad_value("objective", "in_order", "be false with this rule", self.rule, advice))
        _check_finite("objective", "score_weight", self.score_weight)
        check_non_negative("objective", "score_weight", self.score_weight)
        if self.limit_db is not None:
            _check_finite("objective", "limit_db", self.limit_db)


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how fast to train.

    Args:
        epochs: in all.
        batch_size: samples of a step.
        learning_rate: of Adam.
        schedule: "plateau" halves the rate where the validation no longer improves; "cosine" lowers it to 0
            over all epochs, which gives more in a short training; "budget" over all epochs or the minutes that the
            training is given, whichever end first.
        warmup: epochs over which the rate of "cosine" and "budget" rises.
        patience: epochs without a better validation until the rate is halved.
        clip: largest norm of the gradient.
        precision: "32-true" or "bf16-mixed".
        ema: decay of the averaged weights; none by default.
        checkpoint_every: epochs between checkpoints, of which one more is written at the end.
        captured: replay the passes of the model as CUDA graphs, on a GPU.
        max_skipped: batches with a loss that is not finite to leave out, before one is an error.
        seed: decides weights, order and crops.
    """

    epochs: int = 200
    batch_size: int = 22
    learning_rate: float = 1e-3
    schedule: str = "plateau"
    warmup: int = 0
    patience: int = 5
    clip: float = 5.0
    precision: str = "32-true"
    ema: float | None = None
    checkpoint_every: int = 1
    captured: bool = True
    max_skipped: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("epochs", "batch_size", "patience", "checkpoint_every"):
            check_positive_int("training", name, getattr(self, name))
        for name in ("max_skipped", "warmup"):
            check_non_negative_int("training", name, getattr(self, name))
        check_choice("training", "schedule", self.schedule, ("plateau", "cosine", "budget"))
        if self.warmup and self.schedule == "plateau":
            advice = "Set training.schedule=cosine."
            raise ValueError(bad_value("training", "warmup", "be 0 with the plateau", self.warmup, advice))
        check_choice("training", "precision", self.precision, ("32-true", "bf16-mixed"))
        check_non_negative_int("training", "seed", self.seed)
        for name in ("learning_rate", "clip"):
            _check_finite("training", name, getattr(self, name))
        check_positive("training", "learning_rate", self.learning_rate)
        check_non_negative("training", "clip", self.clip)
        if self.ema is not None:
            check_fraction("training", "ema", self.ema)


def _check_finite(part: str, name: str, value: float) -> None:
    check_real(part, name, value)
    if math.isinf(value):
        raise ValueError(bad_value(part, name, "be finite", repr(value)))
