"""How far a separator that comes with the package can be trusted: by speakers, gender and condition.

python benchmarks/robustness.py --data FOLDER [--model two-speakers] [--limit 10]
    [--out benchmarks/results/robustness-two-speakers-cpu.json]

Mixtures are the first of the test table (readers whom no training heard), sources as listed there. Each condition
changes them as a recording would be changed:

clean: as listed. levels: one voice 6 dB below the other(s), in turn. noise: white noise 20 dB below the mixture.
reverberation: each voice with its own decaying reflections (0.3 s to -60 dB, direct sound 6 dB above them); the target
is the voice as it is heard there. 16 kHz, 44.1 kHz: the mixture at that rate, through the whole tool (`resampled
in and out`), compared at 8 kHz. clipped: at 30 % of the peak. short: the second from the loudest place on. codec: 8-bit
mu-law, as on the telephone.

Improvement is of the SI-SDR under the best one-to-one assignment, over the same mixture untouched, in dB. Nothing is
chosen here. Also, once: silence in, silence out; one voice alone: how much of it the best output holds. Of a model with
scores, `count_right` is the share of recordings whose most likely number of voices is the true one. A model for several
numbers of speakers meets as many mixtures of each, from two on.

Ten mixtures of about six seconds under nine conditions take some four minutes on two cores. How long separating takes
is measured by `separate_speed.py`.
"""

import argparse
import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import torchmcl as mcl
from _common import report
from torchmcl_speech import (
    DataConfig,
    count_probabilities,
    first_mixtures,
    load_separator,
    shipped_models,
    speaker_genders,
)
from torchmcl_speech.data import AudioFolder, Resampler, SpeechMixtures
from torchmcl_speech.nn import separate_long

RATE = 8000
Signals = npt.NDArray[np.float32]


def clean(sources: Signals, random: np.random.Generator) -> tuple[Signals, Signals]:
    """Return the sum of the sources, and the sources."""
    return sources.sum(axis=0), sources


def levels(sources: Signals, random: np.random.Generator) -> tuple[Signals, Signals]:
    """Return the mixture with one voice 6 dB below the others, all brought to one energy before."""
    energy = np.sqrt(np.square(sources).mean(axis=-1, keepdims=True))
    sources = sources / np.maximum(energy, 1e-9) * energy.mean()
    sources[random.integers(len(sources))] *= 10 ** (-6 / 20)
    return sources.sum(axis=0), sources


def noise(sources: Signals, random: np.random.Generator) -> tuple[Signals, Signals]:
    """Return the mixture with white noise 20 dB below it."""
    mixture = sources.sum(axis=0)
    hiss = random.standard_normal(mixture.shape) * np.sqrt(np.square(mixture).mean()) / 10
    return (mixture + hiss).astype(np.float32), sources


def reverberation(sources: Signals, random: np.random.Generator) -> tuple[Signals, Signals]:
    """Return the mixture in a mild room: reflections that fall by 60 dB in 0.3 s, 6 dB below the direct sound."""
    time = np.arange(int(0.3 * RATE)) / RATE
    heard = []
    for source in sources:
        tail = random.standard_normal(len(time)) * 10 ** (-3 * time / 0.3)
        tail[: int(0.002 * RATE)] = 0
        tail *= 10 ** (-6 / 20) / np.sqrt(np.square(tail).sum())
        tail[0] = 1
        n_fft = 1 << (len(source) + len(tail) - 1).bit_length()
        heard.append(np.fft.irfft(np.fft.rfft(source, n_fft) * np.fft.rfft(tail, n_fft), n_fft)[: len(source)])
    stacked = np.stack(heard).astype(np.float32)
    return stacked.sum(axis=0), stacked


def clipped(sources: Signals, random: np.random.Generator) -> tuple[Signals, Signals]:
    """Return the mixture clipped at 30 % of its peak."""
    mixture = sources.sum(axis=0)
    limit = 0.3 * np.abs(mixture).max()
    return np.clip(mixture, -limit, limit), sources


