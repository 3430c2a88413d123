"""Trainings mixed on the device, in a given time, from other weights, for any number of speakers."""

import json
import math

import pytest
import torch

from grids import for_each
from torchmcl import PIT, WTA, Batch, Predictions, StepOutput, assign, pairwise_neg_si_sdr
from torchmcl.app import main
from torchmcl_speech.nn import DPRNN
from voices import tables

pytest.importorskip("soundfile")
pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torchmcl.io import CheckpointSeries  # noqa: E402
from torchmcl_speech.config import SeparationConfig, TrainingConfig  # noqa: E402
from torchmcl_speech.nn.saving import load_model, save_model  # noqa: E402
from torchmcl_speech.objectives import (  # noqa: E402
    CosineBudget,
    OrderedPIT,
    count_accuracy,
    of_mixtures,
    pit_si_sdr,
    rate_schedule,
)
from torchmcl_speech.pretrained import copy_weights  # noqa: E402
from torchmcl_speech.train import _launcher_options, differing_options, train_separator  # noqa: E402

SIZES = {"n_filters": 8, "segment_size": 20, "hidden_size": 6, "n_blocks": 1}
SMALL = {
    "data": {"n_speakers": [1, 2, 3], "crop": 0.3, "dynamic": True, "on_device": True, "samples_per_epoch": 6},
    "augmentation": {"speed": 0.1, "gaps": 0.5, "room": 0.5, "microphone": 0.5, "noise": 0.5, "clipping": 0.5}
    | {"level_db": 5.0, "ramp": 2},
    "model": {"n_outputs": 4, "scores": True, **SIZES},
    "objective": {"rule": "pit", "limit_db": 30.0, "in_order": True},
    "training": {"epochs": 3, "batch_size": 2, "learning_rate": 0.01, "schedule": "cosine", "warmup": 1, "ema": 0.9}
    | {"checkpoint_every": 2},
}


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    return tables(tmp_path_factory.mktemp("speech") / "speech")


def configured(speech, *changes):
    few = ["data.validation_samples=3", f"data.root={speech}"]
    return SeparationConfig.from_dict(json.loads(json.dumps(SMALL))).changed([*few, *changes])


