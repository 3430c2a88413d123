"""Write the tables of docs/separation_models.rst, from cards and a record: python docs/_robustness_tables.py"""

import json
import runpy
from pathlib import Path

from torchmcl.separation.shipped import model_card, shipped_models

HERE = Path(__file__).resolve().parent
RECORD = HERE.parent / "benchmarks" / "results" / "robustness-cpu.json"
list_table = runpy.run_path(str(HERE / "_separation_tables.py"))["list_table"]
GENDERS = {"all": "all", "F+F": "two women", "F+M": "a woman and a man", "M+M": "two men"}
CONDITIONS = {
    "clean": "as recorded",
    "levels": "one voice 6 dB softer",
    "noise": "noise 20 dB below",
    "reverberation": "mild reverberation",
    "clipped": "clipped at 30 % of the peak",
    "codec": "8-bit mu-law",
    "short": "one second of it",
    "16 kHz": "recorded at 16 kHz",
    "44.1 kHz": "recorded at 44.1 kHz",
}


def test_rows():
    """Return the improvement of each shipped model on its test mixtures, from the cards."""
    rows = []
    for name in shipped_models():
        card = model_card(name)
        for group, numbers in card["results"].items():
            if isinstance(numbers, dict):
                mean = f"{numbers['mean']:.2f} ± {numbers['standard_error']:.2f}"
                rows.append([f"``{name}``", GENDERS.get(group, group), str(numbers["mixtures"]), mean])
                rows[-1] += [f"{numbers['median']:.2f}", f"{numbers['min']:.2f}"]
    return rows


def condition_rows(rows):
    """Return the improvement under each condition, and by how much it differs from the clean one."""
    found = {(row["model"], row["condition"]): row for row in rows if row.get("genders") == "all"}
    lines = []
    for (model, condition), row in found.items():
        less = row["improvement_db"] - found[model, "clean"]["improvement_db"]
        mean = f"{row['improvement_db']:.2f} ± {row['standard_error']:.2f}"
        lines.append([f"``{model}``", CONDITIONS[condition], str(row["mixtures"]), mean])
        lines[-1] += ["" if condition == "clean" else f"{less:+.2f}", f"{row['worst_tenth_db']:.2f}"]
    return lines


def speed_rows(rows):
    """Return how much faster than real time each network is."""
    lines = []
    for row in rows:
        if "processor_time_1_thread" in row:
            name = f"``{row['model']}``" if row["model"] in shipped_models() else f"untrained, {row['model']}"
            lines.append([name, f"{row['parameters'] / 1e6:.2f} M", f"{row['processor_time_1_thread']:.2f}"])
    return lines


def tables(record):
    """Return the tables of the page by name."""
    tested = list_table(
        "Improvement of SI-SDR in dB on whole test mixtures",
        ["model", "voices", "mixtures", "mean ± SE", "median", "worst"],
        test_rows(),
    )
    conditions = list_table(
        "Improvement of SI-SDR in dB by condition, the same mixtures in each",
        ["model", "condition", "mixtures", "mean ± SE", "against clean", "worst tenth"],
        condition_rows(record["rows"]),
    )
    speed = list_table(
        "Seconds of audio in a second of processor time",
        ["network", "parameters", "1 thread"],
        speed_rows(record["rows"]),
    )
    return {"tested": tested, "conditions": conditions, "speed": speed}


if __name__ == "__main__":
    for name, text in tables(json.loads(RECORD.read_text())).items():
        (HERE / f"separation_models_{name}.inc").write_text(text)
