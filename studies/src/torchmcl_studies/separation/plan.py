"""Plan of a separation study: the state of its training runs, and the remaining time."""

import statistics
import time
from collections.abc import Sequence
from datetime import timedelta

import torch

from torchmcl import PIT, Batch, mcl_step, pairwise_neg_si_sdr
from torchmcl_speech import DPRNN, SeparationConfig, listed_mixtures
from torchmcl_studies.separation.study import Training

__all__ = ["plan_of"]


def plan_of(trainings: Sequence[Training], device: str) -> str:
    """Describe what exists and what remains, as text.

    The time of an epoch is the median time of the recorded epochs of a run with the same network and data or, without
    any, the time of the training steps, of which one is measured on noise.
    """
    seconds = {_kind(one.config): statistics.median(one.epoch_seconds) for one in trainings if one.epoch_seconds}
    lines, remaining = [f"{len(trainings)} training runs:"], 0.0
    for training in trainings:
        n_done, n_epochs, kind = len(training.epoch_seconds), training.config.training.epochs, _kind(training.config)
        if kind not in seconds:
            seconds[kind] = _epoch_seconds(training.config, device)
        remaining += 0 if training.is_finished else seconds[kind] * max(n_epochs - n_done, 0)
        state = "finished" if training.is_finished else f"{n_done} of {n_epochs} epochs"
        lines.append(f"  {training.run.name:<24}{state:<20}about {seconds[kind]:.3g} s an epoch")
    lines.append(f"The remaining training takes about {timedelta(seconds=round(remaining))} on one such device.")
    return "\n".join(lines)


def _kind(config: SeparationConfig) -> str:
    """Return what determines the time of an epoch."""
    return repr((config.model, config.data, config.training.batch_size, config.training.precision))


def _epoch_seconds(config: SeparationConfig, device: str) -> float:
    """Return the time of the training steps of an epoch, without the time to read files."""
    on_gpu, batch_size = torch.device(device).type == "cuda", config.training.batch_size
    n_samples = batch_size if on_gpu else 1  # a CPU may not have the memory for a batch
    model = DPRNN(**config.model).to(device)
    n_speakers, length = max(config.data.n_speakers), round(config.data.crop * config.data.sample_rate)
    sources = torch.randn(n_samples, n_speakers, length, device=device)
    seconds = 0.0
    for _ in range(2):  # the first step includes the preparation of kernels
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu and config.training.precision == "bf16-mixed"):
            output = mcl_step(model, Batch(sources.sum(dim=1), sources), PIT(), cost_fn=pairwise_neg_si_sdr)
        output.loss.backward()
        output.loss.item()  # waits for a GPU
        seconds = time.perf_counter() - began
    n_steps = (config.data.samples_per_epoch or len(listed_mixtures(config.data, "tr"))) // batch_size
    return n_steps * seconds * batch_size / n_samples
