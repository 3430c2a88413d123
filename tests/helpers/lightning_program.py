"""Samples, networks and samplers for tests of Lightning trainings in one process or several."""

from functools import partial

import torch

import torchmcl as mcl

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
PLATEAU = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, factor=0.5, patience=0)


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
