"""Separation: the training step, what cost and matching take of it, and PIT against MCL against aMCL as they grow.

python benchmarks/separation.py [--device cpu|cuda] [--parts step,share,matching] [--out results/separation-cpu.json]

step: time and peak memory of one step at batch 22 of 5 s, in TF32 and bf16, ours and the plain layout, by the
functions of dprnn.py; on a GPU only.
share: pairwise SI-SDR, matching, loss and their gradients, alone and as a share of the step of DPRNN under the same
rule, for m = n up to 20. Alone they are a hundred small kernels that wait for Python; in a step they are launched
while the forward pass still runs. So a second share has the work itself, replayed as a CUDA graph. On
a CPU one short signal, and one step (under aMCL) for all rules; the rows say so.
matching: the same with m = n from 2 to 256 and without a network, on synthetic signals of 5 s, shortened where they
would not fit; the rows say so.
"""

import json
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import torchmcl as mcl
from _common import captured, in_turn_milliseconds, milliseconds, parser, report
from dprnn import ANNEALED, GRAPHS, RATE, STEPS, agreement_row, allow_tf32, graphs_row, half, step_of, step_row
from torchmcl_speech.nn import DPRNN

RULES = (mcl.WTA(), ANNEALED, mcl.PIT(), mcl.Sinkhorn(0.1))
SECONDS = 5.0
# Batch of the steps and seconds of their signals: the paper's on a GPU; a CPU would take minutes for one step of it.
STEP_SIZES = {"cuda": (22, SECONDS), "cpu": (1, 0.25)}
# Samples in a batch without a network, and the maximum bytes of its hypotheses.
MATCHING_BATCH, MATCHING_BYTES = {"cuda": 22, "cpu": 4}, {"cuda": 4e9, "cpu": 32e6}


def name_of(rule: mcl.AssignmentRule) -> str:
    """Return how the rows call a rule."""
    return type(rule).__name__


def loss_of(
    hypotheses: Tensor, targets: Tensor, rule: mcl.AssignmentRule, dtype: torch.dtype | None = None
) -> Callable[[], object]:
    """Return a function that computes cost, matching, loss, and the gradient of the hypotheses."""
    leaf = hypotheses.detach().requires_grad_()
    batch = mcl.Batch(targets, targets)

    def run() -> None:
        with torch.autocast(leaf.device.type, dtype=dtype or half, enabled=dtype is not None):
            predictions = mcl.Predictions(leaf)
            loss = mcl.mcl_step(lambda _: predictions, batch, rule, cost_fn=mcl.pairwise_neg_si_sdr).loss
        torch.autograd.grad(loss, leaf)

    return run


def share_rows(n: int, device: str) -> list[dict[str, object]]:
    """Return, for each rule, the time of the loss and of the step it is part of, with n speakers and n outputs."""
    batch, seconds = STEP_SIZES[device]
    dtype = half if device == "cuda" else None
    model = DPRNN(n_outputs=n).to(device)
    sources = torch.randn(batch, n, int(seconds * RATE), device=device)
    with torch.no_grad(), torch.autocast(device, dtype=dtype or half, enabled=dtype is not None):
        hypotheses = model(sources.sum(dim=1)).hypotheses
    rows: list[dict[str, object]] = []
    step_ms = {}
    for rule in RULES if device == "cuda" else [ANNEALED]:
        step = step_of(model, batch, seconds, dtype, rule, device)
        step_ms[rule] = milliseconds(step, device, 11 if device == "cuda" else 3)
    losses = {name_of(rule): loss_of(hypotheses, sources, rule, dtype) for rule in RULES}
    for rule, loss_ms in zip(RULES, in_turn_milliseconds(losses, device).values(), strict=True):
        of_rule = rule if rule in step_ms else ANNEALED
        row: dict[str, object] = {"what": "share of the step", "rule": name_of(rule), "speakers": n, "outputs": n}
        row |= {"batch": batch, "seconds": seconds, "type": "bf16" if dtype else "float32"}
        row |= {"loss_ms": loss_ms, "step_ms": step_ms[of_rule], "step_rule": name_of(of_rule)}
        row["share"] = loss_ms / step_ms[of_rule]
        if device == "cuda":
            row["replayed_ms"] = milliseconds(captured(losses[name_of(rule)]), device)
            row["replayed_share"] = row["replayed_ms"] / step_ms[of_rule]
        rows.append(row)
    return rows


def matching_row(n: int, device: str) -> dict[str, object]:
    """Return the time of each rule with n targets and n hypotheses: alone, and with cost, loss and gradient."""
    batch = MATCHING_BATCH[device]
    length = min(int(SECONDS * RATE), int(MATCHING_BYTES[device] / (4 * batch * n)))
    targets = torch.randn(batch, n, length, device=device)
    hypotheses = torch.randn_like(targets)  # no order to be found, as before training: what PIT solves slowest
    cost = mcl.pairwise_neg_si_sdr(hypotheses=hypotheses, targets=targets)
    row: dict[str, object] = {"what": "matching without a network", "targets": n, "hypotheses": n, "batch": batch}
    row |= {"seconds": length / RATE, "shortened": length < int(SECONDS * RATE)}
    alone = {f"{name_of(rule)}_alone_ms": lambda rule=rule: rule(cost) for rule in RULES}
    whole = {f"{name_of(rule)}_ms": loss_of(hypotheses, targets, rule) for rule in RULES}
    row |= in_turn_milliseconds(alone, device)
    row |= in_turn_milliseconds(whole, device) if device == "cuda" else in_turn_milliseconds(whole, device, 7, 1)
    return row


def rows_of(part: str, device: str, sizes: Sequence[int]) -> list[dict[str, object]]:
    """Return the rows of one part, printed as they come."""
    if part == "step":
        if device != "cuda":
            return [{"what": "training step", "left_out": "it is measured on a GPU"}]
        made = [lambda: [agreement_row()]]
        made += [lambda step=step: [step_row(step[0], step[1], dtype=step[2])] for step in STEPS]
        made += [lambda step=step: [graphs_row(*step)] for step in GRAPHS]
        must_show = "bf16: at most 170 ms and 12 GB, outputs within 1e-2"
    elif part == "share":
        made = [lambda n=n: share_rows(n, device) for n in sizes if n <= 20]
        must_show = "share < 0.02 for m = n up to 20"
    else:
        made = [lambda n=n: [matching_row(n, device)] for n in sizes]
        must_show = "PIT, MCL (WTA) and aMCL (AnnealedWTA) for m = n from 2 to 256"
    rows = []
    for make in made:
        rows += make()
        print(json.dumps(rows[-1]), flush=True)
    return [*rows, {"part": part, "must_show": must_show}]


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--parts", default="step,share,matching", help="which ones, separated by commas")
    arguments.add_argument("--sizes", default="2,3,5,10,20,32,64,128,256", help="numbers of speakers and outputs")
    options = arguments.parse_args()
    torch.manual_seed(0)
    allow_tf32()
    sizes = [int(size) for size in options.sizes.split(",")]
    rows = [row for part in options.parts.split(",") for row in rows_of(part, options.device, sizes)]
    report("separation", options.device, rows, options.out)
