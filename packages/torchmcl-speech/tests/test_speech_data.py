"""Speech: three layouts in, the same samples for the same seed out, and every bad file named."""

import csv
import shutil
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from torchmcl_speech.data import (
    AudioFolder,
    AudioPack,
    BadAudio,
    Draw,
    DrawSampler,
    DynamicMixing,
    MixPlan,
    Mixture,
    SpeechMixtures,
    Track,
    librimix_mixtures,
    read_audio,
    table_mixtures,
    write_mixtures,
    wsj0_mixtures,
)
from voices import SHARED, recordings, voice

soundfile = pytest.importorskip("soundfile")
COUNTS = {"tr": 5, "cv": 2, "tt": 2}


@pytest.fixture(scope="module")
def speakers(tmp_path_factory):
    """Return a folder of single-speaker recordings."""
    if SHARED.is_dir():
        folder = tmp_path_factory.mktemp("speakers")
        for place in sorted((SHARED / "cv").iterdir())[:6]:
            (folder / place.name).mkdir()
            for path in sorted(place.glob("*.flac"))[:3]:
                shutil.copy(path, folder / place.name / path.name)
        return folder
    return recordings(tmp_path_factory.mktemp("speakers"), n_speakers=6, n_samples=41000)


@pytest.fixture(scope="module")
def wsj0(speakers, tmp_path_factory):
    out = tmp_path_factory.mktemp("wsj0")
    assert write_mixtures(speakers, out, MixPlan(n_speakers=2, counts=COUNTS)) == COUNTS
    return out


@pytest.fixture
def tiny(tmp_path):
    """Return four short recordings of two speakers."""
    return recordings(tmp_path / "tiny", n_speakers=2, n_utterances=2, n_samples=2000)


def pair(*names, **options):
    return Mixture("pair", tuple(Track(name, 0.0, name.partition("/")[0]) for name in names), **options)


TWO = ("speaker0/00.wav", "speaker1/00.wav")


# Layouts


def test_a_mixed_folder_is_read_back_as_wsj0_mix(wsj0):
    mixtures = wsj0_mixtures(wsj0, "tr", 2)
    assert len(mixtures) == 5
    dataset = SpeechMixtures(mixtures, AudioFolder(wsj0), crop=None)
    for index in range(5):
        inputs, targets, mask = dataset[index][:3]
        assert mask.all()
        # 16-bit files: each is off by at most half a step
        torch.testing.assert_close(inputs, targets.sum(0), atol=2 / 32768, rtol=0)
        assert len(set(dataset.speakers(index))) == 2


def test_speakers_are_the_folders_of_the_recordings_and_older_mixtures_are_not_joined(tmp_path):
    for speaker in sorted(recordings(tmp_path / "flat", n_speakers=2, n_utterances=2, n_samples=2000).iterdir()):
        shutil.copytree(speaker, tmp_path / "in" / "tr" / f"ann_{speaker.name}-x" / "day_1")
    write_mixtures(tmp_path / "in", tmp_path / "out", plan := MixPlan(counts={"tr": 4}))
    mixtures = wsj0_mixtures(tmp_path / "out", "tr", 2)
    assert {track.speaker for mixture in mixtures for track in mixture.tracks} == {"ann_speaker0-x", "ann_speaker1-x"}
    assert all("speaker0" in mixture.name and "speaker1" in mixture.name for mixture in mixtures)
    with pytest.raises(ValueError, match=r"`out` must contain no mixtures, got .* Remove this folder"):
        write_mixtures(tmp_path / "in", tmp_path / "out", plan)


def test_mixing_is_decided_by_its_seed(speakers, tmp_path):
    plan = MixPlan(n_speakers=3, counts={"tr": 2})
    for name in ("a", "b"):
        write_mixtures(speakers, tmp_path / name, plan)
    write_mixtures(speakers, tmp_path / "c", MixPlan(n_speakers=3, counts={"tr": 2}, seed=1))
    tables = [(tmp_path / name / "wav8k/min/tr/mixtures.csv").read_text() for name in "abc"]
    assert tables[0] == tables[1] != tables[2]
    files = sorted((tmp_path / "a/wav8k/min/tr").rglob("*.wav"))
    assert len(files) == 2 * 4
    assert all(path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes() for path in files)


