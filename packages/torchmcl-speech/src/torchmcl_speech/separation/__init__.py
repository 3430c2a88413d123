"""Speech separation with as many outputs as you like (`pip install torchmcl-speech[train]`)."""

from typing import TYPE_CHECKING

from torchmcl._lazy import lazy_names

if TYPE_CHECKING:
    from torchmcl_speech.separation.calibrate import calibrate_counts
    from torchmcl_speech.separation.config import DataConfig, SeparationConfig, load_config, shipped_configs
    from torchmcl_speech.separation.counting import count_log_loss, count_probabilities, fit_count_temperature
    from torchmcl_speech.separation.data import listed_mixtures, some_mixtures
    from torchmcl_speech.separation.demonstration import run_speech_demo
    from torchmcl_speech.separation.evaluate import evaluate_separator, speaker_genders
    from torchmcl_speech.separation.separate import count_speakers, separate_recording
    from torchmcl_speech.separation.shipped import load_separator, model_card, shipped_models
    from torchmcl_speech.separation.start import fitted_to
    from torchmcl_speech.separation.tables import evaluation_table, models_table
    from torchmcl_speech.separation.train import differing_options, train_separator

__all__ = [
    "DataConfig",
    "SeparationConfig",
    "calibrate_counts",
    "count_log_loss",
    "count_probabilities",
    "count_speakers",
    "differing_options",
    "evaluate_separator",
    "evaluation_table",
    "fit_count_temperature",
    "fitted_to",
    "listed_mixtures",
    "load_config",
    "load_separator",
    "model_card",
    "models_table",
    "run_speech_demo",
    "separate_recording",
    "shipped_configs",
    "shipped_models",
    "some_mixtures",
    "speaker_genders",
    "train_separator",
]

# Loaded one by one: evaluating needs no Lightning, reading a configuration no audio.
_HOMES = {
    "calibrate": ("calibrate_counts",),
    "config": ("DataConfig", "SeparationConfig", "load_config", "shipped_configs"),
    "counting": ("count_log_loss", "count_probabilities", "fit_count_temperature"),
    "data": ("listed_mixtures", "some_mixtures"),
    "demonstration": ("run_speech_demo",),
    "evaluate": ("evaluate_separator", "speaker_genders"),
    "separate": ("count_speakers", "separate_recording"),
    "shipped": ("load_separator", "model_card", "shipped_models"),
    "start": ("fitted_to",),
    "tables": ("evaluation_table", "models_table"),
    "train": ("differing_options", "train_separator"),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
