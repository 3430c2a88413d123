"""Write the tables and figures of docs/uci.rst and docs/uci_tables.rst from the records in benchmarks/results.

python docs/_uci_tables.py                            # from uci-records-h200.csv and uci-variants-cpu.csv
python docs/_uci_tables.py out/uci-*/records.jsonl    # collect records of `torchmcl reproduce uci` in the latter first
"""

import csv
import json
import math
import statistics
import sys
from pathlib import Path

from scipy import stats

from torchmcl.app.report import mean_error, method_color, new_figure
from torchmcl_studies.data.uci import UCI_SETS
from torchmcl_studies.reports.statistics import save_figure
from torchmcl_studies.reports.uci import cells_of, deviations, draw_rmse_vs_distortion
from torchmcl_studies.uci.methods import METHODS, published_cells

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks/results"
STUDY, VARIANTS = RESULTS / "uci-records-h200.csv", RESULTS / "uci-variants-cpu.csv"
SETS = [name for name in UCI_SETS if name != "year"]
COLUMNS = ("epochs", "patience", "score_weight", "set", "fold", "method", "protocol", "seed", "distortion", "rmse")
PROTOCOLS = {"last": "last", "validation": "held-out", "test-selected": "test-selected"}
BOTH = ("distortion", "rmse")
SCHEDULES = ("amcl-exponential", "amcl-linear")
EPSILONS = tuple(f"relaxed-{epsilon}" for epsilon in ("0.5", "0.2", "0.1", "0.05", "annealed"))
TABLES = {
    "uci_table1": ("distortion", ("relaxed-0.1", "mcl", "amcl-exponential")),
    "uci_table2": ("rmse", ("pbp", "mc-dropout", "deep-ensemble", "relaxed-0.1", "mcl", "amcl-exponential")),
    "uci_table4_rmse": ("rmse", SCHEDULES),
    "uci_table4_distortion": ("distortion", SCHEDULES),
    "uci_table5_rmse": ("rmse", EPSILONS),
    "uci_table5_distortion": ("distortion", EPSILONS),
}
# Powers of ten by which small values are divided.
SCALES = {("kin8nm", "distortion"): "⁻³", ("naval", "distortion"): "⁻⁶", ("naval", "rmse"): "⁻³"}
FACTORS = {"⁻³": 1e3, "⁻⁶": 1e6}


def read(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {"fold": int(row["fold"]), "seed": int(row["seed"])}
        row |= {metric: float(row[metric]) if row[metric] else None for metric in BOTH}
    return rows


def collect(paths):
    rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    with VARIANTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {metric: f"{row[metric]:.5g}" for metric in BOTH} for row in rows if row["distortion"])


def write(name, rows):
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for cells in rows:
        lines += [f"   {'* ' if i == 0 else '  '}- {cell}" for i, cell in enumerate(cells)]
    (HERE / f"{name}.inc").write_text("\n".join(lines) + "\n")


def named(name, metric):
    """Return the name of a set with the power of ten of its values."""
    scale = SCALES.get((name, metric))
    return name if scale is None else f"{name}, 10{scale}"


def text(name, metric, cell, *, published=False):
    """Return mean and standard deviation in the power of ten of the set."""
    scale = SCALES.get((name, metric))
    factor = 1 if scale is None else FACTORS[scale]
    if published:
        return cell.text if scale is None else f"{cell.mean * factor:#.3g} ± {cell.std * factor:#.3g}"
    return mean_error(cell.mean * factor, cell.std * factor)


def bold_best(entries):
    """Return the texts of (mean, text), the lowest mean in bold; None is empty."""
    best = min(entry[0] for entry in entries if entry)
    return ["" if entry is None else f"**{entry[1]}**" if entry[0] == best else entry[1] for entry in entries]


def write_tables(cells):
    references = published_cells()
    for table, (metric, methods) in TABLES.items():
        labels = ["PBP" if method == "pbp" else METHODS[method].label for method in methods]
        rows = [
            [
                "set",
                "weights",
                *(
                    label.replace(" (exponential)", ", exponential").replace(" (linear)", ", linear")
                    for label in labels
                ),
            ]
        ]
        for name in SETS:
            for protocol, label in PROTOCOLS.items():
                found = [cells.get((name, method, protocol, metric)) for method in methods]
                entries = [cell and (cell.mean, text(name, metric, cell)) for cell in found]
                rows.append([named(name, metric) if protocol == "last" else "", label, *bold_best(entries)])
            keys = ["pbp" if method == "pbp" else METHODS[method].published for method in methods]
            found = [references.get((name, key, metric)) for key in keys]
            entries = [cell and (cell.mean, text(name, metric, cell, published=True)) for cell in found]
            rows.append(["", "*published*", *bold_best(entries)])
        write(table, rows)


