"""Automatic annealing and the other rules on problems with several modes and a known floor, and on UCI sets.

python -m benchmarks.annealing.modes [--device cuda] [--seeds 20] [--problems "circle; 3 x 3 branches"]
    [--arms "auto; WTA"] [--data FOLDER --sets yacht,energy] [--before FILE.json] [--out FILE.json]

Single networks, nothing chosen per problem. Inputs and targets are standardized as the estimators do; a tenth of the
rows is held out, and the last weights are judged on 4000 fresh rows. With the other rules the learning rate falls
along a cosine and the weight decay is 0.05. For each rule: the ratios of distortion and floor, and their median;
without noise, where the floor is 0, the distortion itself. On UCI sets: the distortion on the test folds after the last
epoch. At the end each rule is compared with "auto", of this run or of an earlier record: geometric mean of the ratios
over paired seeds or folds, and p of Wilcoxon's test.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon

import torchmcl as mcl
from benchmarks._common import parser, report
from benchmarks.annealing.auto import N_EPOCHS, run_fleet
from torchmcl_fleet import Candidate, Fleet, FleetData, default_batch_size
from torchmcl_studies.modes import MODE_PROBLEMS, ModeProblem

N_STEPS = 1500
N_TEST = 4000


def cooling(_: int, n_epochs: int) -> Any:
    """Return the paper's exponential cooling, over 70 % of the training run."""
    temperature = mcl.Exponential(0.5, 1e-3 ** (1 / max(1, 0.7 * n_epochs)), cutoff=5e-4)
    return mcl.annealed(mcl.AnnealedWTA, temperature=temperature)


def top(n: int, n_epochs: int) -> Any:
    """Return top k with a k that falls from all hypotheses to one in half of the training run."""
    return lambda epoch: mcl.TopK(max(1, round(n ** (1 - min(1.0, 2 * epoch / n_epochs)))))


# Name -> function of the numbers of hypotheses and epochs that returns the rule.
ARMS: dict[str, Callable[[int, int], Any]] = {
    "auto": lambda *_: mcl.AutoAnnealing(),
    "WTA": lambda *_: mcl.WTA(),
    "Relaxed-WTA 0.1": lambda *_: mcl.RelaxedWTA(0.1),
    "annealed": cooling,
    "top k": top,
    "WTA with moves": lambda *_: mcl.AutoAnnealing(hold=False, cooling=0.0, noise_decay=0.0),
    "no hold": lambda *_: mcl.AutoAnnealing(hold=False),
    "no cooling": lambda *_: mcl.AutoAnnealing(cooling=0.0),
    "no moves": lambda *_: mcl.AutoAnnealing(moves=False),
    "no decay": lambda *_: mcl.AutoAnnealing(noise_decay=0.0),
}


def settings(rule: Any, rate: float, n_epochs: int) -> dict[str, Any]:
    """Return the learning rate and the weight decay of a rule; automatic annealing sets its own."""
    if isinstance(rule, mcl.AutoAnnealing):
        return {"learning_rate": rate, "weight_decay": 0.0}
    return {"learning_rate": mcl.Cosine(rate, 0.0, n_epochs), "weight_decay": 0.05}


def row_of(problem: ModeProblem, arms: list[str], n_seeds: int, device: str) -> dict[str, Any]:
    """Train the rules on a problem, and return their distortions relative to the floor."""
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
    row: dict[str, Any] = {"problem": problem.name, "floor": floor, "epochs": n_epochs}
    for name in arms:
        rule = ARMS[name](problem.n_hypotheses, n_epochs)
        fleet = Fleet(
            lambda: mcl.MultiHypothesisMLP(
                inputs.shape[-1], targets.shape[-1], problem.n_hypotheses, hidden=problem.hidden, detach_scores=True
            ),
            n_seeds,
            rule=rule,
            device=device,
            **settings(rule, problem.learning_rate, n_epochs),
        )
        fleet.fit(data, n_epochs, batch_size=batch_size, validation=held_out, progress=False)
        hypotheses = fleet.predict(inputs, per_model=True).hypotheses
        cost = torch.stack([torch.cdist(t.float(), h).square() for t, h in zip(targets, hypotheses, strict=True)])
        ratio = cost.amin(dim=-1).mean(dim=(1, 2)) * torch.stack(scales) / (floor if floor > 1e-9 else 1.0)
        row[name] = {"median": float(ratio.median()), "ratios": ratio.tolist()}
    return row


def uci_row(name: str, arms: list[str], data: Path, device: str) -> dict[str, Any]:
    """Train the rules on the folds of a UCI set, and return their test distortions after the last epoch."""
    rules = {arm: ARMS[arm](5, N_EPOCHS) for arm in arms}
    methods = {arm: [Candidate(arm, rule, **settings(rule, 0.01, N_EPOCHS))] for arm, rule in rules.items()}
    rows = run_fleet(name, methods, True, data, device, n_seeds=1, best=False)
    values = {arm: [row["distortion"] for row in rows if row["method"] == arm] for arm in arms}
    return {"problem": f"UCI {name}"} | {arm: {"median": float(np.median(v)), "ratios": v} for arm, v in values.items()}


def compared(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ratios of all rules to "auto" in `before`, for each problem and on average."""
    known = {row["problem"]: row["auto"]["ratios"] for row in before if "ratios" in row.get("auto", {})}
    out: dict[str, dict[str, Any]] = {}
    for row in rows:
        for arm in ARMS.keys() & row.keys() if row["problem"] in known else ():
            logs = np.log(np.array(row[arm]["ratios"]) / known[row["problem"]])
            p = float(wilcoxon(logs).pvalue) if logs.any() else 1.0
            out.setdefault(arm, {})[row["problem"]] = {"ratio": math.exp(logs.mean()), "p": p}
    for arm, found in out.items():
        for kind, is_uci in (("modes", False), ("UCI", True)):
            ratios = [value["ratio"] for name, value in found.items() if name.startswith("UCI ") == is_uci]
            if ratios:
                print(f"{arm}: {math.exp(np.log(ratios).mean()):.3f} on {len(ratios)} {kind}", flush=True)
    return [{"problem": "compared", arm: found} for arm, found in out.items()]


def main() -> None:
    """Run the problems and report the results."""
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--problems", default=";".join(problem.name for problem in MODE_PROBLEMS))
    arguments.add_argument("--arms", default=";".join(ARMS), help="names, separated by semicolons; all by default")
    arguments.add_argument("--data", type=Path, help="folder of the UCI sets")
    arguments.add_argument("--sets", default="", help="names of UCI sets, separated by commas")
    arguments.add_argument("--before", type=Path, help="record of another version, to compare with")
    options = arguments.parse_args()
    wanted, arms = ([name.strip() for name in text.split(";")] for text in (options.problems, options.arms))
    rows = [uci_row(name, arms, options.data, options.device) for name in options.sets.split(",") if name]
    for problem in MODE_PROBLEMS:
        if problem.name in wanted:
            rows.append(row_of(problem, arms, options.seeds, options.device))
            print(problem.name, {arm: round(rows[-1][arm]["median"], 4) for arm in arms}, flush=True)
    before = json.loads(options.before.read_text())["rows"] if options.before else rows
    report("modes", options.device, [*rows, *compared(rows, before)], options.out)


if __name__ == "__main__":
    main()
