"""Train a fleet undisturbed, and again in processes that are killed at random times: python fleet_program.py FOLDER."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet import Checkpointing, Fleet, FleetData


def dropout_mlp():
    return torch.nn.Sequential(torch.nn.Dropout(0.2), mcl.MultiHypothesisMLP(2, 1, 3, hidden=(16,)))


def train(folder):
    """Train with dropout, minibatches and validation, in chunks of models that are saved every third epoch."""
    generator = torch.Generator().manual_seed(0)
    sets = [(torch.randn(n, 2, generator=generator), torch.randn(n, 1, 1, generator=generator)) for n in (40, 30)]
    cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(0.5, 0.9, cutoff=1e-3))
    rules = [mcl.WTA(), cooling, AutoAnnealing(), mcl.RelaxedWTA(0.1)]
    fleet = Fleet(dropout_mlp, 8, rule=rules * 2, learning_rate=0.02)
    torch.manual_seed(0)
    history = fleet.fit(
        FleetData.of_sets(sets, [0, 1] * 4),
        30,
        batch_size=20,
        validation=FleetData.of_sets(sets[1:], [0] * 8),
        checkpoint=Checkpointing(folder / "checkpoints", every=3),
        models_at_once=5,
        progress=False,
    )
    tensors = {name: value for name, value in history._asdict().items() if isinstance(value, torch.Tensor)}
    torch.save(tensors | fleet.state_dict(), folder / "end.pt")


def forked(folder):
    """Return the number of a new process that trains."""
    folder.mkdir(exist_ok=True)
    pid = os.fork()
    if pid == 0:
        train(folder)
        os._exit(0)
    return pid


def code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(folder, n_kills=6):
    torch.set_num_threads(1)
    begin = time.monotonic()
    assert code(forked(folder / "whole")) == 0
    seconds = time.monotonic() - begin  # of a cold start: the others may take less than half as long
    draw = random.Random(0)
    for _ in range(n_kills):
        pid = forked(folder / "killed")
        time.sleep(draw.uniform(0, seconds / 4))
        os.kill(pid, signal.SIGKILL)
        print(code(pid))
        if (folder / "killed" / "end.pt").exists():
            return
    print(code(forked(folder / "killed")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
