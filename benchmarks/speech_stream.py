"""Regions for a stream of speech: a fixed conformal level against one that follows the stream.

python benchmarks/speech_stream.py [--root ../shared/data/speech] [--out results/speech-stream.json]

A network sees the energies of the last eight frames of a reader in two bands, and gives eight hypotheses for the next.
The level is calibrated on other readers. In the second half of the stream a noise begins that nobody has heard before:
frames are no longer exchangeable with those of the calibration, and only `AdaptiveLevel` notices.
"""

from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor

import torchmcl as mcl
from _common import parser, report
from torchmcl import postprocess as after

N_HYPOTHESES, N_SEEN, FRAME, HOP, ALPHA = 8, 8, 256, 128, 0.1


def energies(sound: np.ndarray) -> Tensor:
    """Return log energies below and above 1 kHz, [frames, 2], in units of 10 dB."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::HOP] * np.hanning(FRAME)
    power = np.abs(np.fft.rfft(frames)) ** 2
    border = FRAME * 1000 // 8000
    bands = np.stack([power[:, :border].sum(axis=1), power[:, border:].sum(axis=1)], axis=1)
    return torch.from_numpy(np.log10(bands + 1e-6)).float()


def rows_of(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what was seen [frames, 16] and the next frame [frames, 2], both relative to the last frame seen."""
    windows = values.unfold(0, N_SEEN + 1, 1).transpose(1, 2)
    last = windows[:, N_SEEN - 1 : N_SEEN]
    return (windows[:, :N_SEEN] - last).flatten(1), (windows[:, N_SEEN] - last.squeeze(1))


def of_part(root: Path, name: str, n_files: int, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the rows of some recordings, of different readers as far as there are enough, one after the other."""
    files = sorted((root / name).rglob("*.flac")) or sorted((root / name).rglob("*.wav"))
    files = files[:: max(len(files) // n_files, 1)][:n_files]
    sounds = [soundfile.read(file)[0] for file in files]
    random = np.random.default_rng(0)
    noisy = [sound + noise * np.std(sound) * random.standard_normal(len(sound)) for sound in sounds]
    inputs, targets = zip(*(rows_of(energies(sound)) for sound in noisy), strict=True)
    return torch.cat(inputs), torch.cat(targets)


def trained(inputs: Tensor, targets: Tensor, n_steps: int = 800) -> torch.nn.Module:
    """Return a small network after an annealed training."""
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(inputs.shape[1], 2, N_HYPOTHESES, hidden=(64, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, 0.01 ** (2 / n_steps), cutoff=0.01))
    for step in range(n_steps):
        chosen = torch.randint(len(inputs), (512,))
        output = mcl.mcl_step(model, mcl.Batch(inputs[chosen], targets[chosen].unsqueeze(1)), rule_at(step))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    return model.eval()


def followed(start: Tensor, values: Tensor, step_size: float) -> Tensor:
    """Return whether each value of a stream was in its region; the level has seen other values before."""
    level = after.AdaptiveLevel(coverage=1 - ALPHA, step_size=step_size, window=500)
    for value in start.tolist():
        level.update(value)
    return torch.tensor([level.update(value) for value in values.tolist()])


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--root", type=Path, default=Path("../shared/data/speech"))
    options = arguments.parse_args()
    model = trained(*of_part(options.root, "tr", 60))
    shape, parts = after.BallScore(), {}
    streams = {"calibration": ("cv", 20, 0.0), "as heard before": ("tt", 20, 0.0), "with noise": ("tt", 20, 0.3)}
    for name, (part, n_files, noise) in streams.items():
        inputs, targets = of_part(options.root, part, n_files, noise)
        with torch.no_grad():
            given = model(inputs)
        parts[name] = (
            given,
            targets,
            shape(after.WeightedHypotheses(given.hypotheses, mcl.normalized_scores(given.score_logits)), targets),
        )
    regions = after.conformal(*parts["calibration"][:2], nonconformity=shape, coverage=1 - ALPHA)
    values = torch.cat([parts["as heard before"][2], parts["with noise"][2]])
    half, rows = len(parts["as heard before"][2]), []
    ways = {
        "fixed level": values <= float(regions.levels),
        "AdaptiveLevel": followed(parts["calibration"][2][-500:], values, 0.02),
    }
    for name, inside in ways.items():
        windows = inside.double()[: len(inside) // 250 * 250].view(-1, 250).mean(dim=1)
        rows.append(
            {
                "name": name,
                "frames": len(values),
                "coverage as heard before": float(inside[:half].double().mean()),
                "coverage with noise": float(inside[half:].double().mean()),
                "lowest coverage of 250 frames": float(windows.min()),
            }
        )
    report("speech_stream", options.device, rows, options.out)


if __name__ == "__main__":
    main()
