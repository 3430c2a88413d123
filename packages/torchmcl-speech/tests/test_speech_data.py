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
    padded_batch,
    read_audio,
    table_mixtures,
    write_audio,
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


def test_no_speaker_is_in_two_parts(wsj0):
    parts = [{t.speaker for m in wsj0_mixtures(wsj0, part, 2) for t in m.tracks} for part in ("tr", "cv", "tt")]
    assert parts[0] & parts[1] == parts[0] & parts[2] == parts[1] & parts[2] == set()


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


def test_gains_of_a_mixed_pair_are_opposite_and_in_the_signals(wsj0, speakers):
    with (wsj0 / "wav8k/min/tr/mixtures.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert float(row["s1_gain_db"]) == -float(row["s2_gain_db"])
        source = read_audio(wsj0 / "wav8k/min/tr/s1" / f"{row['mixture_ID']}.wav")
        original = read_audio(speakers / row["s1_path"], 8000)[: len(source)]
        gain = 20 * np.log10(np.linalg.norm(source) / np.linalg.norm(original))
        assert gain == pytest.approx(float(row["s1_gain_db"]), abs=0.02)


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


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared speech is not here")
def test_the_shared_tables_have_the_level_their_description_says():
    mixtures = table_mixtures(SHARED, "tt", 3)[:20]
    dataset = SpeechMixtures(mixtures, AudioFolder(SHARED), crop=None)
    ratios = []
    for inputs, targets, *_ in (dataset[i] for i in range(20)):
        rest = (inputs - targets).square().sum(-1)
        ratios.append(10 * torch.log10(targets.square().sum(-1) / rest).mean())
    assert torch.stack(ratios).mean().item() == pytest.approx(-3.1, abs=0.6)


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


def test_lists_with_different_numbers_of_speakers_share_one_shape(speakers):
    pack = AudioPack({f"s{i}/1": (3000 * voice(i, 9000)).astype(np.int16) for i in range(3)})
    both = [pair("s0/1", "s1/1"), pair("s0/1", "s1/1", "s2/1")]
    dataset = SpeechMixtures(both, pack, crop=1.0)
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    assert batch.targets.shape == (2, 3, 8000)
    assert batch.mask.tolist() == [[True, True, False], [True, True, True]]


def test_a_source_that_is_silent_in_the_crop_is_no_target():
    silent = np.zeros(9000, dtype=np.int16)
    pack = AudioPack({"a/1": (3000 * voice(0, 9000)).astype(np.int16), "b/1": silent})
    assert SpeechMixtures([pair("a/1", "b/1")], pack, crop=1.0)[0].mask.tolist() == [True, False]
    with pytest.warns(UserWarning, match=r"1 recordings are silent and count as no target \(the first is b/1\)"):
        SpeechMixtures([pair("a/1", "b/1")], pack, crop=1.0, skip_bad=True)


def test_mixtures_shorter_than_the_crop_are_dropped_and_counted(tiny):
    long = pair(*TWO)
    short = pair(*TWO, length=500)
    with pytest.warns(UserWarning, match="1 mixtures are shorter than the crop of 1600 samples and were dropped"):
        dataset = SpeechMixtures([long, short], AudioFolder(tiny), crop=0.2)
    assert len(dataset) == 1
    assert dataset.usable.n_short == 1
    with pytest.raises(BadAudio, match="none of 1 mixtures can be used; 1 are shorter"):
        SpeechMixtures([short], AudioFolder(tiny), crop=5.0)


def test_whole_mixtures_can_be_batched_with_silence_at_their_ends(tiny):
    both = [pair(*TWO), pair(*TWO, length=700)]
    batch = padded_batch([*SpeechMixtures(both, AudioFolder(tiny), crop=None)])
    assert batch.inputs.shape == (2, 2000)
    assert (batch.targets[1, :, 700:] == 0).all()
    assert batch.mask.all()


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
    assert size < (0.5 if SHARED.is_dir() else 0.95) * pack.n_bytes


@pytest.mark.parametrize("values", [[0, 0, 0], [32767, -32768, 32767, 0], [5], [16, -32, 4096]])
def test_packs_keep_extreme_samples(values, tmp_path):
    samples = np.array(values, dtype=np.int16)
    AudioPack({"a/1": samples, "b/1": samples[::-1]}).save(tmp_path / "pack.npz")
    again = AudioPack.load(tmp_path / "pack.npz")
    assert np.array_equal(again.read("a/1") * 32768, samples)
    assert np.array_equal(again.read("b/1") * 32768, samples[::-1])


def test_a_pack_and_its_folder_give_the_same_data_set(tiny):
    one = SpeechMixtures([pair(*TWO)], AudioFolder(tiny), crop=0.1)
    two = SpeechMixtures([pair(*TWO)], AudioPack.from_folder(tiny), crop=0.1)
    torch.testing.assert_close(one[0], two[0], atol=0, rtol=0)


def test_what_is_no_pack_is_refused(tmp_path):
    with pytest.raises(BadAudio, match=r"none.npz: there is no such file"):
        AudioPack.load(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(BadAudio, match=r"bad.npz: is not a pack of utterances"):
        AudioPack.load(tmp_path / "bad.npz")
    with pytest.raises(BadAudio, match="nobody/1: is not in the pack of 0 utterances"):
        AudioPack({}).read("nobody/1")
    with pytest.raises(ValueError, match="AudioPack: `sample_rate` must be 16000, got 8000"):
        AudioPack({}).checked_rate(16000)


# Bad input


def spoil_truncated(path):
    path.write_bytes(path.read_bytes()[:-1001])


def spoil_nan(path):
    samples = voice(0, 2000)
    samples[123] = np.nan
    soundfile.write(path, samples, 8000, subtype="FLOAT")


def spoil_no_audio(path):
    path.write_text("these are not the samples you are looking for")


def spoil_missing(path):
    path.unlink()


def spoil_empty(path):
    soundfile.write(path, np.zeros(0, dtype=np.float32), 8000)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_truncated, r"speaker1/00.wav: is cut short; 1001 bytes are missing at its end"),
        (spoil_nan, r"speaker1/00.wav: sample 123 is not finite"),
        (spoil_no_audio, r"speaker1/00.wav: not readable as audio"),
        (spoil_missing, r"speaker1/00.wav: there is no such file"),
        (spoil_empty, r"speaker1/00.wav: has no samples"),
    ],
)
def test_bad_recordings_are_named_or_skipped_with_a_count(tiny, spoil, message):
    spoil(tiny / "speaker1/00.wav")
    good = pair("speaker0/01.wav", "speaker1/01.wav")
    with pytest.raises(BadAudio, match=message):
        SpeechMixtures([pair(*TWO), good], AudioFolder(tiny), crop=0.1)[0]
    with pytest.warns(UserWarning, match="1 mixtures were skipped for 1 bad recordings: .*" + message):
        dataset = SpeechMixtures([pair(*TWO), good], AudioFolder(tiny), crop=0.1, skip_bad=True)
    assert len(dataset) == 1
    assert list(dataset.usable.bad_files) == ["speaker1/00.wav"]
    assert dataset[0].mask.all()


