"""Write the tables of separators from cards and records: python docs/_robustness_tables.py"""

import json
import runpy
from pathlib import Path

from torchmcl_speech.pretrained import model_card, shipped_models

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"
list_table = runpy.run_path(str(HERE / "_separation_tables.py"))["list_table"]
VOICES = {"F": ("woman", "women"), "M": ("man", "men")}
NUMBERS = ("no", "a", "two", "three", "four", "five")
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


def rows_of(pattern):
    """Return the rows of all records whose names fit."""
    return [row for path in sorted(RESULTS.glob(pattern)) for row in json.loads(path.read_text())["rows"]]


def voices(group):
    """Return a group of mixtures in words."""
    kinds = group.split("+")
    if not set(kinds) <= VOICES.keys():
        return group
    counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    return " and ".join(f"{NUMBERS[n]} {VOICES[kind][n > 1]}" for kind, n in counts.items())


def model_rows(cards):
    """Return what each model is."""
    rows = []
    for card in cards:
        sizes, training = card["sizes"], card["training"]
        network = f"{sizes['n_blocks']} blocks of {sizes['hidden_size']} units, {card['parameters'] / 1e6:.2f} M"
        outputs = f"{card['n_outputs']}{', with scores' if card['scores'] else ''}"
        trained = f"{training['steps']:,} steps, {training['minutes']:.0f} minutes"
        rows.append([f"``{card['name']}``", outputs, network, f"{card['bytes'] / 1e6:.1f} MB", trained])
    return rows


def test_rows(cards):
    """Return the improvement of each shipped model on its test mixtures, from the cards."""
    rows = []
    for card in cards:
        for group, numbers in card["results"].items():
            if isinstance(numbers, dict):
                error = "" if numbers["standard_error"] is None else f" ± {numbers['standard_error']:.2f}"
                rows.append([f"``{card['name']}``", voices(group), str(numbers["mixtures"])])
                rows[-1] += [f"{numbers['mean']:.2f}{error}", f"{numbers['median']:.2f}", f"{numbers['min']:.2f}"]
    return rows


def counting_rows(cards):
    """Return how often the number of voices is right."""
    rows = []
    for card in cards:
        if test := card.get("counting", {}).get("test"):
            by_number = ", ".join(f"{n}: {100 * share:.0f} %" for n, share in test["accuracy_by_number"].items())
            rows.append([f"``{card['name']}``", str(test["mixtures"]), f"{100 * test['accuracy']:.1f} %", by_number])
            rows[-1] += [f"{test['log_loss']:.3f}"]
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
        lines[-1] += [f"{100 * row['count_right']:.0f} %" if "count_right" in row else ""]
    return lines


def edge_rows(rows):
    """Return what silence and one voice give."""
    lines = []
    for row in rows:
        if row["condition"] == "silence and one voice":
            silence = "silence" if row["silence_peak"] == 0 else f"a peak of {row['silence_peak']:.1g}"
            kept, below = f"{row['one_voice_si_sdr_db']:.0f} dB", f"{row['other_output_below_db']:.0f} dB below"
            count = f"{100 * row['count_right']:.0f} %" if "count_right" in row else ""
            lines.append([f"``{row['model']}``", silence, kept, below, count])
    return lines


def speed_rows(rows):
    """Return how much faster than real time each network is."""
    lines = []
    for row in rows:
        if row["what"] == "separate":
            name = f"``{row['model']}``" if row["model"] in shipped_models() else row["model"]
            where = "GPU" if row["device"] == "cuda" else f"{row['threads']} CPU core{'s' * (row['threads'] > 1)}"
            lines.append([name, where, f"{row['times_real_time']:.1f}"])
    return lines


def tables():
    """Return the tables of the page by name."""
    cards, robustness = [model_card(name) for name in shipped_models()], rows_of("robustness-*.json")
    heads = {
        "models": ("Bundled separators", ["model", "outputs", "network", "size", "training on an H200"]),
        "tested": (
            "Improvement of SI-SDR in dB on whole test mixtures",
            ["model", "voices", "mixtures", "mean ± SE", "median", "worst"],
        ),
        "counting": (
            "Number of speakers: share of test mixtures with a correct estimate",
            ["model", "mixtures", "right", "by the true number", "log-loss"],
        ),
        "conditions": (
            "Improvement of SI-SDR in dB by condition, the same mixtures in each",
            ["model", "condition", "mixtures", "mean ± SE", "against clean", "worst tenth", "correct number"],
        ),
        "edges": (
            "Silence and single voices",
            ["model", "output for silence", "best output for one voice", "next output", "correct number"],
        ),
        "speed": (
            "Speed of the command after start-up, as a multiple of real time",
            ["model", "device", "times real time"],
        ),
    }
    rows = {
        "models": model_rows(cards),
        "tested": test_rows(cards),
        "counting": counting_rows(cards),
        "conditions": condition_rows(robustness),
        "edges": edge_rows(robustness),
        "speed": speed_rows(rows_of("separate-speed-*.json")),
    }
    # A table without rows is no table: nothing stands in its place.
    return {name: list_table(*heads[name], rows[name]) if rows[name] else "\n" for name in heads}


if __name__ == "__main__":
    for name, text in tables().items():
        (HERE / f"separation_models_{name}.inc").write_text(text)
