"""Time and memory of costs, rules, loss and scores against the obvious broadcast implementation.

python -m benchmarks.speed.core [--device cpu|cuda] [--load "..."] [--out results/core-cpu.json]
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import torchmcl as mcl
from benchmarks._common import captured, compared_milliseconds, milliseconds, parser, peak_extra_megabytes, report


def synthetic_setting(device: str) -> dict[str, object]:
    """B=65 536, T=1, K=49, D=2: forward and backward of cost, annealed rule, loss and scores."""
    n_batch, n_hypotheses, temperature = 65_536, 49, 0.3
    hypotheses = torch.randn(n_batch, n_hypotheses, 2, device=device, requires_grad=True)
    logits = torch.randn(n_batch, n_hypotheses, device=device, requires_grad=True)
    targets = torch.randn(n_batch, 1, 2, device=device)
    rule = mcl.AnnealedWTA(temperature)

    def ours() -> None:
        loss = mcl.mcl_step(lambda _: mcl.Predictions(hypotheses, logits), mcl.Batch(targets, targets), rule).loss
        torch.autograd.grad(loss, (hypotheses, logits))

    def broadcast() -> None:
        cost = ((hypotheses[:, None] - targets[:, :, None]) ** 2).sum(-1)
        weights = torch.softmax(-cost.detach() / temperature, dim=-1)
        loss = (weights * cost).sum(-1).mean()
        labels = F.one_hot(cost.argmin(-1), n_hypotheses).float().mean(1)
        loss = loss + F.binary_cross_entropy_with_logits(logits, labels)
        torch.autograd.grad(loss, (hypotheses, logits))

    # Floor: read hypotheses, targets and logits, write both gradients; and cost and weights, which the step returns.
    n_bytes = 4 * (2 * (hypotheses.numel() + logits.numel()) + targets.numel())
    returned = n_bytes + 2 * 4 * logits.numel()
    row = compare("step, B=65536 T=1 K=49 D=2", ours, broadcast, device)
    rate = bandwidth(device)
    return row | {
        "floor_megabytes_moved": n_bytes / 1e6,
        "bandwidth_gigabytes_per_second": rate / 1e9,
        "floor_ms": 1e3 * n_bytes / rate,
        "floor_ms_with_cost_and_weights": 1e3 * returned / rate,
        "must_show": "time_ratio <= 0.4, memory_ratio <= 0.5",
    }


def si_sdr(device: str) -> dict[str, object]:
    """B=22, T=K=10, 40 000 samples: forward and backward of the negative SI-SDR."""
    hypotheses = torch.randn(22, 10, 40_000, device=device, requires_grad=True)
    targets = torch.randn(22, 10, 40_000, device=device)

    def ours() -> None:
        loss = mcl.pairwise_neg_si_sdr(hypotheses=hypotheses, targets=targets).sum()
        torch.autograd.grad(loss, hypotheses)

    def broadcast() -> None:
        torch.autograd.grad(broadcast_neg_si_sdr(hypotheses, targets).sum(), hypotheses)

    row = compare("pairwise_neg_si_sdr, B=22 T=K=10, 40000 samples", ours, broadcast, device)
    n_bytes = (2 * hypotheses.numel() + targets.numel()) * 4
    return row | {"floor_megabytes_moved": n_bytes / 1e6, "must_show": "time_ratio <= 0.125, memory_ratio <= 0.2"}


def broadcast_neg_si_sdr(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the textbook formula on [..., targets, hypotheses, samples]."""
    estimate, target = hypotheses[:, None], targets[:, :, None]
    scale = (estimate * target).sum(-1, keepdim=True) / (target**2).sum(-1, keepdim=True)
    projection = scale * target
    noise = projection - estimate
    return -10 * torch.log10((projection**2).sum(-1) / (noise**2).sum(-1))


def bandwidth(device: str) -> float:
    """Return the bytes per second of a copy, read and written."""
    n_bytes = 1 << 28
    source = torch.ones(n_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / (1e-3 * milliseconds(lambda: target.copy_(source), device))


def compare(name: str, ours: Callable[[], None], baseline: Callable[[], None], device: str) -> dict[str, object]:
    """Return time and memory of both, and their ratios."""
    extra = {}
    our_ms, base_ms = compared_milliseconds(ours, baseline, device)
    if device == "cuda":
        # Launched one by one, kernels of a few microseconds wait for Python; training loops capture or compile them.
        extra = {"ours_launched_ms": our_ms, "baseline_launched_ms": base_ms}
        our_ms, base_ms = compared_milliseconds(captured(ours), captured(baseline), device)
    our_mb, base_mb = peak_extra_megabytes(ours, device), peak_extra_megabytes(baseline, device)
    return {
        "name": name,
        "baseline": "obvious broadcast",
        "ours_ms": our_ms,
        "baseline_ms": base_ms,
        "time_ratio": our_ms / base_ms,
        "ours_megabytes": our_mb,
        "baseline_megabytes": base_mb,
        "memory_ratio": our_mb / base_mb,
        **extra,
    }


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--load", default="", help="what else ran on the machine, for the record")
    options = arguments.parse_args()
    torch.manual_seed(0)
    rows = [setting(options.device) for setting in (synthetic_setting, si_sdr)]
    report("core", options.device, [*rows, {"load": options.load}] if options.load else rows, options.out)