def within(rows, protocol, *, of_mcl):
    found = [abs(d) <= 2 for _, method, _, d in deviations(rows, protocol) if (method == "mcl") == of_mcl]
    return f"{sum(found)} of {len(found)}"


def ratio(cells, name, method, other, protocol="last"):
    """Return the geometric mean of the distortion of a method relative to another one, bold if significant."""
    ours, theirs = (cells[name, which, protocol, "distortion"].values for which in (method, other))
    logs = [math.log(ours[fold] / theirs[fold]) for fold in ours]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    shown = f"{math.exp(mean):.2f} ± {math.exp(mean) * error:.2f}"
    return f"**{shown}**" if stats.wilcoxon(logs).pvalue < 0.05 else shown


def geometric(cell):
    return math.exp(statistics.fmean(map(math.log, cell.values.values())))


def draw(figure, name):
    save_figure(figure, HERE / "_static" / name)
    (HERE / f"_static/{name}.svg").unlink()


def main():
    if sys.argv[1:]:
        collect(sys.argv[1:])
    rows, variants = read(STUDY), read(VARIANTS)
    cells = cells_of(rows)
    write_tables(cells)
    agreement = [
        [f"{label} epoch", within(rows, protocol, of_mcl=False), within(rows, protocol, of_mcl=True)]
        for protocol, label in PROTOCOLS.items()
    ]
    write("uci_agreement", [["weights", "aMCL and Relaxed-WTA", "MCL"], *reversed(agreement)])
    draw(draw_rmse_vs_distortion(cells)[0], "rmse_vs_distortion")

    def variant(epochs="1000", patience="", score_weight="1.0"):
        wanted = {"epochs": epochs, "patience": patience, "score_weight": score_weight}
        return [row for row in variants if all(row[name] == value for name, value in wanted.items())]

    by_length = {n: cells_of(variant(str(n))) for n in (100, 200, 400)} | {1000: cells}
    names = [name for name in SETS if all((name, "mcl", "last", "distortion") in c for c in by_length.values())]
    write(
        "uci_epochs",
        [["set", *(f"{n} epochs" for n in by_length)]]
        + [[name, *(ratio(c, name, "amcl-exponential", "mcl") for c in by_length.values())] for name in names],
    )
    figure = new_figure(13, 3.2 * math.ceil(len(names) / 5), layout="constrained")
    lines = {"mcl": "-", "relaxed-0.1": "-", "relaxed-annealed": "--", "amcl-exponential": "-", "amcl-linear": "--"}
    for axis, name in zip(figure.subplots(math.ceil(len(names) / 5), 5).flat, names, strict=False):
        for method, style in lines.items():
            values = [geometric(c[name, method, "last", "distortion"]) for c in by_length.values()]
            label = METHODS[method].label if name == names[0] else None
            axis.plot([*by_length], values, style, marker="o", ms=3, color=method_color(method), label=label)
        axis.set(xscale="log", title=name, xlabel="epochs")
        axis.set_ylim(bottom=0)
        axis.set_xticks(list(by_length), [str(n) for n in by_length])
        axis.minorticks_off()
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    draw(figure, "uci_epochs")

    parts = {"patience 100": variant(patience="100"), "1000 epochs": [row for row in rows if row["method"] == "mcl"]}
    near = {label: {d[:3] for d in deviations(part) if abs(d[3]) <= 2} for label, part in parts.items()}
    print({label: len([key for key in keys if key[1] == "mcl"]) for label, keys in near.items()})
    for metric in BOTH:
        body = []
        for name in SETS:
            line = [named(name, metric)]
            for label, part in parts.items():
                shown = text(name, metric, cells_of(part)[name, "mcl", "test-selected", metric])
                line.append(f"**{shown}**" if (name, "mcl", metric) in near[label] else shown)
            body.append([*line, text(name, metric, published_cells()[name, "mcl", metric], published=True)])
        head = "distortion" if metric == "distortion" else "RMSE"
        write(f"uci_patience_{metric}", [["set", *(f"{head}, {label}" for label in parts), "published"], *body])

    mean, total = variant(score_weight="1.0"), variant(score_weight="5.0")
    print({how: within(part, "test-selected", of_mcl=False) for how, part in (("mean", mean), ("sum", total))})
    mean, total = cells_of(mean), cells_of(total)
    body = [
        [
            name,
            *(
                mean_error(c[name, method, "last", "distortion"].mean, c[name, method, "last", "distortion"].std)
                for method in ("mcl", "amcl-exponential")
                for c in (mean, total)
            ),
        ]
        for name in SETS
        if (name, "mcl", "last", "distortion") in total
    ]
    write("uci_scores", [["set", *(f"{m}, {how}" for m in ("MCL", "aMCL") for how in ("mean", "sum"))], *body])


if __name__ == "__main__":
    main()
