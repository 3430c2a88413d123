"""Time and memory of the costs of sequences and distributions against the obvious loop over the modes.

python benchmarks/sequences.py [--device cpu|cuda] [--out results/sequences-cpu.json]
"""

import functools
import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

import torchmcl as mcl
from _common import captured, milliseconds, parser, peak_extra_megabytes, report

N_SAMPLES, N_MODES, N_STEPS, DIM = 80, 64, 80, 2
N_ROUNDS = 60

Cost = Callable[[Tensor, Tensor, Tensor], Tensor]


def data(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hypotheses, scales, targets and a mask of steps, in which most targets end early and some steps miss."""
    hypotheses = torch.randn(N_SAMPLES, N_MODES, N_STEPS, DIM, device=device)
    scale = torch.rand_like(hypotheses) + 0.3
    targets = torch.randn(N_SAMPLES, 1, N_STEPS, DIM, device=device)
    ends = torch.randint(1, N_STEPS + 1, (N_SAMPLES, 1, 1), device=device)
    mask = (torch.arange(N_STEPS, device=device) < ends) & (torch.rand(N_SAMPLES, 1, N_STEPS, device=device) > 0.1)
    return hypotheses, scale, targets, mask


def over_modes(
    one_mode: Callable[..., Tensor], hypotheses: Tensor, targets: Tensor, mask: Tensor, *more: Tensor
) -> Tensor:
    """Return the costs [samples, 1, modes] by a loop over the modes."""
    parts = [one_mode(hypotheses[:, k], targets[:, 0], mask[:, 0], *(m[:, k] for m in more)) for k in range(N_MODES)]
    return torch.stack(parts, dim=-1).unsqueeze(1)


def loop_ade(location: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return the mean distance of one mode over real steps."""
    distances = torch.linalg.vector_norm(location - target, dim=-1)
    return (distances * mask).sum(dim=-1) / mask.sum(dim=-1).clamp_min(1)


def loop_sq_ade(location: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return the mean squared distance of one mode over real steps."""
    return (((location - target) ** 2).sum(dim=-1) * mask).sum(dim=-1) / mask.sum(dim=-1).clamp_min(1)


def loop_fde(location: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return the distance of one mode at the last real step."""
    distances = torch.linalg.vector_norm(location - target, dim=-1)
    steps = torch.arange(N_STEPS, device=mask.device)
    last = (steps * mask).argmax(dim=-1, keepdim=True)
    return distances.gather(-1, last).squeeze(-1) * mask.any(dim=-1)


def loop_gaussian(location: Tensor, target: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
    """Return the negative log-density of one mode, a sum over real steps."""
    nll = ((target - location) / scale) ** 2 / 2 + scale.log() + math.log(2 * math.pi) / 2
    return (nll.sum(dim=-1) * mask).sum(dim=-1)


def loop_laplace(location: Tensor, target: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
    """Return the negative log-density of one mode, a sum over real steps."""
    nll = (target - location).abs() / scale + scale.log() + math.log(2)
    return (nll.sum(dim=-1) * mask).sum(dim=-1)


def costs() -> Mapping[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]:
    """Return our cost and that of one mode for each name."""
    likelihoods = [functools.partial(fn, event_dims=2) for fn in (mcl.pairwise_gaussian_nll, mcl.pairwise_laplace_nll)]
    return {
        "pairwise_ade": (mcl.pairwise_ade, loop_ade),
        "pairwise_fde": (mcl.pairwise_fde, loop_fde),
        "pairwise_sq_ade": (mcl.pairwise_sq_ade, loop_sq_ade),
        "pairwise_gaussian_nll": (likelihoods[0], loop_gaussian),
        "pairwise_laplace_nll": (likelihoods[1], loop_laplace),
    }


def compared(name: str, device: str, *, backward: bool) -> dict[str, object]:
    """Return time and memory of one cost, and of its loop over the modes."""
    hypotheses, scale, targets, mask = data(device)
    ours_fn, one_mode = costs()[name]
    leaves = (hypotheses, scale) if "nll" in name else (hypotheses,)
    for leaf in leaves:
        leaf.requires_grad_(backward)
    named = {"scale": scale} if "nll" in name else {}
    upstream = torch.rand(N_SAMPLES, 1, N_MODES, device=device)

    def ours() -> None:
        finish(ours_fn(hypotheses=hypotheses, targets=targets, mask=mask, **named))

    def loop() -> None:
        finish(over_modes(one_mode, hypotheses, targets, mask, *leaves[1:]))

    def finish(cost: Tensor) -> None:
        if backward:
            torch.autograd.grad(cost, leaves, upstream)

    difference = ours_fn(hypotheses=hypotheses, targets=targets, mask=mask, **named) - over_modes(
        one_mode, hypotheses, targets, mask, *leaves[1:]
    )
    assert difference.abs().max() < 1e-3, name
    our_ms, loop_ms, extra = times(ours, loop, device)
    our_mb, loop_mb = peak_extra_megabytes(ours, device), peak_extra_megabytes(loop, device)
    return {
        "name": name,
        "passes": "forward and backward" if backward else "forward",
        "baseline": "loop over the modes",
        "ours_ms": our_ms,
        "baseline_ms": loop_ms,
        "time_ratio": our_ms / loop_ms,
        "ours_megabytes": our_mb,
        "baseline_megabytes": loop_mb,
        "memory_ratio": our_mb / loop_mb,
        "inputs_megabytes": sum(leaf.numel() * leaf.element_size() for leaf in leaves) / 1e6,
        **extra,
        # Without a gradient a loop holds one mode at a time, 1 / 64 of the inputs: there only the time is compared.
        "must_show": "time_ratio <= 0.5, memory_ratio <= 0.5" if backward else "time_ratio <= 0.5",
    }


def times(ours: Callable[[], None], loop: Callable[[], None], device: str) -> tuple[float, float, dict[str, float]]:
    """Return the shortest time of each of many calls in turn: of the process on a CPU, of the device on a GPU."""
    extra = {}
    if device == "cuda":
        extra = {"ours_launched_ms": milliseconds(ours, device), "baseline_launched_ms": milliseconds(loop, device)}
        ours, loop = captured(ours), captured(loop)
    measured: tuple[list[float], list[float]] = ([], [])
    for _ in range(N_ROUNDS):
        for run, found in zip((ours, loop), measured, strict=True):
            found.append(milliseconds(run, device, 1, 0) if device == "cuda" else process_milliseconds(run))
    return min(measured[0]), min(measured[1]), extra


def process_milliseconds(run: Callable[[], None]) -> float:
    """Return the time that this process spent in a call, which other processes do not lengthen."""
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1e3


if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = [compared(name, options.device, backward=backward) for name in costs() for backward in (False, True)]
    sizes = {"samples": N_SAMPLES, "modes": N_MODES, "steps": N_STEPS, "dim": DIM}
    report("sequences", options.device, [row | sizes for row in rows], options.out)