def test_librimix_tables_are_read(wsj0, tmp_path):
    table = tmp_path / "mixture_train_mix_clean.csv"
    mixtures = wsj0_mixtures(wsj0, "tr", 2)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["mixture_ID", "mixture_path", "source_1_path", "source_2_path", "length"])
        for index, mixture in enumerate(mixtures):
            absolute = [str(wsj0 / name) for name in (mixture.recorded, *(t.name for t in mixture.tracks))]
            writer.writerow([f"{index}-17-0001_9{index}-18-0002", *absolute, 40000])
    read = librimix_mixtures(table, 2)
    assert [track.speaker for track in read[1].tracks] == ["1", "91"]
    one = SpeechMixtures(read, AudioFolder(wsj0), crop=None)[2]
    other = SpeechMixtures(mixtures, AudioFolder(wsj0), crop=None)[2]
    torch.testing.assert_close(one, other)


def test_tables_of_utterances_and_gains_are_mixed_on_the_fly(speakers, tmp_path):
    files = sorted(path.relative_to(speakers).as_posix() for path in speakers.rglob("*.*"))
    first, second = files[0], files[-1]
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/mix_2_spk_cv.csv").write_text(
        f"mixture_ID,length,s1_path,s1_gain_db,s2_path,s2_gain_db\nm0,40001,{first},1.5,{second},-1.5\n"
    )
    mixtures = table_mixtures(tmp_path, "cv", 2)
    inputs, targets, *_ = SpeechMixtures(mixtures, AudioFolder(speakers), crop=None)[0]
    assert inputs.shape == (40001,)
    expected = read_audio(speakers / first)[:40001] * 10 ** (1.5 / 20)
    torch.testing.assert_close(targets[0], torch.from_numpy(expected.astype(np.float32)))
    torch.testing.assert_close(inputs, targets.sum(0))


# Crops, masks and dynamic mixing


def test_crops_have_the_same_place_in_mixture_and_sources(wsj0):
    dataset = SpeechMixtures(wsj0_mixtures(wsj0, "tr", 2), AudioFolder(wsj0), crop=1.0)
    inputs, targets, *_ = dataset[0]
    assert inputs.shape == (8000,)
    torch.testing.assert_close(inputs, targets.sum(0), atol=2 / 32768, rtol=0)


def test_samples_are_decided_by_seed_epoch_and_index(wsj0):
    mixtures = wsj0_mixtures(wsj0, "tr", 2)

    def sample(seed, epoch, index, **options):
        dataset = SpeechMixtures(mixtures, AudioFolder(wsj0), crop=1.0, seed=seed, **options)
        dataset[0]  # what was drawn before does not matter
        return dataset[Draw(epoch, index)].inputs

    for options in ({}, {"dynamic": DynamicMixing((2,))}):
        assert torch.equal(sample(0, 3, 1, **options), sample(0, 3, 1, **options))
        assert not torch.equal(sample(0, 3, 1, **options), sample(0, 4, 1, **options))
        assert not torch.equal(sample(0, 3, 1, **options), sample(1, 3, 1, **options))
    fixed = SpeechMixtures(mixtures, AudioFolder(wsj0), crop=1.0, random_crops=False)
    assert torch.equal(fixed[Draw(0, 1)].inputs, fixed[Draw(1, 1)].inputs)


