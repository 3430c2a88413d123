"""Mixtures made on the device of the training: what they are made of, and that targets and mixture belong together."""

import numpy as np
import pytest
import torch

from grids import for_each
from torchmcl_speech.data import AudioPack, Augmentation, DeviceMixtures, Draw, DynamicMixing, Mixture, Track
from torchmcl_speech.data.augment import augmented

RATE = 8000
FULL = Augmentation(speed=0.1, level_db=10.0, gaps=1.0, room=1.0, microphone=1.0, noise=1.0)


@pytest.fixture(scope="module")
def pack():
    random = np.random.default_rng(0)  # sounds that never pause
    names = [(f"{speaker}/{index}", index) for speaker in range(4) for index in range(2)]
    return AudioPack({n: random.normal(0, 1000, 9000 + 500 * i).astype(np.int16) for n, i in names}, RATE)


def mixed(pack, **options):
    tracks = tuple(Track(name, 0.0, name.partition("/")[0]) for name in pack.names)
    return DeviceMixtures([Mixture("all", tracks)], pack, **{"crop": 0.5, "batch_size": 4, "n_batches": 20} | options)


def test_an_unchanged_mixture_is_the_sum_of_crops_of_different_speakers(pack):
    batch = mixed(pack, mixing=DynamicMixing((2,), 0.0))[0]
    torch.testing.assert_close(batch.inputs, batch.targets.sum(dim=1))
    for sources in batch.targets.numpy():
        found = []
        for source in sources:
            places = {
                name.partition("/")[0]
                for name in pack.names
                for windows in [np.lib.stride_tricks.sliding_window_view(pack.read(name), len(source))]
                if np.abs(windows[:, :50] - source[:50]).max(axis=1).min() < 1e-5
            }
            assert len(places) == 1
            found += places
        assert len(set(found)) == 2


def test_a_batch_is_decided_by_seed_epoch_and_index_in_any_order(pack):
    one, other = mixed(pack, augmentation=FULL), mixed(pack, augmentation=FULL)
    keys = [Draw(1, 3), Draw(0, 17), Draw(1, 4)]
    expected = {key: one[key] for key in keys}
    for key in reversed(keys):
        for a, b in zip(expected[key][:3], other[key][:3], strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(expected[keys[0]].inputs, expected[keys[2]].inputs)
    assert not torch.equal(expected[keys[0]].inputs, mixed(pack, augmentation=FULL, seed=1)[keys[0]].inputs)


def test_numbers_of_speakers_vary_and_absent_ones_are_silent(pack):
    batch = mixed(pack, mixing=DynamicMixing((1, 3)), batch_size=16, crop=0.1)[0]
    assert set(batch.mask.sum(dim=-1).tolist()) == {1, 3}
    assert batch.targets[~batch.mask].abs().max() == 0


def test_speed_moves_a_tone_without_changing_its_shape():
    tone = np.round(8000 * np.sin(2 * np.pi * 1000 * np.arange(16000) / RATE)).astype(np.int16)
    pack = AudioPack({"a/0": tone, "b/0": tone}, RATE)
    tracks = (Track("a/0", 0.0, "a"), Track("b/0", 0.0, "b"))
    data = DeviceMixtures([Mixture("m", tracks)], pack, crop=1.0, batch_size=2, augmentation=Augmentation(speed=0.1))
    targets = torch.cat([data[i].targets for i in range(8)]).flatten(0, 1)
    spectrum = torch.fft.rfft(targets * torch.hann_window(8000)).abs()
    peaks = spectrum.argmax(-1)
    assert 890 <= peaks.min() < 950
    assert 1050 < peaks.max() <= 1110
    outside = spectrum.clone()
    for row, peak in zip(outside, peaks, strict=True):
        row[peak - 4 : peak + 5] = 0
    leak = 10 * torch.log10(outside.square().sum(-1) / spectrum.square().sum(-1))
    assert leak.max() < -45  # the rounding of the recording, and of the interpolation


@for_each("name", ["gaps", "room", "microphone", "noise", "level_db", "clipping", "all"])
def test_mixtures_are_their_targets_plus_noise(name):
    """Targets are the voices as the microphone hears them: everything but noise and clipping is in them."""
    torch.manual_seed(0)
    sources, mask = torch.randn(6, 3, 4000), torch.ones(6, 3, dtype=torch.bool)
    mask[0, 2] = False
    how = FULL if name == "all" else Augmentation(**{name: 10.0 if name == "level_db" else 1.0})
    generator = torch.Generator().manual_seed(1)
    mixture, targets, real = augmented(sources, mask, how, generator, sample_rate=RATE)
    rest = mixture - targets.sum(dim=1)
    assert not real[0, 2]
    assert targets[0, 2].abs().max() == 0
    assert mixture.isfinite().all()
    if name not in ("noise", "clipping", "all"):
        assert rest.abs().max() < 1e-5 * mixture.abs().max()
        assert not torch.allclose(targets, sources * mask.unsqueeze(-1), atol=1e-2)
    elif name == "clipping":
        peak = mixture.abs().amax(-1, keepdim=True)
        whole = targets.sum(dim=1)
        torch.testing.assert_close(mixture, torch.minimum(torch.maximum(whole, -peak), peak))
        assert (peak.squeeze() < 0.71 * whole.abs().amax(-1)).all()
    else:
        ratio = 10 * torch.log10((mixture - rest).square().mean(-1) / rest.square().mean(-1))
        assert 9.9 < ratio.min() < ratio.max() < 40.1


def test_a_room_keeps_the_direct_sound_and_adds_a_tail_that_decays():
    pulse = torch.zeros(8, 2, 8000)
    pulse[..., 100] = 1
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(8, 2, dtype=torch.bool)
    _, targets, _ = augmented(pulse, mask, Augmentation(room=1.0), generator, sample_rate=RATE)
    torch.testing.assert_close(targets[..., 100], torch.ones(8, 2), atol=1e-4, rtol=0)
    assert targets[..., :100].abs().max() < 1e-5
    early, late = targets[..., 116:500].square().sum(-1), targets[..., 2500:].square().sum(-1)
    assert (late < early).all()
    assert (targets.square().sum(-1) < 2.01).all()


@for_each(
    "options, message",
    [
        ({"speed": 0.6}, "augmentation: `speed`"),
        ({"noise": 1.5}, "augmentation: `noise`"),
        ({"gaps": -1.0}, "augmentation: `gaps`"),
        ({"ramp": -1}, "augmentation: `ramp`"),
    ],
)
def test_impossible_augmentations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**options)
