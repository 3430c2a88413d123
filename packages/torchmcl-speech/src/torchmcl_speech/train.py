"""Training of a separator, with resumption."""

import json
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from torchmcl import PIT, WTA, AutoAnnealing, StepOutput, checks, io, optional, pairwise_neg_si_sdr
from torchmcl.errors import bad_value
from torchmcl.lightning import Checkpoints, CollapseWarning, MCLModule, RecordWriter, RuleLogger
from torchmcl.scoring import PresenceScores
from torchmcl_speech.config import SeparationConfig
from torchmcl_speech.datamodule import SpeechData
from torchmcl_speech.nn.dprnn import DPRNN
from torchmcl_speech.nn.saving import save_model
from torchmcl_speech.objectives import (
    count_accuracy,
    mcl_si_sdr,
    of_mixtures,
    pit_si_sdr,
    rate_schedule,
    rule_of,
    trained_cost,
)
from torchmcl_speech.pretrained import copy_weights

__all__ = ["differing_options", "pl", "train_separator"]

pl = optional.optional_import("lightning.pytorch", extra="lightning", needed_by="torchmcl_speech.train")

_CHECKPOINTS = "checkpoints"
_MONITOR = "val_pit_si_sdr"
# Options that may change when a training run is resumed; not the epochs if the learning rate depends on them.
_FREE = (
    *(("training", name) for name in ("epochs", "captured", "max_skipped", "checkpoint_every")),
    *(("data", "layout"), ("data", "root"), ("data", "pack"), ("data", "n_workers")),
)


def train_separator(
    config: SeparationConfig,
    out: Path | str,
    *,
    device: str = "auto",
    minutes: float = math.inf,
    start: Path | str | None = None,
    progress: bool = True,
    show_records: bool = False,
) -> Path:
    """Train a separator, or resume its training.

    Args:
        config: Configuration of the training run.
        out: Output folder with `config.json`, `records.jsonl`, `checkpoints/`, `logs/`, `model/` (the best model on the
            validation part) and `model-last/`.
        device: Device to train on: "auto", "cpu", "cuda" or, for example, "cuda:1".
        minutes: Time limit; the training stops after the epoch in which it ends, and a later call resumes it.
        start: Name of a bundled separator, or folder of a saved model, with the initial weights; its sizes must be
            equal, but the number of outputs may differ.
        progress: Whether to show a progress bar.
        show_records: Whether to print the record of each epoch as a line of JSON.

    Returns:
        Folder of the best model.

    Raises:
        ValueError: If the folder contains another training run, or an argument is invalid.
        TrainingInterrupted: After a signal under `stop_on_signals`; the finished epochs are saved.
    """
    out = Path(out)
    checks.check_non_negative("train_separator", "minutes", minutes)
    if device != "auto":
        checks.available_device("train_separator", device)
    _check_folder(out, config)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it prints hardware and advertisements
    torch.manual_seed(config.training.seed)
    checkpoints = Checkpoints(out / _CHECKPOINTS, every_n_epochs=config.training.checkpoint_every)
    latest = checkpoints.latest()
    try:
        model = DPRNN(**config.model)
    except TypeError as error:  # an invalid value in a configuration is a data error, not a programming error
        raise ValueError(str(error)) from error
    if start is not None and latest is None:
        copy_weights(model, start)
    module = _module(config, model, minutes)
    notes = {"sample_rate": config.data.sample_rate, "configuration": config.as_dict()}
    callbacks = [
        BestModel(out / "model", _MONITOR, notes),
        StopAfter(minutes),
        checkpoints,
        RecordWriter(out / "records.jsonl", show=show_records),
    ]
    trainer = _trainer(config, out, callbacks, device, progress)
    with warnings.catch_warnings():
        # Lightning's advice about workers and intervals, and torch's about Lightning.
        warnings.filterwarnings("ignore", module=r"(lightning|torch)\..*")
        warnings.filterwarnings("ignore", "AutoAnnealing: `model`")  # separators have no head of hypotheses to move
        data = SpeechData(config.data, config.training, config.augmentation)
        io.write_atomically(out / "config.json", json.dumps(config.as_dict(), indent=1) + "\n")
        try:
            trainer.fit(module, datamodule=data, ckpt_path=latest)
        except SystemExit:  # Lightning raises it on SIGTERM
            checkpoints.stop_if_asked()
            raise
    if trainer.is_global_zero:
        save_model(out / "model-last", model, notes)
    return out / "model"


def _module(config: SeparationConfig, model: DPRNN, minutes: float) -> MCLModule:
    training, rule = config.training, rule_of(config.objective)
    sets_rate = isinstance(rule, AutoAnnealing) and bool(rule.rate)
    falls = training.schedule != "plateau" and not sets_rate
    # Halved after `patience` epochs without a better value; the patience of torch does not count the last of them.
    plateau = partial(ReduceLROnPlateau, mode="max", factor=0.5, patience=training.patience - 1, threshold=0.0)
    metrics: dict[str, Callable[[StepOutput], Tensor]] = {"pit_si_sdr": pit_si_sdr, "mcl_si_sdr": mcl_si_sdr}
    if 1 in config.data.n_speakers and max(config.data.n_speakers) > 1:
        metrics = {name: of_mixtures(metric) for name, metric in metrics.items()}
    return MCLModule(
        model,
        rule,
        cost_fn=pairwise_neg_si_sdr,
        loss_fn=trained_cost(config.objective),
        score_weight=config.objective.score_weight,
        scores=PresenceScores(rule if isinstance(rule, PIT) else WTA()),
        learning_rate=rate_schedule(training, minutes) if falls else training.learning_rate,
        plateau=plateau if training.schedule == "plateau" and not sets_rate else None,
        monitor=_MONITOR,
        metrics=metrics if model.score is None else metrics | {"count_accuracy": count_accuracy},
        cuda_graphs=training.captured,
        max_skipped=training.max_skipped,
        seed=training.seed,
    )


