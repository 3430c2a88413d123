"""Training a saved separator further, on plain folders of recordings: by default, and in several runs."""

import csv
import json
import shutil

import pytest

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("lightning.pytorch")

from torchmcl.app import main  # noqa: E402
from torchmcl_speech import DataConfig, SeparationConfig, config_like, load_config  # noqa: E402
from torchmcl_speech.data import speaker_mixtures  # noqa: E402
from torchmcl_speech.mixture_lists import data_layout  # noqa: E402
from torchmcl_speech.nn import DPRNN, load_model, save_model  # noqa: E402
from voices import SHARED, recordings  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
TINY = [
    *("--set", "training.epochs=2", "--set", "training.batch_size=2", "--set", "data.samples_per_epoch=4"),
    *("--set", "data.validation_samples=2", "--device", "cpu", "--quiet"),
]


def tracks(mixtures):
    return {track.name for mixture in mixtures for track in mixture.tracks}


def speakers(mixtures):
    return {track.speaker for mixture in mixtures for track in mixture.tracks}


@pytest.fixture
def saved(tmp_path):
    model = DPRNN(3, n_filters=8, segment_size=20, hidden_size=6, n_blocks=1, scores=True)
    configuration = SeparationConfig.from_dict(
        {"data": {"n_speakers": [2, 3]}, "model": {"n_outputs": 3}, "objective": {"rule": "mcl"}}
    )
    save_model(tmp_path / "saved", model, {"sample_rate": 8000, "configuration": configuration.as_dict()})
    return tmp_path / "saved"


def test_many_speakers_are_split_and_each_recording_is_used(tmp_path):
    recordings(tmp_path / "r", n_speakers=12, n_utterances=2, n_samples=400)
    parts = {part: speaker_mixtures(tmp_path / "r", part, 2) for part in ("tr", "cv", "tt")}
    assert len(set().union(*(speakers(part) for part in parts.values()))) == 12
    assert not speakers(parts["tr"]) & speakers(parts["cv"])
    assert not speakers(parts["tt"]) & (speakers(parts["cv"]) | speakers(parts["tr"]))
    assert len(set().union(*(tracks(part) for part in parts.values()))) == 24
    assert parts["tr"] == speaker_mixtures(tmp_path / "r", "tr", 2)
    assert all(len({track.speaker for track in mixture.tracks}) == 2 for mixture in parts["tr"])
    assert data_layout(DataConfig(root=str(tmp_path / "r"))) == "speakers"


def test_what_a_configuration_leaves_open_is_that_of_the_saved_model(saved):
    config = config_like(load_config("fine-tune"), saved)
    assert config.model["hidden_size"] == 6
    assert tuple(config.data.n_speakers) == (2, 3)
    assert config.objective.rule == "mcl"
    assert config.objective.limit_db == 30
    quick = load_config("quick")
    assert config_like(quick, saved) is quick
    shipped = config_like(load_config("fine-tune"), "two-speakers")
    assert (shipped.model["hidden_size"], shipped.objective.rule) == (128, "pit")


def test_a_folder_without_metadata_is_trained_on_and_a_run_that_ended_early_resumes(
    tmp_path, saved, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    recordings(tmp_path / "mine", n_speakers=4, n_utterances=4, n_samples=26000)
    command = ["separation", "train", "--from", str(saved), "--data", "mine", *TINY]
    assert main([*command, "--minutes", "0"]) == 0, capsys.readouterr().err  # ends after the first epoch
    assert len((tmp_path / "out/fine-tune/records.jsonl").read_text().splitlines()) == 1
    schedules = json.loads((tmp_path / "out/fine-tune/config.json").read_text())["training"]
    assert schedules["learning_rate"] == 2e-4
    assert main(command) == 0
    records = [json.loads(line) for line in (tmp_path / "out/fine-tune/records.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [0, 1]
    assert load_model(tmp_path / "out/fine-tune/model")[0].config == load_model(saved)[0].config
    assert main(["separation", "evaluate", "--model", "out/fine-tune/model", "--quiet", "--limit", "1"]) == 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/speech")
def test_the_shipped_separator_is_trained_further_on_real_voices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (SHARED / "manifest.csv").open(newline="") as file:
        names = [row["path"] for row in csv.DictReader(file) if row["split"] == "cv"]
    for speaker in sorted({name.split("/")[1] for name in names})[:2]:
        for name in [name for name in names if name.split("/")[1] == speaker][:3]:
            (tmp_path / "mine" / speaker).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(SHARED / name, tmp_path / "mine" / speaker / name.rsplit("/", 1)[-1])
    changes = ["--set", "training.epochs=1", "--set", "data.crop=1.0", "--set", "data.samples_per_epoch=2"]
    command = ["separation", "train", "--from", "two-speakers", "--data", "mine", *TINY, *changes]
    assert main(command) == 0
    model, notes = load_model(tmp_path / "out/fine-tune/model")
    assert model.config["hidden_size"] == 128
    assert notes["val_pit_si_sdr"] > 3  # one step of a small rate: it still separates
