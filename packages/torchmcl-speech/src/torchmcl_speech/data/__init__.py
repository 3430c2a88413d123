"""Speech data for separation: recordings, lists of mixtures, and datasets of mixtures."""

from torchmcl_speech.data.audio import BadAudio, Resampler, read_audio, write_audio
from torchmcl_speech.data.augment import Augmentation
from torchmcl_speech.data.dataset import Draw, DrawSampler, DynamicMixing, SpeechMixtures
from torchmcl_speech.data.device_mixing import DeviceMixtures
from torchmcl_speech.data.mixing import MixPlan, speaker_mixtures, write_mixtures
from torchmcl_speech.data.mixtures import Mixture, Track, librimix_mixtures, table_mixtures, wsj0_mixtures
from torchmcl_speech.data.stores import AudioFolder, AudioPack

__all__ = [
    "AudioFolder",
    "AudioPack",
    "Augmentation",
    "BadAudio",
    "DeviceMixtures",
    "Draw",
    "DrawSampler",
    "DynamicMixing",
    "MixPlan",
    "Mixture",
    "Resampler",
    "SpeechMixtures",
    "Track",
    "librimix_mixtures",
    "read_audio",
    "speaker_mixtures",
    "table_mixtures",
    "write_audio",
    "write_mixtures",
    "wsj0_mixtures",
]