def _trainer(config: SeparationConfig, out: Path, callbacks: list[Any], device: str, progress: bool) -> Any:
    # Weight averaging restores the weights at the end of a validation: callbacks that use the average must precede it.
    callbacks = [*callbacks, RuleLogger(), CollapseWarning()]
    if config.training.ema is not None:
        place = device.replace("auto", "cuda") if device != "cpu" and torch.cuda.is_available() else None
        average = partial(_moving_average, config.training.ema)
        callbacks.append(pl.callbacks.WeightAveraging(place, use_buffers=False, avg_fn=average))
    return pl.Trainer(
        **(_device_options(device) | _launcher_options(os.environ)),
        max_epochs=config.training.epochs,
        gradient_clip_val=config.training.clip,
        precision=config.training.precision,
        callbacks=callbacks,
        logger=pl.loggers.CSVLogger(out, name="logs", version=""),
        use_distributed_sampler=False,  # our sampler splits the samples itself
        enable_progress_bar=progress,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
    )


def _moving_average(decay: float, average: Tensor, weights: Tensor, n_averaged: Tensor) -> Tensor:
    """Update the average; the decay is smaller in the first steps, to discard the initial weights."""
    n_steps = int(n_averaged) + 1
    return average.lerp(weights, 1 - min(decay, (1 + n_steps) / (10 + n_steps)))


def _device_options(device: str) -> dict[str, Any]:
    """Return the `Trainer` options for a device.

    Example:
        >>> _device_options("cuda:1"), _device_options("cpu")
        ({'accelerator': 'gpu', 'devices': [1]}, {'accelerator': 'cpu', 'devices': 1})
    """
    kind, _, index = device.partition(":")
    devices: Any = [int(index)] if index else "auto" if kind == "auto" else 1
    return {"accelerator": {"cuda": "gpu"}.get(kind, kind), "devices": devices}


def _launcher_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the `Trainer` options for processes started by torchrun or SLURM; empty without a launcher."""
    if "TORCHELASTIC_RUN_ID" in environment:
        n_nodes, n_per_node = int(environment["GROUP_WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
    elif "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in (None, "bash", "interactive"):
        n_nodes = int(environment.get("SLURM_NNODES", 1))
        n_per_node = int(environment["SLURM_NTASKS"]) // n_nodes
    else:
        return {}
    strategy = {"strategy": "ddp"} if n_nodes * n_per_node > 1 else {}
    return {"devices": n_per_node, "num_nodes": n_nodes, **strategy}


def differing_options(saved: Mapping[str, Any], config: SeparationConfig) -> list[str]:
    """Return the options in which a saved configuration differs from `config`, as `part.option`."""
    wanted = json.loads(json.dumps(config.as_dict()))
    # Options that are missing in the saved configuration had their default values.
    default = json.loads(json.dumps(SeparationConfig().as_dict()))
    saved = {part: default[part] | dict(saved.get(part, {})) for part in wanted}
    may_be_longer = config.training.schedule == "plateau" and config.objective.rule != "auto"
    free = [place for place in _FREE if place[-1] != "epochs" or may_be_longer]
    return sorted(
        f"{part}.{name}"
        for part in wanted
        for name in wanted[part].keys() | saved[part].keys()
        if (part, name) not in free and wanted[part].get(name) != saved[part].get(name)
    )


def _check_folder(out: Path, config: SeparationConfig) -> None:
    """Check that a folder is new or contains this training run."""
    path = out / "config.json"
    if (
        path.exists()
        and Checkpoints(out / _CHECKPOINTS).series.steps()
        and (differs := differing_options(io.read_json("separation train", path), config))
    ):
        advice = "Use another folder, or delete this folder to start again."
        rule = "be empty or contain this training run"
        raise ValueError(bad_value("separation train", "out", rule, f"{out}, which differs in {differs}", advice))


class BestModel(pl.Callback):  # type: ignore[name-defined]
    """Save the model after each validation with a new best value."""

    def __init__(self, folder: Path, monitor: str, notes: Mapping[str, Any]) -> None:
        self.folder, self.monitor, self.notes = folder, monitor, dict(notes)
        self.best = -math.inf

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """Save the model, with averaged weights if there are any, if the monitored value is the best so far."""
        value = float(trainer.callback_metrics[self.monitor])
        if trainer.sanity_checking or not value > self.best:
            return
        self.best = value
        if trainer.is_global_zero:
            save_model(self.folder, module.model, {**self.notes, self.monitor: value, "epoch": trainer.current_epoch})

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which training resumes."""
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.best = float(state["best"])


class StopAfter(pl.Callback):  # type: ignore[name-defined]
    """Stop after the epoch in which the time budget ends."""

    def __init__(self, minutes: float) -> None:
        self.ends = time.monotonic() + 60 * minutes

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Check the clock of the first process, because all processes must stop after the same epoch."""
        if math.isfinite(self.ends) and trainer.strategy.broadcast(time.monotonic() > self.ends):
            trainer.should_stop = True
