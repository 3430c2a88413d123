"""Speech separation with any number of outputs; training needs the extra `train`."""

from typing import TYPE_CHECKING

from torchmcl import optional

if TYPE_CHECKING:
    from torchmcl_speech.config import DataConfig as DataConfig
    from torchmcl_speech.config import SeparationConfig as SeparationConfig
    from torchmcl_speech.config import load_config as load_config
    from torchmcl_speech.config import shipped_configs as shipped_configs
    from torchmcl_speech.counting import count_log_loss as count_log_loss
    from torchmcl_speech.counting import count_probabilities as count_probabilities
    from torchmcl_speech.counting import fit_count_temperature as fit_count_temperature
    from torchmcl_speech.demo import run_speech_demo as run_speech_demo
    from torchmcl_speech.evaluate import calibrate_counts as calibrate_counts
    from torchmcl_speech.evaluate import evaluate_separator as evaluate_separator
    from torchmcl_speech.evaluate import evaluation_table as evaluation_table
    from torchmcl_speech.evaluate import models_table as models_table
    from torchmcl_speech.evaluate import speaker_genders as speaker_genders
    from torchmcl_speech.mixture_lists import first_mixtures as first_mixtures
    from torchmcl_speech.mixture_lists import listed_mixtures as listed_mixtures
    from torchmcl_speech.nn import DPRNN as DPRNN
    from torchmcl_speech.nn import load_model as load_model
    from torchmcl_speech.nn import save_model as save_model
    from torchmcl_speech.pretrained import config_like as config_like
    from torchmcl_speech.pretrained import load_separator as load_separator
    from torchmcl_speech.pretrained import model_card as model_card
    from torchmcl_speech.pretrained import shipped_models as shipped_models
    from torchmcl_speech.separate import count_speakers as count_speakers
    from torchmcl_speech.separate import separate_recording as separate_recording
    from torchmcl_speech.train import differing_options as differing_options
    from torchmcl_speech.train import train_separator as train_separator

# Loaded on first use: evaluation does not need Lightning, and reading a configuration does not need audio packages.
_HOMES = {
    "config": ("DataConfig", "SeparationConfig", "load_config", "shipped_configs"),
    "counting": ("count_log_loss", "count_probabilities", "fit_count_temperature"),
    "demo": ("run_speech_demo",),
    "evaluate": ("calibrate_counts", "evaluate_separator", "evaluation_table", "models_table", "speaker_genders"),
    "mixture_lists": ("first_mixtures", "listed_mixtures"),
    "nn": ("DPRNN", "load_model", "save_model"),
    "pretrained": ("config_like", "load_separator", "model_card", "shipped_models"),
    "separate": ("count_speakers", "separate_recording"),
    "train": ("differing_options", "train_separator"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
__all__ = sorted(_MODULES)
__getattr__, __dir__ = optional.lazy_names(__name__, _MODULES)