def train(config, out, **options):
    train_separator(config, out, device="cpu", progress=False, **options)
    lines = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def whole(speech, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return out, train(configured(speech), out)


def test_a_training_mixed_on_the_device_resumes_to_the_same_bits(speech, whole, tmp_path):
    out, records = whole
    assert len(train(configured(speech), tmp_path, minutes=0)) == 1
    assert train(configured(speech), tmp_path) == records
    assert {"val_pit_si_sdr", "val_count_accuracy"} <= records[0].keys()
    assert [record["learning_rate"] for record in records] == pytest.approx([0.005, 0.0075, 0.0025])
    for kind in ("model", "model-last"):
        (one, _), (other, _) = load_model(out / kind), load_model(tmp_path / kind)
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_checkpoints_hold_the_average_that_is_the_last_model(whole):
    _, state = CheckpointSeries(whole[0] / "checkpoints", "lightning", name="epoch").newest()
    last, _ = load_model(whole[0] / "model-last")
    average = {name.removeprefix("model."): weight for name, weight in state["state_dict"].items()}
    torch.testing.assert_close(dict(last.state_dict()), average, rtol=0, atol=0)
    assert not torch.equal(state["current_model_state"]["model.encoder.weight"], average["encoder.weight"])


@pytest.mark.parametrize("rule", ["mcl", "amcl", "auto"])
def test_every_objective_trains_on_the_device(speech, tmp_path, rule):
    config = configured(
        speech,
        f"objective.rule={rule}",
        f"objective.in_order={str(rule == 'pit').lower()}",
        "training.epochs=1",
        "training.warmup=0",
    )
    assert math.isfinite(train(config, tmp_path)[0]["val_pit_si_sdr"])


def test_the_command_begins_with_other_weights_and_prints_its_records(speech, whole, tmp_path, capsys):
    (tmp_path / "my.yaml").write_text(json.dumps(configured(speech).as_dict()))
    command = ["separation", "train", str(tmp_path / "my.yaml"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    fewer = ["--set", "model.n_outputs=3", "--set", "training.epochs=1", "--set", "training.schedule=budget"]
    assert main([*command, *fewer, "--from", str(whole[0] / "model"), "--json", "--minutes", "5"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [json.loads(line)["epoch"] for line in lines] == [0]
    evaluate = ["separation", "evaluate", "--model", str(tmp_path / "out" / "model"), "--quiet", "--limit", "2"]
    assert main([*evaluate, "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "evaluation-tt.jsonl").read_text().splitlines()[0])
    assert record["mixture"].endswith("_alone")
    assert 0 <= record["n_voices"] <= 3


@pytest.mark.parametrize("n_outputs", [2, 3, 5])
def test_weights_are_taken_over_whatever_the_number_of_outputs(tmp_path, n_outputs):
    torch.manual_seed(0)
    saved, model = DPRNN(3, **SIZES), DPRNN(n_outputs, scores=True, **SIZES)
    save_model(tmp_path, saved)
    new = copy_weights(model, tmp_path)
    n_shared = min(n_outputs, 3)
    assert {"score.weight", "score.bias"} <= set(new)
    assert ("decoder" in new) == (n_outputs > 3)
    sound = torch.randn(2, 800)
    got, wanted = model(sound).hypotheses, saved(sound).hypotheses
    torch.testing.assert_close(got[:, :n_shared], wanted[:, :n_shared])
    assert not torch.allclose(got[:, -1], got[:, 0])


def test_weights_of_another_size_are_refused(tmp_path):
    save_model(tmp_path, DPRNN(2, **SIZES | {"hidden_size": 8, "width": 6}))
    with pytest.raises(ValueError, match="`start`"):
        copy_weights(DPRNN(2, **SIZES), tmp_path)


def test_half_precision_halves_the_file_and_hardly_changes_the_sound(tmp_path):
    model, sound = DPRNN(2, **SIZES | {"hidden_size": 32}), torch.randn(1, 800)
    save_model(tmp_path / "half", model, half=True)
    save_model(tmp_path / "full", model)
    sizes = [(tmp_path / kind / "model.safetensors").stat().st_size for kind in ("half", "full")]
    assert sizes[0] < 0.6 * sizes[1]
    loaded, _ = load_model(tmp_path / "half")
    assert loaded.encoder.weight.dtype == torch.float32
    cost = pairwise_neg_si_sdr(hypotheses=loaded(sound).hypotheses, targets=model(sound).hypotheses)
    assert cost.diagonal(dim1=-2, dim2=-1).max() < -45


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        (["training.schedule=plateau"], []),
        (["training.schedule=cosine"], ["training.epochs"]),
        (["training.schedule=plateau", "objective.rule=auto"], ["training.epochs"]),
    ],
)
def test_a_run_may_be_prolonged_unless_its_annealing_or_its_rate_depends_on_the_epochs(options, differs):
    config = SeparationConfig().changed(options)
    assert differing_options(config.as_dict(), config.changed(["training.epochs=1000"])) == differs


def test_the_rate_reaches_zero_with_the_epochs_or_the_time():
    now = iter([0.0, 0.0, 30.0, 45.0, 90.0])
    rate = CosineBudget(1.0, n_epochs=10, seconds=60.0, clock=lambda: next(now))
    assert [rate(epoch) for epoch in (0, 1, 9, 5)] == pytest.approx([1.0, 0.5, (1 + math.cos(0.9 * math.pi)) / 2, 0.0])
    assert rate_schedule(TrainingConfig(schedule="plateau"), 3.0) == 0.001
    assert rate_schedule(TrainingConfig(schedule="budget"), 3.0).seconds == 180
    assert rate_schedule(TrainingConfig(schedule="cosine"), 3.0).seconds == math.inf


def test_counts_of_voices_and_decibels_of_mixtures():
    mask = torch.tensor([[True, False], [True, True]])
    matching = assign(torch.tensor([[[-90.0, 0.0], [0.0, 0.0]], [[-5.0, 0.0], [0.0, -7.0]]]), WTA(), mask)
    predictions = Predictions(torch.zeros(2, 2, 1), torch.tensor([[1.0, -1.0], [1.0, -1.0]]))
    output = StepOutput(torch.zeros(()), torch.zeros(()), None, matching, predictions, Batch(None, torch.zeros(0)))
    assert count_accuracy(output) == 0.5
    assert of_mixtures(pit_si_sdr)(output) == 6.0
    assert pit_si_sdr(output) == 34.0


def test_sources_take_the_first_outputs_in_any_order():
    cost = torch.randn(50, 3, 4)
    mask = torch.arange(3) < torch.randint(1, 4, (50, 1))
    weights = OrderedPIT()(cost, mask)
    n_sources = mask.sum(dim=-1)
    torch.testing.assert_close(weights.sum(dim=-2), (torch.arange(4) < n_sources[:, None]).float())
    one_to_one = PIT()(cost[..., :3])  # where all three are real there is nothing to leave out
    torch.testing.assert_close(weights[n_sources == 3][..., :3], one_to_one[n_sources == 3])


@for_each(
    "environment",
    [
        {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "4"},
        {"SLURM_NTASKS": "32", "SLURM_NNODES": "4", "SLURM_JOB_NAME": "train"},
    ],
)
def test_the_trainer_has_the_processes_that_the_launcher_started(environment):
    assert _launcher_options(environment) == {"devices": 8, "num_nodes": 4, "strategy": "ddp"}
    assert _launcher_options({}) == _launcher_options({"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}) == {}
