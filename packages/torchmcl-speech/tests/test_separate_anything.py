"""Recordings as they come: rates, channels, formats, lengths, silence, one voice, clipping, errors."""

import contextlib
import json
import math

import numpy as np
import pytest
import torch

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

from torchmcl.app import main  # noqa: E402
from torchmcl.types import Predictions  # noqa: E402
from torchmcl_speech import separate_recording  # noqa: E402
from torchmcl_speech.data.audio import AudioInfo, BadAudio, Resampler, StoredSound, audio_blocks, read_audio  # noqa: E402
from torchmcl_speech.inference import RecordingSeparator, _even_chunk  # noqa: E402
from torchmcl_speech.nn import DPRNN, save_model, separate_long  # noqa: E402
from torchmcl_speech.nn.saving import load_model  # noqa: E402
from torchmcl_speech.reports.separation_page import write_separation_page  # noqa: E402
from torchmcl_speech.separate import _Tracks  # noqa: E402
from voices import voice  # noqa: E402


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    small = DPRNN(3, n_filters=8, segment_size=20, hidden_size=6, n_blocks=1, scores=True)
    save_model(tmp_path / "model", small, {"sample_rate": 8000})
    return tmp_path / "model"


@pytest.mark.parametrize(("rate", "n_channels"), [(8000, 1), (11025, 2), (16000, 1), (44100, 2), (48000, 1)])
def test_files_have_the_rate_and_length_of_the_recording(tmp_path, model, rate, n_channels):
    sound = np.stack([voice(seed, rate + 7, rate) for seed in range(n_channels)], axis=-1)
    soundfile.write(tmp_path / "a.wav", sound, rate)
    result = separate_recording(tmp_path / "a.wav", tmp_path / "out", model, chunk_seconds=0.4)
    for name in [result["mixture"], *(output["file"] for output in result["outputs"])]:
        samples, found = soundfile.read(tmp_path / "out" / name)
        assert (found, samples.shape) == (rate, (rate + 7,))
    assert (result["sample_rate"], result["model_rate"], result["n_channels"]) == (rate, 8000, n_channels)
    heard = read_audio(tmp_path / "out" / result["mixture"], 8000)
    wanted = result["gain"] * read_audio(tmp_path / "a.wav", 8000)
    assert np.abs(heard[100:7900] - wanted[100:7900]).max() < 2e-3
    page = write_separation_page(tmp_path / "out").read_text()
    assert "Separated by <code>model</code>, which covers frequencies up to 4 kHz" in page
    assert "4 kHz</span>" in page  # pictures end where the model hears nothing
    assert "Number of speakers" in page


def test_what_is_written_is_the_offline_result(tmp_path, model):
    soundfile.write(tmp_path / "a.wav", voice(1, 20000), 8000, subtype="FLOAT")
    result = separate_recording(tmp_path / "a.wav", tmp_path / "out", model, chunk_seconds=0.5)
    with torch.inference_mode():
        sound = torch.from_numpy(read_audio(tmp_path / "a.wav")).unsqueeze(0)
        wanted = separate_long(load_model(model)[0], sound, chunk=4000).hypotheses[0]
    for output in result["outputs"]:
        found = read_audio(tmp_path / "out" / output["file"])
        assert np.abs(found - result["gain"] * wanted[output["output"]].numpy()).max() < 1e-4
    assert sum(result["speakers"]) == pytest.approx(1, abs=1e-5)
    assert len(result["speakers"]) == 4


@pytest.mark.parametrize(("suffix", "options"), [("flac", {}), ("ogg", {}), ("aiff", {}), ("mp3", {}), ("w64", {})])
def test_formats_that_soundfile_reads(tmp_path, model, suffix, options):
    if suffix.upper() not in soundfile.available_formats():
        pytest.skip(f"this libsndfile has no {suffix}")
    soundfile.write(tmp_path / f"a.{suffix}", voice(1, 16000, 16000), 16000, **options)
    result = separate_recording(tmp_path / f"a.{suffix}", tmp_path / "out", model)
    assert result["seconds"] == pytest.approx(1, abs=0.2)  # mp3 comes in frames


@pytest.mark.parametrize("n_samples", [1, 2, 15, 100])
@pytest.mark.parametrize("rate", [8000, 44100])
def test_very_short_files(tmp_path, model, n_samples, rate):
    soundfile.write(tmp_path / "a.wav", np.full(n_samples, 0.5), rate)
    if n_samples * 8000 // rate < 1:
        with pytest.raises(BadAudio, match=r"a\.wav: is too short"):
            separate_recording(tmp_path / "a.wav", tmp_path / "out", model)
        assert not (tmp_path / "out").exists()
        return
    result = separate_recording(tmp_path / "a.wav", tmp_path / "out", model)
    assert all(len(read_audio(tmp_path / "out" / output["file"])) == n_samples for output in result["outputs"])