def test_workers_give_the_same_samples_as_one_process(tiny):
    dataset = SpeechMixtures([pair(*TWO)], AudioFolder(tiny), crop=0.1, dynamic=DynamicMixing(), n_samples=8)
    sampler = DrawSampler(len(dataset))
    sampler.set_epoch(2)
    batches = [list(DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=n_workers)) for n_workers in (0, 2)]
    for one, two in zip(*batches, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert batches[0][0].targets.shape == (4, 2, 800)


def test_dynamic_mixing_varies_speakers_and_marks_absent_ones(speakers):
    names = sorted(path.relative_to(speakers).as_posix() for path in speakers.rglob("*.*"))
    everyone = Mixture("all", tuple(Track(name, 0.0, name.partition("/")[0]) for name in names))
    pack = AudioPack.from_folder(speakers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # recordings of different length
        dataset = SpeechMixtures([everyone], pack, crop=1.0, dynamic=DynamicMixing((2, 3, 4)), n_samples=40)
    counts = set()
    for inputs, targets, mask, _ in (dataset[i] for i in range(40)):
        assert targets.shape == (4, 8000)
        assert (targets[~mask] == 0).all()
        torch.testing.assert_close(inputs, targets.sum(0))
        counts.add(int(mask.sum()))
    assert counts == {2, 3, 4}


def test_the_sampler_shows_everything_once_and_shares_it_out():
    sampler = DrawSampler(10)
    assert sorted(draw.sample for draw in sampler) == list(range(10))
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append([draw.sample for draw in sampler])
        assert all(draw.epoch == epoch for draw in sampler)
    assert orders[0] == orders[2] != orders[1]
    shares = [DrawSampler(10, n_replicas=3, rank=rank) for rank in range(3)]
    together = [draw.sample for share in shares for draw in share]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert len(set(together)) == 9
    assert [draw.sample for draw in DrawSampler(5, n_samples=2, shuffle=False)] == [0, 1]


# Packs


def test_a_pack_is_lossless_and_smaller(speakers, tmp_path):
    pack = AudioPack.from_folder(speakers)
    size = pack.save(tmp_path / "pack.npz")
    again = AudioPack.load(tmp_path / "pack.npz")
    assert again.names == pack.names
    assert again.sample_rate == 8000
    for name in pack.names:
        assert np.array_equal(again.read(name), pack.read(name))
        assert np.array_equal(pack.read(name), read_audio(speakers / name))
    soundfile.write(tmp_path / "loud.wav", loud := np.array([0.5, -2.0]), 8000, subtype="FLOAT")
    np.testing.assert_array_equal(AudioPack.from_folder(tmp_path, ["loud.wav"]).read("loud.wav"), loud / 2)
    with pytest.raises(BadAudio, match="is too short"):
        AudioPack.from_folder(tmp_path, ["loud.wav"], sample_rate=2000)
    assert size < (0.5 if SHARED.is_dir() else 0.95) * pack.n_bytes


def test_a_pack_and_its_folder_give_the_same_data_set(tiny):
    one = SpeechMixtures([pair(*TWO)], AudioFolder(tiny), crop=0.1)
    two = SpeechMixtures([pair(*TWO)], AudioPack.from_folder(tiny), crop=0.1)
    torch.testing.assert_close(one[0], two[0], atol=0, rtol=0)


# Bad input


def write_samples(path, samples):
    soundfile.write(path, np.asarray(samples, dtype=np.float32), 8000, subtype="FLOAT")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1001]), "is truncated; 1001 bytes are missing at its end"),
        (lambda path: write_samples(path, [0.1] * 123 + [np.nan] * 1877), "sample 123 is not finite"),
        (lambda path: path.write_text("these are not the samples you are looking for"), "not readable as audio"),
        (lambda path: path.unlink(), "no such file"),
        (lambda path: write_samples(path, []), "has no samples"),
    ],
)
def test_bad_recordings_are_named_or_skipped_with_a_count(tiny, spoil, message):
    spoil(tiny / "speaker1/00.wav")
    good = pair("speaker0/01.wav", "speaker1/01.wav")
    with pytest.raises(BadAudio, match=f"speaker1/00.wav: {message}"):
        SpeechMixtures([pair(*TWO), good], AudioFolder(tiny), crop=0.1)[0]
    with pytest.warns(UserWarning, match="1 mixtures with 1 bad recordings were skipped: .*00.wav: " + message):
        dataset = SpeechMixtures([pair(*TWO), good], AudioFolder(tiny), crop=0.1, skip_bad=True)
    assert len(dataset) == 1
    assert list(dataset.usable.bad_files) == ["speaker1/00.wav"]
    assert dataset[0].mask.all()


def test_stereo_is_mixed_down_with_a_warning(tiny):
    left, right = voice(1, 2000), voice(2, 2000)
    soundfile.write(tiny / "speaker1/00.wav", np.stack([left, right], axis=-1), 8000, subtype="FLOAT")
    with pytest.warns(UserWarning, match=r"1 recordings are mixed down from 2 channels \(the first is speaker1/00.wav"):
        dataset = SpeechMixtures([pair(*TWO)], AudioFolder(tiny), crop=None)
    np.testing.assert_allclose(dataset[0].targets[1], (left + right) / 2, atol=1e-6)


def test_other_sample_rates_are_resampled_with_a_warning(tiny):
    pytest.importorskip("soxr")
    time = np.arange(32000) / 16000
    soundfile.write(tiny / "speaker1/00.wav", 0.5 * np.sin(2 * np.pi * 440 * time), 16000, subtype="FLOAT")
    with pytest.warns(UserWarning, match="1 recordings are resampled from 16000 Hz"):
        dataset = SpeechMixtures([pair(*TWO, length=2000)], AudioFolder(tiny), crop=None)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(2000) / 8000)
    np.testing.assert_allclose(dataset[0].targets[1][200:1800], expected[200:1800], atol=1e-3)
