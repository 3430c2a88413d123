"""Write docs/speed_*.inc from the records in benchmarks/results: python docs/_speed_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"
PLACES = ("AVX-512", "AVX2", "NEON", "H200")


def listed(head, rows, widths):
    """Return the text of a list table."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in (head, *rows):
        lines += [f"   {'*' if place == 0 else ' '} - {cell}" for place, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def rows_of(name):
    """Return the rows of a record."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def _cell(before, after, digits, **_):
    """Return a figure before, if there is one, and after; `after` has a value of each run."""
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (min(after), max(after)))
    return ("" if before is None else f"{before:.{digits}f} → ") + " to ".join(ends)


def before_after():
    """Return the table of all figures before and after, with the floor or the bound of each."""
    found = {}
    for row in rows_of("before-after-hardware"):
        found.setdefault((row["figure"], row["bound"]), {})[row["place"]] = row
    table = []
    for (figure, bound), places in found.items():
        cells = []
        for place in PLACES:
            cells.append("—" if place not in places else _cell(**places[place]))
        table.append([figure, *cells, bound])
    return listed(["figure", *PLACES, "bound"], table, "36 14 14 14 14 8")


def fleets():
    """Return the table of fleets of models."""
    table = [
        [
            row["models"],
            *(f"{row[key]:.3g} ms" for key in ("fleet_ms", "loop_ms", "loop_of_fleets_of_one_ms", "floor_ms")),
            f"{row['share_of_floor']:.2f}",
        ]
        for row in rows_of("fleet-models-h200")
        if "models" in row
    ]
    head = ["64 models", "fleet", "loop", "loop of CUDA graphs", "floor", "floor / fleet"]
    return listed(head, table, "25 15 15 20 15 15")


def tables():
    """Return the text of each table by its name."""
    return {"before_after": before_after(), "fleets": fleets()}


if __name__ == "__main__":
    for name, text in tables().items():
        (HERE / f"speed_{name}.inc").write_text(text, encoding="utf-8")
