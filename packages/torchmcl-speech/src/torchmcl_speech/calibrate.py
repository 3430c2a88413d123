"""Calibrated probabilities of the number of voices, fitted on held-out mixtures."""

from pathlib import Path
from typing import Any

import torch

from torchmcl._checks import bad_value
from torchmcl_speech.config import DataConfig
from torchmcl_speech.counting import count_log_loss, count_probabilities, fit_count_temperature
from torchmcl_speech.evaluate import evaluate_separator
from torchmcl_speech.nn.saving import load_model, save_model
from torchmcl_speech.pretrained import is_shipped

__all__ = ["calibrate_counts"]


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
        model: folder of a saved model with scores; its notes get `score_temperature`, its weights stay.
        data: where the mixtures are; `n_speakers` should be all numbers that the model may meet.
        part: "cv" for the validation part; the test part must decide nothing.
        limit: use this many mixtures, as many of each number of speakers.
        device: where to compute.
        progress: whether to show a bar.

    Returns:
        How many `mixtures` there were, the `temperature`, the `accuracy` of the most likely number, and the mean
        negative log-probability of the true one in nats, `log_loss_before` and `log_loss`.

    Raises:
        ValueError: if the model or the mixtures cannot be used.
    """
    owner = "calibrate_counts"
    if is_shipped(model):
        advice = "Those that come with the package are calibrated."
        raise ValueError(bad_value(owner, "model", "be the folder of a saved model", repr(str(model)), advice))
    network, notes = load_model(model)
    if network.score is None:
        advice = "Train with --set model.scores=true."
        raise ValueError(bad_value(owner, "model", "give scores of its outputs", repr(str(model)), advice))
    records = evaluate_separator(model, data, part=part, limit=limit, device=device, progress=progress)
    logits = torch.tensor([record["score_logits"] for record in records], dtype=torch.float64)
    true = torch.tensor([len(record["speakers"]) for record in records])
    temperature = fit_count_temperature(logits, true)
    found = count_probabilities(logits / temperature).argmax(dim=-1)
    save_model(model, network, notes | {"score_temperature": temperature})  # type: ignore[arg-type]
    return {
        "mixtures": len(records),
        "temperature": temperature,
        "accuracy": float((found == true).double().mean()),
        "log_loss_before": float(count_log_loss(logits, true)),
        "log_loss": float(count_log_loss(logits / temperature, true)),
    }
