"""C2ST of the draws of `inverse_problems.py` against the reference posteriors of sbibm, as defined there.

    python -m benchmarks.inverse.c2st out/inverse --data out/sbibm.npz --kinds annealed

Each value is a line of `c2st.jsonl` in the folder; values that are there are not computed again. Several processes can
share the work: `--share 0 2` and `--share 1 2`. `--record FILE` writes the means beside the published values instead.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier

KINDS = ("annealed", "mixture density", "one network")
#: Neural posterior estimation (NPE), means over the ten observations: main_paper.csv of sbi-benchmark/results, and for
#: the Gaussian mixture gaussian_mixture_rerun.csv, because sbibm 1.1.0 corrected the task.
PUBLISHED = {
    ("two_moons", 10_000): 0.606,
    ("two_moons", 100_000): 0.542,
    ("slcp", 10_000): 0.901,
    ("slcp", 100_000): 0.831,
    ("gaussian_mixture", 10_000): 0.615,
    ("gaussian_mixture", 100_000): 0.548,
}


def c2st(samples: np.ndarray, reference: np.ndarray) -> float:
    """Return the accuracy of a classifier that distinguishes both samples; 0.5 is best."""
    mean, deviation = reference.mean(axis=0), reference.std(axis=0, ddof=1)
    data = np.concatenate([(reference - mean) / deviation, (samples - mean) / deviation])
    labels = np.repeat([0, 1], [len(reference), len(samples)])
    size = 10 * reference.shape[1]
    classifier = MLPClassifier((size, size), max_iter=10_000, solver="adam", random_state=1)
    folds = KFold(n_splits=5, shuffle=True, random_state=1)
    return float(cross_val_score(classifier, data, labels, cv=folds, scoring="accuracy").mean())


def record(folder: Path) -> dict[str, object]:
    """Return a row for each task, number of simulations and kind: settings of the fits, and means of C2ST."""
    lines = [json.loads(line) for file in sorted(folder.glob("c2st-*.jsonl")) for line in file.open()]
    fits, rows = [], []
    for (task, simulations), published in PUBLISHED.items():
        (path,) = folder.glob(f"{task}-{simulations}-*.json")
        fitted = json.loads(path.read_text())
        for kind in KINDS:
            key = {"task": task, "simulations": simulations, "kind": kind}
            fits.append(key | fitted[kind] | {"seconds_of_all_fits": round(fitted["seconds"], 1)})
            those = [line for line in lines if key.items() <= line.items()]
            each = {line["observation"]: round(line["c2st"], 4) for line in those}
            if each:
                mean = round(float(np.mean(list(each.values()))), 4)
                rows.append(key | {"published_npe": published, "c2st": mean, "each": dict(sorted(each.items()))})
    return {"benchmark": "inverse_problems", "fits": fits, "rows": rows}


def main() -> None:
    """Evaluate all draws in a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--share", type=int, nargs=2, default=[0, 1])
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    if options.record is not None:
        options.record.write_text(json.dumps(record(options.folder), indent=1))
        return
    path = options.folder / f"c2st-{options.share[0]}.jsonl"
    done = {line.rsplit(",", 1)[0] for file in options.folder.glob("c2st-*.jsonl") for line in file.open()}
    with np.load(options.data) as file:
        references = dict(file)
    files = sorted(file for file in options.folder.glob("*.npz") if ".part" not in file.name)
    jobs = [(kind, file, i) for kind in options.kinds for file in files for i in range(1, 11)]
    for kind, file, i in jobs[options.share[0] :: options.share[1]]:
        task, simulations, seed = file.stem.split("-")
        key = {"task": task, "simulations": int(simulations), "seed": int(seed), "kind": kind, "observation": i}
        if json.dumps(key)[:-1] in done:
            continue
        with np.load(file) as draws:
            if f"{kind}_{i}" not in draws:
                continue
            value = c2st(draws[f"{kind}_{i}"], references[f"{task}_{i}_reference"])
        print(key, value, flush=True)
        with path.open("a") as out:
            out.write(json.dumps(key | {"c2st": value}) + "\n")


if __name__ == "__main__":
    main()
