"""Speech for separation: recordings, lists of mixtures, and a Dataset of them (`pip install torchmcl[speech]`)."""

from torchmcl.data.speech.audio import BadAudio, read_audio, write_audio
from torchmcl.data.speech.augment import Augmentation
from torchmcl.data.speech.dataset import Draw, DrawSampler, DynamicMixing, SpeechMixtures, padded_batch
from torchmcl.data.speech.folders import speaker_mixtures
from torchmcl.data.speech.mixing import MixPlan, write_mixtures
from torchmcl.data.speech.mixtures import Mixture, Track, librimix_mixtures, table_mixtures, wsj0_mixtures
from torchmcl.data.speech.on_device import DeviceMixtures
from torchmcl.data.speech.stores import AudioFolder, AudioPack
from torchmcl.data.speech.streams import Resampler

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
    "padded_batch",
    "read_audio",
    "speaker_mixtures",
    "table_mixtures",
    "write_audio",
    "write_mixtures",
    "wsj0_mixtures",
]
