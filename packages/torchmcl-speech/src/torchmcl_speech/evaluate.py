"""Evaluation of a separator on unseen mixtures, with one record per mixture."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import WTA, Batch, assign, checks, io, mcl_step, pairwise_neg_si_sdr
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl_speech.config import DataConfig
from torchmcl_speech.counting import count_log_loss, count_probabilities, fit_count_temperature, score_temperature
from torchmcl_speech.data import SpeechMixtures
from torchmcl_speech.mixture_lists import audio_store, first_mixtures
from torchmcl_speech.nn.saving import load_model, save_model
from torchmcl_speech.objectives import mcl_si_sdr, pit_si_sdr, si_sdr_under
from torchmcl_speech.pretrained import is_shipped, load_separator

__all__ = [
    "MEASURES",
    "calibrate_counts",
    "evaluate_separator",
    "evaluation_table",
    "means_by",
    "models_table",
    "speaker_genders",
    "trained_precision",
]

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
    """Evaluate a separator on the whole mixtures of a part of the data.

    Args:
        model: Name of a bundled separator, or folder of a saved model.
        data: Location of the mixtures, which are not cropped.
        part: Part of the data; "tt" is the test part.
        out: Folder for `evaluation-<part>.jsonl`; None to write nothing.
        limit: Maximum total number of mixtures, balanced over the numbers of speakers; no limit by default.
        device: Device to compute on; a GPU computes in the precision of the training.
        progress: Whether to show a progress bar.

    Returns:
        One record per mixture with its name, its speakers, and SI-SDR values in dB: under the best one-to-one
        assignment (`pit_si_sdr`), of the best output for each source (`mcl_si_sdr`), of the mixture itself
        (`input_si_sdr`), and the `improvement` of the first over the last. For a model with scores, the record also has
        the `score_logits` and the most likely number of voices (`n_voices`).

    Raises:
        ValueError: If the model or the mixtures are unusable.
        OSError: If the folder cannot be written.
    """
    if limit is not None:
        checks.check_positive_int("evaluate_separator", "limit", limit)
    checks.available_device("evaluate_separator", device)
    records_file = None if out is None else Path(out) / f"evaluation-{part}.jsonl"
    if records_file is not None:
        io.check_writable(records_file)
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
    if records_file is not None:
        io.write_records(records_file, records)
    return records


def _counted(logits: Tensor | None, temperature: float) -> dict[str, Any]:
    """Return the score logits and the number of voices estimated from them; empty for a model without scores."""
    if logits is None:
        return {}
    first = logits[0].float().cpu()
    return {"n_voices": int(count_probabilities(first / temperature).argmax()), "score_logits": first.tolist()}


def trained_precision(notes: Mapping[str, Any], device: str) -> torch.autocast:
    """Return the autocast context of a saved model: bfloat16 on a GPU if the model was trained so, else disabled."""
    kind = torch.device(device).type
    half = notes.get("configuration", {}).get("training", {}).get("precision") == "bf16-mixed"
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=half and kind == "cuda")


def means_by(
    records: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], str]
) -> dict[str, dict[str, float]]:
    """Compute the mean of each measure and the number of mixtures for each value of `key`.

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
    """Return a mapping from speaker to gender from `speakers.csv` in a folder; empty without this table."""
    path = None if root is None else Path(root) / "speakers.csv"
    if path is None or not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {row["speaker"]: row["gender"] for row in csv.DictReader(file) if "gender" in row}