def test_silence_stays_silent_and_gets_a_page(tmp_path, model):
    soundfile.write(tmp_path / "a.wav", np.zeros(30000), 16000)
    result = separate_recording(tmp_path / "a.wav", tmp_path / "out", model, chunk_seconds=0.5)
    assert all(not read_audio(tmp_path / "out" / output["file"]).any() for output in result["outputs"])
    assert "nan" not in write_separation_page(tmp_path / "out").read_text()


def test_clipped_and_loud_files_stay_below_full_scale(tmp_path, model):
    soundfile.write(tmp_path / "a.wav", np.sign(voice(1, 12000)), 8000)
    result = separate_recording(tmp_path / "a.wav", tmp_path / "out", model)
    for output in result["outputs"]:
        sound = read_audio(tmp_path / "out" / output["file"])
        assert np.isfinite(sound).all()
        assert np.abs(sound).max() < 1


def test_a_mixture_above_full_scale_is_turned_down_and_not_clipped(tmp_path):
    sound = 1.5 * voice(1, 4000) / np.abs(voice(1, 4000)).max()  # its half fits
    heard = torch.from_numpy(sound.astype(np.float32))
    with contextlib.closing(_Tracks(tmp_path, 8000, 8000)) as tracks:
        tracks.add(heard, heard.expand(2, -1) / 2)
        tracks.add_last()
        names, gain = tracks.write(["mixture.wav", "1.wav", "2.wav"], [0, 1], AudioInfo(8000, 1, 4000))
    assert gain == pytest.approx(0.99 / 1.5)
    assert np.abs(read_audio(tmp_path / names[0]) - gain * sound).max() < 1e-4


@pytest.mark.parametrize("scale", [1e11, 1e19, 1e38])
def test_samples_far_above_full_scale_are_refused_by_their_place(tmp_path, model, scale):
    sound = np.zeros(3000)
    sound[700] = scale
    soundfile.write(tmp_path / "a.wav", sound, 8000, subtype="FLOAT")
    for use in (read_audio, lambda path: separate_recording(path, tmp_path / "out", model)):
        with pytest.raises(BadAudio, match=r"a\.wav: sample 700 is 1e\+\d+, louder than any recording"):
            use(tmp_path / "a.wav")


def test_channels_that_cancel_each_other_are_refused_and_not_called_silent(tmp_path, model):
    sound = voice(1, 30000)
    soundfile.write(tmp_path / "a.wav", np.stack([sound, -sound], axis=-1), 8000)
    for use in (read_audio, lambda path: separate_recording(path, tmp_path / "out", model, chunk_seconds=1)):
        with pytest.raises(BadAudio, match="channels cancel each other"):
            use(tmp_path / "a.wav")


def test_recordings_of_one_sample_per_second_get_a_page(tmp_path, model):
    soundfile.write(tmp_path / "a.wav", voice(1, 3, 8000), 1)
    separate_recording(tmp_path / "a.wav", tmp_path / "out", model)
    assert write_separation_page(tmp_path / "out").is_file()


@pytest.mark.parametrize("name", ["talk-3.wav", "index.html", "separation.json"])
def test_files_of_somebody_else_are_never_replaced(tmp_path, model, capsys, name):
    soundfile.write(tmp_path / "talk.wav", voice(1, 2000), 8000)
    (tmp_path / name).write_text("{}")
    command = ["separation", "separate", str(tmp_path / "talk.wav"), "-o", str(tmp_path), "--model", str(model)]
    assert main(command) == 2
    assert repr(name) in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "{}"


def test_only_files_of_the_same_recording_are_replaced_unless_it_is_asked_for(tmp_path, model, capsys):
    soundfile.write(tmp_path / "talk.wav", voice(1, 2000), 8000)
    (tmp_path / "index.html").write_text("{}")
    command = ["separation", "separate", str(tmp_path / "talk.wav"), "-o", str(tmp_path), "--model", str(model)]
    assert main([*command, "--overwrite", "--voices", "3"]) == 0
    assert main([*command, "--voices", "3"]) == 0  # its own files
    soundfile.write(tmp_path / "other.wav", voice(2, 2000), 8000)
    command[2] = str(tmp_path / "other.wav")
    assert main(command) == 2
    assert "'separation.json', 'index.html'" in capsys.readouterr().err


