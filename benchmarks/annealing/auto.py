"""Automatic annealing against the paper's schedule, plain MCL and tuned baselines on the UCI data sets.

python -m benchmarks.annealing.auto --data FOLDER --records FILE.csv [--device cuda] [--sets ...]
    [--parts paper,auto,tuned,...]

The validation protocol: the last tenth of each official training fold is held out for every choice (the epoch, and for
the tuned ones the candidate), and the test fold is looked at once. Parts whose rows are in the file are not run again.
"""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

import torchmcl as mcl
from benchmarks._common import parser, report
from torchmcl.annealing import AutoAnnealing
from torchmcl.io import write_atomically
from torchmcl.schedules import Cosine, Exponential, Linear, annealed
from torchmcl_fleet import Candidate, Fleet, FleetData, Validation, default_candidates, hard_distortion
from torchmcl_studies.data.uci import load_uci, uci_set
from torchmcl_studies.uci.methods import published_cells
from torchmcl_studies.uci.study import UciStudy

N_EPOCHS = 1000
N_SEEDS = 3
FIELDS = ("set", "fold", "seed", "method", "candidate", "validation", "distortion", "rmse", "epoch", "hold")


def paper_candidates() -> dict[str, list[Candidate]]:
    """Return plain MCL and the paper's annealing."""
    cooling = annealed(mcl.AnnealedWTA, temperature=Exponential(0.5, 0.95, cutoff=5e-4))
    return {"mcl": [Candidate("MCL", mcl.WTA())], "amcl": [Candidate("aMCL", cooling)]}


def auto_candidates() -> dict[str, list[Candidate]]:
    """Return automatic annealing with its defaults."""
    return {"auto": [Candidate("auto", AutoAnnealing())]}


def tuned_baselines() -> dict[str, list[Candidate]]:
    """Return candidates for the baselines, which are selected on held-out rows."""
    rates = {"constant": 0.01, "cosine": Cosine(0.01, 0.0, N_EPOCHS)}
    rules: dict[str, Any] = {"MCL": mcl.WTA()}
    rules |= {f"Relaxed-WTA {epsilon}": mcl.RelaxedWTA(epsilon) for epsilon in (0.05, 0.1, 0.2, 0.5)}
    rules["Relaxed-WTA annealed"] = annealed(mcl.RelaxedWTA, epsilon=Linear(0.5, 0.0, N_EPOCHS))
    candidates = [
        Candidate(f"{name}, {rate}, decay {decay}", rule, rates[rate], decay)
        for name, rule in rules.items()
        for rate in rates
        for decay in (0.0, 0.3)
    ]
    return {"baseline-tuned": candidates}


def searched_policies() -> dict[str, list[Candidate]]:
    """Return candidates for automatic annealing, at most as many as for the baselines."""
    candidates = [
        Candidate(f"hold gain {gain}, noise decay {decay}, rate {rate}", AutoAnnealing(gain, noise_decay=decay), rate)
        for gain in (0.25, 0.5, 1.0)
        for decay in (0.0, 1500.0, 5000.0, 15_000.0)
        for rate in (0.003, 0.01)
    ]
    return {"auto-search": candidates}


def shipped_search() -> dict[str, list[Candidate]]:
    """Return the default candidates of `FleetSearch`: 48 of automatic annealing, 16 of MCL and Relaxed-WTA."""
    return {"fleet-search": default_candidates(N_EPOCHS)}


# Name -> fleets: methods with their candidates, and whether the score loss stops at the head. The baselines are tuned
# in that too, as plain MCL is better on some sets if it does not.
PARTS: dict[str, list[tuple[Callable[[], dict[str, list[Candidate]]], bool]]] = {
    "paper": [(paper_candidates, False)],
    "auto": [(auto_candidates, True)],
    "tuned": [(tuned_baselines, True), (tuned_baselines, False), (searched_policies, True)],
    "search": [(shipped_search, True)],
}


def run_part(name: str, part: str, data: Path, device: str) -> list[dict[str, Any]]:
    """Train one part of the study on one data set; return the candidates with the lowest validation value."""
    chosen: dict[tuple[str, int, int], dict[str, Any]] = {}
    for make, detached in PARTS[part]:
        for row in run_fleet(name, make(), detached, data, device):
            key = (row["method"], row["fold"], row["seed"])
            if key not in chosen or row["validation"] < chosen[key]["validation"]:
                chosen[key] = row
    return list(chosen.values())


