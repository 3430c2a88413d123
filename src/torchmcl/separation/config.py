"""What a training of a separator is made of, read from a small YAML file. Unknown options are errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import Any

from torchmcl._checks import (
    bad_value,
    check_choice,
    check_fraction,
    check_non_negative,
    check_non_negative_int,
    check_positive,
    check_positive_int,
    check_real,
    nearest_hint,
)
from torchmcl._reading import read_text
from torchmcl.data.speech.augment import Augmentation
from torchmcl.nn.dprnn import DPRNN
from torchmcl.separation.plain import check_types, shown, yaml_value

__all__ = [
    "DataConfig",
    "ObjectiveConfig",
    "SeparationConfig",
    "TrainingConfig",
    "load_config",
    "shipped_configs",
]

RULES = ("pit", "mcl", "relaxed-wta", "amcl", "sinkhorn", "auto")
LAYOUTS = ("auto", "tables", "wsj0", "librimix")


@dataclass(frozen=True)
class DataConfig:
    """Where the speech is, and how samples are made of it.

    Args:
        layout: "tables" (utterances and gains), "wsj0" or "librimix"; "auto" recognises it from the folder.
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
        score_weight: of the score loss, if the model gives scores.
        limit_db: SI-SDR at which a source is good enough, so that easy ones, a single speaker for example, leave the
            gradient to the others; no limit by default.
    """

    rule: str = "amcl"
    epsilon: float = 0.05
    temperature: float = 0.1
    annealing_epochs: int = 100
    decay: float | None = None
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


@dataclass(frozen=True)
class SeparationConfig:
    """Everything about one training; `model` holds arguments of `torchmcl.nn.DPRNN`."""

    data: DataConfig = field(default_factory=DataConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)
    model: Mapping[str, Any] = field(default_factory=dict)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        """Check what concerns several parts."""
        _check_known("model", self.model, [name for name in signature(DPRNN).parameters if name != "bilstm"])
        if not self.augmentation.is_none() and not self.data.on_device:
            advice = "Set data.on_device=true, or leave the part out."
            raise ValueError(bad_value("configuration", "augmentation", "go with data.on_device", "without", advice))
        n_outputs, n_speakers = self.model.get("n_outputs", 2), max(self.data.n_speakers)
        check_positive_int("model", "n_outputs", n_outputs)
        if n_outputs < n_speakers:
            rule = f"be at least the {n_speakers} speakers of a mixture"
            raise ValueError(bad_value("model", "n_outputs", rule, n_outputs, "More outputs than speakers are fine."))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain = asdict(self)
        plain["data"]["n_speakers"] = list(self.data.n_speakers)
        return plain

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "SeparationConfig":
        """Return the configuration of plain values.

        Raises:
            ValueError: if an option is unknown or its value impossible.
        """
        parts = {
            "data": DataConfig,
            "augmentation": Augmentation,
            "objective": ObjectiveConfig,
            "training": TrainingConfig,
        }
        _check_known("configuration", options, [f.name for f in fields(cls)])
        parts_by_name = {name: _part(name, kind, options.get(name) or {}) for name, kind in parts.items()}
        model = options.get("model") or {}
        if not isinstance(model, Mapping):
            raise ValueError(bad_value("configuration", "model", "hold options by name", shown(model)))
        return cls(**parts_by_name, model=dict(model))

    def changed(self, changes: Sequence[str]) -> "SeparationConfig":
        """Return another configuration, with `part.option=value` put in; values are YAML."""
        options = self.as_dict()
        for change in changes:
            place, equals, value = change.partition("=")
            part, dot, name = place.strip().partition(".")
            if not equals or not dot or part not in options:
                rule = f"be part.option=value with a part among {sorted(options)}"
                raise ValueError(bad_value("configuration", "--set", rule, repr(change)))
            options[part][name] = yaml_value("configuration", "--set", value)
        return type(self).from_dict(options)

    def with_root(self, root: Path | str) -> "SeparationConfig":
        """Return another configuration, with the data below another folder."""
        return replace(self, data=replace(self.data, root=str(root)))


def shipped_configs() -> list[str]:
    """Return the names of the configurations that come with the package."""
    folder = resources.files("torchmcl.separation") / "configs"
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".yaml"))


def load_config(name: Path | str) -> SeparationConfig:
    """Return the configuration of a YAML file, or of one that comes with the package.

    Raises:
        ValueError: if there is no such file, or it does not describe a training.

    Example:
        >>> load_config("paper-2spk").training.batch_size
        22
    """
    path = Path(name)
    if path.is_file():
        text = read_text("separation", path, "config_bytes")
    else:
        shipped = shipped_configs()
        wanted = path.name if path.suffix == ".yaml" else f"{path.name}.yaml"
        if wanted not in shipped or path.parent != Path():
            rule = f"be a file or one of {shipped}"
            raise ValueError(bad_value("separation", "config", rule, repr(str(name)), nearest_hint(wanted, shipped)))
        text = (resources.files("torchmcl.separation") / "configs" / wanted).read_text()
    options = yaml_value("separation", str(name), text)
    if not isinstance(options, dict):
        raise ValueError(bad_value("separation", str(name), "hold options by name", shown(options)))
    return SeparationConfig.from_dict(options)


def _check_finite(part: str, name: str, value: float) -> None:
    check_real(part, name, value)
    if math.isinf(value):
        raise ValueError(bad_value(part, name, "be finite", repr(value)))


def _part(part: str, kind: type[Any], options: Any) -> Any:
    if not isinstance(options, Mapping):
        raise ValueError(bad_value("configuration", part, "hold options by name", shown(options)))
    _check_known(part, options, [f.name for f in fields(kind)])
    check_types(part, kind, options)
    return kind(**options)


def _check_known(where: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(str(name)[:80] for name in set(options) - set(known)):
        hint = nearest_hint(unknown[0], known)
        raise ValueError(f"{where}: unknown option {unknown}; known options are {sorted(known)}.{hint}")