def test_a_sample_that_is_not_finite_is_named_by_its_place_and_no_file_is_left(tmp_path, model):
    sound = voice(1, 30000)
    sound[21000] = np.nan
    soundfile.write(tmp_path / "a.wav", sound, 8000, subtype="FLOAT")
    with pytest.raises(BadAudio, match=r"a\.wav: sample 21000 is not finite"):
        separate_recording(tmp_path / "a.wav", tmp_path / "out", model, chunk_seconds=1)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_one_voice_alone_is_found_in_one_output_of_the_shipped_separator(tmp_path):
    soundfile.write(tmp_path / "a.wav", voice(1, 12000), 8000)
    assert main(["separation", "separate", str(tmp_path / "a.wav"), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    result = json.loads((tmp_path / "out" / "separation.json").read_text())
    assert (result["model"], result["speakers"]) == ("two-speakers", None)
    assert [output["file"] for output in result["outputs"]] == ["a-1.wav", "a-2.wav"]
    assert result["outputs"][0]["score"] > 0.5


def test_the_folder_for_the_files_is_named_after_the_recording(tmp_path, model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    soundfile.write("talk.wav", voice(1, 4000), 8000)
    assert main(["separation", "separate", "talk.wav", "--model", str(model), "--voices", "3"]) == 0
    assert (tmp_path / "out" / "talk" / "talk-3.wav").is_file()
    assert "Number of speakers: 0: " in capsys.readouterr().out
    assert main(["separation", "separate", "talk.wav", "--model", "three"]) == 2
    assert "`model` must be the folder of a saved model or one of [" in capsys.readouterr().err


@pytest.mark.parametrize("rate", [8000, 11025, 44100])
def test_blocks_are_resampled_as_the_whole_is(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", voice(1, 3 * rate, rate), rate, subtype="FLOAT")
    resample = Resampler(rate, 8000)
    blocks = list(audio_blocks(tmp_path / "a.wav", 1000))
    found = np.concatenate([resample(block, last=block is blocks[-1]) for block in blocks])
    wanted = read_audio(tmp_path / "a.wav", 8000)
    assert abs(len(found) - len(wanted)) <= 1
    length = min(len(found), len(wanted))
    assert np.abs(found[:length] - wanted[:length]).max() < 1e-5


def test_a_stored_sound_reads_slices(tmp_path):
    sound = voice(1, 5000)
    soundfile.write(tmp_path / "a.wav", sound, 8000, subtype="FLOAT")
    with StoredSound(tmp_path / "a.wav") as stored:
        assert len(stored) == 5000
        assert np.array_equal(stored[7:19], sound[7:19])
        assert np.array_equal(stored[4990:9000], sound[4990:])
        assert stored[10:5].shape == (0,)


@pytest.mark.parametrize("length", [1, 999, 1000, 1001, 1500, 1901, 12_345])
def test_chunks_are_even_few_and_not_longer_than_asked_for(length):
    chunk = _even_chunk(length, 1000, 100)
    n_chunks = max(math.ceil((length - 100) / (chunk - 100)), 1)
    assert 100 < chunk <= 1000
    assert n_chunks == max(math.ceil((length - 100) / 900), 1)
    assert length <= chunk + (n_chunks - 1) * (chunk - 100) < length + n_chunks or n_chunks == 1


def test_voices_keep_their_order_over_chunks_that_share_little(tmp_path):
    sources = torch.from_numpy(np.stack([voice(1, 60_000), voice(2, 60_000)]))
    torch.manual_seed(0)
    separator = DPRNN(2, n_filters=8, segment_size=20, hidden_size=6, n_blocks=1)

    def shuffled(piece):  # a perfect separator whose outputs change places from chunk to chunk
        start = int((sources.sum(dim=0).unfold(0, 32, 1) == piece[..., :32]).all(dim=-1).nonzero()[0])
        found = sources[:, start : start + piece.shape[-1]]
        return Predictions((found.flip(0) if start % 2 else found).unsqueeze(0))

    save_model(tmp_path / "model", separator, {"sample_rate": 8000})
    soundfile.write(tmp_path / "a.wav", sources.sum(dim=0).numpy(), 8000, subtype="FLOAT")
    hearing = RecordingSeparator(tmp_path / "a.wav", tmp_path / "model", owner="test", chunk_seconds=3.0, device="cpu")
    hearing._stream.model = shuffled
    outputs = torch.cat([found for _, found in hearing.pieces() if found.numel()], dim=-1)
    error = min((outputs - sources).square().mean(), (outputs.flip(0) - sources).square().mean())
    assert error < 0.2 * sources.square().mean()  # levels are those that explain the mixture, not the true ones
