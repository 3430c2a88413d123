"""Automatic annealing and the other rules on problems with several modes and a known lowest distortion.

python -m benchmarks.annealing.modes [--device cuda] [--seeds 20] [--problems "circle,3 x 3 branches"] [--out FILE.json]

Single networks, nothing chosen per problem. Inputs and targets are standardized as the estimators do; a tenth of the
rows is held out, and the last weights are judged on 4000 fresh rows. With the other rules the learning rate falls
along a cosine and the weight decay is 0.05. For each rule: the median of distortion / floor, and the share of networks
above 1.5 and above 2 times the floor.
"""

import time
from typing import Any

import torch

import torchmcl as mcl
from benchmarks._common import parser, report
from torchmcl_fleet import Fleet, FleetData, default_batch_size
from torchmcl_studies.modes import MODE_PROBLEMS, ModeProblem

N_STEPS = 1500
N_TEST = 4000


def rules_of(problem: ModeProblem, n_epochs: int) -> dict[str, Any]:
    """Return the rules of a training run with this number of epochs."""
    cooling = mcl.Exponential(0.5, 1e-3 ** (1 / max(1, 0.7 * n_epochs)), cutoff=5e-4)
    n = problem.n_hypotheses

    def top(epoch: float) -> mcl.TopK:
        return mcl.TopK(max(1, round(n ** (1 - min(1.0, 2 * epoch / n_epochs)))))

    return {
        "auto": mcl.AutoAnnealing(),
        "WTA": mcl.WTA(),
        "Relaxed-WTA 0.1": mcl.RelaxedWTA(0.1),
        "annealed": mcl.annealed(mcl.AnnealedWTA, temperature=cooling),
        "top k": top,
    }


def row_of(problem: ModeProblem, n_seeds: int, device: str) -> dict[str, object]:
    """Train all rules on a problem, and return their distortions relative to the floor."""
    n_train = problem.n_rows - problem.n_rows // 10
    batch_size = min(n_train, problem.batch_size or default_batch_size(n_train))
    n_batches = -(-n_train // batch_size)
    n_epochs = problem.n_epochs or max(20, min(1000, round(N_STEPS / n_batches)))
    train, held, test, scales = [], [], [], []
    for seed in range(n_seeds):
        inputs, targets, *_ = problem.rows(problem.n_rows, 1000 + seed)
        fresh = problem.rows(N_TEST, 500_000 + seed)
        middle, spread = targets.mean(dim=(0, 1)), targets.std(dim=(0, 1)).square().mean().sqrt()
        center, width = inputs.mean(dim=0), inputs.std(dim=0)
        scaled = ((inputs - center) / width, (targets - middle) / spread)
        train.append(tuple(part[:n_train] for part in scaled))
        held.append(tuple(part[n_train:] for part in scaled))
        test.append(((fresh.inputs - center) / width, (fresh.targets - middle) / spread))
        scales.append(spread**2)
    own = list(range(n_seeds))
    data, held_out = FleetData.of_sets(train, own), FleetData.of_sets(held, own)
    inputs, targets = (torch.stack(parts) for parts in zip(*test, strict=True))
    floor = problem.floor(*((12, 8000) if problem.n_hypotheses > 20 else (48, 8000)), device=device)
    row: dict[str, object] = {"problem": problem.name, "floor": floor, "epochs": n_epochs, "batches": n_batches}
    for name, rule in rules_of(problem, n_epochs).items():
        auto = name == "auto"
        fleet = Fleet(
            lambda: mcl.MultiHypothesisMLP(
                inputs.shape[-1], targets.shape[-1], problem.n_hypotheses, hidden=problem.hidden, detach_scores=True
            ),
            n_seeds,
            rule=rule,
            learning_rate=problem.learning_rate if auto else mcl.Cosine(problem.learning_rate, 0.0, n_epochs),
            weight_decay=0.0 if auto else 0.05,
            device=device,
        )
        start = time.perf_counter()
        fleet.fit(data, n_epochs, batch_size=batch_size, validation=held_out, progress=False)
        seconds = time.perf_counter() - start
        hypotheses = fleet.predict(inputs, per_model=True).hypotheses
        cost = torch.stack([torch.cdist(t.float(), h).square() for t, h in zip(targets, hypotheses, strict=True)])
        ratio = cost.amin(dim=-1).mean(dim=(1, 2)) * torch.stack(scales) / floor
        row[name] = {
            "median": float(ratio.median()),
            "above_1.5": float((ratio > 1.5).float().mean()),
            "above_2": float((ratio > 2).float().mean()),
            "seconds": seconds,
            "ratios": [round(value, 4) for value in ratio.tolist()],
        }
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, object]:
    """Return a comparison of automatic annealing with the best other rule."""
    others = [name for name in rows[0] if isinstance(rows[0][name], dict) and name != "auto"]
    best = [min(row[name]["median"] for name in others) for row in rows]
    auto = [row["auto"]["median"] for row in rows]
    pairs = list(zip(rows, auto, best, strict=True))
    return {
        "problems": len(rows),
        "auto_best": sum(a < b for _, a, b in pairs),
        "auto_within_5_percent": sum(a <= 1.05 * b for _, a, b in pairs),
        "behind": {row["problem"]: round(a / b, 3) for row, a, b in pairs if a > 1.05 * b},
        "more_than_2_percent_above_1.5": [row["problem"] for row in rows if row["auto"]["above_1.5"] > 0.02],
        "more_than_2_percent_above_2": [row["problem"] for row in rows if row["auto"]["above_2"] > 0.02],
    }


def main() -> None:
    """Run the problems and report the results."""
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--problems", default="", help="names, separated by semicolons; all by default")
    options = arguments.parse_args()
    wanted = [name.strip() for name in options.problems.split(";") if name.strip()]
    rows = []
    for problem in MODE_PROBLEMS:
        if not wanted or problem.name in wanted:
            rows.append(row_of(problem, options.seeds, options.device))
            print(_line(rows[-1]), flush=True)
    report("modes", options.device, [*rows, {"problem": "summary", **summary(rows)}], options.out)


def _line(row: dict[str, Any]) -> str:
    cells = [
        f"{name} {value['median']:.2f} ({value['above_1.5']:.0%}, {value['above_2']:.0%}) {value['seconds']:.1f}s"
        for name, value in row.items()
        if isinstance(value, dict)
    ]
    return f"{row['problem']} [{row['floor']:.2g}]: " + "; ".join(cells)


if __name__ == "__main__":
    main()