def calibrate_counts(
    model: Path | str,
    data: DataConfig,
    *,
    part: str = "cv",
    limit: int | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> dict[str, Any]:
    """Fit the temperature of the scores on a part of the data, and save it with the model.

    Args:
        model: Folder of a saved model with scores; `score_temperature` is added to its notes, and its weights stay.
        data: Location of the mixtures; `n_speakers` should contain all numbers of speakers that may occur in use.
        part: Part of the data; "cv" is the validation part. The test part must not be used for calibration.
        limit: Maximum total number of mixtures, balanced over the numbers of speakers; no limit by default.
        device: Device to compute on.
        progress: Whether to show a progress bar.

    Returns:
        Number of `mixtures`, fitted `temperature`, `accuracy` of the most likely number of voices, and mean negative
        log-probability of the true number of voices in nats before and after (`log_loss_before` and `log_loss`).

    Raises:
        ValueError: If the model or the mixtures are unusable.
    """
    owner = "calibrate_counts"
    if is_shipped(model):
        advice = "The bundled models are already calibrated."
        raise ValueError(bad_value(owner, "model", "be the folder of a saved model", repr(str(model)), advice))
    network, notes = load_model(model)
    if network.score is None:
        advice = "Train with --set model.scores=true."
        raise ValueError(bad_value(owner, "model", "have scores", repr(str(model)), advice))
    records = evaluate_separator(model, data, part=part, limit=limit, device=device, progress=progress)
    logits = torch.tensor([record["score_logits"] for record in records], dtype=torch.float64)
    true = torch.tensor([len(record["speakers"]) for record in records])
    temperature = fit_count_temperature(logits, true)
    predicted = count_probabilities(logits / temperature).argmax(dim=-1)
    save_model(model, network, notes | {"score_temperature": temperature})
    return {
        "mixtures": len(records),
        "temperature": temperature,
        "accuracy": float((predicted == true).double().mean()),
        "log_loss_before": float(count_log_loss(logits / score_temperature(notes), true)),
        "log_loss": float(count_log_loss(logits / temperature, true)),
    }


_HEADS = {
    "pit_si_sdr": "PIT SI-SDR",
    "mcl_si_sdr": "MCL SI-SDR",
    "input_si_sdr": "before",
    "improvement": "improvement",
}
_SHOWN = 5

_Groups = Mapping[str, Mapping[str, float]]


def evaluation_table(
    records: Sequence[Mapping[str, Any]], genders: Mapping[str, str] | None = None, *, all_pairs: bool = False
) -> str:
    """Format the means in dB over all mixtures and over groups of mixtures as a text table.

    Args:
        records: Records from `evaluate_separator`.
        genders: Mapping from speaker to gender, for the means by gender.
        all_pairs: Whether to show every combination of speakers, instead of the five hardest and easiest ones.
    """
    sections: dict[str, _Groups] = {"": means_by(records, lambda record: "all")}
    if genders:
        sections["by gender"] = means_by(records, lambda record: _genders_of(record, genders))
    pairs = means_by(records, lambda record: " + ".join(sorted(record["speakers"])))
    ranked = sorted(pairs.items(), key=lambda item: item[1]["improvement"])
    n_hidden = 0 if all_pairs else max(len(ranked) - 2 * _SHOWN, 0)
    if n_hidden:
        sections[f"by speakers: the {_SHOWN} hardest of {len(ranked)}"] = dict(ranked[:_SHOWN])
        sections[f"the {_SHOWN} easiest; {n_hidden} more with --all-pairs"] = dict(ranked[-_SHOWN:])
    else:
        sections["by speakers, hardest first"] = dict(ranked)
    width = max(len(name) for name in ["mean in dB", *(name for groups in sections.values() for name in groups)])
    lines = [f"{'mean in dB':<{width}}  mixtures" + "".join(f"  {_HEADS[m]}" for m in MEASURES)]
    for title, groups in sections.items():
        lines += ["", title] if title else []
        lines += [_row(name, group, width) for name, group in groups.items()]
    return "\n".join(lines)


def models_table(cards: Sequence[Mapping[str, Any]]) -> str:
    """Format a text table of separators: outputs, size and mean improvement.

    Args:
        cards: Model cards from `torchmcl_speech.model_card`.
    """
    lines = [f"{'name':<20}{'outputs':<16}{'size':<10}improvement"]
    for card in cards:
        outputs = f"up to {card['n_outputs']}, scored" if card["scores"] else str(card["n_outputs"])
        improvement = card["results"]["all"]["mean"]
        lines.append(f"{card['name']:<20}{outputs:<16}{card['bytes'] / 1e6:<5.1f}MB   {improvement:.1f} dB")
    return "\n".join(lines)


def _genders_of(record: Mapping[str, Any], genders: Mapping[str, str]) -> str:
    return " + ".join(sorted(genders.get(speaker, "?") for speaker in record["speakers"]))


def _row(name: str, group: Mapping[str, float], width: int) -> str:
    numbers = "".join(f"  {group[m]:>{len(_HEADS[m])}.2f}" for m in MEASURES)
    return f"{name:<{width}}  {int(group['n']):>{len('mixtures')}}{numbers}"
