"""Hypotheses reduced for many rows at once against a loop of scikit-learn's KMeans, in time and expected distortion.

python benchmarks/reduce.py [--device cuda] [--rows 10000] [--loop-rows 100] [--out results/reduce.json]

The loop is timed on some of the rows and scaled; both distortions are of those rows. Rounds alternate, so that a busy
moment of the machine hits both.
"""

import statistics
import time

import torch
from sklearn.cluster import KMeans

import torchmcl as mcl
from _common import parser, report
from torchmcl.postprocess import expected_cost, reduce

N, DIM, K = 120, 24, 20


def problems(name: str, n_rows: int, device: str) -> mcl.Predictions:
    """Return normal points, or paths of 12 steps that end in eight places."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(n_rows, N, generator=generator)
    if name == "normal points":
        hypotheses = torch.randn(n_rows, N, DIM, generator=generator)
    else:
        places = 2 * torch.randn(n_rows, 8, 2, generator=generator)
        index = torch.randint(8, (n_rows, N, 1), generator=generator).expand(-1, -1, 2)
        ends = places.gather(1, index) + 0.5 * torch.randn(n_rows, N, 2, generator=generator)
        path = torch.linspace(1 / 12, 1, 12).view(-1, 1) * ends.unsqueeze(2)
        hypotheses = (path + 0.1 * torch.randn(path.shape, generator=generator)).flatten(2)
    return mcl.Predictions(hypotheses.to(device), logits.to(device))


def compared(name: str, options: object) -> dict[str, object]:
    """Return times, distortions and their ratios."""
    given = problems(name, options.rows, options.device)
    part = mcl.Predictions(given.hypotheses[: options.loop_rows], given.score_logits[: options.loop_rows])
    points, weights = part.hypotheses.cpu().numpy(), mcl.normalized_scores(part.score_logits).cpu().numpy()
    scores, ratios = mcl.SigmoidScores(), []
    reduce(part, K, scores=scores)
    for _ in range(options.rounds):
        start = time.perf_counter()
        inertias = [
            KMeans(K, n_init=1, random_state=0).fit(h, sample_weight=w).inertia_
            for h, w in zip(points, weights, strict=True)
        ]
        loop = (time.perf_counter() - start) * options.rows / options.loop_rows
        start = time.perf_counter()
        few = reduce(given, K, scores=scores)
        float(few.hypotheses.sum())  # waits for the device
        ratios.append((loop / (time.perf_counter() - start), loop, time.perf_counter() - start))
    ratio, loop, ours = sorted(ratios)[len(ratios) // 2]
    kept = mcl.Predictions(few.hypotheses[: options.loop_rows])
    distortion = float(expected_cost(kept, part).mean())
    return {
        "name": name,
        **{"rows": options.rows, "hypotheses": N, "dim": DIM, "k": K, "loop_rows": options.loop_rows},
        **{"seconds": ours, "loop_seconds_scaled": loop, "ratio": ratio, "must_show_ratio": 20},
        **{"distortion": distortion, "loop_distortion": statistics.fmean(inertias)},
        "distortion_ratio": distortion / statistics.fmean(inertias),
    }


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=10_000)
    arguments.add_argument("--loop-rows", type=int, default=100)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    rows = [compared(name, options) for name in ("normal points", "paths")]
    report("reduce", options.device, rows, options.out)


if __name__ == "__main__":
    main()
