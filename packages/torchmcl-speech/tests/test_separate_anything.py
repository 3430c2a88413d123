"""Recordings as they come: rates, channels, formats, lengths, silence, one voice, clipping, errors."""

import contextlib
import json

import numpy as np
import pytest
import torch

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

from torchmcl.app import main  # noqa: E402
from torchmcl.types import Predictions  # noqa: E402
from torchmcl_speech import separate_recording  # noqa: E402
from torchmcl_speech.data.audio import AudioInfo, BadAudio, Resampler, audio_blocks, read_audio  # noqa: E402
from torchmcl_speech.inference import RecordingSeparator  # noqa: E402
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


@pytest.mark.parametrize(("rate", "n_channels"), [(8000, 1), (44100, 2), (48000, 1)])
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


@pytest.mark.parametrize(("n_samples", "rate"), [(1, 8000), (2, 44100), (15, 8000), (100, 44100)])
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


def test_a_mixture_above_full_scale_is_turned_down_and_not_clipped(tmp_path):
    sound = 1.5 * voice(1, 4000) / np.abs(voice(1, 4000)).max()  # its half fits
    heard = torch.from_numpy(sound.astype(np.float32))
    with contextlib.closing(_Tracks(tmp_path, 8000, 8000)) as tracks:
        tracks.add(heard, heard.expand(2, -1) / 2)
        tracks.add_last()
        names, gain = tracks.write(["mixture.wav", "1.wav", "2.wav"], [0, 1], AudioInfo(8000, 1, 4000))
    assert gain == pytest.approx(0.99 / 1.5)
    assert np.abs(read_audio(tmp_path / names[0]) - gain * sound).max() < 1e-4


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
    (tmp_path / "another").mkdir()
    soundfile.write(tmp_path / "another" / "talk.wav", voice(2, 2000), 8000)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("talk-*")}
    command[2] = str(tmp_path / "another" / "talk.wav")
    assert main(command) == 2
    assert "Use another folder, or replace the files with" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.glob("talk-*")} == before
    for recording, options in (("another/talk.wav", ["--overwrite"]), ("talk.wav", [])):
        command[2] = str(tmp_path / "talk.wav")
        assert main([*command, "--voices", "3", "--overwrite"]) == 0
        command[2] = str(tmp_path / recording)
        assert main([*command, *options, "--voices", "1"]) == 0  # the other voices of the earlier run are deleted
        assert sorted(path.name for path in tmp_path.glob("talk-*")) == ["talk-1.wav", "talk-mixture.wav"]


def test_one_voice_alone_is_found_in_one_output_of_the_shipped_separator(tmp_path):
    soundfile.write(tmp_path / "a.wav", voice(1, 12000), 8000)
    assert main(["separation", "separate", str(tmp_path / "a.wav"), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    result = json.loads((tmp_path / "out" / "separation.json").read_text())
    assert (result["model"], result["speakers"]) == ("two-speakers", None)
    assert [output["file"] for output in result["outputs"]] == ["a-1.wav", "a-2.wav"]
    assert result["outputs"][0]["score"] > 0.5


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