def test_a_truncated_flac_is_named(tmp_path):
    soundfile.write(tmp_path / "a.flac", voice(0), 8000)
    spoil_truncated(tmp_path / "a.flac")
    with pytest.raises(BadAudio, match=r"a.flac: "):
        read_audio(tmp_path / "a.flac")


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


def test_sources_of_different_length_end_with_the_shortest_and_say_so(tiny):
    with pytest.warns(UserWarning, match="1 mixtures have sources of different length and end with the shortest"):
        dataset = SpeechMixtures([pair("speaker0/00.wav", "speaker1/01.wav")], AudioFolder(tiny), crop=None)
    assert dataset[0].inputs.shape == (2000,)


def test_folders_and_tables_that_hold_nothing_are_named(tmp_path):
    with pytest.raises(BadAudio, match=r"nowhere: there is no such folder"):
        AudioFolder(tmp_path / "nowhere")
    with pytest.raises(BadAudio, match=r"holds no recordings \(.wav, .flac"):
        AudioPack.from_folder(tmp_path)
    with pytest.raises(BadAudio, match=r"mix: there is no such folder"):
        wsj0_mixtures(tmp_path, "tr", 2)
    for place in ("mix", "s1", "s2"):
        (tmp_path / "wav8k/min/tr" / place).mkdir(parents=True)
    with pytest.raises(BadAudio, match=r"mix: holds no mixtures"):
        wsj0_mixtures(tmp_path, "tr", 2)
    with pytest.raises(BadAudio, match=r"mix_2_spk_tr.csv: there is no such table"):
        table_mixtures(tmp_path, "tr", 2)
    (tmp_path / "metadata").mkdir()
    table = tmp_path / "metadata/mix_2_spk_tr.csv"
    table.write_text("mixture_ID,length\n")
    with pytest.raises(
        ValueError, match=r"`columns` must include \['s1_gain_db', 's1_path', 's2_gain_db', 's2_path'\]"
    ):
        table_mixtures(tmp_path, "tr", 2)
    table.write_text("mixture_ID,length,s1_path,s1_gain_db,s2_path,s2_gain_db\n")
    with pytest.raises(BadAudio, match="has no rows"):
        table_mixtures(tmp_path, "tr", 2)
    table.write_text("mixture_ID,length,s1_path,s1_gain_db,s2_path,s2_gain_db\nm0,9,a,loud,b,0\n")
    with pytest.raises(BadAudio, match="`s1_gain_db` of m0 must be a number, got 'loud'"):
        table_mixtures(tmp_path, "tr", 2)


