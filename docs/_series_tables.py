"""Write docs/series_results_*.inc from benchmarks/results/series.json: python docs/_series_tables.py"""

import json
from pathlib import Path
from statistics import mean

HERE = Path(__file__).resolve().parent
SETS = {"hourly": "M4 hourly", "weekly": "M4 weekly", "etth1": "ETTh1", "exchange": "exchange rates"}
METHODS = {
    "forecaster": "``Forecaster``",
    "mixture_likelihood": "mixture likelihood, same network",
    "mixture_futures": "mixture likelihood, futures as here",
    "nine_quantiles": "nine quantiles, same network",
    "patch_tst": "PatchTST",
    "tide": "TiDE",
    "codebook": "codebook",
    "auto_arima": "AutoARIMA",
    "auto_ets": "AutoETS",
    "seasonal_naive": "seasonal naive",
}
#: GIFT-Eval, commit 4fd98a9: CRPS of M4 hourly, M4 weekly and ETTh1 with a horizon of 48.
PUBLISHED = {
    "best model trained for the set": ("0.0302", "0.0391", "0.1815"),
    "PatchTST": ("0.0390", "0.0402", "0.190"),
    "best statistical": ("0.0337", "0.0499", "0.2040"),
    "seasonal naive": ("0.0376", "0.0609", "0.2404"),
    "Chronos-2, pretrained": ("0.0232", "0.0367", "0.1706"),
}


def listed(head, rows):
    """Return the text of a list table."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (head, *rows):
        lines += [f"   {'*' if place == 0 else ' '} - {cell}" for place, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def number(value, digits):
    """Return a number for a cell, or a dash."""
    return "—" if value is None else f"{value:.{digits}f}"


class Records:
    """Records of the benchmark by set and method."""

    def __init__(self, rows):
        self.rows = [row for row in rows if row["part"] == "test"]
        self.largest = {name: max(row["n_paths"] for row in self.rows if row["set"] == name) for name in SETS}

    def value(self, name, method, key, part=False):
        """Return the mean over seeds of a measure, on all windows or on the part that slow methods forecast."""
        found = [
            row[key]
            for row in self.rows
            if row["set"] == name
            and row["method"] == method
            and (row["n_paths"] == self.largest[name]) != part
            and key in row
        ]
        return mean(found) if found else None

    def by_method(self, key, digits, part=False, sets=tuple(SETS)):
        """Return a row for each method with its measure on each set."""
        rows = []
        for method, title in METHODS.items():
            values = [self.value(name, method, key, part) for name in sets]
            if any(value is not None for value in values):
                rows.append([title, *(number(v, d) for v, d in zip(values, digits, strict=True))])
        return rows


def tables():
    """Return the texts of the tables by name."""
    records = Records(json.loads((HERE.parent / "benchmarks/results/series.json").read_text())["rows"])
    titles = list(SETS.values())
    published = [[f"*{title}* (GIFT-Eval)", *values, "—"] for title, values in PUBLISHED.items()]
    seasonal = ("hourly", "etth1")
    return {
        "crps": listed(["CRPS", *titles], own(records.by_method("crps", (4, 4, 4, 4))) + published),
        "part": listed(
            ["CRPS on 24 random pairs of series and window", *(SETS[name] for name in seasonal)],
            own(records.by_method("crps", (4, 4), part=True, sets=seasonal)),
        ),
        "distortion": listed(["distortion of 16", *titles], records.by_method("distortion_of_16", (3, 3, 3, 4))),
        "energy": listed(["energy score of 16", *titles], records.by_method("energy_of_16", (3, 3, 3, 4))),
        "samples": listed(
            ["energy score of samples", *titles], own(records.by_method("energy_of_samples", (3, 3, 3, 4)))
        ),
        "tubes": listed(
            ["", *titles], [["share of whole paths in tubes of 90 %", *tubes(records)], ["paths", *paths(records)]]
        ),
        "seconds": listed(["seconds", *titles], own(records.by_method("seconds", (0, 0, 0, 0)))),
    }


def own(rows):
    """Return the rows without the method that differs from another one in its 16 paths only."""
    return [row for row in rows if row[0] != METHODS["mixture_futures"]]


def tubes(records):
    """Return the coverage of tubes on each set."""
    return [number(records.value(name, "forecaster", "coverage_of_tubes"), 3) for name in SETS]


def paths(records):
    """Return the number of paths on each set."""
    return [records.largest[name] for name in SETS]


def main():
    """Write the tables."""
    for name, text in tables().items():
        (HERE / f"series_results_{name}.inc").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
