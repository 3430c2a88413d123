"""Lightning in several processes, as on several machines, and one of them killed."""

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

pytest.importorskip("lightning.pytorch")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lightning_program import network, samples

PROGRAM = Path(__file__).with_name("lightning_nodes.py")
SCENARIOS = ["step", "auto", "whole", "killed", "killed resumed"]
SCENARIOS += ["separation"] if importlib.util.find_spec("torchmcl_speech") else []
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


def test_several_processes_have_the_gradients_of_one_with_the_joint_batch(runs):
    assert codes(runs, "step") == [0, 0]
    model = network()
    whole = next(iter(DataLoader(samples(), batch_size=24)))
    mcl.mcl_step(model, whole, mcl.AnnealedWTA(0.5), score_weight=0.3).loss.backward()
    expected = {name: parameter.detach() - parameter.grad for name, parameter in model.named_parameters()}
    together = torch.load(runs[0] / "step" / "weights.pt")
    torch.testing.assert_close(together, expected, rtol=1e-5, atol=1e-6)
    assert "Starting with 4 processes" in (runs[0] / "step" / "node-0.txt").read_text()


def test_two_processes_measure_for_automatic_annealing_what_one_does(runs):
    assert codes(runs, "auto") == [0, 0]
    alone, *together = (torch.load(runs[0] / "auto" / f"auto-{name}.pt") for name in ("1-0", "2-0", "2-1"))
    assert float(alone["first"]) > 10
    for measured in together:
        torch.testing.assert_close(measured, alone, rtol=1e-4, atol=1e-4)


def test_a_training_run_whose_process_was_killed_ends_and_resumes_to_the_same_weights(runs):
    assert codes(runs, "whole") == [0]
    assert codes(runs, "killed") == [1]
    assert codes(runs, "killed resumed") == [0]
    folder, whole = runs[0] / "killed", runs[0] / "whole"
    assert records(folder) == records(whole)
    assert [record["epoch"] for record in records(whole)] == [0, 1, 2, 3]
    torch.testing.assert_close(torch.load(folder / "weights.pt"), torch.load(whole / "weights.pt"), rtol=0, atol=0)


def test_a_separator_is_trained_on_two_nodes(runs):
    pytest.importorskip("torchmcl_speech")
    assert codes(runs, "separation") == [0, 0]
    assert [record["epoch"] for record in records(runs[0] / "separation" / "run")] == [0, 1, 2]
    # Eight samples are four batches of one process, two of each of two processes.
    assert [record["step"] for record in records(runs[0] / "separation" / "run")] == [2, 4, 6]
    assert (runs[0] / "separation" / "run" / "model").is_dir()
