"""Seconds of an epoch against models, rows, hypotheses, length and outputs, with the floor of the work itself."""

import statistics
import time
from typing import Any

import torch

import torchmcl as mcl
from torchmcl.fleet import Fleet, FleetData

#: What varies, and the values; everything else stays as in `_USUAL`.
AXES: dict[str, tuple[int, ...]] = {
    "models": (1, 10, 100, 1000),
    "rows": (100, 1000, 10_000, 100_000),
    "hypotheses": (1, 10, 100, 1000),
    "length": (1, 10, 100),
    "outputs": (1, 10, 100),
}
_USUAL = {"models": 8, "rows": 277, "hypotheses": 5, "length": 0, "outputs": 1}
_N_INPUTS, _N_HIDDEN, _BATCH = 6, 50, 1024
# Seconds of a training that a busy moment does not hide.
_LONG_ENOUGH = 0.5


def ceilings(device: str) -> dict[str, float]:
    """Return the operations and bytes of a second that large products and copies reach."""
    n = 8192 if device == "cuda" else 1024
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    numbers = torch.randn((1 << 28) if device == "cuda" else (1 << 24), device=device)
    other = torch.empty_like(numbers)
    products = _shortest(lambda: torch.mm(a, b), device)
    copies = _shortest(lambda: other.copy_(numbers), device)
    return {"flops": 2 * n**3 / products, "bytes": 2 * numbers.numel() * 4 / copies}


def _shortest(work: Any, device: str) -> float:
    times = []
    for _ in range(4):
        _wait(device)
        begin = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def point(device: str, limits: dict[str, float], **varied: int) -> dict[str, float]:
    """Return the seconds of an epoch and its floor.

    The time is the difference between a longer and a shorter training, so that building and capturing do not count.
    The floor is the larger of two times: products of the forward and backward passes at the rate of large ones, and
    each row, weight and moment moved once at the rate of a copy.
    """
    size = _USUAL | varied
    n_models, n_rows, n_hypotheses = size["models"], size["rows"], size["hypotheses"]
    event = (size["length"], 2) if size["length"] else (size["outputs"],)
    n_values = event[0] * (2 if size["length"] else 1)

    def factory() -> torch.nn.Module:
        return mcl.MultiHypothesisMLP(
            _N_INPUTS, event if size["length"] else event[0], n_hypotheses, hidden=(_N_HIDDEN,)
        )

    data = FleetData.shared(torch.randn(n_rows, _N_INPUTS), torch.randn(n_rows, 1, *event), n_models)
    cost = mcl.pairwise_ade if size["length"] else mcl.pairwise_sq_euclidean
    fleet = Fleet(factory, n_models, rule=mcl.AnnealedWTA(0.5), cost_fn=cost, device=device)

    def seconds(epochs: int) -> float:
        begin = time.perf_counter()
        fleet.fit(data, epochs, batch_size=min(_BATCH, n_rows), progress=False)
        _wait(device)
        return time.perf_counter() - begin

    seconds(1)
    n_epochs = min(2000, max(4, round(_LONG_ENOUGH / max((seconds(5) - seconds(1)) / 4, 1e-4))))
    pairs = [(seconds(1), seconds(1 + n_epochs)) for _ in range(3)]
    epoch = statistics.median(long - short for short, long in pairs) / n_epochs
    n_outputs = n_hypotheses * (n_values + 1)
    products = 2 * (2 * _N_INPUTS * _N_HIDDEN + 3 * _N_HIDDEN * n_outputs) * n_rows * n_models
    n_weights = _N_HIDDEN * (_N_INPUTS + 1) + n_outputs * (_N_HIDDEN + 1)
    n_batches = -(-n_rows // _BATCH)
    moved = 4 * (n_rows * (_N_INPUTS + n_values) + 6 * n_weights * n_models * n_batches)
    return {"seconds": epoch, "floor_seconds": max(products / limits["flops"], moved / limits["bytes"])}


def growth(device: str, largest: int) -> list[dict[str, object]]:
    """Return a row for each value of each axis."""
    limits = ceilings(device)
    rows: list[dict[str, object]] = [{"axis": "ceilings", **limits}]
    for axis, values in AXES.items():
        for n in values:
            if n <= largest:
                rows.append({"axis": axis, "n": n, **point(device, limits, **{axis: n})})
                print(rows[-1], flush=True)
    return rows
