"""Write the tables of docs/tabular.rst from benchmarks/results/tabular-cpu.json: python docs/_tabular_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = {
    "ours": "MCLRegressor",
    "mdn": "mixture density network",
    "mlp-ensemble": "MLP ensemble",
    "ngboost": "NGBoost",
    "quantile-forest": "quantile forest",
    "mapie": "MAPIE",
    "kmeans-residuals": "KMeans on residuals",
}
# Measure, heading, and whether lower is better (None: neither is).
COLUMNS = (
    ("distortion", "distortion", True),
    ("distortion_best_points", "distortion, best points", True),
    ("crps", "CRPS", True),
    ("log_likelihood", "log-likelihood", False),
    ("rmse", "RMSE", True),
    ("coverage", "coverage", None),
    ("width", "width", None),
    ("fit_seconds", "fit, CPU s", True),
    ("predict_seconds", "predict, CPU s", True),
)


def number(value, digits=3):
    return f"{value:.{digits - 1}e}" if 0 < abs(value) < 1e-3 else f"{value:.{digits}g}"


def list_table(title, rows):
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for cells in rows:
        lines += [f"   {'* ' if i == 0 else '  '}- {cell}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def of_set(rows):
    """Return the table of one set, the best of each column in bold."""
    best = {}
    for measure, _, lower in COLUMNS:
        means = [row[measure]["mean"] for row in rows if measure in row]
        if lower is not None and means:
            best[measure] = min(means) if lower else max(means)
    body = [["method", *(heading for _, heading, _ in COLUMNS), "p"]]
    for row in rows:
        cells = [NAMES[row["method"]]]
        for measure, _, _ in COLUMNS:
            if measure not in row:
                cells.append("—")
                continue
            mean, error = row[measure]["mean"], row[measure]["standard_error"]
            text = number(mean) + ("" if error is None or measure.endswith("seconds") else f" ± {number(error, 2)}")
            cells.append(f"**{text}**" if best.get(measure) == mean else text)
        p = row["p_distortion"]
        body.append([*cells, "—" if p is None else number(p, 2)])
    n_folds = rows[0]["n_folds"]
    folds = f"{n_folds} fold{'s' * (n_folds > 1)}"
    return list_table(f"{rows[0]['set']}, {folds}", body)


def overall(rows):
    """Return the table of geometric mean ratios, baseline by ours."""
    measures = ("distortion", "distortion_best_points", "crps", "rmse", "fit_seconds")
    heads = {measure: heading for measure, heading, _ in COLUMNS}
    body = [["baseline", *(heads[measure] for measure in measures)]]
    for row in rows:
        cells = [NAMES[row["method"]]]
        for measure in measures:
            ratio, p = row[measure]["ratio"], row[measure]["p"]
            cells.append(f"{ratio:.2f}" + ("" if p is None else f" (p = {p:.2g})"))
        body.append(cells)
    n_folds = rows[0]["distortion"]["n_pairs"]
    title = f"Baseline divided by MCLRegressor, geometric mean over {n_folds} folds of all sets"
    return list_table(title + " (above 1: MCLRegressor is lower)", body)


def wins(rows):
    """Return which method has the lowest mean in each set."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    heads = ("distortion", "distortion_best_points", "crps", "rmse", "fit_seconds")
    body = [["set", "folds", *(heading for measure, heading, _ in COLUMNS if measure in heads)]]
    for name in sets:
        own = [row for row in rows if row["set"] == name]
        best = [NAMES[min(own, key=lambda row: row[measure]["mean"])["method"]] for measure in heads]
        body.append([name, str(own[0]["n_folds"]), *best])
    return list_table("Methods with the lowest mean", body)


def main():
    rows = json.loads((HERE.parent / "benchmarks/results/tabular-cpu.json").read_text())["rows"]
    order = {method: i for i, method in enumerate(NAMES)}
    of_folds = sorted((row for row in rows if "n_folds" in row), key=lambda row: order[row["method"]])
    sets = list(dict.fromkeys(row["set"] for row in rows if "n_folds" in row))
    parts = [of_set([row for row in of_folds if row["set"] == name]) for name in sets if name != "inverse"]
    (HERE / "tabular_wins.inc").write_text(wins([row for row in of_folds if row["set"] != "inverse"]))
    (HERE / "tabular_overall.inc").write_text(overall([row for row in rows if "n_folds" not in row]))
    (HERE / "tabular_sets.inc").write_text("\n".join(parts))
    (HERE / "tabular_inverse.inc").write_text(of_set([row for row in of_folds if row["set"] == "inverse"]))


if __name__ == "__main__":
    main()
