"""A small training as a program, for the tests that kill it or run it in two processes.

python lightning_program.py train FOLDER SECONDS_A_BATCH     trains six epochs, resumes from FOLDER/checkpoints
python lightning_program.py ddp FOLDER N_PROCESSES           takes one step on a joint batch, writes the weights
python lightning_program.py auto FOLDER N_PROCESSES          anneals by itself for two epochs, writes what was measured
"""

import sys
import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl.lightning import (
    Checkpoints,
    CollapseWarning,
    ExponentialAverage,
    MCLModule,
    Plateau,
    RecordWriter,
    RuleLogger,
)
from torchmcl.lightning._backend import pl

warnings.simplefilter("ignore")
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def samples(n_samples=24):
    """Return samples with one to three real targets each."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(n_samples, 3, generator=generator)
    targets = torch.randn(n_samples, 3, 2, generator=generator)
    mask = torch.arange(3) < 1 + torch.arange(n_samples).unsqueeze(-1) * 3 // n_samples
    return [mcl.Batch(x, y, m) for x, y, m in zip(inputs, targets, mask, strict=True)]


def network(dropout=0.0):
    """Return a model; dropout makes it depend on the random state."""
    torch.manual_seed(5)
    layers = [torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Dropout(dropout)]
    return torch.nn.Sequential(*layers, mcl.MultiHypothesisHead(16, 2, 4))


class Slow(pl.Callback):
    """Take one's time, so that there is some to be killed in."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_train_batch_end(self, *_):
        time.sleep(self.seconds)


def train(folder, seconds):
    """Train six epochs, or what is left of them."""
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 4))
    plateau = Plateau("val_distortion", patience=1)
    module = MCLModule(network(dropout=0.5), rule, learning_rate=0.3, plateau=plateau)
    checkpoints = Checkpoints(folder / "checkpoints")
    callbacks = [RecordWriter(folder / "records.jsonl"), RuleLogger(), CollapseWarning(), ExponentialAverage(0.9)]
    trainer = pl.Trainer(max_epochs=6, gradient_clip_val=5, callbacks=[*callbacks, checkpoints, Slow(seconds)], **QUIET)
    loader = DataLoader(samples(), batch_size=6)
    trainer.fit(module, loader, loader, ckpt_path=checkpoints.latest())
    torch.save(module.model.state_dict(), folder / "weights.pt")


class Shared(torch.utils.data.Sampler):
    """The first half of the samples for one process, the second for the other: different numbers of targets."""

    def __iter__(self):
        rank, size = (
            (torch.distributed.get_rank(), torch.distributed.get_world_size())
            if torch.distributed.is_initialized()
            else (0, 1)
        )
        n = 24 // size
        return iter(range(rank * n, (rank + 1) * n))

    def __len__(self):
        return 24 // (torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1)


def one_step(folder, n_processes):
    """Take one step of plain descent on all samples, shared by the processes."""
    module = MCLModule(
        network(), mcl.AnnealedWTA(0.5), score_weight=0.3, make_optimizer=lambda p: torch.optim.SGD(p, lr=1.0)
    )
    strategy = {"strategy": "ddp", "devices": n_processes} if n_processes > 1 else {"devices": 1}
    trainer = pl.Trainer(max_steps=1, use_distributed_sampler=False, enable_checkpointing=False, **strategy, **QUIET)
    trainer.fit(module, DataLoader(samples(), batch_size=24 // n_processes, sampler=Shared()))
    if trainer.is_global_zero:
        torch.save(module.model.state_dict(), folder / f"weights-{n_processes}.pt")


class Blocks:
    """Batches of three near and three far samples; of two processes one has all that are near."""

    def __iter__(self):
        rank, size = 0, 1
        if torch.distributed.is_initialized():
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        for start in range(0, 12, 3):
            near, far = range(start, start + 3), range(start + 12, start + 15)
            yield [*near, *far] if size == 1 else list((near, far)[rank])

    def __len__(self):
        return 4


def self_annealed(folder, n_processes):
    """Train two epochs of four steps under AutoAnnealing; the second half of the samples has far larger costs."""
    far = [mcl.Batch(x, y + 5.0 * (i >= 12)) for i, (x, y, *_) in enumerate(samples())]
    module = MCLModule(network(), AutoAnnealing(), make_optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))
    strategy = {"strategy": "ddp", "devices": n_processes} if n_processes > 1 else {"devices": 1}
    trainer = pl.Trainer(max_epochs=2, use_distributed_sampler=False, enable_checkpointing=False, **strategy, **QUIET)
    trainer.fit(module, DataLoader(far, batch_sampler=Blocks()))
    torch.save(module.course.state_dict(), folder / f"auto-{n_processes}-{trainer.global_rank}.pt")


if __name__ == "__main__":
    what, place, number = sys.argv[1:]
    if what == "train":
        train(Path(place), float(number))
    elif what == "auto":
        self_annealed(Path(place), int(number))
    else:
        one_step(Path(place), int(number))
