"""Write docs/scaling_table.inc from benchmarks/results/scaling-cpu.json: python docs/_scaling_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORDS = {
    "models": "models",
    "hypotheses": "hypotheses",
    "rows": "rows",
    "units": "units of work, all of them",
    "records": "records there already",
    "models on an H200, 1000 epochs": "models on an H200, 1000 epochs",
}


def number(value):
    if value is None:
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def main():
    rows = json.loads((HERE.parent / "benchmarks/results/scaling-cpu.json").read_text())["rows"]
    head = ["of", "n", "seconds", "line", "MB", "line"]
    cells = [
        [
            WORDS[row["axis"]],
            f"{row['n']:,}",
            number(row["seconds"]),
            number(row.get("seconds_of_the_line")),
            number(row.get("megabytes")),
            number(row.get("megabytes_of_the_line")),
        ]
        for row in rows
        if "n" in row
    ]
    lines = [".. list-table:: Measurements and fitted lines", "   :header-rows: 1", ""]
    for own in [head, *cells]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(own)]
    (HERE / "scaling_table.inc").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for row in rows:
        if "line" in row:
            print(row)


if __name__ == "__main__":
    main()
