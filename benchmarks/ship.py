"""Turn a trained separator into one that comes with the package: half precision, a card, a checksum.

python benchmarks/ship.py out/ship-2spk/model --name two-speakers --evaluation evaluation-tt.jsonl
    --records records.jsonl --speakers DATA/speakers.csv [--into src/torchmcl/separation/models]

The evaluation is that of `torchmcl separation evaluate` on whole test mixtures, which decided nothing; the records are
those of the training. Paths of the data are left out of the notes. A card with the same name is replaced.
"""

import argparse
import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import torchmcl as mcl
from torchmcl.extending import write_atomically
from torchmcl.nn import load_model, save_model
from torchmcl.separation import speaker_genders

MODELS = Path(__file__).parents[1] / "src" / "torchmcl" / "separation" / "models"
MAX_BYTES = 8_000_000
ATTRIBUTION = (
    "Trained on excerpts of LibriSpeech (OpenSLR 12, copyright 2014 Vassil Panayotov, CC BY 4.0, "
    "https://creativecommons.org/licenses/by/4.0/), resampled to 8 kHz, cut at pauses, leveled and rounded to 12 bits."
)
DATA = {
    "corpus": "LibriSpeech dev-clean and test-clean, excerpts of 5 to 8 s at 8 kHz, read English",
    "training": "60 readers (30 women, 30 men), 1320 utterances, 2.35 hours, mixed anew in every step",
    "validation": "10 other readers",
    "test": "10 other readers",
}
LIMITS = [
    "Hears up to 4 kHz: outputs of recordings at higher rates are as dull as a telephone.",
    "Trained on read English at close microphones; accents, children, music, far microphones and crowds are unknown.",
    "Two voices of one gender are harder than two of different gender.",
    "Gives as many outputs as it has, also where fewer speak: the others then hold remains.",
    "Which output is whom is kept over chunks by their overlap; after a pause of several seconds it may change.",
]


def main() -> None:
    """Write the folder of a shipped model."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", type=Path, help="folder of the trained model")
    arguments.add_argument("--name", required=True, help="by which users find it")
    arguments.add_argument("--evaluation", type=Path, required=True, help="evaluation-tt.jsonl")
    arguments.add_argument("--records", type=Path, required=True, help="records.jsonl of the training")
    arguments.add_argument("--speakers", type=Path, help="folder of speakers.csv, for the numbers by gender")
    arguments.add_argument("--into", type=Path, default=MODELS, help="folder of the shipped models")
    options = arguments.parse_args()
    model, notes = load_model(options.model)
    folder = options.into / options.name
    notes = without_paths(notes)
    save_model(folder, model, notes, half=True)
    data = (folder / "model.safetensors").read_bytes()
    if len(data) > MAX_BYTES:
        raise SystemExit(f"{folder}: has {len(data):,} bytes, more than {MAX_BYTES:,}.")
    evaluation, records = lines_of(options.evaluation), lines_of(options.records)
    card = {
        "name": options.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "network": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "n_outputs": model.config["n_outputs"],
        "scores": model.config["scores"],
        "sample_rate": notes["sample_rate"],
        "half_precision_db": half_precision_db(model, folder),
        "license": "Apache-2.0",
        "attribution": ATTRIBUTION,
        "data": DATA,
        "training": training_of(notes, records),
        "results": results_of(evaluation, speaker_genders(options.speakers)),
        "limits": LIMITS,
    }
    write_atomically(folder / "card.json", json.dumps(card, indent=1) + "\n")
    print(json.dumps(card["results"], indent=1))


def without_paths(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notes without what is known of the machine that trained."""
    notes = json.loads(json.dumps(notes))
    if "configuration" in notes:
        notes["configuration"]["data"] |= {"root": None, "pack": None, "tables": {}}
    return notes


def half_precision_db(model: torch.nn.Module, folder: Path) -> float:
    """Return the signal-to-difference ratio of the outputs before and after rounding the weights, on noise."""
    sound = torch.randn(1, 16000, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before, after = model(sound).hypotheses, load_model(folder)[0](sound).hypotheses
    cost = mcl.pairwise_neg_si_sdr(hypotheses=after, targets=before)
    return round(-float(cost.diagonal(dim1=-2, dim2=-1).mean()), 1)


def training_of(notes: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the training was: its options, length and validation."""
    return {
        "configuration": {part: value for part, value in notes["configuration"].items() if part != "data"},
        "epochs": len(records),
        "steps": records[-1]["step"],
        "minutes": round(sum(record["seconds"] for record in records) / 60, 1),
        "best_validation_si_sdr_db": round(notes["val_pit_si_sdr"], 2),
    }


def results_of(records: Sequence[Mapping[str, Any]], genders: Mapping[str, str]) -> dict[str, Any]:
    """Return the improvement on the test mixtures: all, and by gender."""
    groups: dict[str, list[float]] = {"all": []}
    for record in records:
        groups["all"].append(record["improvement"])
        if all(speaker in genders for speaker in record["speakers"]):
            pair = "+".join(sorted(genders[speaker] for speaker in record["speakers"]))
            groups.setdefault(pair, []).append(record["improvement"])
    return {"measure": "improvement of SI-SDR in dB, whole test mixtures"} | {
        name: {
            "mixtures": len(values),
            "mean": round(statistics.fmean(values), 2),
            "standard_error": round(statistics.stdev(values) / math.sqrt(len(values)), 2) if len(values) > 1 else None,
            "median": round(statistics.median(values), 2),
            "min": round(min(values), 2),
        }
        for name, values in sorted(groups.items())
    }


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
