"""Speed of public calls in two versions of the packages, each call in fresh processes of both in turn.

python -m benchmarks.speed.two_versions --before "COMMAND" [--cases NAME ...] [--out results/two-versions.json]

COMMAND starts Python with the other version, "/old/venv/bin/python" or "env PYTHONPATH=/old/src python" for example.
Each process measures the median of repeated calls; a ratio above 1 means that this version is slower.
"""

import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks._common import parser, report

_START = """
import os, statistics, sys, time, warnings
import numpy as np, torch
warnings.simplefilter("ignore")
device = os.environ["DEVICE"]
if os.environ.get("TORCHMCL_PURE"):  # the first version asked for it at the build only
    sys.modules["torchmcl.accel.native._native"] = None
import torchmcl as mcl
try:
    from torchmcl_fleet import Adam, Fleet, FleetData
except ImportError:
    from torchmcl.fleet import Adam, Fleet, FleetData

def show(run, repeats, warm_ups=2):
    times = []
    for turn in range(warm_ups + repeats):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(statistics.median(times[warm_ups:]))
"""
_STEP = """
generator = torch.Generator().manual_seed(0)
hypotheses = torch.randn({rows}, 5, 2, generator=generator).to(device).requires_grad_()
logits = torch.randn({rows}, 5, generator=generator).to(device).requires_grad_()
targets = torch.randn({rows}, 1, 2, generator=generator).to(device)
class Leaves(torch.nn.Module):
    def forward(self, inputs):
        return mcl.Predictions(hypotheses, logits)
model, batch, rule = Leaves(), mcl.Batch(targets, targets), mcl.AnnealedWTA(0.5)
def run():
    for _ in range({calls}):
        mcl.mcl_step(model, batch, rule).loss.backward()
show(run, 9)
"""
_FLEET = """
inputs = torch.rand(512, 1)
targets = torch.where(torch.rand(512, 1, 1) < 0.5, -inputs[:, None], inputs[:, None])
data = FleetData.shared(inputs, targets, n_models={models})
def run():
    make = lambda: mcl.MultiHypothesisMLP(1, 1, 5, hidden=(64, 64))
    fleet = Fleet(make, n_models={models}, rule=mcl.AnnealedWTA(0.1), device=device)
    fleet.fit(data, n_epochs={epochs}, batch_size=64, progress=False)
show(run, 3, 1)
"""
_TABLE = """
try:
    from torchmcl_tables import DensityRegressor, MCLRegressor
except ImportError:
    from torchmcl.sklearn import MCLRegressor
    from torchmcl_tables import DensityRegressor
random = np.random.default_rng(0)
X = random.normal(size=(1000, 6))
y = np.where(random.random(1000) < 0.5, X[:, 0], -X[:, 0]) + 0.1 * random.normal(size=1000)
model = {model}(random_state=0, n_epochs={epochs})
"""
_DPRNN = """
from torchmcl_speech.nn import DPRNN
model = DPRNN(n_outputs=3, n_filters=32, hidden_size=32, n_blocks=2, segment_size=50, scores=True).to(device)
batch = mcl.Batch(torch.randn(2, 8000).to(device), torch.randn(2, 2, 8000).to(device))
optimizer = torch.optim.Adam(model.parameters())
def run():
    optimizer.zero_grad()
    mcl.mcl_step(model, batch, mcl.AnnealedWTA(1.0), cost_fn=mcl.pairwise_neg_si_sdr).loss.backward()
    optimizer.step()
show(run, 5)
"""
_REGRESSOR = _TABLE.format(model="MCLRegressor", epochs=60)
_DENSITY = _TABLE.format(model="DensityRegressor", epochs=30)
_FIT, _PREDICT = "show(lambda: model.fit(X, y), 3, 1)", "model.fit(X, y)\nshow(lambda: model.predict(X), 7)"
CASES = {
    **{f"mcl_step {rows}": _STEP.format(rows=rows, calls=max(10, 6400 // rows)) for rows in (64, 4096, 65536)},
    **{f"Fleet {n}": _FLEET.format(models=n, epochs=epochs) for n, epochs in ((1, 20), (120, 5), (1280, 2))},
    "MCLRegressor.fit": _REGRESSOR + _FIT,
    "MCLRegressor.predict": _REGRESSOR + _PREDICT,
    "DensityRegressor.fit": _DENSITY + _FIT,
    "DensityRegressor.predict": _DENSITY + _PREDICT,
    "DPRNN step": _DPRNN,
}
WHOLE_PROCESSES = {"import": ["-c", "import torchmcl; torchmcl.WTA"], "--help": ["-m", "torchmcl", "--help"]}


def seconds(command: Sequence[str], name: str, variables: Sequence[str]) -> float:
    """Return the time of a case in a fresh process."""
    words = ["env", *variables, *command, *WHOLE_PROCESSES.get(name, ["-c", _START + CASES.get(name, "")])]
    start = time.perf_counter()
    run = subprocess.run(words, capture_output=True, text=True)
    spent = time.perf_counter() - start
    if run.returncode:
        raise RuntimeError(f"{name} with {shlex.join(command)}:\n{run.stderr[-2000:]}")
    return spent if name in WHOLE_PROCESSES else float(run.stdout.split()[-1])


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--before", required=True, help="command that starts Python with the other version")
    arguments.add_argument("--cases", nargs="+", choices=[*CASES, *WHOLE_PROCESSES], default=[*CASES, *WHOLE_PROCESSES])
    arguments.add_argument("--rounds", type=int, default=3, help="processes of each version (default: %(default)s)")
    options = arguments.parse_args()
    rows: list[dict[str, object]] = []
    for name in options.cases:
        for pure in ("0", "1") if name.startswith("mcl_step") else ("0",):
            variables = [f"DEVICE={options.device}", *(["TORCHMCL_PURE=1"] if pure == "1" else [])]
            commands = {"before": shlex.split(options.before), "after": [sys.executable]}
            rounds = [{key: seconds(c, name, variables) for key, c in commands.items()} for _ in range(options.rounds)]
            before, after = (statistics.median(turn[key] for turn in rounds) for key in ("before", "after"))
            rows.append({"call": name, "kernels": pure == "0", "before_s": before, "after_s": after})
            rows[-1]["ratio"] = round(after / before, 3)
            print(json.dumps(rows[-1]), file=sys.stderr)
    report("two-versions", options.device, rows, options.out)
