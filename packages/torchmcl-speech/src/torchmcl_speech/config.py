"""Configuration of the training run of a separator, read from a YAML file. Unknown options are errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_type_hints

import yaml

from torchmcl import checks, io
from torchmcl.errors import bad_value, nearest_hint
from torchmcl_speech.data.augment import Augmentation
from torchmcl_speech.nn.dprnn import DPRNN

__all__ = [
    "DataConfig",
    "ObjectiveConfig",
    "SeparationConfig",
    "TrainingConfig",
    "check_known",
    "load_config",
    "shipped_configs",
    "shown",
    "yaml_value",
]

# Types that an annotation allows. An integer is also a valid float, and YAML reads 1e-3 as text.
_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number (write 1.0e-3, not 1e-3)"),
    bool: ((bool,), "true or false"),
    NoneType: ((NoneType,), "null"),
    Mapping[str, str]: ((Mapping,), "options by name"),
    Sequence[int]: ((list, tuple, int), "a list of integers"),
}


class _PlainLoader(yaml.SafeLoader):
    """YAML loader without aliases, which can expand a short text to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def yaml_value(owner: str, name: str, text: str) -> Any:
    """Parse a YAML text; tags that run code (`!!python/object...`) are rejected.

    Raises:
        ValueError: If the text is not YAML, or contains more than plain values.
    """
    try:
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506  (a SafeLoader)
    except RecursionError:  # not chained, because a thousand stack frames are not helpful
        raise ValueError(bad_value(owner, name, "be YAML", "too deeply nested lists")) from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # for example a list as a key, or month 13
        raise ValueError(bad_value(owner, name, "be YAML", " ".join(str(error).split())[:300])) from error


def read_options(owner: str, kind: type[Any], options: Any) -> Any:
    """Construct a dataclass from plain values, for example from YAML.

    Raises:
        ValueError: If an option is unknown, or its value is invalid or of the wrong type.
    """
    if not isinstance(options, Mapping):
        raise ValueError(bad_value("configuration", owner, "map names to options", shown(options)))
    check_known(owner, options, [item.name for item in fields(kind)])
    types = get_type_hints(kind)
    for name, value in options.items():
        _check_type(owner, name, types[name], value)
    return kind(**options)


