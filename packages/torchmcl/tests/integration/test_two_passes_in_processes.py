"""Two passes in two processes: gradients are reduced once, and are those of the whole batch."""

import pytest
import torch
from torch import nn

import torchmcl as mcl
from torchmcl.nn import EmbeddedLatent, LatentHypotheses
from torchmcl.two_pass import TwoPass

K = 3
WAYS = ({}, {"independent_rows": True})


def problem():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2 + 4, 16), nn.Tanh(), nn.Linear(16, 2))
    model = LatentHypotheses(network, K, EmbeddedLatent(K, 4)).double()
    targets = torch.randn(8, 1, 2, dtype=torch.float64)
    mask = torch.ones(8, 1, dtype=torch.bool)
    return model, mcl.Batch(torch.randn(8, 2, dtype=torch.float64), targets, mask)


def rows(batch, part):
    return mcl.Batch(*(None if value is None else value[part] for value in batch))


def gradients(model):
    return {name.removeprefix("module."): value.grad for name, value in model.named_parameters()}


def one_of_two_processes(rank, address, results):
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        found = []
        for way in WAYS:
            model, batch = problem()
            share = rows(batch, slice(4 * rank, 4 * rank + 4))
            parallel = nn.parallel.DistributedDataParallel(model)
            two_pass = TwoPass(parallel, K, latents=model.draw, **way)
            with parallel.no_sync():  # a first half-batch accumulates, as users do
                (mcl.mcl_step(two_pass, share, mcl.WTA()).loss / 2).backward()
            (mcl.mcl_step(two_pass, share, mcl.WTA()).loss / 2).backward()
            found.append(gradients(model))
            # A process without any target still takes part.
            model.zero_grad()
            none = share._replace(mask=share.mask & (rank == 0))
            mcl.mcl_step(two_pass, none, mcl.WTA()).loss.backward()
            found.append(gradients(model))
        found.append(sharded(rank))
        torch.save(found, f"{results}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def sharded(rank):
    """Return the gradients of a model whose parameters are sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, batch = problem()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    two_pass = TwoPass(model, K, latents=model.draw)
    mcl.mcl_step(two_pass, rows(batch, slice(4 * rank, 4 * rank + 4)), mcl.WTA()).loss.backward()
    return {name: value.full_tensor() for name, value in gradients(model).items()}


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_gradients_are_those_of_the_whole_batch(tmp_path):
    address = (tmp_path / "meeting_point").as_uri()
    torch.multiprocessing.spawn(one_of_two_processes, args=(address, str(tmp_path)), nprocs=2)
    expected = []
    for part, factor in ((slice(0, 8), 1.0), (slice(0, 4), 0.5)):
        model, batch = problem()
        (factor * mcl.mcl_step(model, rows(batch, part), mcl.WTA()).loss).backward()
        expected.append(gradients(model))
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for each, other in zip(found, [*expected, *expected, expected[0]], strict=True):
            torch.testing.assert_close(each, other, rtol=0, atol=1e-10)
