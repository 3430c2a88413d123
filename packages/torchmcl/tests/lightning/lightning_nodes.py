"""Training runs in several processes on one machine, as torchrun and SLURM start them on several.

python lightning_nodes.py FOLDER SCENARIO...

The processes of all scenarios are forks of this one, so that Lightning is imported once. torchrun's own agents start
and watch theirs; those of "slurm" have the environment that srun gives, and nobody who watches them.
"""

import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed.elastic.multiprocessing.errors as torchrun_errors
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils.data import DataLoader

import torchmcl as mcl
from lightning_program import PLATEAU, QUIET, Blocks, Shared, network, samples
from torchmcl.app import main as main_of_torchmcl
from torchmcl.lightning import Checkpoints, MCLModule, RecordWriter
from voices import recordings


class DieInTheMiddle(pl.Callback):
    """Kill the last process in the middle of epoch 2, once."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx, trainer.global_rank) == (2, 0, trainer.world_size - 1):
            os.kill(os.getpid(), signal.SIGKILL)


def processes():
    """Return the options of the trainer for processes that torchrun started."""
    n_nodes, n_per_node = (int(os.environ[name]) for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return {"num_nodes": n_nodes, "devices": n_per_node, "strategy": "ddp"}


def one_step(path):
    """Take one step of plain descent on all samples, shared by the processes."""
    module = MCLModule(
        network(), mcl.AnnealedWTA(0.5), score_weight=0.3, make_optimizer=lambda p: torch.optim.SGD(p, lr=1.0)
    )
    trainer = pl.Trainer(max_steps=1, use_distributed_sampler=False, enable_checkpointing=False, **processes(), **QUIET)
    trainer.fit(module, DataLoader(samples(), batch_size=24 // trainer.world_size, sampler=Shared()))
    save(module, path, trainer)


def self_annealed(folder):
    """Train two epochs of four steps under AutoAnnealing; the second half of the samples has far larger costs."""
    far = [mcl.Batch(x, y + 5.0 * (i >= 12)) for i, (x, y, *_) in enumerate(samples())]
    module = MCLModule(network(), mcl.AutoAnnealing(), make_optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))
    trainer = pl.Trainer(
        max_epochs=2, use_distributed_sampler=False, enable_checkpointing=False, **processes(), **QUIET
    )
    trainer.fit(module, DataLoader(far, batch_sampler=Blocks()))
    torch.save(module.annealing.state_dict(), folder / f"auto-{trainer.world_size}-{trainer.global_rank}.pt")


def save(module, path, trainer):
    if trainer.is_global_zero:
        torch.save(module.model.state_dict(), path)


def train(folder, dies):
    """Train four epochs, or what is left of them."""
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 4))
    module = MCLModule(network(dropout=0.5), rule, learning_rate=0.1, plateau=PLATEAU)
    checkpoints = Checkpoints(folder / "checkpoints")
    callbacks = [RecordWriter(folder / "records.jsonl"), checkpoints, *[DieInTheMiddle()][: int(dies)]]
    trainer = pl.Trainer(max_epochs=4, callbacks=callbacks, **processes(), **QUIET)
    loader = DataLoader(samples(), batch_size=3)
    trainer.fit(module, loader, loader, ckpt_path=checkpoints.latest())
    save(module, folder / "weights.pt", trainer)


SEPARATION = """
data: {layout: wsj0, n_speakers: [2], crop: 0.4, dynamic: true, samples_per_epoch: 8}
model: {n_outputs: 2, n_filters: 8, segment_size: 20, hidden_size: 6, n_blocks: 1}
objective: {rule: amcl, temperature: 0.5, annealing_epochs: 4}
training: {epochs: 3, batch_size: 2, learning_rate: 0.01, ema: 0.9}
"""


def separation(at):
    """Train a separator through the command line on two nodes."""
    recordings(at / "recordings", n_speakers=7, n_utterances=2, n_samples=4000)
    mix = ["data", "mix", str(at / "recordings"), "--out", str(at / "mixed"), "--quiet", "--counts", "tr=6,cv=4,tt=2"]
    assert main_of_torchmcl(mix) == 0
    (at / "tiny.yaml").write_text(SEPARATION)
    train = ["separation", "train", str(at / "tiny.yaml"), "--data", str(at / "mixed"), "--out", str(at / "run")]

    def work():
        assert main_of_torchmcl([*train, "--device", "cpu", "--quiet"]) == 0
        assert torch.distributed.is_initialized()

    return slurm(at, work, n_nodes=2)


def forked(output, work):
    """Return a new process that does `work` and writes what it says to a file."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except torchrun_errors.ChildFailedError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def torchrun(folder, work, *, n_nodes, n_per_node):
    """Start the agents of all nodes, and return their exit codes."""
    port = free_port()

    def agent(node):
        def start():
            config = LaunchConfig(
                min_nodes=n_nodes,
                max_nodes=n_nodes,
                nproc_per_node=n_per_node,
                run_id="test",
                rdzv_backend="static",
                rdzv_endpoint=f"127.0.0.1:{port}",
                rdzv_configs={"rank": node, "timeout": 60},
                max_restarts=0,
                monitor_interval=0.05,
                start_method="fork",
            )
            elastic_launch(config, work)()

        return start

    return codes([forked(folder / f"node-{node}.txt", agent(node)) for node in range(n_nodes)])


def slurm(folder, work, *, n_nodes):
    """Start one process on each of several nodes, with the environment that srun gives; return their exit codes."""
    port = str(free_port())

    def task(node):
        def start():
            os.environ |= {
                "SLURM_NTASKS": str(n_nodes),
                "SLURM_NNODES": str(n_nodes),
                "SLURM_NTASKS_PER_NODE": "1",
                "SLURM_JOB_NAME": "train",
                "SLURM_JOB_ID": "77",
                "SLURM_NODELIST": "127.0.0.1",
                "SLURM_PROCID": str(node),
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": str(node),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            work()

        return start

    return codes([forked(folder / f"node-{node}.txt", task(node)) for node in range(n_nodes)])


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def codes(pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def main(folder, *scenarios):
    two = {"n_nodes": 1, "n_per_node": 2}
    todo = {
        "step": lambda at: torchrun(at, lambda: one_step(at / "weights.pt"), n_nodes=2, n_per_node=2),
        "auto": lambda at: [torchrun(at, lambda: self_annealed(at), n_nodes=1, n_per_node=n)[0] for n in (1, 2)],
        "separation": separation,
        "whole": lambda at: torchrun(at, lambda: train(at, dies=False), **two),
        "killed": lambda at: torchrun(at, lambda: train(at, dies=True), **two),
        "killed resumed": lambda at: torchrun(at, lambda: train(at, dies=False), **two),
    }
    for name in scenarios:
        at = Path(folder) / name.partition(" ")[0]
        at.mkdir(exist_ok=True)
        print(f"{name}:", *todo[name](at), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