def run_fleet(
    name: str,
    methods: dict[str, list[Candidate]],
    detached: bool,
    data: Path,
    device: str,
    n_seeds: int = N_SEEDS,
    best: bool = True,
) -> list[dict[str, Any]]:
    """Train all candidates on all folds of a data set with all seeds, and return a row for each.

    The rows describe the epoch that is best on the held-out rows, or the last one.
    """
    folds = load_uci(name, data)
    split = [round(0.9 * len(fold.train_inputs)) for fold in folds]
    train = [(f.train_inputs[:n], f.train_targets[:n]) for f, n in zip(folds, split, strict=True)]
    watched = [(f.train_inputs[n:], f.train_targets[n:]) for f, n in zip(folds, split, strict=True)]
    tasks = [
        (method, candidate, fold, seed)
        for method, candidates in methods.items()
        for candidate in candidates
        for fold in range(len(folds))
        for seed in range(n_seeds)
    ]
    own = [fold for _, _, fold, _ in tasks]
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(
            folds[0].train_inputs.shape[1], 1, 5, hidden=(uci_set(name).hidden,), detach_scores=detached
        ),
        len(tasks),
        rule=[candidate.rule for _, candidate, _, _ in tasks],
        learning_rate=[candidate.learning_rate for _, candidate, _, _ in tasks],
        weight_decay=[candidate.weight_decay for _, candidate, _, _ in tasks],
        seeds=[1_000_000 * seed + fold for _, _, fold, seed in tasks],
        device=device,
    )
    history = fleet.fit(
        FleetData.of_sets(train, own),
        N_EPOCHS,
        batch_size=1024,
        validation=Validation(FleetData.of_sets(watched, own), monitor=hard_distortion),
        progress=False,
    )
    test = FleetData.of_sets([(fold.test_inputs, fold.test_targets) for fold in folds], own)
    metrics = fleet.evaluate(test, best=best)
    rows = []
    for index, (method, candidate, fold, seed) in enumerate(tasks):
        scale = folds[fold].target_std
        hold: int | str = ""
        if isinstance(candidate.rule, AutoAnnealing) and history.temperatures is not None:
            hold = int((history.temperatures[:, index] > 0).sum())  # epochs until hard
        rows.append(
            {
                "set": name,
                "fold": fold,
                "seed": seed,
                "method": method,
                "candidate": candidate.name + (", scores stop at the head" if detached else ""),
                "validation": float(history.best_value[index]) * scale**2,
                "distortion": float(metrics["distortion"][index]) * scale**2,
                "rmse": float(metrics["rmse"][index]) * scale,
                "epoch": int(history.best_epoch[index]),
                "hold": hold,
            }
        )
    return rows


def compared(rows: list[dict[str, Any]], name: str, ours: str, other: str) -> dict[str, Any]:
    """Return geometric means, and a paired test on the log distortion over folds, averaged over seeds."""

    def logs(method: str) -> dict[int, float]:
        by_fold: dict[int, list[float]] = {}
        for row in rows:
            if row["set"] == name and row["method"] == method:
                by_fold.setdefault(int(row["fold"]), []).append(math.log(float(row["distortion"])))
        return {fold: float(np.mean(values)) for fold, values in by_fold.items()}

    mine, theirs = logs(ours), logs(other)
    both = sorted(mine.keys() & theirs.keys())
    if len(both) < 2:
        return {}
    a, b = (np.array([values[fold] for fold in both]) for values in (mine, theirs))
    p = float(wilcoxon(a, b).pvalue)
    return {
        "set": name,
        "ours": ours,
        "other": other,
        "ours_distortion": math.exp(a.mean()),
        "other_distortion": math.exp(b.mean()),
        "ratio": math.exp((a - b).mean()),
        "ratio_standard_error": math.exp((a - b).mean()) * float((a - b).std(ddof=1)) / math.sqrt(len(both)),
        "wilcoxon_p": p,
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all comparisons that the rows allow, and our means beside the published means."""
    published = {
        cell: value.mean
        for (cell, method, metric), value in published_cells().items()
        if method == "amcl_exp" and metric == "distortion"
    }
    out = []
    for name in dict.fromkeys(row["set"] for row in rows):
        for ours, other in (
            ("auto", "amcl"),
            ("auto", "mcl"),
            ("auto", "baseline-tuned"),
            ("auto-search", "baseline-tuned"),
            ("fleet-search", "baseline-tuned"),
        ):
            if found := compared(rows, name, ours, other):
                out.append(found)
        own = [float(row["distortion"]) for row in rows if row["set"] == name and row["method"] == "auto"]
        if own:
            out.append(
                {
                    "set": name,
                    "auto_mean": float(np.mean(own)),
                    "published_amcl": published.get(name),
                }
            )
    return out


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--records", type=Path, required=True, help="CSV of the results; resumed if it exists")
    arguments.add_argument("--sets", default=",".join(UciStudy().sets))
    arguments.add_argument("--parts", default=",".join(PARTS))
    options = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    if options.records.exists():
        with options.records.open(newline="") as file:
            rows = list(csv.DictReader(file))
    for name in options.sets.split(","):
        for part in options.parts.split(","):
            wanted = {method for make, _ in PARTS[part] for method in make()}
            if any(row["set"] == name and row["method"] in wanted for row in rows):
                continue
            rows += run_part(name, part, options.data, options.device)
            print(name, part, flush=True)
            lines = [
                ",".join(FIELDS),
                *(",".join(str(row[field]).replace(",", ";") for field in FIELDS) for row in rows),
            ]
            write_atomically(options.records, "\n".join(lines) + "\n")
    report("auto", options.device, summary(rows), options.out)