def codec(sources: Signals, random: np.random.Generator) -> tuple[Signals, Signals]:
    """Return the mixture through 8-bit mu-law, with the peak at full scale."""
    mixture = sources.sum(axis=0)
    peak = np.abs(mixture).max()
    pressed = np.sign(mixture) * np.log1p(255 * np.abs(mixture / peak)) / math.log(256)
    coded = np.round(127 * pressed) / 127
    return (peak * np.sign(coded) * np.expm1(np.abs(coded) * math.log(256)) / 255).astype(np.float32), sources


def short(sources: Signals, random: np.random.Generator) -> tuple[Signals, Signals]:
    """Return one second around the place where the softer of the voices is loudest: about a word of each."""
    power = np.stack([np.convolve(np.square(source), np.ones(RATE) / RATE, mode="valid") for source in sources])
    start = int(power.min(axis=0).argmax())
    cut = sources[:, start : start + RATE]
    return cut.sum(axis=0), cut


CONDITIONS = {f.__name__: f for f in (clean, levels, noise, reverberation, clipped, codec, short)}
RATES = {"16 kHz": 16_000, "44.1 kHz": 44_100}


def resampled(signal: Signals, old: int, new: int, length: int) -> Signals:
    """Return a signal at another rate, of a given length."""
    out = Resampler(old, new)(signal, last=True)
    return np.pad(out, (0, max(length - len(out), 0)))[:length]


def through_rate(model: torch.nn.Module, mixture: Signals, rate: int) -> tuple[Tensor, Tensor | None]:
    """Return the outputs at 8 kHz of a mixture recorded at another rate, resampled in and out as the tool does."""
    wide = resampled(mixture, RATE, rate, round(len(mixture) * rate / RATE))
    heard = resampled(wide, rate, RATE, len(mixture))
    outputs, logits = outputs_of(model, heard, None)
    back = [resampled(output, RATE, rate, len(wide)) for output in outputs.numpy()]
    narrow = torch.from_numpy(np.stack([resampled(output, rate, RATE, len(mixture)) for output in back]))
    return narrow, logits