def check_known(owner: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check that all options are known.

    Raises:
        ValueError: For an unknown option; the message suggests the most similar known option.
    """
    if unknown := sorted(str(name)[:80] for name in set(options) - set(known)):
        hint = nearest_hint(unknown[0], known)
        raise ValueError(f"{owner}: unknown option {unknown}; known options are {sorted(known)}.{hint}")


def shown(value: Any) -> str:
    """Return a truncated representation of a value for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_type(owner: str, name: str, annotation: Any, value: Any) -> None:
    kinds = annotation.__args__ if isinstance(annotation, UnionType) else (annotation,)
    types = tuple(allowed for kind in kinds for allowed in _TYPES[kind][0])
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        rule = f"be {' or '.join(_TYPES[kind][1] for kind in kinds)}"
        raise ValueError(bad_value(owner, name, rule, shown(value)))


_CONFIGS = resources.files("torchmcl_speech") / "configs"


_Count = Annotated[int, checks.Bounds(low=1, integer=True)]
_OptionalCount = Annotated[int | None, checks.Bounds(low=1, integer=True)]
_Natural = Annotated[int, checks.Bounds(low=0, integer=True)]
_NonNegative = Annotated[float, checks.Bounds(low=0, high=math.inf, open_high=True)]
_Positive = Annotated[float, checks.Bounds(low=0, high=math.inf, open_low=True, open_high=True)]


@dataclass(frozen=True)
class DataConfig(checks.Value):
    """Location of the recordings, and construction of samples.

    Args:
        layout: Layout of the data folder: "tables" (utterances and gains), "wsj0", "librimix", or "speakers" (clean
            recordings, one folder per speaker); "auto" detects it from the contents of the folder.
        root: Data folder.
        pack: File of packed utterances to read instead of the recordings below `root`.
        tables: Metadata tables of "librimix", relative to `root`, as a mapping from part to path.
        n_speakers: Numbers of speakers per mixture; mixtures of different numbers are combined with a mask.
        sample_rate: Sample rate to which all recordings are resampled.
        crop: Seconds per training sample.
        dynamic: Whether to create new mixtures in every epoch.
        on_device: Whether to create and augment mixtures on the training device; requires `dynamic`.
        spread_db: Bound on the gains of new mixtures, which lie between -spread_db and spread_db.
        samples_per_epoch: Number of samples per epoch; all samples by default.
        validation_samples: Number of validation mixtures; all by default.
        n_workers: Number of processes that prepare samples.
        skip_bad: Whether to leave out unusable recordings, with a warning that counts them.
        outside: Whether to read recordings outside of `root`, too; only for trusted lists of files.
    """

    _owner = "data"
    layout: Annotated[str, checks.OneOf("auto", "tables", "wsj0", "librimix", "speakers")] = "auto"
    root: str | None = None
    pack: str | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    n_speakers: Sequence[int] = (2,)
    sample_rate: _Count = 8000
    crop: _Positive = 5.0
    dynamic: bool = False
    on_device: bool = False
    spread_db: _NonNegative = 2.5
    samples_per_epoch: _OptionalCount = None
    validation_samples: _OptionalCount = None
    n_workers: _Natural = 0
    skip_bad: bool = False
    outside: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        numbers = [self.n_speakers] if isinstance(self.n_speakers, int) else list(self.n_speakers)
        for number in numbers:
            checks.check_positive_int("data", "n_speakers", number)
        if not numbers:
            raise ValueError(bad_value("data", "n_speakers", "not be empty", numbers, "Two speakers are [2]."))
        object.__setattr__(self, "n_speakers", tuple(numbers))
        if self.on_device and not self.dynamic:
            advice = "Set data.dynamic=true, because listed mixtures come from a data loader."
            raise ValueError(bad_value("data", "on_device", "be used with data.dynamic", self.on_device, advice))


@dataclass(frozen=True)
class ObjectiveConfig(checks.Value):
    """Assignment rule and loss of the separator, based on the negative SI-SDR in decibels.

    Args:
        rule: Assignment rule: "pit", "mcl" (winner takes all), "relaxed-wta", "amcl" (annealed), "sinkhorn", or "auto"
            for `torchmcl.AutoAnnealing`, which sets the temperature and the final learning rates during training.
        epsilon: Epsilon of "relaxed-wta".
        temperature: Initial temperature of "amcl" or constant temperature of "sinkhorn", in decibels.
        annealing_epochs: Number of epochs after which the temperature of "amcl" is 0.
        decay: Factor of the temperature of "amcl" per epoch, Eq. (44), instead of linear cooling, Eq. (43).
        in_order: Whether "pit" assigns n sources to the first n outputs, so that scores can indicate the number n.
        score_weight: Weight of the score loss, for models with scores.
        limit_db: SI-SDR at which a source is good enough, so that easy sources, such as a single speaker, do not
            dominate the gradient; no limit by default.
    """

    _owner = "objective"
    rule: Annotated[str, checks.OneOf("pit", "mcl", "relaxed-wta", "amcl", "sinkhorn", "auto")] = "amcl"
    epsilon: Annotated[float, checks.Bounds(0, 1)] = 0.05
    temperature: _NonNegative = 0.1
    annealing_epochs: _Count = 100
    decay: Annotated[float | None, checks.Bounds(0, 1)] = None
    in_order: bool = False
    score_weight: _NonNegative = 1.0
    limit_db: Annotated[float | None, checks.Bounds(open_low=True, open_high=True)] = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.in_order and self.rule != "pit":
            advice = "Set objective.rule=pit: with the other rules, several sources may use one output."
            raise ValueError(bad_value("objective", "in_order", "be false with this rule", self.rule, advice))


@dataclass(frozen=True)
class TrainingConfig(checks.Value):
    """Length and learning rate of the training run.

    Args:
        epochs: Total number of epochs.
        batch_size: Samples per step.
        learning_rate: Learning rate of Adam.
        schedule: Schedule of the learning rate: "plateau" halves it when the validation score no longer improves;
            "cosine" decays it to 0 over all epochs, which is better for short training runs; "budget" decays it to 0
            over all epochs or the minutes of the time limit, whichever ends first.
        warmup: Number of warm-up epochs of "cosine" and "budget".
        patience: Number of epochs without a better validation score after which the learning rate is halved.
        clip: Maximum norm of the gradient.
        precision: Precision of the training: "32-true" or "bf16-mixed".
        ema: Decay of the exponential moving average of the weights; no average by default.
        checkpoint_every: Number of epochs between checkpoints; another checkpoint is written at the end.
        captured: Whether to replay forward and backward passes on a GPU as CUDA graphs.
        max_skipped: Maximum number of batches with a non-finite loss that are skipped.
        seed: Random seed of initial weights, sample order and crops.
    """

    _owner = "training"
    epochs: _Count = 200
    batch_size: _Count = 22
    learning_rate: _Positive = 1e-3
    schedule: Annotated[str, checks.OneOf("plateau", "cosine", "budget")] = "plateau"
    warmup: _Natural = 0
    patience: _Count = 5
    clip: _NonNegative = 5.0
    precision: Annotated[str, checks.OneOf("32-true", "bf16-mixed")] = "32-true"
    ema: Annotated[float | None, checks.Bounds(0, 1)] = None
    checkpoint_every: _Count = 1
    captured: bool = True
    max_skipped: _Natural = 0
    seed: _Natural = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.warmup and self.schedule == "plateau":
            advice = "Set training.schedule=cosine."
            raise ValueError(bad_value("training", "warmup", "be 0 with the schedule 'plateau'", self.warmup, advice))


@dataclass(frozen=True)
class SeparationConfig:
    """Configuration of one training run; `model` contains arguments of `torchmcl_speech.nn.DPRNN`."""

    data: DataConfig = field(default_factory=DataConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)
    model: Mapping[str, Any] = field(default_factory=dict)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        """Check combinations of options."""
        check_known("model", self.model, [name for name in signature(DPRNN).parameters if name != "bilstm"])
        if not self.augmentation.is_none() and not self.data.on_device:
            advice = "Set data.on_device=true, or remove the section `augmentation`."
            raise ValueError(bad_value("configuration", "augmentation", "be used with data.on_device", "false", advice))
        n_outputs, n_speakers = self.model.get("n_outputs", 2), max(self.data.n_speakers)
        checks.check_positive_int("model", "n_outputs", n_outputs)
        if n_outputs < n_speakers:
            rule = f"be at least the {n_speakers} speakers of a mixture"
            raise ValueError(
                bad_value("model", "n_outputs", rule, n_outputs, "It may have more outputs than speakers.")
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values, for JSON."""
        plain = asdict(self)
        plain["data"]["n_speakers"] = list(self.data.n_speakers)
        return plain

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "SeparationConfig":
        """Construct the configuration from plain values.

        Raises:
            ValueError: If an option is unknown or its value is invalid.
        """
        check_known("configuration", options, [*_PARTS, "model"])
        model = options.get("model") or {}
        if not isinstance(model, Mapping):
            raise ValueError(bad_value("configuration", "model", "map names to options", shown(model)))
        parts = {name: read_options(name, kind, options.get(name) or {}) for name, kind in _PARTS.items()}
        return cls(**parts, model=dict(model))

    def changed(self, changes: Sequence[str]) -> "SeparationConfig":
        """Return a copy with changes of the form `part.option=value`, with values in YAML."""
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
        """Return a copy with another data folder."""
        return replace(self, data=replace(self.data, root=str(root)))


_PARTS = {
    "data": DataConfig,
    "augmentation": Augmentation,
    "objective": ObjectiveConfig,
    "training": TrainingConfig,
}


def shipped_configs() -> list[str]:
    """Return the names of the bundled configurations."""
    return sorted(path.name for path in _CONFIGS.iterdir() if path.name.endswith(".yaml"))


def load_config(name: Path | str) -> SeparationConfig:
    """Load a configuration from a YAML file, or a bundled configuration by its name.

    Raises:
        ValueError: If the file does not exist or does not describe a training run.

    Example:
        >>> load_config("paper-2spk").training.batch_size
        22
    """
    path = Path(name)
    if path.is_file():
        text = io.read_text("separation", path, "file_bytes")
    else:
        shipped = shipped_configs()
        wanted = path.name if path.suffix == ".yaml" else f"{path.name}.yaml"
        if wanted not in shipped or path.parent != Path():
            rule = f"be a file or one of {shipped}"
            raise ValueError(
                bad_value("separation", "config", rule, repr(str(name)), nearest_hint(wanted, shipped).strip())
            )
        text = (_CONFIGS / wanted).read_text()
    options = yaml_value("separation", str(name), text)
    if not isinstance(options, dict):
        raise ValueError(bad_value("separation", str(name), "map names to options", shown(options)))
    return SeparationConfig.from_dict(options)
