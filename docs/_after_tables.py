"""Write docs/after_*.inc from the records of benchmarks/results: python docs/_after_tables.py"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
WAYS = {
    "calibrated, reduce": "each network calibrated, then ``reduce``",
    "reduce": "``reduce``",
    "calibrated, tuned suppression": "each network calibrated, then suppression",
    "tuned suppression": "suppression, radius tuned",
    "calibrated, k-means of end points": "each network calibrated, then k-means of end points",
    "k-means of end points": "k-means of end points",
    "k-means of paths": "k-means of paths",
}
CALIBRATIONS = {
    "one network": "one network, as trained",
    "one network, TemperatureScaling": "one network, ``TemperatureScaling``",
    "one network, IsotonicScaling": "one network, ``IsotonicScaling``",
    "one network, VectorScaling": "one network, ``VectorScaling``",
    "60 hypotheses": "three networks together, as trained",
    "60 hypotheses, VectorScaling": "three networks together, ``VectorScaling``",
    "60 hypotheses, VectorScaling of each network": "``VectorScaling`` of each network, then together",
    "60 hypotheses, IsotonicScaling of each network": "``IsotonicScaling`` of each network, then together",
}


def rows_of(name):
    return json.loads((HERE.parent / "benchmarks/results" / name).read_text())["rows"]


def write(name, title, head, cells):
    lines = [f".. list-table:: {title}", "   :header-rows: 1", ""]
    for own in [head, *cells]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(own)]
    (HERE / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def pedestrians():
    rows = rows_of("after-cpu.json")
    scenes = list(dict.fromkeys(row["scene"] for row in rows))
    at = {(row["name"], row["scene"]): row for row in rows}

    def table(name, titles, keys, digits):
        cells = [
            [title, *(f"{at[row, scene][key]:.{digits}f}" for row in titles for scene in scenes)]
            for key, title in keys.items()
        ]
        heads = [f"{scene}{f', {title}' if title else ''}" for title in titles.values() for scene in scenes]
        write(name, "Means over random splits of the people", ["", *heads], cells)

    names = {"min FDE, 60 to 6": "6 of 60", "min FDE, 60 to 20": "20 of 60"}
    table("after_reduced.inc", names, WAYS, 3)
    table("after_calibrated.inc", {"calibration error": ""}, CALIBRATIONS, 4)
    cells = [
        [scene, *(f"{at['tubes, 6 hypotheses, alpha 0.1', scene][key]:.{digits}f}" for key, digits in TUBES.items())]
        for scene in scenes
    ]
    head = ["scene", "coverage of tubes", "area, m²", "coverage of discs", "area, m²"]
    write("after_tubes.inc", "Coverage (nominal 90 %) and mean area of the cross-section", head, cells)


TUBES = {"coverage": 3, "area": 1, "bonferroni_coverage": 3, "bonferroni_area": 1}


def tables():
    cells = [
        [
            row["name"],
            f"{row['coverage']:.3f}",
            f"{row['product_coverage']:.3f}",
            f"{row['area_ratio_geometric_mean']:.2f}",
            f"{row['splits_with_smaller_joint_regions']} of {row['splits']}",
        ]
        for row in rows_of("joint-regions-cpu.json")
    ]
    head = ["table and outputs", "joint", "product", "area, joint / product", "smaller in"]
    write("after_joint.inc", "Coverage (nominal 90 %) and areas", head, cells)


def speech():
    keys = ("coverage as heard before", "coverage with noise", "lowest coverage of 250 frames")
    cells = [[row["name"], *(f"{row[key]:.3f}" for key in keys)] for row in rows_of("speech-stream-cpu.json")]
    head = ["level", "without noise", "with noise", "lowest of 250 frames"]
    write("after_stream.inc", "Coverage of the next frame (nominal 90 %)", head, cells)


if __name__ == "__main__":
    pedestrians()
    tables()
    speech()
