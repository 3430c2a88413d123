"""Tables with few different rows: log-loss against scikit-learn, and coverage of targets with ties.

python benchmarks/coarse_tables.py [--seeds 3] [--coverage 50] [--sets Titanic,grades] [--out results/coarse.json]

Log-loss: cross tables that were published with their counts (Titanic, Berkeley admissions, hair and eyes) and simulated
ones: survey answers, grades, counts, rare events. Categories are one-hot columns for all; each seed holds out a quarter
of the rows. For the published tables that is another quarter of the same persons. Everything has its defaults, logistic
regression on standardised inputs. `regressor` is DensityRegressor on classes as numbers, scored by the mass of each.

Coverage: each simulated table has 300 rows and 2000 fresh ones. The sets should hold 90 %; the networks are trained
for a short while, as coverage does not depend on how good they are.
"""

import time
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from _common import parser, report
from torchmcl.sklearn import MCLClassifier
from torchmcl_tables import DensityRegressor
from torchmcl_tables.model.classes import CLASS_RULE

Table = tuple[np.ndarray, np.ndarray]
_TITANIC = [  # class by (survived, age, sex), as in R's `Titanic`
    ((0, 0, 0), (0, 0, 35, 0)),
    ((0, 0, 1), (0, 0, 17, 0)),
    ((0, 1, 0), (118, 154, 387, 670)),
    ((0, 1, 1), (4, 13, 89, 3)),
    ((1, 0, 0), (5, 11, 13, 0)),
    ((1, 0, 1), (1, 13, 14, 0)),
    ((1, 1, 0), (57, 14, 75, 192)),
    ((1, 1, 1), (140, 80, 76, 20)),
]
_BERKELEY = [  # admitted and rejected men, admitted and rejected women, by department
    (512, 313, 89, 19),
    (353, 207, 17, 8),
    (120, 205, 202, 391),
    (138, 279, 131, 244),
    (53, 138, 94, 299),
    (22, 351, 24, 317),
]
_EYES = [  # brown, blue, hazel and green eyes by hair, of men and of women
    [(32, 11, 10, 3), (53, 50, 25, 15), (10, 10, 7, 7), (3, 30, 5, 8)],
    [(36, 9, 5, 2), (66, 34, 29, 14), (16, 7, 7, 7), (4, 64, 5, 8)],
]
_QUICK = {"n_epochs": 40, "n_restarts": 2}


def one_hot(*columns: np.ndarray) -> np.ndarray:
    """Return a column for each value of each column."""
    return np.concatenate([(column[:, None] == np.unique(column)) for column in columns], axis=1).astype(float)


def persons(cells: list[tuple[tuple[int, ...], int]]) -> np.ndarray:
    """Return a row for each person of a cross table."""
    return np.repeat([cell for cell, _ in cells], [count for _, count in cells], axis=0)


def titanic(rng: np.random.Generator) -> Table:
    """Return class, sex and age of 2201 persons, and who survived."""
    rows = persons([((*who, place), n) for who, counts in _TITANIC for place, n in enumerate(counts)])
    return one_hot(*rows[:, 1:].T), rows[:, 0]


