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
    "DPRNN": "torchmcl_speech.nn",
    "DataConfig": "torchmcl_speech.config",
    "SeparationConfig": "torchmcl_speech.config",
    "calibrate_counts": "torchmcl_speech.evaluate",
    "config_like": "torchmcl_speech.pretrained",
    "count_log_loss": "torchmcl_speech.counting",
    "count_probabilities": "torchmcl_speech.counting",
    "count_speakers": "torchmcl_speech.separate",
    "differing_options": "torchmcl_speech.train",
    "evaluate_separator": "torchmcl_speech.evaluate",
    "evaluation_table": "torchmcl_speech.evaluate",
    "first_mixtures": "torchmcl_speech.mixture_lists",
    "fit_count_temperature": "torchmcl_speech.counting",
    "listed_mixtures": "torchmcl_speech.mixture_lists",
    "load_config": "torchmcl_speech.config",
    "load_model": "torchmcl_speech.nn",
    "load_separator": "torchmcl_speech.pretrained",
    "model_card": "torchmcl_speech.pretrained",
    "models_table": "torchmcl_speech.evaluate",
    "run_speech_demo": "torchmcl_speech.demo",
    "save_model": "torchmcl_speech.nn",
    "separate_recording": "torchmcl_speech.separate",
    "shipped_configs": "torchmcl_speech.config",
    "shipped_models": "torchmcl_speech.pretrained",
    "speaker_genders": "torchmcl_speech.evaluate",
    "train_separator": "torchmcl_speech.train",
}
__all__ = list(_HOMES)

__getattr__, __dir__ = optional.lazy_names(__name__, _HOMES)
