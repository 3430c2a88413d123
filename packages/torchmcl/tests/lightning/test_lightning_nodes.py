"""Lightning in several processes, as on several machines: started by torchrun and by SLURM, and one of them killed."""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import torchmcl as mcl
from places import PYTHONPATH

pytest.importorskip("lightning")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lightning_program import network, samples
    from torchmcl.lightning.sharding import note_lost_process
    from torchmcl.persistence import read_checkpoint

PROGRAM = Path(__file__).with_name("lightning_nodes.py")
SCENARIOS = [
    "torchrun-step",
    "slurm-step",
    "sharded-step",
    "auto",
    *(["separation"] if importlib.util.find_spec("torchmcl_speech") else []),
    "whole",
    "torchrun-killed",
    "slurm-killed",
    "slurm-killed resumed",
    "torchrun-killed resumed",
    "sharded-whole",
    "sharded-killed",
    "sharded-killed copied",
    "sharded-killed resumed",
    "moved",
    "sharded-nan",
    "refused",
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of all scenarios, and the exit codes of each."""
    folder = tmp_path_factory.mktemp("runs")
    paths = [PYTHONPATH, str(PROGRAM.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(PROGRAM), str(folder), *SCENARIOS]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    said = [line.split(": ") for line in run.stdout.splitlines()]
    return folder, {name: [int(code) for code in codes.split()] for name, codes in said if name in SCENARIOS}


def codes(runs, name):
    """Return the exit codes of a scenario's launchers."""
    return runs[1][name]


def records(folder):
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.parametrize(("start", "n_processes"), [("torchrun", 4), ("slurm", 2), ("sharded", 2)])
def test_several_processes_have_the_gradients_of_one_with_the_joint_batch(runs, start, n_processes):
    assert set(codes(runs, f"{start}-step")) == {0}
    model = network()
    whole = next(iter(DataLoader(samples(), batch_size=24)))
    mcl.mcl_step(model, whole, mcl.AnnealedWTA(0.5), score_weight=0.3).loss.backward()
    expected = {name: parameter.detach() - parameter.grad for name, parameter in model.named_parameters()}
    together = torch.load(runs[0] / f"{start}-step" / "weights.pt")
    torch.testing.assert_close(together, expected, rtol=1e-5, atol=1e-6)
    said = (runs[0] / f"{start}-step" / "node-0.txt").read_text()
    assert f"Starting with {n_processes} processes" in said


def test_two_processes_measure_for_automatic_annealing_what_one_does(runs):
    assert codes(runs, "auto") == [0, 0]
    alone, *together = (torch.load(runs[0] / "auto" / f"auto-{name}.pt") for name in ("1-0", "2-0", "2-1"))
    assert float(alone["first"]) > 10
    for measured in together:
        torch.testing.assert_close(measured, alone, rtol=1e-4, atol=1e-4)


def test_torchrun_ends_the_job_of_a_killed_process_and_names_it(runs):
    assert codes(runs, "torchrun-killed") == [1]
    said = (runs[0] / "torchrun-killed" / "node-0.txt").read_text()
    named = "rank      : 1" in said and "SIGKILL" in said
    # torchrun reports whom it finds ended first; on a busy machine that is the other process, which says why.
    assert named or "torchmcl: process 0 of 2 ends because another process of the training is gone or silent" in said


def test_where_nobody_watches_the_others_end_too_and_say_why_and_what_is_saved(runs):
    assert codes(runs, "slurm-killed") == [1, -9]
    said = (runs[0] / "slurm-killed" / "node-0.txt").read_text()
    assert "torchmcl: process 0 of 2 ends because another process of the training is gone or silent" in said
    assert f"2 epochs are saved in '{runs[0] / 'slurm-killed' / 'checkpoints'}': run the same again" in said


@pytest.mark.parametrize("start", ["torchrun", "slurm"])
def test_a_training_whose_process_was_killed_goes_on_to_the_same_end_under_either_launcher(runs, start):
    assert codes(runs, "whole") == [0]
    assert set(codes(runs, f"{start}-killed resumed")) == {0}
    folder, whole = runs[0] / f"{start}-killed", runs[0] / "whole"
    assert records(folder) == records(whole)
    assert [record["epoch"] for record in records(whole)] == [0, 1, 2, 3]
    torch.testing.assert_close(torch.load(folder / "weights.pt"), torch.load(whole / "weights.pt"), rtol=0, atol=0)


def test_a_sharded_training_whose_process_was_killed_goes_on_to_the_same_end(runs):
    assert codes(runs, "sharded-whole") == [0]
    assert codes(runs, "sharded-killed") == [1]
    assert codes(runs, "sharded-killed resumed") == [0]
    folder, whole = runs[0] / "sharded-killed", runs[0] / "sharded-whole"
    assert "epoch-00000002" in (folder / "node-0.txt").read_text()  # where it went on from
    assert records(folder) == records(whole)
    torch.testing.assert_close(torch.load(folder / "weights.pt"), torch.load(whole / "weights.pt"), rtol=0, atol=0)


def test_checkpoints_of_sharded_trainings_are_those_of_others_and_serve_both(runs):
    sharded, whole = (
        read_checkpoint(runs[0] / name / "checkpoints" / "epoch-00000004.safetensors", "lightning")
        for name in ("sharded-whole", "whole")
    )
    assert sharded.state.keys() == whole.state.keys()
    torch.testing.assert_close(dict(sharded.tensors), dict(whole.tensors), rtol=1e-5, atol=1e-6)
    # Begun with weights shared out, gone on with in two processes that have all of them.
    assert codes(runs, "moved") == [0]
    ends = [torch.load(runs[0] / name / "weights.pt") for name in ("moved", "whole")]
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_in_one_process_stops_all_also_when_it_is_sharded(runs):
    assert codes(runs, "sharded-nan") == [1]
    said = (runs[0] / "sharded-nan" / "node-0.txt").read_text()
    assert "FiniteGuard: the gradient of batch 1 of epoch 0 is not finite" in said


def test_a_strategy_that_writes_pickles_is_refused_with_the_one_that_does_not(runs):
    assert codes(runs, "refused") == [1]
    words = "Checkpoints: `strategy` must be ShardedStrategy where weights are sharded, got ModelParallelStrategy."
    assert words in (runs[0] / "refused" / "node-0.txt").read_text()


def test_a_separator_is_trained_on_two_nodes_and_gone_on_with(runs):
    pytest.importorskip("torchmcl_speech")
    assert codes(runs, "separation") == [0, 0, 0, 0]
    assert [record["epoch"] for record in records(runs[0] / "separation" / "run")] == [0, 1, 2]
    # Eight samples are four batches of one process, two of each of two processes.
    assert [record["step"] for record in records(runs[0] / "separation" / "run")] == [2, 4, 6]
    assert (runs[0] / "separation" / "run" / "model").is_dir()


def test_only_errors_of_lost_processes_get_the_note():
    about = {"rank": 1, "n_processes": 2, "saved": "Saved."}
    assert note_lost_process(RuntimeError("NCCL error: unhandled system error"), **about)
    assert note_lost_process(torch.distributed.DistNetworkError("no answer"), **about)
    assert not note_lost_process(RuntimeError("shapes do not match"), **about)
    assert not note_lost_process(ValueError("gloo"), **about)
    assert not note_lost_process(RuntimeError("gloo"), **about | {"n_processes": 1})
