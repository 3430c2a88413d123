"""Automatic annealing and `FleetSearch` against tuned baselines on the UCI sets.

python -m benchmarks.annealing.search --records FILE.jsonl [--data FOLDER] [--device cuda] [--sets yacht,energy]
    [--out FILE.json]

A tenth of each official training fold is held out for every choice, of the epoch and of the candidate; the test fold is
evaluated once. The 48 candidates of the baselines are MCL, Relaxed-WTA with four values of epsilon and an annealed
one, each with a constant and a cosine learning rate, weight decay 0 and 0.3, and with or without stopping the gradient
of the score loss at the head. A set whose lines are in the records is not run again.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

import torchmcl as mcl
from benchmarks._common import parser, report
from benchmarks.annealing._problems import UCI, Outcome, Problem, load, train
from benchmarks.annealing.parts import read
from torchmcl_fleet import Candidate, default_candidates


def baselines(n_epochs: int) -> list[Candidate]:
    """Return the candidates for the baselines."""
    rates = {"constant": 0.01, "cosine": mcl.Cosine(0.01, 0.0, n_epochs)}
    rules: dict[str, Any] = {"MCL": mcl.WTA()}
    rules |= {f"Relaxed-WTA {epsilon}": mcl.RelaxedWTA(epsilon) for epsilon in (0.05, 0.1, 0.2, 0.5)}
    rules["Relaxed-WTA annealed"] = mcl.annealed(mcl.RelaxedWTA, epsilon=mcl.Linear(0.5, 0.0, n_epochs))
    return [
        Candidate(f"{name}, {rate}, decay {decay}", rule, rates[rate], decay)
        for name, rule in rules.items()
        for rate in rates
        for decay in (0.0, 0.3)
    ]


def chosen(outcomes: Sequence[Outcome]) -> list[float]:
    """Return the test distortion of the candidate with the lowest held-out distortion, for each set."""
    held_out, test = (np.array([getattr(outcome, name) for outcome in outcomes]) for name in ("held_out", "test"))
    return [float(value) for value in np.take_along_axis(test, held_out.argmin(axis=0)[None], axis=0)[0]]


def methods(problem: Problem, device: str) -> dict[str, list[float]]:
    """Train the candidates of all methods, and return the test distortions of the chosen ones."""
    tuned = baselines(problem.n_epochs)
    both = [train(problem, tuned, device, detached=detached, best=True) for detached in (True, False)]
    automatic = [Candidate("auto", mcl.AutoAnnealing())]
    searched = default_candidates(problem.n_epochs)
    return {
        "tuned": chosen([*both[0], *both[1]]),
        "auto": chosen(train(problem, automatic, device, best=True)),
        "search": chosen(train(problem, searched, device, best=True)),
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return geometric means, ratios to the tuned baselines with standard errors over sets, and paired tests."""
    out = []
    for row in rows:
        logs = {method: np.log(values) for method, values in row["methods"].items()}
        found: dict[str, Any] = {"problem": row["problem"]}
        for method, values in logs.items():
            found[method] = float(np.exp(values.mean()))
            if method != "tuned":
                difference = values - logs["tuned"]
                error = float(difference.std(ddof=1)) / len(difference) ** 0.5
                p = float(wilcoxon(difference).pvalue)
                found[f"{method} / tuned"] = {"ratio": float(np.exp(difference.mean())), "log_error": error, "p": p}
        out.append(found)
    return out


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, help="folder with uci/")
    arguments.add_argument("--records", type=Path, required=True, help="JSON lines, one per set; resumed")
    arguments.add_argument("--sets", default=",".join(name.removeprefix("UCI ") for name in UCI))
    options = arguments.parse_args()
    done = {row["problem"] for row in read(options.records)}
    for name in (f"UCI {name}" for name in options.sets.split(",")):
        if name not in done:
            row = {"problem": name, "methods": methods(load(name, options.data, options.device), options.device)}
            with options.records.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(summary([row])[0], flush=True)
    report("search", options.device, summary(read(options.records)), options.out)
