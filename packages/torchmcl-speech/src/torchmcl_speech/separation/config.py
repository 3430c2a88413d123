"""What a training of a separator is made of, read from a small YAML file. Unknown options are errors."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import Any

from torchmcl._checks import bad_value, check_positive_int, nearest_hint
from torchmcl.persistence.reading import read_text
from torchmcl_speech.data.augment import Augmentation
from torchmcl_speech.nn.dprnn import DPRNN
from torchmcl_speech.separation.parts import DataConfig, ObjectiveConfig, TrainingConfig
from torchmcl_speech.separation.plain import check_types, shown, yaml_value

__all__ = [
    "DataConfig",
    "ObjectiveConfig",
    "SeparationConfig",
    "TrainingConfig",
    "load_config",
    "shipped_configs",
]


@dataclass(frozen=True)
class SeparationConfig:
    """Everything about one training; `model` holds arguments of `torchmcl_speech.nn.DPRNN`."""

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
    folder = resources.files("torchmcl_speech.separation") / "configs"
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
        text = read_text("separation", path)
    else:
        shipped = shipped_configs()
        wanted = path.name if path.suffix == ".yaml" else f"{path.name}.yaml"
        if wanted not in shipped or path.parent != Path():
            rule = f"be a file or one of {shipped}"
            raise ValueError(bad_value("separation", "config", rule, repr(str(name)), nearest_hint(wanted, shipped)))
        text = (resources.files("torchmcl_speech.separation") / "configs" / wanted).read_text()
    options = yaml_value("separation", str(name), text)
    if not isinstance(options, dict):
        raise ValueError(bad_value("separation", str(name), "hold options by name", shown(options)))
    return SeparationConfig.from_dict(options)


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
