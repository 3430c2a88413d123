"""Separate a stream with an exported separator: onnxruntime and NumPy, in constant memory and with a bounded delay.

python stream.py separator.onnx mixture.f32 voices.f32       32-bit samples at 8 kHz; "-" reads a microphone's pipe

Chunks are joined as `torchmcl_speech.StreamingSeparator` does it: each is put into the order of the one before, by
SI-SDR where they overlap, and faded in there.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import onnxruntime


class OnnxStream:
    """Push samples [n]; what comes back, [outputs, m], is final. The delay is `chunk - overlap + fade` samples."""

    def __init__(self, path, chunk=16_000, overlap=8_000, fade=1_000):
        self.session = onnxruntime.InferenceSession(str(path))
        self.chunk, self.overlap, self.fade = chunk, overlap, fade
        self.heard, self.heard_from = np.zeros(0, np.float32), 0  # at least the last chunk, and where it begins
        self.start, self.last, self.last_from, self.given = 0, None, 0, 0

    @property
    def delay(self):
        """The maximum number of samples after which the outputs of a sample are final."""
        return self.chunk - self.overlap + self.fade

    def push(self, samples):
        """Return the outputs that are final now."""
        self.heard = np.concatenate([self.heard, samples.astype(np.float32)])
        end, parts = self.heard_from + len(self.heard), []
        while self.start + self.chunk <= end:
            parts.append(self._separated(self.start, self.start + self.chunk, self.fade))
            self.start += self.chunk - self.overlap
        first = max(min(self.start, end - self.chunk), 0)
        self.heard, self.heard_from = self.heard[first - self.heard_from :], first
        return np.concatenate(parts, axis=-1) if parts else np.zeros((0, 0), np.float32)

    def finish(self):
        """Return the outputs of the remaining samples. The last chunk is a full one too, and overlaps more."""
        end = self.heard_from + len(self.heard)
        if self.last is not None and self.last_from + self.last.shape[-1] == end:
            return self.last[:, self.given - self.last_from :]
        return self._separated(max(end - self.chunk, 0), end, 0)

    def _separated(self, start, end, kept):
        piece = self.heard[start - self.heard_from : end - self.heard_from]
        found = self.session.run(["hypotheses"], {"waveform": piece[None]})[0][0]
        energy = (found**2).sum(-1, keepdims=True)
        found = found * np.where(energy > 0, (piece * found).sum(-1, keepdims=True) / np.maximum(energy, 1e-30), 0)
        if self.last is not None:
            before = self.last[:, start - self.last_from :]
            shared = before.shape[-1]
            found = found[_order(found[:, :shared], before)]
            fixed = self.given - start
            fade = np.linspace(0, 1, shared - fixed + 2)[1:-1]
            faded = before[:, fixed:] + fade * (found[:, fixed:shared] - before[:, fixed:])
            found = np.concatenate([before[:, :fixed], faded, found[:, shared:]], axis=-1)
        self.last, self.last_from = found, start
        final, self.given = found[:, self.given - start : end - kept - start], end - kept
        return final


def _order(found, before):
    """Return the places that put outputs into the order of the chunk before, by the sum of SI-SDRs."""
    found, before = (each - each.mean(-1, keepdims=True) for each in (found.astype(float), before.astype(float)))
    products = before @ found.T
    power = (before**2).sum(-1)[:, None]
    target = products**2 / np.maximum(power, 1e-20)
    noise = np.maximum((found**2).sum(-1)[None] - target, 1e-20)
    ratio = 10 * np.log10(np.maximum(target, 1e-20) / noise)
    rows = range(len(ratio))

    def agreement(order):
        return sum(ratio[row, place] for row, place in zip(rows, order, strict=True))

    return list(max(itertools.permutations(rows), key=agreement))


if __name__ == "__main__":
    stream = OnnxStream(sys.argv[1])
    given = "/dev/stdin" if sys.argv[2] == "-" else sys.argv[2]
    with Path(given).open("rb") as source, Path(sys.argv[3]).open("wb") as target:
        while block := source.read(4 * 800):
            target.write(stream.push(np.frombuffer(block, np.float32)).T.tobytes())
        target.write(stream.finish().T.tobytes())