def test_mixing_refuses_what_cannot_be_mixed(tiny, tmp_path):
    with pytest.raises(BadAudio, match="tr: has 2 speakers, fewer than the 3 of a mixture"):
        write_mixtures(tiny, tmp_path / "out", MixPlan(n_speakers=3, counts={"tr": 1}))
    with pytest.raises(BadAudio, match=r"too few for 9 different mixtures\. Request fewer \(--counts tr=\d+\)"):
        write_mixtures(tiny, tmp_path / "out", MixPlan(n_speakers=2, counts={"tr": 9}))
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="MixPlan: `counts` must name parts among"):
        MixPlan(counts={"train": 3})
    spoil_nan(tiny / "speaker1/00.wav")
    with pytest.raises(BadAudio, match="sample 123 is not finite"):
        write_mixtures(tiny, tmp_path / "out", MixPlan(counts={"tr": 4}))
    with pytest.warns(UserWarning, match="write_mixtures: 1 bad recordings were skipped: .* sample 123 is not finite"):
        assert write_mixtures(tiny, tmp_path / "out", MixPlan(counts={"tr": 2}), skip_bad=True) == {"tr": 2}
    with pytest.warns(UserWarning, match="AudioPack: 1 bad recordings were skipped: .* sample 123 is not finite"):
        assert len(AudioPack.from_folder(tiny, skip_bad=True).names) == 3
    write_audio(tiny / "loose.wav", voice(0), 8000)
    with pytest.raises(BadAudio, match=r"loose.wav: must lie in the folder of its speaker"):
        write_mixtures(tiny, tmp_path / "out", MixPlan(counts={"tr": 1}))


def test_data_sets_refuse_what_cannot_be(tiny):
    with pytest.raises(ValueError, match="SpeechMixtures: `mixtures` must not be empty"):
        SpeechMixtures([], AudioFolder(tiny))
    folder = AudioFolder(tiny)
    with pytest.raises(ValueError, match="must have at least 3 different speakers for dynamic mixing, got 2"):
        SpeechMixtures([pair(*TWO)], folder, crop=0.1, dynamic=DynamicMixing((3,)))
    with pytest.raises(ValueError, match="SpeechMixtures: `crop` must be given for dynamic mixing"):
        SpeechMixtures([pair(*TWO)], folder, crop=None, dynamic=DynamicMixing())
    with pytest.raises(ValueError, match="SpeechMixtures: `n_samples` must be used with `dynamic`"):
        SpeechMixtures([pair(*TWO)], folder, crop=0.1, n_samples=3)
    with pytest.raises(ValueError, match="DynamicMixing: `n_speakers` must not be empty"):
        DynamicMixing(())
    with pytest.raises(IndexError, match="index 1 of 1 samples"):
        SpeechMixtures([pair(*TWO)], folder, crop=0.1)[1]
