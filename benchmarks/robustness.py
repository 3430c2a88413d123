"""How far the separators that come with the package can be trusted: by speakers, gender, condition; and how fast.

python benchmarks/robustness.py --data FOLDER [--models two-speakers] [--limit 40] [--out results/robustness-cpu.json]

Mixtures are the first of the test table (readers whom no training heard), sources as listed there. Each condition
changes them as a recording would be changed:

clean: as listed. levels: one voice 6 dB below the other(s), in turn. noise: white noise 20 dB below the mixture.
reverberation: each voice with its own decaying reflections (0.3 s to -60 dB, direct sound 6 dB above them); the target
is the voice as it is heard there. 16 kHz, 44.1 kHz: the mixture at that rate, through the whole tool (`resampled
in and out`), compared at 8 kHz. clipped: at 30 % of the peak. short: the second from the loudest place on. codec: 8-bit
mu-law, as on the telephone.

Improvement is of the SI-SDR under the best one-to-one assignment, over the same mixture untouched, in dB. Nothing is
chosen here. Also, once: silence in, silence out; one voice alone: how much of it the best output holds.

Speed is audio seconds a second of processor time with 1 thread, which other processes distort little; with --wall also
of wall time with 2 threads, for one chunk of --seconds and for a recording of two such whose chunks overlap by half.
Untrained smaller networks stand beside for their speed alone.
"""

import argparse
import csv
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import torchmcl as mcl
from _common import report
from torchmcl.data.speech import AudioFolder, Resampler, SpeechMixtures, table_mixtures
from torchmcl.nn import DPRNN, separate_long
from torchmcl.separation import load_separator, shipped_models, speaker_genders

RATE = 8000
Signals = npt.NDArray[np.float32]
# What a smaller network would give: its options beside the defaults of DPRNN.
VARIANTS: dict[str, dict[str, int]] = {
    "4 blocks, 96 units": {"n_blocks": 4, "hidden_size": 96},
    "3 blocks, 64 units": {"n_blocks": 3, "hidden_size": 64},
    "3 blocks, 64 units, stride 16": {
        "n_blocks": 3, "hidden_size": 64, "kernel_size": 32, "stride": 16, "segment_size": 70,
    },
}  # fmt: skip


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


def through_rate(model: torch.nn.Module, mixture: Signals, rate: int) -> Tensor:
    """Return the outputs at 8 kHz of a mixture recorded at another rate, resampled in and out as the tool does."""
    wide = resampled(mixture, RATE, rate, round(len(mixture) * rate / RATE))
    heard = resampled(wide, rate, RATE, len(mixture))
    outputs = model(torch.from_numpy(heard).unsqueeze(0)).hypotheses[0].numpy()
    back = [resampled(output, RATE, rate, len(wide)) for output in outputs]
    return torch.from_numpy(np.stack([resampled(output, rate, RATE, len(mixture)) for output in back]))


def improvement(outputs: Tensor, mixture: Tensor, targets: Tensor) -> float:
    """Return by how much the best one-to-one assignment improves on the mixture, in dB."""
    cost = mcl.pairwise_neg_si_sdr(hypotheses=outputs, targets=targets)
    before = mcl.pairwise_neg_si_sdr(hypotheses=mixture.unsqueeze(0), targets=targets).mean()
    return float(before - mcl.mcl_loss(mcl.match(cost, mcl.PIT())))


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
    n_speakers = max(notes["configuration"]["data"]["n_speakers"])
    genders = speaker_genders(data)
    mixtures = table_mixtures(data, "tt", n_speakers)[:limit]
    dataset = SpeechMixtures(mixtures, AudioFolder(data, RATE), crop=None)
    rows = []
    for condition in conditions:
        groups: dict[str, list[float]] = {"all": []}
        for index in range(len(mixtures)):
            sources = dataset[index].targets.numpy()
            random = np.random.default_rng((0, index))
            mixture, targets = CONDITIONS.get(condition, clean)(sources.copy(), random)
            with torch.inference_mode():
                if condition in RATES:
                    outputs = through_rate(model, mixture, RATES[condition])
                else:
                    outputs = model(torch.from_numpy(mixture).unsqueeze(0)).hypotheses[0]
            value = improvement(outputs, torch.from_numpy(mixture), torch.from_numpy(targets))
            pair = "+".join(sorted(genders.get(speaker, "?") for speaker in dataset.speakers(index)))
            groups["all"].append(value)
            groups.setdefault(pair, []).append(value)
        for group, values in sorted(groups.items()):
            rows.append({"model": name, "speakers": n_speakers, "condition": condition, "genders": group})
            rows[-1] |= summary(values)
            print(json.dumps(rows[-1]), flush=True)
    return rows


