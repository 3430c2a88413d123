"""Functions of torchmcl.postprocess on 100 000 rows of 25 hypotheses in the plane, in seconds.

python benchmarks/after_speed.py [--device cuda] [--rows 100000] [--out results/after-speed.json]
"""

import statistics
import time
from collections.abc import Callable

import torch

import torchmcl as mcl
from _common import parser, report
from torchmcl import postprocess as after

N_HYPOTHESES, DIM = 25, 2


def seconds(run: Callable[[], object], device: str, rounds: int) -> float:
    """Return the median time of some calls after a first one."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    generator = torch.Generator().manual_seed(0)
    shapes = ((options.rows, N_HYPOTHESES, DIM), (options.rows, N_HYPOTHESES), (options.rows, DIM))
    hypotheses, logits, targets = (torch.randn(shape, generator=generator).to(options.device) for shape in shapes)
    given = mcl.Predictions(hypotheses, logits)
    matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets.unsqueeze(1)), mcl.WTA())
    regions = after.conformal(given, targets, nonconformity=after.BallScore())
    calibration = after.calibrate_scores(given, matching)
    few = after.reduce(given, 6)
    on_a_line = mcl.Predictions(hypotheses[..., :1], logits)
    intervals = after.conformal(on_a_line, targets[:, :1], nonconformity=after.BallScore())
    part = mcl.Predictions(hypotheses[: options.rows // 10], logits[: options.rows // 10])
    runs = {
        "without iteration": {
            "calibrated scores": lambda: calibration(given),
            "calibrate balls": lambda: after.conformal(given, targets, nonconformity=after.BallScore()),
            "calibrate tubes": lambda: after.conformal(given, targets, nonconformity=after.TubeScore()),
            "calibrate level sets": lambda: after.conformal(given, targets, nonconformity=after.DensityLevels(0.3)),
            "membership": lambda: regions.contains(given, targets),
            "volume on a line": lambda: intervals.volume(on_a_line),
            "expected cost": lambda: after.expected_cost(few, given),
            "diagnose": lambda: after.diagnose(given, targets),
        },
        "with iteration": {
            "fit a temperature": lambda: after.calibrate_scores(given, matching),
            "fit slopes and offsets": lambda: after.calibrate_scores(given, matching, method=after.VectorScaling()),
            "fit isotonic": lambda: after.calibrate_scores(given, matching, method=after.IsotonicScaling()),
            "reduce to 6": lambda: after.reduce(given, 6),
            "area of unions of discs, a tenth of the rows": lambda: regions.volume(part),
        },
    }
    rows = [
        {"name": name, "kind": kind, "rows": options.rows, "seconds": seconds(run, options.device, options.rounds)}
        for kind, of_kind in runs.items()
        for name, run in of_kind.items()
    ]
    report("after_speed", options.device, rows, options.out)


if __name__ == "__main__":
    main()