def berkeley(rng: np.random.Generator) -> Table:
    """Return department and sex of 4526 applicants, and who was admitted."""
    cells = [((d, i // 2, 1 - i % 2), n) for d, counts in enumerate(_BERKELEY) for i, n in enumerate(counts)]
    rows = persons(cells)
    return one_hot(*rows[:, :2].T), rows[:, 2]


def eyes(rng: np.random.Generator) -> Table:
    """Return hair and sex of 592 students, and the color of their eyes."""
    every = [((sex, hair, eye), n) for sex in (0, 1) for hair in range(4) for eye, n in enumerate(_EYES[sex][hair])]
    rows = persons(every)
    return one_hot(*rows[:, :2].T), rows[:, 2]


def coin(rng: np.random.Generator) -> Table:
    """Return one column of two values, and what is 1 with 10 or 90 %."""
    x = rng.integers(0, 2, size=20_000)
    return x[:, None].astype(float), (rng.uniform(size=len(x)) < np.where(x, 0.9, 0.1)).astype(int)


def levels(rng: np.random.Generator) -> Table:
    """Return one category with 12 levels, and one of four answers."""
    x = rng.integers(0, 12, size=600)
    shares = np.random.default_rng(0).dirichlet(np.ones(4), size=12)
    return one_hot(x), np.array([rng.choice(4, p=shares[each]) for each in x])


def survey(rng: np.random.Generator) -> Table:
    """Return six answers from 1 to 5 that go together, and the seventh."""
    attitude = rng.normal(size=(1500, 1))
    answers = np.clip(np.round(3 + attitude + 0.8 * rng.normal(size=(1500, 7))), 1, 5)
    return answers[:, :6], answers[:, 6].astype(int)


def yes_or_no(rng: np.random.Generator) -> Table:
    """Return twelve questions, and a decision."""
    attitude = rng.normal(size=(1200, 1))
    X = (attitude + rng.normal(size=(1200, 12)) > 0).astype(float)
    return X, (X @ np.linspace(-0.2, 1, 12) + rng.logistic(size=1200) > 2.5).astype(int)


def grades(rng: np.random.Generator) -> Table:
    """Return three grades from 1 to 6, and the next one."""
    ability = rng.normal(size=(900, 1))
    given = np.clip(np.round(3 + ability + 0.7 * rng.normal(size=(900, 4))), 1, 6)
    return given[:, :3], given[:, 3].astype(int)


def counts(rng: np.random.Generator) -> Table:
    """Return three categories, and a Poisson count up to 6."""
    X = rng.integers(0, [3, 4, 5], size=(4000, 3))
    rate = np.exp(0.4 * X[:, 0] - 0.3 * X[:, 1] + 0.5 * (X[:, 2] == 2))
    return one_hot(*X.T), np.minimum(rng.poisson(rate), 6)


def threshold(rng: np.random.Generator) -> Table:
    """Return two dice, and whether they show more than 7, misread in 5 %."""
    X = rng.integers(1, 7, size=(2000, 2))
    return X.astype(float), ((X.sum(axis=1) > 7) ^ (rng.uniform(size=2000) < 0.05)).astype(int)


def rare(rng: np.random.Generator) -> Table:
    """Return eight symptoms that most persons do not have, and a rare disease."""
    X = (rng.uniform(size=(4000, 8)) < np.linspace(0.02, 0.2, 8)).astype(float)
    return X, (X @ np.linspace(2, 0.2, 8) + rng.logistic(size=4000) > 3.5).astype(int)


def purchases(rng: np.random.Generator) -> Table:
    """Return the hour and the day of the week, and whether something was bought."""
    hour, day = rng.integers(0, 24, size=6000), rng.integers(0, 7, size=6000)
    chance = 0.1 + 0.4 * np.exp(-(((hour - 18) / 3) ** 2)) + 0.15 * (day >= 5)
    return np.column_stack([hour, day]).astype(float), (rng.uniform(size=6000) < chance).astype(int)


def certain(rng: np.random.Generator) -> Table:
    """Return two categories that decide on the class without any noise."""
    X = rng.integers(0, [4, 5], size=(1000, 2))
    return one_hot(*X.T), (X.sum(axis=1) % 3)


TABLES: dict[str, Callable[[np.random.Generator], Table]] = {
    **{"Titanic": titanic, "Berkeley": berkeley, "eyes": eyes, "coin": coin, "levels": levels, "survey": survey},
    **{"yes or no": yes_or_no, "grades": grades, "counts": counts, "threshold": threshold, "rare": rare},
    **{"purchases": purchases, "certain": certain},
}


# ---------------------------------------------------------------------- targets with ties


def zero_inflated(rng: np.random.Generator, n: int) -> Table:
    """Return a target that is 0 in 40 % of the rows."""
    X = rng.normal(size=(n, 3))
    return X, np.where(rng.uniform(size=n) < 0.4, 0.0, np.exp(X[:, 0] + rng.normal(size=n)))


def poisson(rng: np.random.Generator, n: int) -> Table:
    """Return a count."""
    X = rng.normal(size=(n, 3))
    return X, rng.poisson(np.exp(1 + 0.5 * X[:, 0])).astype(float)


def graded(rng: np.random.Generator, n: int) -> Table:
    """Return a grade from 1 to 6 that two columns explain a part of."""
    X = rng.normal(size=(n, 3))
    return X, np.clip(np.round(3 + X[:, 0] + 0.5 * X[:, 1] + rng.normal(size=n)), 1, 6)


def rounded(rng: np.random.Generator, n: int) -> Table:
    """Return a target that is rounded to halves, and inputs that are rounded too."""
    X = rng.normal(size=(n, 3)).round(1)
    return X, np.round(2 * (3 * X[:, 0] + 2 * rng.normal(size=n))) / 2


def censored(rng: np.random.Generator, n: int) -> Table:
    """Return a target whose scale ends at 1: one row of five lies there."""
    X = rng.normal(size=(n, 3))
    return X, np.minimum(X[:, 0] + rng.normal(size=n), 1.0)


TIED: dict[str, Callable[[np.random.Generator, int], Table]] = {
    **{"zero-inflated": zero_inflated, "count": poisson, "grade": graded, "tied": rounded, "censored": censored},
}


def rivals(seed: int) -> dict[str, object]:
    """Return the classifiers by name."""
    return {
        "MCLClassifier": MCLClassifier(rule=CLASS_RULE, random_state=seed),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "boosted trees": HistGradientBoostingClassifier(random_state=seed),
    }


def loss_of_numbers(split: list[np.ndarray], classes: np.ndarray, seed: int) -> float:
    """Return the log-loss of the masses that DensityRegressor gives to the classes as numbers."""
    train, test, labels, truth = split
    density = DensityRegressor(random_state=seed).fit(train, labels.astype(float)).predict_distribution(test)
    places, masses = density.hypotheses[..., 0].numpy(), density.probabilities.numpy()
    nearest = np.abs(places[..., None] - classes).argmin(axis=-1)
    shares = np.stack([(masses * (nearest == k)).sum(axis=1) for k in range(len(classes))], axis=1)
    return float(log_loss(truth, np.clip(shares, 1e-15, 1), labels=classes))


def log_losses(name: str, n_seeds: int) -> dict[str, object]:
    """Return the log-loss of all on one table, mean over seeds."""
    found: dict[str, list[float]] = {}
    for seed in range(n_seeds):
        X, y = TABLES[name](np.random.default_rng(seed))
        split = train_test_split(X, y, test_size=0.25, random_state=seed)
        classes = np.unique(split[2])
        for rival, model in rivals(seed).items():
            start = time.perf_counter()
            model.fit(split[0], split[2])
            found.setdefault(f"seconds of {rival}", []).append(time.perf_counter() - start)
            found.setdefault(rival, []).append(log_loss(split[3], model.predict_proba(split[1]), labels=classes))
        found.setdefault("regressor", []).append(loss_of_numbers(split, classes, seed))
    row: dict[str, object] = {"table": name, "rows": len(X), "different": len(np.unique(np.c_[X, y], axis=0))}
    row |= {rival: float(np.mean(values)) for rival, values in found.items()}
    # Where the classes are certain, all are as good as 0.
    best = max(min(np.mean(found["logistic regression"]), np.mean(found["boosted trees"])), 0.001)
    return row | {"beside the better": float(max(row["MCLClassifier"], 0.001) / best)}


def coverage(name: str, n_tables: int) -> dict[str, object]:
    """Return how often the 90 % sets of fresh rows hold their targets, over many tables."""
    covered, ends, infinite, outside = [], [], 0, []
    for seed in range(n_tables):
        rng = np.random.default_rng(5000 + seed)
        X, y = TIED[name](rng, 300)
        fresh, truth = TIED[name](rng, 2000)
        model = DensityRegressor(random_state=seed, **_QUICK).fit(X, y)
        sets = model.predict_interval(fresh)
        low, high = sets.hull
        inside = sets.contains(truth)
        covered.append(inside.mean())
        ends.append(inside[truth == (y.max() if name == "censored" else y.min())].mean())
        infinite += bool(np.isinf(low).any() and np.isinf(high).any())
        mean = model.predict(fresh)
        outside.append(((mean < low) | (mean > high)).mean())
    row = {"table": name, "tables": n_tables, "coverage": np.mean(covered), "standard error": np.std(covered)}
    row |= {"coverage of the end": np.nanmean(ends), "infinite": infinite, "mean outside": np.mean(outside)}
    row["standard error"] /= np.sqrt(n_tables)
    return {key: value if isinstance(value, str | int) else float(value) for key, value in row.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--coverage", type=int, default=50, help="tables of each kind, 0 for none")
    arguments.add_argument("--sets", default="", help="names of tables, separated by commas; all by default")
    options = arguments.parse_args()
    wanted = options.sets.split(",") if options.sets else [*TABLES, *TIED]
    records = []
    for kinds, measure, number in ((TABLES, log_losses, options.seeds), (TIED, coverage, options.coverage)):
        for name in kinds:
            if name in wanted and number:
                records.append(measure(name, number))
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in records[-1].items()}, flush=True)
    report("coarse_tables", options.device, records, options.out)