def improvement(outputs: Tensor, mixture: Tensor, targets: Tensor) -> float:
    """Return by how much the best one-to-one assignment improves on the mixture, in dB."""
    cost = mcl.pairwise_neg_si_sdr(hypotheses=outputs, targets=targets)
    before = mcl.pairwise_neg_si_sdr(hypotheses=mixture.unsqueeze(0), targets=targets).mean()
    return float(before - mcl.mcl_loss(mcl.assign(cost, mcl.PIT())))


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, standard error, worst decile and number."""
    error = round(statistics.stdev(values) / math.sqrt(len(values)), 2) if len(values) > 1 else None
    return {
        "mixtures": len(values),
        "improvement_db": round(statistics.fmean(values), 2),
        "standard_error": error,
        "worst_tenth_db": round(float(np.quantile(values, 0.1)), 2),
    }


def condition_rows(name: str, data: Path, limit: int, conditions: Sequence[str]) -> list[dict[str, Any]]:
    """Return the improvement of a shipped separator under each condition: all mixtures, and by gender."""
    model, notes = load_separator(name)
    numbers = [number for number in notes["configuration"]["data"]["n_speakers"] if number > 1]
    genders = speaker_genders(data)
    mixtures = first_mixtures(DataConfig(root=str(data), n_speakers=numbers), "tt", limit)
    dataset = SpeechMixtures(mixtures, AudioFolder(data, RATE), crop=None)
    rows = []
    for condition in conditions:
        groups: dict[str, list[float]] = {"all": []}
        counts = []
        for index in range(len(mixtures)):
            sample = dataset[index]
            sources = (sample.targets if sample.mask is None else sample.targets[sample.mask]).numpy()
            mixture, targets = CONDITIONS.get(condition, clean)(sources.copy(), np.random.default_rng((0, index)))
            outputs, logits = outputs_of(model, mixture, RATES.get(condition))
            value = improvement(outputs, torch.from_numpy(mixture), torch.from_numpy(targets))
            pair = "+".join(sorted(genders.get(speaker, "?") for speaker in dataset.speakers(index)))
            groups["all"].append(value)
            groups.setdefault(pair, []).append(value)
            counts.append(is_counted(logits, notes, len(sources)))
        for group, values in sorted(groups.items()):
            rows.append({"model": name, "speakers": max(numbers), "condition": condition, "genders": group})
            rows[-1] |= summary(values)
            rows[-1] |= right_counts(counts) if group == "all" else {}
            print(json.dumps(rows[-1]), flush=True)
    return rows


@torch.inference_mode()
def outputs_of(model: torch.nn.Module, mixture: Signals, rate: int | None) -> tuple[Tensor, Tensor | None]:
    """Return the outputs at 8 kHz and the score logits, if any, of a mixture, recorded at another rate if asked."""
    if rate is not None:
        return through_rate(model, mixture, rate)
    hypotheses, logits = model(torch.from_numpy(mixture).unsqueeze(0))
    return hypotheses[0], None if logits is None else logits[0]


def is_counted(logits: Tensor | None, notes: Mapping[str, Any], n_voices: int) -> bool | None:
    """Return whether the most likely number of voices is the true one; None without scores."""
    if logits is None:
        return None
    return int(count_probabilities(logits / notes.get("score_temperature", 1.0)).argmax()) == n_voices


def right_counts(counts: Sequence[bool | None]) -> dict[str, float]:
    """Return the share of right counts, where there are scores."""
    known = [count for count in counts if count is not None]
    return {"count_right": round(statistics.fmean(known), 3)} if known else {}


def edge_rows(name: str, data: Path, limit: int) -> list[dict[str, Any]]:
    """Return what silence and a single voice give."""
    model, notes = load_separator(name)
    store = AudioFolder(data, RATE)
    with (data / "manifest.csv").open(newline="") as file:
        names = [row["path"] for row in csv.DictReader(file) if row["split"] == "tt"][: min(limit, 10)]
    silent = float(outputs_of(model, np.zeros(RATE, np.float32), None)[0].abs().max())
    kept, leaks, counts = [], [], []
    for recording in names:
        voice = torch.from_numpy(store.read(recording)).unsqueeze(0)
        with torch.inference_mode():
            outputs, logits = separate_long(model, voice)  # at the level of the voice
        kept.append(-float(mcl.pairwise_neg_si_sdr(hypotheses=outputs[0], targets=voice).min()))
        energy = outputs[0].square().sum(dim=-1).sort(descending=True).values
        leaks.append(float(10 * torch.log10(energy[0] / energy[1].clamp_min(1e-12))))
        counts.append(is_counted(None if logits is None else logits[0], notes, 1))
    row = {"model": name, "condition": "silence and one voice", "silence_peak": silent, "voices": len(names)}
    row |= {"one_voice_si_sdr_db": round(statistics.fmean(kept), 1)}
    row |= {"other_output_below_db": round(statistics.fmean(leaks), 1)} | right_counts(counts)
    print(json.dumps(row), flush=True)
    return [row]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="folder with metadata/mix_<n>_spk_tt.csv")
    arguments.add_argument("--model", default="two-speakers", choices=shipped_models(), help="a shipped separator")
    arguments.add_argument("--conditions", default=",".join([*CONDITIONS, *RATES]), help="separated by commas")
    arguments.add_argument("--limit", type=int, default=10, help="mixtures of each condition")
    arguments.add_argument("--out", type=Path, help="write the record to this JSON file")
    options = arguments.parse_args()
    conditions = [name for name in options.conditions.split(",") if name]
    if unknown := sorted(set(conditions) - {*CONDITIONS, *RATES}):
        arguments.error(f"--conditions: unknown {unknown}; known are {[*CONDITIONS, *RATES]}")
    found = condition_rows(options.model, options.data, options.limit, conditions)
    report("robustness", "cpu", found + edge_rows(options.model, options.data, options.limit), options.out)
