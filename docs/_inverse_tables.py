"""Write the tables of docs/inverse_problems.rst from the records: python docs/_inverse_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
TASKS = {"two_moons": "two moons", "gaussian_mixture": "Gaussian mixture", "slcp": "SLCP"}
KINDS = {"annealed": "annealed", "mixture density": "not annealed", "one network": "one network, not annealed"}
MEASURES = {
    "place of the best": "best, m",
    "place of all": "all, m",
    "posture of the best": "posture, rad",
    "solutions found": "solutions found",
}


def rows_of(name):
    """Return the content of a record."""
    return json.loads((HERE.parent / "benchmarks" / "results" / name).read_text())


def table(title, cells):
    """Return a list-table of cells, with a header."""
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for row in cells:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def posteriors():
    """Return the table of C2ST."""
    rows = rows_of("inverse-h200.json")["rows"]
    cells = [["task", "simulations", "NPE, published", *KINDS.values()]]
    for task, words in TASKS.items():
        for simulations in (10_000, 100_000):
            own = {r["kind"]: r for r in rows if (r["task"], r["simulations"]) == (task, simulations)}
            if own:
                means = [mean_of(own.get(kind)) for kind in KINDS]
                cells.append([words, f"{simulations:,}", f"{next(iter(own.values()))['published_npe']:.3f}", *means])
    return table("Mean C2ST, lower is better, 0.5 is perfect", cells)


def densities():
    """Return the table of held-out log densities, which made all choices."""
    rows = rows_of("inverse-h200.json")["fits"]
    cells = [["task", "simulations", *KINDS.values()]]
    for task, words in TASKS.items():
        for simulations in (10_000, 100_000):
            own = {r["kind"]: r for r in rows if (r["task"], r["simulations"]) == (task, simulations)}
            cells.append([words, f"{simulations:,}", *(f"{own[kind]['held_out']:.2f}" for kind in KINDS)])
    return table("Mean log density of held-out parameters, higher is better", cells)


def mean_of(row):
    """Return a mean, with the number of observations if not all were judged."""
    if row is None:
        return "not measured"
    n = len(row["each"])
    return f"{row['c2st']:.3f}" + ("" if n == 10 else f" ({n} observations)")


def arms():
    """Return one table for each arm."""
    record, parts = rows_of("robot-poses-h200.json"), []
    for arm, title in (("plane", "Three joints in the plane"), ("space", "Six joints in space")):
        if arm in record:
            cells = [["method", *MEASURES.values()]]
            for method, values in record[arm].items():
                cells.append([method, *(f"{values[key]:.3f}" for key in MEASURES)])
            parts.append(table(title, cells))
    return "\n".join(parts)


def tables():
    """Return the text of each file."""
    return {"posteriors": posteriors(), "densities": densities(), "arms": arms()}


if __name__ == "__main__":
    for name, text in tables().items():
        (HERE / f"inverse_{name}.inc").write_text(text, encoding="utf-8")
