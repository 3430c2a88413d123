"""A computation that was interrupted resumes with equal results, and only its own progress."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
from datetime import date

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import torchmcl as mcl
from grids import for_each
from torchmcl.io import Checkpoint, CheckpointError, TrainingInterrupted, described, digest, stop_on_signals


def train(folder, stop_at=None, key=None):
    """Two loops of five steps with dropout, and a random stage between them; return the weights and that stage."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(network.parameters())
    n_steps = 0
    with stop_on_signals(), Checkpoint(folder, key or {"rate": 0.1}, every=0.0) as checkpoint:
        for stage in ("first", "second"):
            for _ in checkpoint.steps(stage, {"network": network, "optimizer": optimizer}, 5):
                optimizer.zero_grad()
                network(torch.randn(8, 3)).square().mean().backward()
                optimizer.step()
                n_steps += 1
                if n_steps == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
            drawn = checkpoint.once(f"{stage}-drawn", lambda: torch.rand(2))
    return [*(parameter.detach() for parameter in network.parameters()), drawn], n_steps


@pytest.mark.parametrize("stop_at", [1, 5, 6, 10])
def test_a_stopped_computation_resumes_exactly(tmp_path, stop_at):
    whole, _ = train(None)
    with pytest.raises(TrainingInterrupted, match=r"The progress is saved in .*: the same call resumes it"):
        train(tmp_path, stop_at)
    resumed, n_steps = train(tmp_path)
    assert n_steps == 10 - stop_at
    assert all(map(torch.equal, resumed, whole))
    assert train(tmp_path)[1] == 0  # everything is restored
    Checkpoint.discard(tmp_path)
    assert not tmp_path.exists()


def test_a_computation_without_a_folder_ends_at_once():
    with pytest.raises(TrainingInterrupted, match="Nothing is saved"):
        train(None, stop_at=3)


def test_progress_of_another_computation_is_rejected_with_the_difference(tmp_path):
    train(tmp_path / "run")
    with pytest.raises(ValueError, match=r"contain the progress of the same call, got .*, which differs in rate, size"):
        train(tmp_path / "run", key={"rate": 0.2, "size": 3})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="Checkpoint: `checkpoint`"):
        train(tmp_path / "other")
    Checkpoint.discard(tmp_path / "other")
    assert (tmp_path / "other" / "mine.txt").exists()


def test_damaged_progress_is_rejected(tmp_path):
    train(tmp_path)
    (tmp_path / "first-drawn-00000001.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="Delete it to start again"):
        train(tmp_path)
    (tmp_path / "key.json").write_text("{")
    with pytest.raises(ValueError, match=r"`key\.json`"):
        train(tmp_path)


# ---------------------------------------------------------------------------- keys


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, cost):
        return self.factor * cost


def network(**options):
    return mcl.MultiHypothesisMLP(2, 2, 3, hidden=(4, 4), **options)


def tied():
    module = network()
    module.trunk[2].bias = module.trunk[0].bias
    return module


DIFFERENT = {
    "values": [1, 1.5, None, "1", b"1", 2j, (1,), [1], {1: 1}, {1}, {"1": 1}, float("nan")],
    "arrays": [torch.ones(2), torch.zeros(2), torch.ones(2, 1), torch.ones(2).double(), np.ones(3), np.ones((3, 1))],
    "half precision": [torch.ones(2).bfloat16(), torch.ones(2).half(), torch.zeros(2).bfloat16()],
    "functions": [digest, mcl.pairwise_sq_euclidean, mcl.pairwise_l1, torch.tanh, Scaled, Scaled(1), Scaled(2)],
    "values in C": [
        *(date(2024, 1, day) for day in (1, 2)),
        *(pd.DataFrame({"column": [day]}) for day in (1, 2)),
        *(re.compile(day) for day in "ab"),
        *(torch.Generator().manual_seed(day) for day in (1, 2)),
        *(np.random.default_rng(day) for day in (1, 2)),
    ],
    "methods": [Scaled(1).__call__, Scaled(2).__call__],
    "rules": [mcl.WTA(), mcl.AnnealedWTA(1.0), mcl.AnnealedWTA(2.0), mcl.RelaxedWTA(0.1)],
    "modules": [network(), network(activation=nn.Tanh), network(output_activation=torch.tanh), tied()],
    "states": [network(), network().eval(), network().requires_grad_(False)],
}


@for_each("name", DIFFERENT)
def test_different_values_have_different_digests(name):
    digests = [digest(value) for value in DIFFERENT[name]]
    assert len(set(digests)) == len(digests)


def test_equal_values_have_equal_digests_in_another_process():
    program = (
        "import json; import test_resumption as t;"
        "print(json.dumps([t.digest(value) for values in t.DIFFERENT.values() for value in values]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(run.stdout) == [digest(value) for values in DIFFERENT.values() for value in values]


@for_each("value", [lambda x: x, functools.partial(digest, key="")])
def test_functions_without_a_name_need_a_key(value):
    with pytest.raises(ValueError, match=r"has no name by which another process could recognize it.*`key=`"):
        described({"cost": value})
    assert described({"cost": value}, key="mine") == {"cost": "key mine"}


def test_an_object_that_contains_itself_has_a_description():
    one = Scaled(1)
    one.factor = [one]
    assert described(one) == described(one)
