"""Augmentation of clean recordings with simulated microphones and rooms, on the training device.

    sources --gaps--> --room and microphone--> targets --sum--> + noise --level, clipping--> mixture

Targets are the voices **at the microphone**: with gaps, room and filters, but before noise and clipping. A separator
therefore need not remove reverberation, and without clipping the mixture is exactly the targets plus the noise.
"""

from dataclasses import dataclass, fields
from typing import Annotated

import torch
from torch import Tensor

from torchmcl import checks

__all__ = ["Augmentation", "Chance", "augmented"]

# Reverberation of rooms from a booth to an office, and the level of the direct sound relative to all reflections.
_DECAY_SECONDS = (0.1, 0.4)
_DIRECT_DB = (0.0, 15.0)
_FIRST_REFLECTION_SECONDS = 0.002
# Signal-to-noise ratio, and exponents of the noise spectrum: from white to somewhat steeper than pink.
_NOISE_DB = (10.0, 40.0)
_NOISE_TILT = (0.0, 0.7)
# Microphones: a smooth response in decibels, and the corners of a band as fractions of half the sample rate.
_RESPONSE_DB = 4.0
_N_KNOTS = 8
_LOW_CORNER = (0.01, 0.08)
_HIGH_CORNER = (0.5, 0.95)
# Clipping level as a fraction of the peak; silences as fractions of the crop; fades that avoid clicks.
_CLIPPED_AT = (0.2, 0.7)
_KEPT = (0.2, 0.7)
_FADE_SECONDS = 0.005
# A voice this far below the loudest is inaudible: it is removed from the mixture and the targets.
_INAUDIBLE = 1e-4


_Fraction = Annotated[float, checks.Bounds(0, 1)]


@dataclass(frozen=True)
class Augmentation(checks.Value):
    """Strengths and probabilities of augmentations; no augmentation by default.

    Args:
        speed: Maximum relative change of the speed of a voice, which also changes its pitch.
        level_db: Maximum change of the level of a mixture in decibels.
        gaps: Probability that a voice is silent in a part of the crop, or outside of it.
        room: Probability of a room, simulated by reflections of decaying noise.
        microphone: Probability of a random microphone response; half of them have a narrower band.
        noise: Probability of noise, 10 to 40 dB below the voices.
        clipping: Probability of clipping.
        ramp: Number of epochs over which all strengths and probabilities grow from 0.
    """

    _owner = "augmentation"
    speed: Annotated[float, checks.Bounds(0, 0.5)] = 0.0
    level_db: Annotated[float, checks.Bounds(low=0)] = 0.0
    gaps: _Fraction = 0.0
    room: _Fraction = 0.0
    microphone: _Fraction = 0.0
    noise: _Fraction = 0.0
    clipping: _Fraction = 0.0
    ramp: Annotated[int, checks.Bounds(low=0, integer=True)] = 0

    def is_none(self) -> bool:
        """Return whether all augmentations are off."""
        return not any(getattr(self, field.name) for field in fields(self) if field.name != "ramp")

    def strength(self, epoch: int) -> float:
        """Return the factor on all strengths and probabilities in an epoch.

        Example:
            >>> Augmentation(noise=0.5, ramp=4).strength(1)
            0.25
        """
        return min(epoch / self.ramp, 1.0) if self.ramp else 1.0


class Chance:
    """Random numbers from one generator, on the device of the generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def between(self, limits: tuple[float, float], *shape: int) -> Tensor:
        """Return uniform random numbers."""
        drawn = torch.rand(shape, generator=self.generator, device=self.generator.device)
        return limits[0] + (limits[1] - limits[0]) * drawn

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal random numbers."""
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def happens(self, probability: float, *shape: int) -> Tensor:
        """Return random Boolean values that are True with a probability."""
        return torch.rand(shape, generator=self.generator, device=self.generator.device) < probability


