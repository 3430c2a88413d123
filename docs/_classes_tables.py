"""Write docs/classes_table.inc from benchmarks/results/classes-cpu.json: python docs/_classes_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORDS = {"MCLClassifier": "MCL", "one softmax": "one softmax", "logistic regression": "logistic", "MLP": "MLP"}
WORDS |= {"boosted trees": "trees"}
PARTS = (
    ("accuracy", "Accuracy", 3),
    ("log_loss", "Log-loss", 3),
    ("top_2", "Accuracy of the better of two guesses", 3),
    ("calibration_error", "Calibration error", 3),
    ("seconds_of_mlp", "Fit time relative to the MLP", 1),
)


def table(rows, key, title, digits):
    """Return the lines of a table: a row for each set, a column for each classifier."""
    cells = [["table", "rows", "classes", *WORDS.values()]]
    for name in dict.fromkeys(row["table"] for row in rows):
        own = {row["classifier"]: row for row in rows if row["table"] == name}
        first = own["MCLClassifier"]
        mark = "" if first["developed"] else " \\*"
        cells.append(
            [name + mark, f"{first['rows']:,}", first["classes"], *(f"{own[c][key]:.{digits}f}" for c in WORDS)]
        )
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for own in cells:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(own)]
    return [*lines, ""]


def main():
    """Write the tables, and print how often each classifier is beaten."""
    rows = json.loads((HERE.parent / "benchmarks/results/classes-cpu.json").read_text())["rows"]
    lines = [line for part in PARTS for line in table(rows, *part)]
    (HERE / "classes_table.inc").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    ours = {row["table"]: row for row in rows if row["classifier"] == "MCLClassifier"}
    for baseline in list(WORDS)[1:]:
        for key, higher in (("accuracy", True), ("log_loss", False), ("top_2", True), ("calibration_error", False)):
            theirs = {row["table"]: row[key] for row in rows if row["classifier"] == baseline}
            better = sum(
                (ours[name][key] > value) == higher and ours[name][key] != value for name, value in theirs.items()
            )
            equal = sum(ours[name][key] == value for name, value in theirs.items())
            print(f"{baseline}: {key} better on {better}, equal on {equal} of {len(theirs)}")
    print("slowest, in fits of the MLP:", max(row["seconds_of_mlp"] for row in ours.values()))


if __name__ == "__main__":
    main()
