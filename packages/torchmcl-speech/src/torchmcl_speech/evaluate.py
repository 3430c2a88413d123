"""Evaluation of a separator on unseen mixtures, one record per mixture."""

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import available_device, check_positive_int
from torchmcl._progress import Progress
from torchmcl.costs import pairwise_neg_si_sdr
from torchmcl.losses import assign
from torchmcl.persistence.records import write_records
from torchmcl.rules.winners import WTA
from torchmcl.step import mcl_step
from torchmcl.types import Batch
from torchmcl_speech.config import DataConfig
from torchmcl_speech.counting import count_probabilities, score_temperature
from torchmcl_speech.data import SpeechMixtures
from torchmcl_speech.mixture_lists import audio_store, first_mixtures
from torchmcl_speech.objectives import mcl_si_sdr, pit_si_sdr, si_sdr_under
from torchmcl_speech.pretrained import load_separator

__all__ = ["MEASURES", "evaluate_separator", "means_by", "speaker_genders", "trained_precision"]

MEASURES = ("pit_si_sdr", "mcl_si_sdr", "input_si_sdr", "improvement")


def evaluate_separator(
    model: Path | str,
    data: DataConfig,
    *,
    part: str = "tt",
    out: Path | str | None = None,
    limit: int | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Return one record for each whole mixture of a part.

    Args:
        model: name of a bundled separator, or folder of a saved model.
        data: where the mixtures are; crops are not taken.
        part: "tt" for the test part.
        out: folder for `evaluation-<part>.jsonl`; nothing is written without.
        limit: evaluate only this many of the first mixtures, as many of each number of speakers.
        device: where to compute; on a GPU, in the precision of the training.
        progress: whether to show a bar.

    Returns:
        Records with the mixture, its speakers, the SI-SDR in dB under the best one-to-one assignment
        (`pit_si_sdr`), under the best output of each source (`mcl_si_sdr`), that of the mixture itself
        (`input_si_sdr`), and the `improvement` of the first over the last; of a model with scores, these
        before the sigmoid (`score_logits`) and how many voices are most likely (`n_voices`).

    Raises:
        ValueError: if the model or the mixtures cannot be used.
    """
    if limit is not None:
        check_positive_int("evaluate_separator", "limit", limit)
    available_device("evaluate_separator", device)
    separator, notes = load_separator(model)
    separator, temperature = separator.to(device), score_temperature(notes)
    mixtures = first_mixtures(data, part, limit)
    dataset = SpeechMixtures(mixtures, audio_store(data), crop=None, skip_bad=data.skip_bad)
    records = []
    bar = Progress(len(dataset), f"evaluating {part}", show=progress, unit="mixture")
    with bar, torch.inference_mode(), trained_precision(notes, device):
        for index, mixture in enumerate(dataset.mixtures):
            inputs, targets, mask = (part.unsqueeze(0).to(device) for part in dataset[index][:3] if part is not None)
            output = mcl_step(separator, Batch(inputs, targets, mask), WTA(), cost_fn=pairwise_neg_si_sdr)
            untouched = assign(pairwise_neg_si_sdr(hypotheses=inputs.unsqueeze(1), targets=targets), WTA(), mask)
            one_to_one, before = pit_si_sdr(output).item(), si_sdr_under(WTA(), untouched).item()
            logits = output.predictions.score_logits
            records.append(
                {
                    "mixture": mixture.name,
                    "speakers": list(dataset.speakers(index)),
                    "pit_si_sdr": one_to_one,
                    "mcl_si_sdr": mcl_si_sdr(output).item(),
                    "input_si_sdr": before,
                    "improvement": one_to_one - before,
                    **_counted(logits, temperature),
                }
            )
            bar.step(note=f"{one_to_one:.1f} dB")
    if out is not None:
        write_records(Path(out) / f"evaluation-{part}.jsonl", records)
    return records


def _counted(logits: Tensor | None, temperature: float) -> dict[str, Any]:
    """Return the estimated number of voices from scores."""
    if logits is None:
        return {}
    own = logits[0].float().cpu()
    return {"n_voices": int(count_probabilities(own / temperature).argmax()), "score_logits": own.tolist()}


def trained_precision(notes: Mapping[str, Any], device: str) -> torch.autocast:
    """Return the precision for a saved model: bfloat16 on a GPU if trained so, else that of its weights."""
    kind = torch.device(device).type
    half = notes.get("configuration", {}).get("training", {}).get("precision") == "bf16-mixed"
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=half and kind == "cuda")


def means_by(
    records: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], str]
) -> dict[str, dict[str, float]]:
    """Return the mean of each measure, and the number of mixtures, for each value of `key`.

    Example:
        >>> record = {"speakers": ["a", "b"], **dict.fromkeys(MEASURES, 2.0)}
        >>> means_by([record], lambda record: "+".join(record["speakers"]))["a+b"]["improvement"]
        2.0
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {
        name: {"n": len(group), **{m: sum(r[m] for r in group) / len(group) for m in MEASURES}}
        for name, group in sorted(groups.items())
    }


def speaker_genders(root: Path | str | None) -> dict[str, str]:
    """Return speaker -> gender from `speakers.csv` of a folder, empty without such a table."""
    path = None if root is None else Path(root) / "speakers.csv"
    if path is None or not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {row["speaker"]: row["gender"] for row in csv.DictReader(file) if "gender" in row}