def edge_rows(name: str, data: Path, limit: int) -> list[dict[str, Any]]:
    """Return what silence and a single voice give."""
    model, _ = load_separator(name)
    store = AudioFolder(data, RATE)
    with (data / "manifest.csv").open(newline="") as file:
        names = [row["path"] for row in csv.DictReader(file) if row["split"] == "tt"][: min(limit, 10)]
    with torch.inference_mode():
        silent = float(model(torch.zeros(1, RATE)).hypotheses.abs().max())
        kept, leaks = [], []
        for recording in names:
            voice = torch.from_numpy(store.read(recording)).unsqueeze(0)
            outputs = separate_long(model, voice).hypotheses[0]
            kept.append(-float(mcl.pairwise_neg_si_sdr(hypotheses=outputs, targets=voice).min()))
            energy = outputs.square().sum(dim=-1)
            leaks.append(float(10 * torch.log10(energy.max() / energy.min().clamp_min(1e-12))))
    row = {"model": name, "condition": "silence and one voice", "silence_peak": silent, "voices": len(names)}
    row |= {"one_voice_si_sdr_db": round(statistics.fmean(kept), 1)}
    row |= {"other_output_below_db": round(statistics.fmean(leaks), 1)}
    print(json.dumps(row), flush=True)
    return [row]


def seconds(run: Callable[[], object], clock: Callable[[], float], repeats: int = 3) -> float:
    """Return the shortest time of a call: what other processes take comes on top."""
    times = []
    for _ in range(repeats):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def speed_rows(models: Mapping[str, torch.nn.Module], length: float, *, wall: bool) -> list[dict[str, Any]]:
    """Return how much faster than real time networks are on this processor, on chunks of some seconds."""
    chunk = round(length * RATE)
    once, twice = torch.randn(1, chunk), torch.randn(1, 2 * chunk)
    rows = []
    for name, model in models.items():
        row: dict[str, Any] = {"model": name, "what": "speed, times real time", "seconds": length}
        row |= {"load": round(os.getloadavg()[0], 1), "parameters": sum(w.numel() for w in model.parameters())}
        with torch.inference_mode():
            torch.set_num_threads(1)
            row["processor_time_1_thread"] = round(length / seconds(lambda m=model: m(once), time.process_time), 2)
            if wall:
                torch.set_num_threads(2)
                row["wall_2_threads"] = round(length / seconds(lambda m=model: m(once), time.perf_counter), 2)
                chunks = seconds(lambda m=model: separate_long(m, twice, chunk=chunk), time.perf_counter, 2)
                row["wall_2_threads_long"] = round(2 * length / chunks, 2)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="folder with metadata/mix_<n>_spk_tt.csv")
    arguments.add_argument("--models", default=",".join(shipped_models()), help="names, separated by commas")
    arguments.add_argument("--conditions", default=",".join([*CONDITIONS, *RATES]), help="separated by commas")
    arguments.add_argument("--limit", type=int, default=500, help="mixtures of each condition")
    arguments.add_argument("--seconds", type=float, default=10.0, help="length of a chunk for the times")
    arguments.add_argument("--wall", action="store_true", help="also wall times, which need a machine of one's own")
    arguments.add_argument("--no-speed", action="store_true", help="leave out the times")
    arguments.add_argument("--out", type=Path, help="write the record to this JSON file")
    options = arguments.parse_args()
    names = [name for name in options.models.split(",") if name]
    conditions = [name for name in options.conditions.split(",") if name]
    if unknown := sorted(set(conditions) - {*CONDITIONS, *RATES}):
        arguments.error(f"--conditions: unknown {unknown}; known are {[*CONDITIONS, *RATES]}")
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += condition_rows(name, options.data, options.limit, conditions) + edge_rows(
            name, options.data, options.limit
        )
    if not options.no_speed:
        small = {name: DPRNN(2, **sizes).eval() for name, sizes in VARIANTS.items()}
        rows += speed_rows(
            {name: load_separator(name)[0] for name in names} | small, options.seconds, wall=options.wall
        )
    report("robustness", "cpu", rows, options.out)
