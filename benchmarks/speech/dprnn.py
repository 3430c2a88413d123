"""DPRNN on a GPU: the bidirectional LSTM layer, the training step, inference, and their scaling.

python -m benchmarks.speech.dprnn [--quick] [--profile] [--only fused] [--out benchmarks/results/dprnn-h200.json]

Each figure is a median over runs timed by device events, with the plain version (nn.LSTM of cuDNN, copies between
the two paths, torch's group norm) in the same run, and the floors of arithmetic and of memory beside it. The step is
the paper's: batch 22 of 5 s at 8 kHz, negative SI-SDR, gradient clipping, Adam.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import torchmcl as mcl
from benchmarks._common import captured, parser, report
from torchmcl.loop import CUDAGraphModel
from torchmcl_speech.nn import DPRNN, BiLSTM, FusedBiLSTM

RATE = 8000
ANNEALED = mcl.AnnealedWTA(0.1)
# What the card does at best: dense bfloat16 products and reading memory.
PEAK_FLOPS, PEAK_BYTES = 790e12, 4.0e12


class PlainPath(nn.Module):
    """One path of a block as it is usually written: features before time, copies on both sides of the LSTM."""

    def __init__(self, width: int, hidden: int, across: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(2 * hidden, width)
        self.norm = nn.GroupNorm(1, width, eps=1e-8)
        self.across = across

    def forward(self, features: Tensor) -> Tensor:
        """Return [batch, width, time, segments] for the same."""
        width = features.shape[1]
        order = (0, 2, 3, 1) if self.across else (0, 3, 2, 1)
        sequences = features.permute(*order).contiguous()
        flat = sequences.view(-1, sequences.shape[2], width)
        update = self.linear(self.lstm(flat)[0]).view(sequences.shape)
        back = (0, 3, 1, 2) if self.across else (0, 3, 2, 1)
        return features + self.norm(update.permute(*back).contiguous())


class PlainBlocks(nn.Module):
    """The blocks of DPRNN in that layout, between ours on both sides."""

    def __init__(self, width: int, hidden: int, n_blocks: int) -> None:
        super().__init__()
        self.paths = nn.Sequential(*(PlainPath(width, hidden, across=i % 2 == 1) for i in range(2 * n_blocks)))

    def forward(self, segments: Tensor) -> Tensor:
        """Return [batch, segments, time, width] for the same."""
        out: Tensor = self.paths(segments.permute(0, 3, 2, 1).contiguous())
        return out.permute(0, 3, 2, 1).contiguous()


def plain_model(n_outputs: int = 2, hidden: int = 128) -> DPRNN:
    """Return DPRNN with plain blocks."""
    model = DPRNN(n_outputs=n_outputs, hidden_size=hidden, bilstm=BiLSTM)
    model.blocks = PlainBlocks(hidden, hidden, 6)
    return model


half = torch.bfloat16
# cuDNN's LSTM keeps most of its memory for the backward pass; of one block in six that can be computed again instead.
# The steps to compare: the model, its name, and the type of autocast; float32 uses TF32 where it can.
STEPS: tuple[tuple[Callable[[], DPRNN], str, torch.dtype | None], ...] = (
    (DPRNN, "fused", half),
    (lambda: DPRNN(bilstm=BiLSTM), "cuDNN LSTM, our layout", half),
    (lambda: DPRNN(bilstm=BiLSTM, recompute=1), "cuDNN LSTM, our layout, one block recomputed", half),
    (plain_model, "plain", half),
    (lambda: DPRNN(bilstm=BiLSTM), "cuDNN LSTM, our layout", None),
    (plain_model, "plain", None),
)
# Those that are replayed as CUDA graphs, in bfloat16, with batch and seconds.
GRAPHS: tuple[tuple[Callable[[], DPRNN], str, int, float], ...] = (
    (DPRNN, "fused", 22, 5.0),
    (DPRNN, "fused", 16, 3.0),
    (lambda: DPRNN(bilstm=BiLSTM), "cuDNN LSTM, our layout", 22, 5.0),
    (lambda: DPRNN(bilstm=BiLSTM, recompute=1), "cuDNN LSTM, our layout, one block recomputed", 22, 5.0),
)


def allow_tf32() -> None:
    """Let products and cuDNN in float32 use TF32."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def median_ms(work: Callable[[], object], n_runs: int = 10) -> float:
    """Return the median time of a call in milliseconds."""
    for _ in range(3):
        work()
    times = []
    for _ in range(n_runs):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def layer_row(n_outer: int, n_inner: int, n_steps: int, hidden: int) -> dict:
    """Compare the LSTM layers, forward and backward, in bfloat16."""
    size = (n_outer, n_inner, n_steps)
    inputs = torch.randn(*size, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    pull = torch.randn(*size, 2 * hidden, device="cuda", dtype=torch.bfloat16)
    row: dict = {"what": "BiLSTM layer, forward + backward, bf16", "sequences": n_outer * n_inner}
    row |= {"steps": n_steps, "hidden": hidden}
    for name, kind in (("fused", FusedBiLSTM), ("cudnn", BiLSTM)):
        layer = kind(hidden, hidden).cuda().bfloat16()
        row[f"{name}_forward_ms"] = median_ms(lambda layer=layer: layer(inputs))
        row[f"{name}_ms"] = median_ms(lambda layer=layer: layer(inputs).backward(pull))
    alone = FusedBiLSTM(hidden, hidden).cuda().bfloat16()

    def fresh_gradients() -> None:
        for leaf in (inputs, *alone.parameters()):
            leaf.grad = None
        alone(inputs).backward(pull)

    # As a captured training step runs it: without waiting for Python's launches.
    row["fused_captured_ms"] = median_ms(captured(fresh_gradients))
    n_rows = n_outer * n_inner * n_steps
    flops = 3 * 2 * n_rows * 2 * 4 * hidden * 2 * hidden  # forward, and twice that backward
    n_bytes = 2 * n_rows * hidden * (1 + 4 + 2 + 1 + 8 * 7)  # inputs, outputs, cells, and seven passes over the gates
    row |= {"flop_floor_ms": flops / PEAK_FLOPS * 1e3, "byte_floor_ms": n_bytes / PEAK_BYTES * 1e3}
    return row | {"ratio": row["cudnn_ms"] / row["fused_ms"]}


def step_of(
    model: DPRNN,
    batch: int,
    seconds: float,
    dtype: torch.dtype | None,
    rule: mcl.AssignmentRule = ANNEALED,
    device: str = "cuda",
    *,
    as_graphs: bool = False,
) -> Callable[[], object]:
    """Return a function that takes one training step, the passes of the model launched or replayed as CUDA graphs."""
    length = int(seconds * RATE)
    sources = torch.randn(batch, model.n_outputs, length, device=device)
    data = mcl.Batch(sources.sum(dim=1), sources)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    called = CUDAGraphModel(model) if as_graphs else model

    def step() -> None:
        with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = mcl.mcl_step(called, data, rule, cost_fn=mcl.pairwise_neg_si_sdr).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return step


def step_row(
    make: Callable[[], DPRNN],
    name: str,
    batch: int = 22,
    seconds: float = 5.0,
    dtype: torch.dtype | None = None,
    *,
    as_graphs: bool = False,
) -> dict:
    """Return time and peak memory of a training step."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = make().cuda()
    row = {"what": "training step", "model": name, "batch": batch, "seconds": seconds, "outputs": model.n_outputs}
    row |= {"type": "bf16" if dtype else "float32 (TF32)", "hidden": model.config["hidden_size"]}
    row["ms"] = median_ms(step_of(model, batch, seconds, dtype, as_graphs=as_graphs))
    row["peak_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    frames = seconds * RATE / model.stride
    n_rows = batch * frames * 2  # each frame is in two segments
    hidden = model.config["hidden_size"]
    flops = 12 * 3 * 2 * n_rows * (2 * 4 * hidden * 2 * hidden + 2 * hidden * hidden)
    n_bytes = 12 * n_rows * hidden * 2 * (64 + 20)
    return row | {"flop_floor_ms": flops / PEAK_FLOPS * 1e3, "byte_floor_ms": n_bytes / PEAK_BYTES * 1e3}


def graphs_row(make: Callable[[], DPRNN], name: str, batch: int, seconds: float) -> dict:
    """Return time and peak memory of a training step in bfloat16 whose passes are replayed as CUDA graphs."""
    return step_row(make, f"{name}, as CUDA graphs", batch, seconds, half, as_graphs=True)


def agreement_row() -> dict:
    """Return the difference between outputs in bfloat16 and outputs of cuDNN in float32, for the same weights."""
    torch.manual_seed(0)
    ours = DPRNN().cuda()
    exact = DPRNN(bilstm=BiLSTM).cuda()
    exact.load_state_dict(ours.state_dict())
    waveform = torch.randn(2, 5 * RATE, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        mine = ours(waveform).hypotheses
        theirs = exact(waveform).hypotheses
    with torch.no_grad():
        right = exact(waveform).hypotheses

    def distance(a: Tensor, b: Tensor) -> float:
        return float((a - b).norm() / b.norm())

    return {
        "what": "relative error of the outputs",
        "fused_bf16_to_float32": distance(mine, right),
        "cudnn_bf16_to_float32": distance(theirs, right),
        "fused_bf16_to_cudnn_bf16": distance(mine, theirs),
    }


# What our kernels read and write for each row, in multiples of hidden units: with 8 for the gates of both directions.
WIDTHS = {"_forward": 16 + 4, "_backward": 16 + 4, "_weight_sums": 8 + 3, "_affine": 3, "_sums": 1.5}


def profile_rows(n_shown: int = 24, n_runs: int = 3) -> list[dict]:
    """Return the time of each kernel of the training step, its fraction, and the minimum time to move its bytes."""
    model = DPRNN().cuda()
    step = step_of(model, 22, 5.0, half, as_graphs=True)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(n_runs):
            step()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name, []).append(event.device_time / 1e3)
    total = sum(map(sum, times.values()))
    n_hidden = 22 * 101 * 100 * model.config["hidden_size"]
    rows = []
    for name, of_kernel in sorted(times.items(), key=lambda item: -sum(item[1]))[:n_shown]:
        row: dict = {"what": "kernel of the training step", "kernel": name[:80], "calls": len(of_kernel) / n_runs}
        row |= {"ms": sum(of_kernel) / n_runs, "share": sum(of_kernel) / total}
        if name in WIDTHS:
            row["byte_floor_ms"] = row["calls"] * 2 * n_hidden * WIDTHS[name] / PEAK_BYTES * 1e3
        rows.append(row)
    return [*rows, {"what": "all kernels of the training step", "ms": total / n_runs}]


def inference_row() -> dict:
    """Return the time to separate an hour of audio, in pieces of a minute."""
    model = DPRNN().cuda().eval()
    minute = torch.randn(1, 60 * RATE, device="cuda")

    def hour() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(60):
                model(minute)

    return {"what": "inference of one hour at 8 kHz, bf16", "seconds": median_ms(hour, n_runs=3) / 1e3}


if __name__ == "__main__":
    arguments: argparse.ArgumentParser = parser(__doc__)
    arguments.add_argument("--quick", action="store_true", help="leave out how time grows")
    arguments.add_argument("--profile", action="store_true", help="also the share of each kernel in the training step")
    arguments.add_argument("--only", default="", help="models to compare: those whose name begins so")
    options = arguments.parse_args()
    allow_tf32()
    rows = [layer_row(22, 101, 100, 128), agreement_row()]
    print(json.dumps(rows, indent=1), flush=True)
    if options.profile:
        shares = profile_rows()
        print(*shares, sep="\n", flush=True)
        rows += shares
    for make, name, dtype in (step for step in STEPS if step[1].startswith(options.only)):
        rows.append(step_row(make, name, dtype=dtype))
        print(rows[-1], flush=True)
    for step in (step for step in GRAPHS if step[1].startswith(options.only)):
        rows.append(graphs_row(*step))
        print(rows[-1], flush=True)
    rows.append(inference_row())
    print(rows[-1], flush=True)
    if not options.quick:
        for batch in (1, 4, 22, 88):
            rows.append(step_row(DPRNN, "fused", batch=batch, dtype=half))
            print(rows[-1], flush=True)
        for seconds in (1.0, 15.0, 60.0):
            rows.append(step_row(DPRNN, "fused", batch=4, seconds=seconds, dtype=half))
            print(rows[-1], flush=True)
        for hidden in (32, 64, 256):
            rows.append(step_row(lambda hidden=hidden: DPRNN(hidden_size=hidden), "fused", dtype=half))
            print(rows[-1], flush=True)
        for n_outputs in (5, 20):
            rows.append(step_row(lambda n=n_outputs: DPRNN(n_outputs=n), "fused", dtype=half))
            print(rows[-1], flush=True)
    rows.append(
        {"must_show": "layer <= 1.6 ms replayed; step <= 25 ms as graphs; less memory than cuDNN; an hour in < 10 s"}
    )
    report("dprnn", "cuda", rows, options.out or Path("benchmarks/results/dprnn-h200.json"))
