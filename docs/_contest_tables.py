"""Write docs/contest.inc and docs/pmlb.inc from benchmarks/results: python docs/_contest_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "benchmarks" / "results"
CONTEST, PMLB = FOLDER / "contest-cpu.json", FOLDER / "pmlb-cpu.json"
NAMES = {
    "ours": "DensityRegressor",
    "mdn-ensemble": "five mixture density networks",
    "mdn": "mixture density network",
    "quantile-forest": "quantile forest",
    "boosted-quantiles": "boosted quantiles",
    "kmeans-residuals": "KMeans on residuals",
    "ngboost": "NGBoost",
    "mapie": "MAPIE",
    "lightgbm": "LightGBM, quantiles",
    "catboost": "CatBoost, quantiles",
    "tabpfn": "TabPFN",
    "realmlp": "RealMLP",
    "realmlp-folds": "RealMLP, five folds",
    "tabm": "TabM",
    "tabm-folds": "TabM, five folds",
    "treeffuser": "treeffuser",
    "xgboostlss": "XGBoostLSS",
    "skpro-mdn": "mixture density network of skpro",
}
HEADS = {
    **{f"distortion_{k}": f"distortion, {k} point{'s' * (k > 1)}" for k in (1, 2, 5, 10)},
    "crps": "CRPS",
    "log_likelihood": "log-likelihood",
    "rmse": "RMSE",
    "fit_seconds": "fit, CPU s",
    "predict_seconds": "predict, CPU s",
}
ABSENT = """\
*These numbers are not here yet:* ``python -m benchmarks.tables.contest --data FOLDER
--records results/contest-records-cpu.csv --out results/contest-cpu.json`` makes them, and
``python docs/_contest_tables.py`` writes them into this page.
"""


def list_table(title, rows):
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for cells in rows:
        lines += [f"   {'* ' if i == 0 else '  '}- {cell}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def against(found, measure):
    """Return a baseline by ours, on how many sets ours is better, and how likely that is by chance."""
    if found is None:
        return "—"
    mean = f"{found['mean']:+.2f}" if measure == "log_likelihood" else f"{found['mean']:.2f}"
    p = "" if found["p"] is None else f", p = {found['p']:.2g}"
    return f"{mean} ({found['ours_better']} of {found['n_sets']}{p})"


def ratios(rows, measures, title, absent=()):
    body = [["baseline", *(HEADS[measure] for measure in measures)]]
    for row in rows:
        if row["method"] not in {"ours", *absent}:
            body.append([NAMES[row["method"]], *(against(row.get(measure), measure) for measure in measures)])
    return list_table(title, body)


def sets(rows, elsewhere):
    body = [["method", "held by the 90 % sets", "width", "in pieces", "fit, CPU s"]]
    for row in rows:
        coverage, pieces = (f"{100 * row[f'mean_{name}']:.1f} %" for name in ("coverage", "pieces"))
        width, seconds = (f"{row[f'mean_{name}']:.3g}" for name in ("width", "fit_seconds"))
        body.append([NAMES[row["method"]], coverage, width, pieces, "—" if row["method"] in elsewhere else seconds])
    return list_table("Means over the folds of each method; widths in deviations of the target", body)


def best(rows):
    lines = []
    for row in rows:
        where = ", ".join(row["ours_best_on"]) or "none"
        lines.append(f"- {HEADS[row['measure']]}: best of all on {row['n_best']} of {row['n_sets']} sets ({where}).")
        absent: dict[str, list[str]] = {}
        for name, methods in row["missing"].items():
            for method in methods:
                absent.setdefault(method, []).append(name)
        lines += [f"  Not run: {NAMES[method]} on {', '.join(names)}." for method, names in absent.items()]
    return "\n".join(lines) + "\n"


def contest(results=CONTEST):
    """Return the text of contest.inc; without results, how they are made."""
    if not results.exists():
        return ABSENT
    record = json.loads(results.read_text(encoding="utf-8"))
    rows, machine = record["rows"], record["machine"]
    # Times of other devices are not compared.
    elsewhere = {run.split()[0] for run in machine.get("on_gpu", [])} | set(machine.get("times_of_another_machine", []))
    methods = sorted((row for row in rows if "method" in row), key=lambda row: list(NAMES).index(row["method"]))
    title = "Baseline divided by DensityRegressor, geometric mean over sets (above 1: DensityRegressor is lower)"
    densities = "Densities: CRPS and RMSE relative to DensityRegressor; its log-likelihood minus the baseline's"
    return "\n".join(
        [
            best([row for row in rows if "measure" in row]),
            ratios(methods, [f"distortion_{k}" for k in (1, 2, 5, 10)], title),
            ratios(methods, ["crps", "log_likelihood", "rmse"], densities),
            ratios(methods, ["fit_seconds", "predict_seconds"], "Time, baseline / DensityRegressor", elsewhere),
            sets(methods, elsewhere),
        ]
    )


if __name__ == "__main__":
    (HERE / "contest.inc").write_text(contest(), encoding="utf-8")
    (HERE / "pmlb.inc").write_text(contest(PMLB), encoding="utf-8")
