"""Speech separation with as many outputs as you like (`pip install torchmcl[separation]`)."""

from typing import TYPE_CHECKING

from torchmcl._lazy import lazy_names

if TYPE_CHECKING:
    from torchmcl.separation.config import DataConfig, SeparationConfig, load_config, shipped_configs
    from torchmcl.separation.data import listed_mixtures
    from torchmcl.separation.evaluate import evaluate_separator, speaker_genders
    from torchmcl.separation.separate import separate_recording
    from torchmcl.separation.tables import evaluation_table
    from torchmcl.separation.train import differing_options, train_separator

__all__ = [
    "DataConfig",
    "SeparationConfig",
    "differing_options",
    "evaluate_separator",
    "evaluation_table",
    "listed_mixtures",
    "load_config",
    "separate_recording",
    "shipped_configs",
    "speaker_genders",
    "train_separator",
]

# Loaded one by one: evaluating needs no Lightning, reading a configuration no audio.
_HOMES = {
    "config": ("DataConfig", "SeparationConfig", "load_config", "shipped_configs"),
    "data": ("listed_mixtures",),
    "evaluate": ("evaluate_separator", "speaker_genders"),
    "separate": ("separate_recording",),
    "tables": ("evaluation_table",),
    "train": ("differing_options", "train_separator"),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
