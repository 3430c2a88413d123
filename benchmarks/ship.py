"""Turn a training into a separator that comes with the package: tested, in half precision, with card and checksum.

python benchmarks/ship.py out/ship-2spk --name two-speakers --data FOLDER [--device cuda]
    [--into packages/torchmcl-speech/src/torchmcl_speech/models]

The folder is what `torchmcl separation train` wrote. Scores, if the network gives any, are calibrated on the validation
part. Whole test mixtures, which decide nothing, give the numbers of the card; records of an earlier
`torchmcl separation evaluate` beside the model are taken as they are. Paths of the data are left out of the notes. A
file above 8 MB is refused. A model of the same name is replaced. Then:

python benchmarks/separate_speed.py --cards --out benchmarks/results/separate-speed-cpu.json
python benchmarks/robustness.py --model NAME --data FOLDER --limit 10 --out benchmarks/results/robustness-NAME-cpu.json
python docs/_robustness_tables.py
"""

import argparse
import hashlib
import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import torchmcl as mcl
from torchmcl.persistence.writing import write_atomically
from torchmcl_speech import (
    DataConfig,
    SeparationConfig,
    calibrate_counts,
    count_log_loss,
    count_probabilities,
    evaluate_separator,
    speaker_genders,
)
from torchmcl_speech.nn import load_model, save_model

MODELS = Path(__file__).parents[1] / "packages/torchmcl-speech/src/torchmcl_speech/models"
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
    "Overlapping chunks keep the order of the speakers; after a pause of several seconds it may change.",
]
WITHOUT_SCORES = "Gives as many outputs as it has, also where fewer speak: the others then hold remains."


def main() -> None:
    """Write the folder of a shipped model."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path, help="folder of the training: model/, records.jsonl")
    arguments.add_argument("--name", required=True, help="by which users find it")
    arguments.add_argument("--data", type=Path, required=True, help="folder of the speech, with its test part")
    arguments.add_argument("--pack", type=Path, help="file of packed utterances to read instead of the recordings")
    arguments.add_argument("--limit", type=int, help="use fewer mixtures, for the test and for the calibration")
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--into", type=Path, default=MODELS, help="folder of the shipped models")
    options = arguments.parse_args()
    trained = options.run / "model"
    counting = calibrated(trained, options)
    model, notes = load_model(trained)
    records, evaluation = lines_of(options.run / "records.jsonl"), tested(trained, notes, options)
    with tempfile.TemporaryDirectory() as scratch:  # nothing is left of one that is too large
        save_model(scratch, model, without_paths(notes), half=True)
        data = (Path(scratch) / "model.safetensors").read_bytes()
        rounded_db = half_precision_db(model, Path(scratch))
    if len(data) > MAX_BYTES:
        raise SystemExit(f"{options.name}: would have {len(data):,} bytes, more than {MAX_BYTES:,}.")
    card = {
        "name": options.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        **network_of(model),
        "sample_rate": notes["sample_rate"],
        "half_precision_db": rounded_db,
        "license": "Apache-2.0",
        "attribution": ATTRIBUTION,
        "data": DATA,
        "training": training_of(notes, records),
        "results": results_of(evaluation, speaker_genders(options.data)),
        **({} if counting is None else {"counting": {"validation": counting, "test": counted(evaluation, notes)}}),
        "limits": LIMITS if model.config["scores"] else [*LIMITS, WITHOUT_SCORES],
    }
    folder = options.into / options.name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "model.safetensors", data)
    write_atomically(folder / "card.json", json.dumps(card, indent=1) + "\n")
    print(json.dumps({"bytes": len(data), "results": card["results"], "counting": card.get("counting")}, indent=1))


def data_of(notes: Mapping[str, Any], options: argparse.Namespace) -> DataConfig:
    """Return where the mixtures are on which the model is tried."""
    data = SeparationConfig.from_dict(notes.get("configuration", {})).with_root(options.data).data
    return replace(data, pack=None if options.pack is None else str(options.pack))


def calibrated(trained: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """Fit the temperature of the scores on the validation part; None without scores."""
    model, notes = load_model(trained)
    if model.score is None:
        return None
    found = calibrate_counts(trained, data_of(notes, options), limit=options.limit, device=options.device)
    return {name: round(value, 3) for name, value in found.items()}


def tested(trained: Path, notes: Mapping[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the records of the test part: those that are there, or new ones."""
    path = trained / "evaluation-tt.jsonl"
    if path.is_file():
        return lines_of(path)
    return evaluate_separator(trained, data_of(notes, options), out=trained, limit=options.limit, device=options.device)


def counted(records: Sequence[Mapping[str, Any]], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return how often the most likely number of voices is right, by the true number, and the log-loss."""
    logits = torch.tensor([record["score_logits"] for record in records], dtype=torch.float64)
    logits = logits / notes["score_temperature"]
    true = torch.tensor([len(record["speakers"]) for record in records])
    right = (count_probabilities(logits).argmax(dim=-1) == true).double()
    return {
        "mixtures": len(records),
        "accuracy": round(float(right.mean()), 3),
        "log_loss": round(float(count_log_loss(logits, true)), 3),
        "accuracy_by_number": {str(n): round(float(right[true == n].mean()), 3) for n in sorted(set(true.tolist()))},
    }


def network_of(model: torch.nn.Module) -> dict[str, Any]:
    """Return what the network is."""
    return {
        "network": type(model).__name__,
        "sizes": {name: model.config[name] for name in ("n_blocks", "hidden_size", "kernel_size", "stride")},
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "n_outputs": model.config["n_outputs"],
        "scores": model.config["scores"],
    }


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
    """Return the improvement on test mixtures of two voices and more: all, by their number, by gender."""
    mixtures = [record for record in records if len(record["speakers"]) > 1]  # one voice is there already
    several = len({len(record["speakers"]) for record in mixtures}) > 1
    groups: dict[str, list[float]] = {"all": []}
    for record in mixtures:
        groups["all"].append(record["improvement"])
        if several:
            groups.setdefault(f"{len(record['speakers'])} speakers", []).append(record["improvement"])
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
        if values
    }


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
