"""Datasets of speech mixtures with crops, masks, and dynamic mixing.

A sample depends only on the seed, the epoch and the index, and not on the worker or on earlier samples. A resumed
training run therefore uses the same samples.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from torchmcl import Batch, checks
from torchmcl.errors import bad_value
from torchmcl_speech.data.audio import BadAudio, Samples
from torchmcl_speech.data.mixtures import Mixture, Track, random_gains
from torchmcl_speech.data.stores import AudioStore

__all__ = ["Draw", "DrawSampler", "DynamicMixing", "SpeechMixtures", "utterances_by_speaker"]


class UsableMixtures(NamedTuple):
    """Result of checking a list of mixtures.

    Attributes:
        mixtures: Usable mixtures.
        n_short: Number of mixtures that were dropped because they are shorter than the crop.
        n_bad: Number of mixtures that were dropped because of an unusable recording.
        bad_files: Unusable recordings and the reasons.
    """

    mixtures: list[Mixture]
    n_short: int
    n_bad: int
    bad_files: dict[str, str]


def usable_mixtures(
    mixtures: Sequence[Mixture], store: AudioStore, min_length: int, *, skip_bad: bool
) -> UsableMixtures:
    """Return the usable mixtures, and warn about dropped mixtures and converted recordings.

    Args:
        mixtures: Mixtures to check.
        store: Store of the recordings.
        min_length: Minimum number of samples of a mixture.
        skip_bad: Whether to read all recordings and drop mixtures with an unusable recording, instead of raising.

    Raises:
        BadAudio: For the first unusable recording unless `skip_bad` is True, and if no mixture is left.
    """
    names = sorted({name for mixture in mixtures for name in _names(mixture)})
    lengths: dict[str, int] = {}
    bad: dict[str, str] = {}
    silent: list[str] = []
    for name in names:
        try:
            lengths[name] = store.length(name)
            if skip_bad and not store.read(name).any():
                silent.append(name)
        except BadAudio as error:
            if not skip_bad:
                raise
            bad[name] = str(error)
    whole = [mixture for mixture in mixtures if not bad.keys() & set(_names(mixture))]
    kept = [mixture for mixture in whole if _length(mixture, lengths) >= min_length]
    result = UsableMixtures(kept, len(whole) - len(kept), len(mixtures) - len(whole), bad)
    if not kept:
        what = f"{result.n_short} are shorter than {min_length} samples, {result.n_bad} have a bad recording"
        first = f" ({next(iter(bad.values()))})" if bad else ""
        advice = _shorter_crop(max(_length(mixture, lengths) for mixture in whole), store) if whole else ""
        raise BadAudio(f"SpeechMixtures: none of {len(mixtures)} mixtures is usable; {what}{first}.{advice}")
    _warn_about(result, store, [name for name in names if name not in bad], silent, min_length)
    return result


def _warn_about(
    result: UsableMixtures,
    store: AudioStore,
    names: list[str],
    silent: list[str],
    min_length: int,
) -> None:
    sentences = []
    if result.n_short:
        sentences.append(
            f"{result.n_short} mixtures are shorter than the crop of {min_length} samples and were dropped."
        )
    if result.n_bad:
        reasons = " ".join(list(result.bad_files.values())[:3])
        sentences.append(f"{result.n_bad} mixtures with {len(result.bad_files)} bad recordings were skipped: {reasons}")
    changes = Counter(change for name in names if (change := store.differs(name)))
    for change, count in changes.items():
        first = next(name for name in names if store.differs(name) == change)
        sentences.append(f"{count} recordings are {change} (the first is {first}).")
    if silent:
        sentences.append(f"{len(silent)} recordings are silent and are not targets (the first is {silent[0]}).")
    for sentence in sentences:
        warnings.warn(f"SpeechMixtures: {sentence}", stacklevel=4)


def _shorter_crop(longest: int, store: AudioStore) -> str:
    seconds = math.floor(100 * longest / store.sample_rate) / 100
    return f" The longest has {seconds:g} s. Use a shorter `crop` (--set data.crop={seconds:g} on the command line)."


def _names(mixture: Mixture) -> list[str]:
    names = [track.name for track in mixture.tracks]
    return names if mixture.recorded is None else [*names, mixture.recorded]


def _length(mixture: Mixture, lengths: dict[str, int]) -> int:
    shortest = min(lengths[name] for name in _names(mixture))
    return shortest if mixture.length is None else min(shortest, mixture.length)


class Draw(NamedTuple):
    """Epoch and index of a sample."""

    epoch: int
    sample: int


@dataclass(frozen=True)
class DynamicMixing(checks.Value):
    """New mixtures in every epoch: new pairs, gains and crops from the same utterances.

    Args:
        n_speakers: Numbers of speakers, from which one is sampled for each mixture.
        spread_db: Bound on the gains, which lie between -spread_db and spread_db.
    """

    n_speakers: tuple[int, ...] = (2,)
    spread_db: Annotated[float, checks.Bounds(low=0)] = 2.5

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if not self.n_speakers:
            raise ValueError(bad_value("DynamicMixing", "n_speakers", "not be empty", "()", "Two speakers are (2,)."))
        for number in self.n_speakers:
            checks.check_positive_int("DynamicMixing", "n_speakers", number)


class SpeechMixtures(Dataset[Batch]):
    """Dataset of mixtures and their sources: Batch(inputs [length], targets [speakers, length], mask [speakers]).

    A source that is silent in a crop is not a target in this crop: its mask is False.

    Args:
        mixtures: Mixtures from `wsj0_mixtures`, `librimix_mixtures` or `table_mixtures`. Lists with different numbers
            of speakers may be concatenated; the mask distinguishes them.
        store: Store of the recordings, an `AudioFolder` or an `AudioPack`.
        crop: Seconds per sample, cropped at a random position; shorter mixtures are dropped with a warning. None for
            whole mixtures.
        random_crops: Whether crops have random positions; False to crop from the beginning, for validation.
        dynamic: Dynamic mixing of the utterances in each epoch; by default the listed mixtures are used.
        n_samples: Number of samples per epoch of dynamic mixing; the number of mixtures by default.
        seed: Random seed, which determines crops and mixtures together with epoch and index.
        skip_bad: Whether to leave out mixtures with an unusable recording, with a warning that counts them, instead of
            raising. All recordings are then read once.

    Example:
        >>> from torchmcl_speech.data import AudioPack, Mixture, Track
        >>> noise = lambda seed: np.random.default_rng(seed).normal(0, 1000, 9000).astype(np.int16)
        >>> pack = AudioPack({"ann/1": noise(0), "bob/1": noise(1)}, sample_rate=8000)
        >>> pair = Mixture("ann+bob", (Track("ann/1", 1.0, "ann"), Track("bob/1", -1.0, "bob")))
        >>> inputs, targets, mask, _ = SpeechMixtures([pair], pack, crop=1.0)[0]
        >>> inputs.shape, targets.shape, mask
        (torch.Size([8000]), torch.Size([2, 8000]), tensor([True, True]))
    """

    def __init__(
        self,
        mixtures: Sequence[Mixture],
        store: AudioStore,
        *,
        crop: float | None = 5.0,
        random_crops: bool = True,
        dynamic: DynamicMixing | None = None,
        n_samples: int | None = None,
        seed: int = 0,
        skip_bad: bool = False,
    ) -> None:
        if not mixtures:
            raise ValueError(bad_value("SpeechMixtures", "mixtures", "not be empty", "none"))
        checks.check_non_negative_int("SpeechMixtures", "seed", seed)
        if crop is not None and not 0 < crop < math.inf:
            advice = "It is a time in seconds."
            raise ValueError(bad_value("SpeechMixtures", "crop", "be a finite number > 0", repr(crop), advice))
        self.store = store
        self.n_crop = None if crop is None else round(crop * store.sample_rate)
        self.random_crops = random_crops
        self.dynamic = dynamic
        self.seed = seed
        if self.n_crop is not None:
            checks.check_positive_int("SpeechMixtures", "crop", self.n_crop, "It is a time in seconds.")
        #: Result of checking the mixtures.
        self.usable: UsableMixtures = usable_mixtures(mixtures, store, self.n_crop or 1, skip_bad=skip_bad)
        self.mixtures = self.usable.mixtures
        self._by_speaker = utterances_by_speaker(self.mixtures) if dynamic else {}
        sizes = dynamic.n_speakers if dynamic else [len(mixture.tracks) for mixture in self.mixtures]
        self.max_speakers = max(sizes)
        if dynamic and len(self._by_speaker) < self.max_speakers:
            rule = f"have at least {self.max_speakers} different speakers for dynamic mixing"
            raise ValueError(bad_value("SpeechMixtures", "mixtures", rule, len(self._by_speaker)))
        if dynamic and self.n_crop is None:
            raise ValueError(bad_value("SpeechMixtures", "crop", "be a number for dynamic mixing", None))
        if n_samples is not None:
            checks.check_positive_int("SpeechMixtures", "n_samples", n_samples)
            if dynamic is None:
                advice = "DrawSampler(n_samples=...) shortens an epoch of listed mixtures."
                raise ValueError(bad_value("SpeechMixtures", "n_samples", "be used with `dynamic`", n_samples, advice))
        self._n_samples = n_samples or len(self.mixtures)

    def __len__(self) -> int:
        """Return the number of samples per epoch."""
        return self._n_samples

    def __getitem__(self, key: int | Draw) -> Batch:
        """Return a sample; a plain index refers to epoch 0."""
        epoch, index = key if isinstance(key, Draw) else Draw(0, key)
        if not 0 <= index < len(self):
            raise IndexError(f"SpeechMixtures: index {index} of {len(self)} samples.")
        random = np.random.default_rng((self.seed, epoch, index))
        if self.dynamic is None:
            mixture, sources = self._listed(self.mixtures[index], random)
        else:
            mixture, sources = self._drawn(self.dynamic, random)
        targets = np.zeros((self.max_speakers, mixture.shape[-1]), dtype=np.float32)
        targets[: len(sources)] = sources
        return Batch(torch.from_numpy(mixture), torch.from_numpy(targets), torch.from_numpy(targets.any(axis=-1)))

    def speakers(self, index: int) -> tuple[str, ...]:
        """Return the speakers of a listed mixture."""
        return tuple(track.speaker for track in self.mixtures[index].tracks)

    def _listed(self, mixture: Mixture, random: np.random.Generator) -> tuple[Samples, Samples]:
        tracks = [self._scaled(track, track.gain_db) for track in mixture.tracks]
        recorded = [] if mixture.recorded is None else [self.store.read(mixture.recorded)]
        length = min(len(signal) for signal in (*tracks, *recorded))
        length = length if mixture.length is None else min(length, mixture.length)
        start, stop = self._crop(length, random)
        sources = np.stack([track[start:stop] for track in tracks])
        return recorded[0][start:stop] if recorded else sources.sum(axis=0), sources

    def _drawn(self, mixing: DynamicMixing, random: np.random.Generator) -> tuple[Samples, Samples]:
        n_speakers = int(random.choice(mixing.n_speakers))
        speakers = random.choice(sorted(self._by_speaker), n_speakers, replace=False)
        gains = random_gains(random, n_speakers, mixing.spread_db)
        sources = []
        for speaker, gain in zip(speakers, gains, strict=True):
            utterances = self._by_speaker[str(speaker)]
            signal = self._scaled(utterances[random.integers(len(utterances))], gain)
            start, stop = self._crop(len(signal), random)
            sources.append(signal[start:stop])
        stacked = np.stack(sources)
        return stacked.sum(axis=0), stacked

    def _scaled(self, track: Track, gain_db: float) -> Samples:
        return self.store.read(track.name) * np.float32(10 ** (gain_db / 20))

    def _crop(self, length: int, random: np.random.Generator) -> tuple[int, int]:
        if self.n_crop is None:
            return 0, length
        if length < self.n_crop:  # shorter than its header states
            got = f"a recording has {length} samples, fewer than the crop of {self.n_crop}"
            raise BadAudio(f"SpeechMixtures: {got}. Copy it again.")
        start = int(random.integers(length - self.n_crop + 1)) if self.random_crops else 0
        return start, start + self.n_crop


class DrawSampler(Sampler[Draw]):
    """Sampler of all samples of an epoch, which are shuffled in each epoch and split across processes.

    Pass it to a DataLoader, and call `set_epoch` before each epoch, as Lightning does.

    Args:
        n_total: Number of samples in the dataset.
        n_samples: Number of samples per epoch; all by default.
        shuffle: Whether to shuffle; False to keep the order of the dataset.
        seed: Random seed, which determines the order together with the epoch.
        n_replicas: Number of processes among which an epoch is split.
        rank: Index of this process.

    Example:
        >>> sampler = DrawSampler(4)
        >>> sampler.set_epoch(1)
        >>> [draw.sample for draw in sampler]
        [3, 0, 2, 1]
    """

    def __init__(
        self,
        n_total: int,
        *,
        n_samples: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        n_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.n_total, self.n_samples = n_total, min(n_samples or n_total, n_total)
        self.shuffle, self.seed, self.n_replicas, self.rank = shuffle, seed, n_replicas, rank
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of samples of this process."""
        return self.n_samples // self.n_replicas

    def __iter__(self) -> Iterator[Draw]:
        """Iterate over the samples of the epoch."""
        order = np.arange(self.n_total)
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(order)
        own_samples = order[: len(self) * self.n_replicas][self.rank :: self.n_replicas]
        return (Draw(self.epoch, int(index)) for index in own_samples)


def utterances_by_speaker(mixtures: Sequence[Mixture]) -> dict[str, list[Track]]:
    """Return the sorted tracks of each speaker; warn about tracks of unknown speakers, which are left out."""
    tracks = {track.name: track for mixture in mixtures for track in mixture.tracks}
    by_speaker: dict[str, list[Track]] = {}
    for name in sorted(tracks):
        by_speaker.setdefault(tracks[name].speaker, []).append(tracks[name])
    if "" in by_speaker:
        n_unknown = len(by_speaker.pop(""))
        message = f"SpeechMixtures: {n_unknown} utterances of unknown speakers are left out of dynamic mixing."
        warnings.warn(message, stacklevel=3)
    return by_speaker
