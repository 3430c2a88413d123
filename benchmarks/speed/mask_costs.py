"""Time and memory of BCE + dice and of aligned distances over all pairs, against loops over the pairs.

python -m benchmarks.speed.mask_costs --out out/mask_costs.json
"""

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import torchmcl as mcl
from torchmcl.costs import SumOfCosts, pairwise_mask_bce, pairwise_rmsd

N_SAMPLES, N_TARGETS, N_HYPOTHESES, SIZE = 4, 5, 16, 128
N_POINTS = 200
MASKS = SumOfCosts([(1.0, pairwise_mask_bce), (1.0, mcl.pairwise_dice)])


def bce_and_dice(logits: Tensor, target: Tensor) -> Tensor:
    """Return the loss of broadcast pairs of masks, as commonly written."""
    logits, target = logits.float(), target.float()
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean((-2, -1))
    inside = logits.sigmoid()
    overlap, total = (inside * target).sum((-2, -1)), inside.sum((-2, -1)) + target.sum((-2, -1))
    return bce + 1 - (2 * overlap + 1) / (total + 1)


def kabsch(left: Tensor, right: Tensor) -> Tensor:
    """Return the root mean squared distance of broadcast pairs of shapes after the best motion."""
    left, right = left - left.mean(-2, keepdim=True), right - right.mean(-2, keepdim=True)
    u, _, vh = torch.linalg.svd(left.mT @ right)
    signs = torch.ones(*u.shape[:-2], 3, device=u.device)
    signs[..., -1] = torch.linalg.det(u @ vh).sign()
    return (left @ (u * signs.unsqueeze(-2)) @ vh - right).square().sum(-1).mean(-1).sqrt()


def looped(loss: Callable[[Tensor, Tensor], Tensor], h: Tensor, t: Tensor) -> Tensor:
    """Return a loss of every pair, one pair at a time."""
    rows = [[loss(h[:, k], t[:, i]) for k in range(h.shape[1])] for i in range(t.shape[1])]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=1)


def broadcast(h: Tensor, t: Tensor) -> Tensor:
    """Return the loss of all pairs of masks at once."""
    return bce_and_dice(*torch.broadcast_tensors(h.unsqueeze(1), t.unsqueeze(2)))


WAYS = {
    "masks, all pairs at once": broadcast,
    "masks, a loop over the pairs": lambda h, t: looped(bce_and_dice, h, t),
    "masks, torchmcl": lambda h, t: MASKS(hypotheses=h, targets=t),
    "shapes, a loop over the pairs": lambda h, t: looped(kabsch, h, t),
    "shapes, torchmcl": lambda h, t: pairwise_rmsd(hypotheses=h, targets=t),
}


def peak_of(step: Callable[[], None], h: Tensor, device: str) -> int:
    """Return the largest number of bytes in tensors that a step holds at a time, including the gradient of h."""
    if device == "cuda":
        step()  # libraries allocate workspaces on first use
        h.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes, initial=0))


def measured(way: str, device: str, dtype: torch.dtype, results: object) -> None:
    """Put seconds and peak bytes of value and gradient of one way into a queue."""
    torch.manual_seed(0)
    if way.startswith("shapes"):
        h, t = torch.randn(64, N_HYPOTHESES, N_POINTS, 3), torch.randn(64, N_TARGETS, N_POINTS, 3)
    else:
        h, t = torch.randn(N_SAMPLES, N_HYPOTHESES, SIZE, SIZE), torch.rand(N_SAMPLES, N_TARGETS, SIZE, SIZE).round()
    h, t = h.to(device, dtype), t.to(device, dtype)
    h.requires_grad_()

    def step() -> None:
        h.grad = None
        WAYS[way](h, t).sum().backward()

    n_bytes, seconds = peak_of(step, h, device), []
    for _ in range(6):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    results.put((min(seconds), n_bytes))  # type: ignore[attr-defined]


def main() -> None:
    """Measure every way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    context, found = multiprocessing.get_context("spawn"), []
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        for way in WAYS:
            for dtype in (torch.float32, torch.bfloat16):
                if dtype != torch.float32 and "masks" not in way:
                    continue
                results = context.Queue()
                process = context.Process(target=measured, args=(way, device, dtype, results))
                process.start()
                seconds, n_bytes = results.get()
                process.join()
                found.append({"device": device, "way": way, "dtype": str(dtype), "seconds": seconds, "bytes": n_bytes})
                print(
                    f"{device:5} {way:32} {dtype!s:15} {1e3 * seconds:9.2f} ms {n_bytes / 2**20:9.1f} MiB", flush=True
                )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
