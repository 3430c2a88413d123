"""Write docs/speed_*.inc from the records in benchmarks/results: python docs/_speed_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"


def listed(head, rows, widths):
    """Return the text of a list table."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in (head, *rows):
        lines += [f"   {'*' if place == 0 else ' '} - {cell}" for place, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def rows_of(name):
    """Return the rows of a record."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]


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
    return {"fleets": fleets()}


if __name__ == "__main__":
    for name, text in tables().items():
        (HERE / f"speed_{name}.inc").write_text(text, encoding="utf-8")
