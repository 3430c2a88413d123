"""MCLClassifier against logistic regression, a plain MLP and boosted trees on tables with classes.

python -m benchmarks.tables.classes [--tables ../shared/data] [--splits 3] [--sets iris,bike]
    [--out results/classes-cpu.json]

All classifiers have default arguments; logistic regression and the MLP are fitted to standardized inputs. Each split
holds out a quarter of the rows. The tables of scikit-learn are always available. The targets of the regression tables
in `--tables` (uci/*/data.npz and tables/*.csv.gz) are cut at their quantiles into classes, which are ambiguous near the
cuts. The defaults of MCLClassifier were chosen on other splits of autompg, stock, pendulum, airfoil, skillcraft, sml,
bike and iris; `developed` marks these tables. All classifiers are fitted in turn in one process, so that other load on
the machine affects all of their times.

"one softmax" is MCLClassifier(n_hypotheses=1): the same networks, rows and calibration without a mixture.
"""

import gzip
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._common import parser, report
from torchmcl_tables import MCLClassifier
from torchmcl_tables.model.classes import CLASS_RULE

_MAX_ROWS = 10_000
_CUT_TABLES = {"airfoil": 6, "autompg": 4, "bike": 8, "pendulum": 4, "skillcraft": 5, "sml": 8, "stock": 5}
_CUT_UCI = {"concrete": 6, "kin8nm": 8, "power-plant": 8, "protein-tertiary-structure": 10, "bostonHousing": 5}
_DEVELOPED = {"autompg", "stock", "pendulum", "airfoil", "skillcraft", "sml", "bike", "iris"}


def cut(targets: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the class of each target: the index of the quantile interval that contains it."""
    return np.searchsorted(np.quantile(targets, np.linspace(0, 1, n_classes + 1)[1:-1]), targets)


def tables(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return inputs and classes of the available tables, by table name."""
    found = {
        "iris": datasets.load_iris(return_X_y=True),
        "wine": datasets.load_wine(return_X_y=True),
        "breast cancer": datasets.load_breast_cancer(return_X_y=True),
        "digits": datasets.load_digits(return_X_y=True),
    }
    for name, n_classes in _CUT_TABLES.items():
        path = folder / "tables" / f"{name}.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt") as file:
                rows = np.loadtxt(file, delimiter=",")
            inputs = rows[:, :-3] if name == "bike" else rows[:, :-1]  # two columns of bike add up to its target
            found[name] = inputs, cut(rows[:, -1], n_classes)
    for name, n_classes in _CUT_UCI.items():
        path = folder / "uci" / name / "data.npz"
        if path.is_file():
            with np.load(path) as arrays:
                rows = arrays["data"]
            found[name] = rows[:, :-1], cut(rows[:, -1], n_classes)
    path = folder / "uci" / "wine-quality-red" / "data.npz"
    if path.is_file():
        with np.load(path) as arrays:
            found["wine quality"] = arrays["data"][:, :-1], arrays["data"][:, -1].round().astype(int)
    return found


def baselines(seed: int) -> dict[str, object]:
    """Return the baseline classifiers by name."""
    return {
        "MCLClassifier": MCLClassifier(rule=CLASS_RULE, random_state=seed),
        "one softmax": MCLClassifier(n_hypotheses=1, rule=CLASS_RULE, random_state=seed),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "MLP": make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
        "boosted trees": HistGradientBoostingClassifier(random_state=seed),
    }


def measured(model: object, split: list[np.ndarray]) -> dict[str, float]:
    """Fit a classifier and return its metrics on held-out rows and its fit time."""
    train, test, labels, truth = split
    start = time.perf_counter()
    model.fit(train, labels)
    seconds = time.perf_counter() - start
    probabilities = model.predict_proba(test)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    hit = model.classes_[order] == truth[:, None]
    given, right = probabilities.max(axis=1), hit[:, 0]
    bins = np.minimum((given * 10).astype(int), 9)
    off = np.bincount(bins, given, minlength=10) - np.bincount(bins, right, minlength=10)
    found = {
        "accuracy": hit[:, 0].mean(),
        "top_2": hit[:, :2].any(axis=1).mean(),
        "top_3": hit[:, :3].any(axis=1).mean(),
    }
    loss = log_loss(truth, probabilities, labels=model.classes_)
    return found | {"log_loss": loss, "calibration_error": np.abs(off).sum() / len(truth), "seconds": seconds}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the MLP has not converged after its 200 epochs
    arguments = parser(__doc__)
    arguments.add_argument("--tables", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    arguments.add_argument("--splits", type=int, default=3)
    arguments.add_argument("--sets", default="", help="names of tables, separated by commas; all by default")
    options = arguments.parse_args()
    records = []
    for name, (inputs, classes) in tables(options.tables).items():
        if options.sets and name not in options.sets.split(","):
            continue
        if len(inputs) > _MAX_ROWS:
            chosen = np.random.default_rng(0).permutation(len(inputs))[:_MAX_ROWS]
            inputs, classes = inputs[chosen], classes[chosen]
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(options.splits):
            split = train_test_split(inputs, classes, test_size=0.25, random_state=seed, stratify=classes)
            for baseline, model in baselines(seed).items():
                found.setdefault(baseline, []).append(measured(model, split))
        for baseline, values in found.items():
            row: dict[str, object] = {"table": name, "rows": len(inputs), "columns": inputs.shape[1]}
            row |= {"classes": len(np.unique(classes)), "developed": name in _DEVELOPED, "classifier": baseline}
            for key in values[0]:
                numbers = [float(value[key]) for value in values]
                row[key], row[f"{key}_by_split"] = float(np.mean(numbers)), numbers
            row["seconds_of_mlp"] = row["seconds"] / float(np.mean([value["seconds"] for value in found["MLP"]]))
            records.append(row)
            print(
                f"{name:28} {baseline:20} acc {row['accuracy']:.3f} ll {row['log_loss']:.3f} top3 {row['top_3']:.3f} "
                f"ece {row['calibration_error']:.3f} {row['seconds']:.2f} s ({row['seconds_of_mlp']:.1f})",
                flush=True,
            )
    report("classes", options.device, records, options.out)