def augmented(
    sources: Tensor,
    mask: Tensor,
    settings: Augmentation,
    generator: torch.Generator,
    *,
    sample_rate: int,
    strength: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Augment voices; return mixtures [batch, length], targets [batch, speakers, length] and masks [batch, speakers].

    Args:
        sources: Voices [batch, speakers, length].
        mask: Mask of real voices, [batch, speakers].
        settings: Augmentations; changes of the speed must already be applied.
        generator: Generator of random numbers on the device of the sources.
        sample_rate: Sample rate of the sources.
        strength: Factor on all strengths and probabilities.
    """
    chance = Chance(generator)
    sources = sources * mask.unsqueeze(-1)
    if settings.gaps:
        sources = sources * _windows(chance, settings.gaps * strength, sources, sample_rate)
    if settings.room or settings.microphone:
        sources = _heard(chance, settings, strength, sources, sample_rate)
    energy = sources.square().mean(dim=-1)
    audible = energy > _INAUDIBLE * energy.amax(dim=-1, keepdim=True)
    targets = sources * audible.unsqueeze(-1)
    mixture = targets.sum(dim=-2)
    if settings.noise:
        mixture = mixture + _noise(chance, settings.noise * strength, mixture)
    if settings.level_db:
        level = 10 ** (
            chance.between((-settings.level_db * strength, settings.level_db * strength), len(mixture), 1) / 20
        )
        mixture, targets = mixture * level, targets * level.unsqueeze(-1)
    if settings.clipping:
        mixture = _clipped(chance, settings.clipping * strength, mixture)
    return mixture, targets, mask & audible


def _windows(chance: Chance, probability: float, sources: Tensor, sample_rate: int) -> Tensor:
    """Return factors from 0 to 1: a selected voice is silent inside or, with probability 0.5, outside of a window."""
    shape, length = sources.shape[:-1], sources.shape[-1]
    n_kept = chance.between(_KEPT, *shape) * length
    start = chance.between((0, 1), *shape) * (length - n_kept)
    time = torch.arange(length, device=sources.device)
    rising = (time - start.unsqueeze(-1)) / (_FADE_SECONDS * sample_rate)
    falling = ((start + n_kept).unsqueeze(-1) - time) / (_FADE_SECONDS * sample_rate)
    inside = torch.minimum(rising, falling).clamp(0, 1)
    pauses = chance.happens(0.5, *shape).unsqueeze(-1)
    window = torch.where(pauses, 1 - inside, inside)
    return torch.where(chance.happens(probability, *shape).unsqueeze(-1), window, 1.0)


def _heard(chance: Chance, settings: Augmentation, strength: float, sources: Tensor, sample_rate: int) -> Tensor:
    """Simulate rooms with different positions of the voices, and one microphone per mixture."""
    n_room = round(_DECAY_SECONDS[1] * sample_rate)
    n_fft = _fast_length(sources.shape[-1] + n_room)
    spectrum = torch.fft.rfft(sources, n_fft)
    if settings.room:
        spectrum = spectrum * torch.fft.rfft(
            _rooms(chance, settings.room * strength, sources, n_room, sample_rate), n_fft
        )
    if settings.microphone:
        spectrum = spectrum * _microphones(chance, settings.microphone * strength, len(sources), spectrum.shape[-1])
    return torch.fft.irfft(spectrum, n_fft)[..., : sources.shape[-1]]


def _rooms(chance: Chance, probability: float, sources: Tensor, n_room: int, sample_rate: int) -> Tensor:
    """Return impulse responses [batch, speakers, n_room] that begin with 1, with the decay of the mixture's room."""
    n_batch, n_speakers = sources.shape[:2]
    time = torch.arange(n_room, device=sources.device) / sample_rate
    decay = chance.between(_DECAY_SECONDS, n_batch, 1, 1)
    tail = chance.normal(n_batch, n_speakers, n_room) * 10 ** (-3 * time / decay)  # 60 dB over the decay
    tail = tail * (time >= _FIRST_REFLECTION_SECONDS)
    level = 10 ** (-chance.between(_DIRECT_DB, n_batch, n_speakers, 1) / 20)
    tail = tail * level / tail.square().sum(dim=-1, keepdim=True).sqrt()
    response = tail * chance.happens(probability, n_batch, 1, 1)
    response[..., 0] = 1
    return response


def _microphones(chance: Chance, probability: float, n_batch: int, n_bins: int) -> Tensor:
    """Return smooth frequency responses [batch, 1, bins], which are real, so that they cause no delay."""
    knots = _RESPONSE_DB * chance.normal(n_batch, 1, _N_KNOTS)
    decibels = torch.nn.functional.interpolate(knots, n_bins, mode="linear", align_corners=True)
    frequency = torch.linspace(0, 1, n_bins, device=knots.device)
    low, high = chance.between(_LOW_CORNER, n_batch, 1, 1), chance.between(_HIGH_CORNER, n_batch, 1, 1)
    # Magnitudes of Butterworth filters of second and fourth order.
    band = (frequency / low) ** 2 / (1 + (frequency / low) ** 4).sqrt() / (1 + (frequency / high) ** 8).sqrt()
    response = 10 ** (decibels / 20) * torch.where(chance.happens(0.5, n_batch, 1, 1), band, 1.0)
    return torch.where(chance.happens(probability, n_batch, 1, 1), response, 1.0)


def _noise(chance: Chance, probability: float, mixture: Tensor) -> Tensor:
    n_batch, length = mixture.shape
    spectrum = torch.fft.rfft(chance.normal(n_batch, length))
    frequency = torch.linspace(0, 1, spectrum.shape[-1], device=mixture.device).clamp_min(1e-2)
    noise = torch.fft.irfft(spectrum * frequency ** -chance.between(_NOISE_TILT, n_batch, 1), length)
    ratio = 10 ** (-chance.between(_NOISE_DB, n_batch, 1) / 20)
    scale = ratio * (mixture.square().mean(-1, keepdim=True) / noise.square().mean(-1, keepdim=True)).sqrt()
    return noise * torch.where(chance.happens(probability, n_batch, 1), scale, 0.0)


def _clipped(chance: Chance, probability: float, mixture: Tensor) -> Tensor:
    limit = chance.between(_CLIPPED_AT, len(mixture), 1) * mixture.abs().amax(dim=-1, keepdim=True)
    clipped = torch.minimum(torch.maximum(mixture, -limit), limit)
    return torch.where(chance.happens(probability, len(mixture), 1), clipped, mixture)


def _fast_length(length: int) -> int:
    """Return the next length with a fast FFT: a power of two, or three quarters of one."""
    power = 1 << (length - 1).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= length else power
