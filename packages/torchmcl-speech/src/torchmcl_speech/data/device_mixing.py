"""Mixtures that are created on the training device, batch by batch, without worker processes.

All recordings are kept in device memory as int16. As in `torchmcl_speech.data.dataset`, a batch depends only on the
seed, the epoch and its index, so that a resumed training run uses the same batches.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchmcl import Batch
from torchmcl.errors import bad_value
from torchmcl_speech.data.augment import Augmentation, Chance, augmented
from torchmcl_speech.data.dataset import Draw, DynamicMixing, utterances_by_speaker
from torchmcl_speech.data.mixtures import Mixture
from torchmcl_speech.data.stores import AudioStore

__all__ = ["DeviceMixtures"]

# Number of batches that are created together, because launching a hundred small kernels takes as long as for one batch.
_BATCHES_AT_ONCE = 8
# Taps on each side of the windowed sinc filter that interpolates between samples.
_TAPS = 8


class DeviceMixtures(Dataset[Batch]):
    """Batches of new mixtures: inputs [batch, length], targets [batch, speakers, length], mask [batch, speakers].

    Args:
        mixtures: Mixtures whose recordings are mixed in new combinations of speakers.
        store: Store of the recordings.
        mixing: Numbers of speakers, and range of their levels.
        crop: Seconds per sample; shorter recordings are placed at a random position.
        batch_size: Samples per batch.
        n_batches: Batches per epoch.
        augmentation: Augmentation of the mixtures; none by default.
        seed: Random seed, which determines a batch together with epoch and index.
        device: Device on which mixtures are created.

    Example:
        >>> from torchmcl_speech.data import AudioPack, Mixture, Track
        >>> noise = lambda seed: np.random.default_rng(seed).normal(0, 1000, 9000).astype(np.int16)
        >>> pack = AudioPack({"ann/1": noise(0), "bob/1": noise(1)}, sample_rate=8000)
        >>> pair = Mixture("ann+bob", (Track("ann/1", 0.0, "ann"), Track("bob/1", 0.0, "bob")))
        >>> inputs, targets, mask, _ = DeviceMixtures([pair], pack, crop=1.0, batch_size=4, n_batches=2)[0]
        >>> targets.shape, bool((inputs - targets.sum(dim=1)).abs().max() < 1e-6)
        (torch.Size([4, 2, 8000]), True)
    """

    def __init__(
        self,
        mixtures: Sequence[Mixture],
        store: AudioStore,
        *,
        mixing: DynamicMixing | None = None,
        crop: float = 3.0,
        batch_size: int = 16,
        n_batches: int = 200,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.mixing, self.augmentation = mixing or DynamicMixing(), augmentation or Augmentation()
        self.n_crop, self.sample_rate = round(crop * store.sample_rate), store.sample_rate
        self.batch_size, self.n_batches, self.seed = batch_size, n_batches, seed
        self.max_speakers = max(self.mixing.n_speakers)
        self._generator = torch.Generator(device=device)
        self._read(mixtures, store, torch.device(device))
        self._drawn: tuple[tuple[int, int], Batch] | None = None

    def _read(self, mixtures: Sequence[Mixture], store: AudioStore, device: torch.device) -> None:
        by_speaker = utterances_by_speaker(mixtures)
        if len(by_speaker) < self.max_speakers:
            rule = f"have at least {self.max_speakers} different speakers"
            raise ValueError(bad_value("DeviceMixtures", "mixtures", rule, len(by_speaker)))
        signals = [
            np.clip(np.round(store.read(track.name) * 32768), -32768, 32767).astype(np.int16)
            for tracks in by_speaker.values()
            for track in tracks
        ]
        lengths = torch.tensor([len(signal) for signal in signals])
        counts = torch.tensor([len(tracks) for tracks in by_speaker.values()])
        # The last sample is 0 and is used for all positions outside of a recording.
        self._samples = torch.from_numpy(np.concatenate([*signals, np.zeros(1, dtype=np.int16)])).to(device)
        self._lengths, self._firsts = lengths.to(device), (lengths.cumsum(0) - lengths).to(device)
        self._counts, self._first_utterances = counts.to(device), (counts.cumsum(0) - counts).to(device)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.n_batches

    def __getitem__(self, key: int | Draw) -> Batch:
        """Return a batch; a plain index refers to epoch 0."""
        epoch, index = key if isinstance(key, Draw) else Draw(0, key)
        if not 0 <= index < len(self):
            raise IndexError(f"DeviceMixtures: index {index} of {len(self)} batches.")
        piece, place = divmod(index, _BATCHES_AT_ONCE)
        if self._drawn is None or self._drawn[0] != (epoch, piece):
            self._drawn = (epoch, piece), self._draw(epoch, piece)
        rows = slice(place * self.batch_size, (place + 1) * self.batch_size)
        inputs, targets, mask, _ = self._drawn[1]
        assert mask is not None
        return Batch(inputs[rows], targets[rows], mask[rows])

    @torch.no_grad()
    def _draw(self, epoch: int, piece: int) -> Batch:
        key = np.random.SeedSequence((self.seed, epoch, piece)).generate_state(1, np.uint64)
        self._generator.manual_seed(int(key[0] >> 1))
        chance = Chance(self._generator)
        n_samples = _BATCHES_AT_ONCE * self.batch_size
        strength = self.augmentation.strength(epoch)
        utterances, mask = self._chosen(chance, n_samples)
        gains = self._gains(chance, mask)
        speed = self.augmentation.speed * strength
        sources = self._played(chance, utterances, chance.between((1 - speed, 1 + speed), *utterances.shape))
        sources = sources * (10 ** (gains / 20)).unsqueeze(-1)
        augmented_parts = augmented(
            sources, mask, self.augmentation, self._generator, sample_rate=self.sample_rate, strength=strength
        )
        return Batch(*augmented_parts)

    def _chosen(self, chance: Chance, n_samples: int) -> tuple[Tensor, Tensor]:
        """Sample recordings of different speakers [samples, speakers], and a mask of the active speakers."""
        shape = (n_samples, self.max_speakers)
        numbers = torch.tensor(self.mixing.n_speakers, device=self._samples.device)
        n_active = numbers[(chance.between((0, 1), n_samples) * len(numbers)).long().clamp(max=len(numbers) - 1)]
        order = chance.between((0, 1), n_samples, len(self._counts)).argsort(dim=-1)
        speakers = order[:, : self.max_speakers]
        counts = self._counts[speakers]
        which = torch.minimum((chance.between((0, 1), *shape) * counts).long(), counts - 1)
        mask = torch.arange(self.max_speakers, device=numbers.device) < n_active.unsqueeze(-1)
        return self._first_utterances[speakers] + which, mask

    def _gains(self, chance: Chance, mask: Tensor) -> Tensor:
        """Sample gains in dB: +g and -g for two speakers, and independent gains otherwise, as in `random_gains`."""
        spread = self.mixing.spread_db
        gains = chance.between((-spread, spread), *mask.shape)
        if self.max_speakers > 1:
            gains[:, 1] = torch.where(mask.sum(dim=-1) == 2, -gains[:, 0], gains[:, 1])
        return gains

    def _played(self, chance: Chance, utterances: Tensor, speed: Tensor) -> Tensor:
        """Return crops [samples, speakers, n_crop] of recordings from random positions, at the speeds `speed`."""
        lengths, firsts = self._lengths[utterances].unsqueeze(-1), self._firsts[utterances].unsqueeze(-1)
        speed = speed.double().unsqueeze(-1)
        # A recording that is shorter than the crop starts inside the crop.
        slack = lengths - speed * self.n_crop
        start = (chance.between((0, 1), *utterances.shape).unsqueeze(-1) * slack).round()
        position = start + speed * torch.arange(self.n_crop, device=utterances.device)
        below = position.floor()
        part = (position - below).float()
        below = below.long()
        cutoff = (1 / speed).clamp(max=1).float()  # remove frequencies of a faster recording above half the sample rate
        sound = torch.zeros_like(part)
        for tap in range(1 - _TAPS, _TAPS + 1):
            index = below + tap
            outside = (index < 0) | (index >= lengths)
            values = self._samples[torch.where(outside, len(self._samples) - 1, firsts + index)]
            away = tap - part
            window = torch.cos(away * (torch.pi / (2 * _TAPS))).square()
            sound += values * (cutoff * torch.sinc(cutoff * away) * window)
        return sound / 32768
