"""Automatic annealing with each part taken out or alone, and the fixed rules, on 94 problems with 20 sets each.

python -m benchmarks.annealing.parts --records FILE.jsonl [--device cuda] [--data FOLDER] [--problems "circle; digits"]
    [--arms "all parts; WTA"] [--before FILE.jsonl] [--out FILE.json]

Single networks, nothing chosen per problem. Where automatic annealing does not set the learning rate or the weight
decay, the settings are the same as for the fixed rules: a cosine, and 0.05. The record of each arm has the distortions
of test rows after the last epoch, relative to the floor where it is known. A problem whose line is in the records is
not run again. Several processes can append to the same records, each with its own `--problems`. At the end all arms are
compared with "all parts", of this run or of the records of another version: geometric mean of the ratios over paired
sets, and p of Wilcoxon's test after Holm's correction over the problems of an arm.
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
from benchmarks.annealing._problems import PROBLEMS, UCI, Problem, load, train
from torchmcl_fleet import Candidate

FULL = "all parts"
# Part -> the setting of `AutoAnnealing` without it.
OFF: dict[str, tuple[str, Any]] = {
    "hold": ("hold", False),
    "cooling": ("cooling", 0.0),
    "moves": ("moves", False),
    "noise decay": ("noise_decay", 0.0),
    "rate": ("rate", False),
}


def automatic(*off: str) -> mcl.AutoAnnealing:
    """Return automatic annealing without some of its parts."""
    return mcl.AutoAnnealing(**dict(OFF[part] for part in off))


def cooling(problem: Problem) -> Any:
    """Return the paper's exponential cooling, over 70 % of the training run."""
    temperature = mcl.Exponential(0.5, 1e-3 ** (1 / max(1, 0.7 * problem.n_epochs)), cutoff=5e-4)
    return mcl.annealed(mcl.AnnealedWTA, temperature=temperature)


def top(problem: Problem) -> Any:
    """Return top k with a k that falls from all hypotheses to one in half of the training run."""
    n, n_epochs = problem.n_hypotheses, problem.n_epochs
    return lambda epoch: mcl.TopK(max(1, round(n ** (1 - min(1.0, 2 * epoch / n_epochs)))))


# Name -> function of the problem that returns the rule.
ARMS: dict[str, Callable[[Problem], Any]] = {
    FULL: lambda _: automatic(),
    **{f"without {part}": lambda _, part=part: automatic(part) for part in OFF},
    "WTA": lambda _: mcl.WTA(),
    **{f"WTA with {part}": lambda _, part=part: automatic(*(OFF.keys() - {part})) for part in OFF},
    "Relaxed-WTA 0.1": lambda _: mcl.RelaxedWTA(0.1),
    "annealed": cooling,
    "top k": top,
}


def candidate(arm: str, problem: Problem) -> Candidate:
    """Return the training settings of an arm."""
    rule = ARMS[arm](problem)
    is_automatic = isinstance(rule, mcl.AutoAnnealing)
    sets_rate = is_automatic and getattr(rule, "rate", True)  # earlier versions had no such argument
    rate = problem.learning_rate if sets_rate else mcl.Cosine(problem.learning_rate, 0.0, problem.n_epochs)
    return Candidate(arm, rule, rate, 0.0 if is_automatic and rule.noise_decay else 0.05)


def row_of(name: str, arms: list[str], options: Any) -> dict[str, Any]:
    """Train the arms on a problem, and return their distortions relative to the floor."""
    problem = load(name, options.data, options.device)
    candidates = [candidate(arm, problem) for arm in arms]
    groups = [candidates] if options.device == "cuda" else [[one] for one in candidates]  # on a GPU side by side
    outcomes = [outcome for group in groups for outcome in train(problem, group, options.device)]
    floor = problem.floor if problem.floor and problem.floor > 1e-9 else None
    row: dict[str, Any] = {"problem": name, "device": options.device, "floor": problem.floor, "arms": {}}
    for arm, outcome in zip(arms, outcomes, strict=True):
        row["arms"][arm] = [float(f"{value / (floor or 1.0):.5g}") for value in outcome.test]
    return row


def holm(p: list[float]) -> list[float]:
    """Return p values after Holm's correction for their number."""
    order, factors = np.argsort(p), np.arange(len(p), 0, -1)
    corrected = np.maximum.accumulate(factors * np.array(p)[order]).clip(max=1)
    return [float(value) for value in corrected[np.argsort(order)]]


def family(name: str) -> str:
    """Return the kind of a problem: UCI, real, exact (without noise), or modes."""
    if name in ("digits", "diabetes", "pedestrians"):
        return "real"
    return "UCI" if name in UCI else "exact" if "without noise" in name else "modes"


def compared(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each arm, its ratios to all parts together on every problem, and their mean for each kind."""
    known = {row["problem"]: row["arms"][FULL] for row in before if FULL in row["arms"]}
    out = []
    for arm in ARMS:
        logs = {
            row["problem"]: np.log(np.array(row["arms"][arm]) / known[row["problem"]])
            for row in rows
            if arm in row["arms"] and row["problem"] in known
        }
        if not logs:
            continue
        p = holm([float(wilcoxon(log).pvalue) if log.any() else 1.0 for log in logs.values()])
        found: dict[str, Any] = {"arm": arm, "mean": {}, "problems": {}}
        for kind in ("modes", "UCI", "real", "exact"):
            if of_kind := [log.mean() for name, log in logs.items() if family(name) == kind]:
                found["mean"][kind] = [math.exp(np.mean(of_kind)), len(of_kind)]
        for (name, log), corrected in zip(logs.items(), p, strict=True):
            error = float(log.std(ddof=1)) / math.sqrt(len(log))
            found["problems"][name] = {"ratio": math.exp(log.mean()), "log_error": error, "p_holm": corrected}
        out.append(found)
    return out


def read(path: Path | None) -> list[dict[str, Any]]:
    """Return the records of a file, if it exists."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path is not None and path.exists() else []


def main() -> None:
    """Run the problems that the records lack, and report the comparison."""
    arguments = parser(__doc__)
    arguments.add_argument("--records", type=Path, required=True, help="JSON lines, one per problem; resumed")
    arguments.add_argument("--data", type=Path, help="folder with uci/ and pedestrians/")
    arguments.add_argument("--problems", default=";".join(PROBLEMS), help="names, separated by semicolons")
    arguments.add_argument("--arms", default=";".join(ARMS), help="names, separated by semicolons")
    arguments.add_argument("--before", type=Path, help="records of another version, to compare with")
    options = arguments.parse_args()
    done = {row["problem"] for row in read(options.records)}
    torch.set_num_threads(1)
    for name in map(str.strip, options.problems.split(";")):
        if name and name not in done:
            row = row_of(name, [arm.strip() for arm in options.arms.split(";")], options)
            with options.records.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(name, {arm: float(np.median(ratios)) for arm, ratios in row["arms"].items()}, flush=True)
    rows = read(options.records)
    if options.out is not None:
        report("parts", options.device, compared(rows, read(options.before) if options.before else rows), options.out)


if __name__ == "__main__":
    main()
