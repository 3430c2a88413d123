"""What recording costs: a plain training loop with and without the recorder, and a fleet.

python benchmarks/recorder.py [--device cpu|cuda] [--steps 400] [--out ...]

Times are those of the processor on CPUs. The network is that of the paper's synthetic study: 256-256, 49 hypotheses,
1000 points a step. Both loops take turns, a block of steps each, so that a busy moment hits both; the extra time is
the median over pairs of blocks.
"""

import statistics
import time

import torch

import torchmcl as mcl
from _common import parser, report
from torchmcl.data import conditional_three_gaussians
from torchmcl.fleet import Fleet, FleetRecorder, SampledData
from torchmcl.loop import Recorder

_BLOCK = 20


def clock(device: str) -> float:
    """Return seconds: of the processor on CPUs, so that what else runs there does not count, of the wall on GPUs."""
    return time.process_time() if device == "cpu" else time.perf_counter()


class Loop:
    """A training loop that can be run block by block."""

    def __init__(self, device: str, recorder: Recorder | None, probed: bool) -> None:
        self.device = device
        self.model = mcl.MultiHypothesisMLP(1, 2, 49, output_activation=torch.tanh).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 10_000))
        self.batch = mcl.Batch(*(None if p is None else p.to(device) for p in conditional_three_gaussians(1000)))
        probes = torch.tensor([[0.1], [0.6], [0.9]], device=device)
        self.recorder = Recorder(model=self.model, probes=probes) if probed else recorder
        self.step = 0

    def block(self) -> float:
        """Run some steps; return the seconds of one."""
        start = clock(self.device)
        for _ in range(_BLOCK):
            rule = self.cooling(self.step)
            output = mcl.mcl_step(self.model, self.batch, rule)
            self.optimizer.zero_grad()
            output.loss.backward()
            self.optimizer.step()
            if self.recorder is not None:
                self.recorder(self.step, output, rule)
            self.step += 1
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (clock(self.device) - start) / _BLOCK


def fleet_seconds(device: str, *, recorded: bool, n_epochs: int = 10) -> float:
    """Return the time of a fleet of two: 10 steps of 500 points an epoch, recorded on half as many held-out points."""
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(1, 2, 49, output_activation=torch.tanh),
        2,
        rule=mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, n_epochs)),
        device=device,
    )
    held_out = conditional_three_gaussians(2500)
    recorder = FleetRecorder(fleet, n_epochs, data=held_out, probes=torch.tensor([[0.5]]))
    start = clock(device)
    fleet.fit(
        SampledData(conditional_three_gaussians, 5000, 2),
        n_epochs,
        batch_size=500,
        after_epoch=recorder if recorded else lambda *_: None,
        models_at_once=2,
        progress=False,
    )
    return clock(device) - start


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=400)
    options = arguments.parse_args()
    device = options.device
    rows = []
    for name, recorder, probed in (
        ("every step, no probes", Recorder(every=1), False),
        ("every 10th step (default), no probes", Recorder(), False),
        ("every 10th step (default), 3 probes", None, True),
    ):
        plain, watched = Loop(device, None, False), Loop(device, recorder, probed)
        plain.block(), watched.block()  # warm-up
        pairs = [(plain.block(), watched.block()) for _ in range(max(options.steps // _BLOCK, 3))]
        before = statistics.median(pair[0] for pair in pairs)
        extra = statistics.median(pair[1] / pair[0] - 1 for pair in pairs)
        rows.append({"setting": name, "plain_ms": before * 1e3, "extra_percent": 100 * extra})
    fleet_seconds(device, recorded=True, n_epochs=1)  # warm-up
    turns = [(fleet_seconds(device, recorded=False), fleet_seconds(device, recorded=True)) for _ in range(3)]
    extra = statistics.median(pair[1] / pair[0] - 1 for pair in turns)
    rows.append(
        {
            "setting": "fleet, every 10th epoch (default) of 5000 points, 2500 held-out points",
            "extra_percent": 100 * extra,
        }
    )
    rows.append({"must_show": "default settings: extra_percent < 3"})
    report("recorder", device, rows, options.out)
