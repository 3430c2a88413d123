"""Separate a stream with an exported separator: onnxruntime and NumPy, in constant memory and with a bounded delay.

python stream.py separator.onnx mixture.f32 voices.f32       32-bit samples at 8 kHz; "-" reads a microphone's pipe

The same joining of chunks as `torchmcl_speech.StreamingSeparator`: each chunk is put into the order of the one before, by
SI-SDR where they overlap, and faded in there.
"""

import itertools
import sys

import numpy as np
import onnxruntime


class OnnxStream:
    """Push samples [n]; what comes back, [outputs, m], is final. The delay is `chunk - overlap + fade` samples."""

    def __init__(self, path, chunk=16_000, overlap=8_000, fade=1_000):
        self.session = onnxruntime.InferenceSession(str(path))
        self.chunk, self.overlap, self.fade = chunk, overlap, fade
        self.heard, self.start, self.last, self.given = np.zeros(0, np.float32), 0, None, 0

    @property
    def delay(self):
        """The maximum number of samples after which the outputs of a sample are final."""
        return self.chunk - self.overlap + self.fade

    def push(self, samples):
        """Return the outputs that are final now."""
        self.heard = np.concatenate([self.heard, samples.astype(np.float32)])
        parts = []
        while len(self.heard) >= self.chunk:
            parts.append(self._separated(self.heard[: self.chunk], self.fade))
            self.heard = self.heard[self.chunk - self.overlap :]
            self.start += self.chunk - self.overlap
        return np.concatenate(parts, axis=-1) if parts else np.zeros((0, 0), np.float32)

    def finish(self, tail=None):
        """Return the outputs of the remaining samples; a short last chunk is separated as it is."""
        known = self.start + (self.overlap if self.last is not None else 0)
        if self.start + len(self.heard) > known:
            return self._separated(self.heard, 0)
        return self.last[:, self.given - self.last_from :]

    def _separated(self, piece, kept):
        found = self.session.run(["hypotheses"], {"waveform": piece[None]})[0][0]
        energy = (found**2).sum(-1, keepdims=True)
        found = found * np.where(energy > 0, (piece * found).sum(-1, keepdims=True) / np.maximum(energy, 1e-30), 0)
        if self.last is not None:
            before = self.last[:, self.start - self.last_from :]
            shared = before.shape[-1]
            found = found[_order(found[:, :shared], before)]
            fixed = self.given - self.start
            fade = np.linspace(0, 1, shared - fixed + 2)[1:-1]
            faded = before[:, fixed:] + fade * (found[:, fixed:shared] - before[:, fixed:])
            found = np.concatenate([before[:, :fixed], faded, found[:, shared:]], axis=-1)
        self.last, self.last_from = found, self.start
        stop = self.start + len(piece) - kept
        final, self.given = found[:, self.given - self.start : stop - self.start], stop
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
    return list(max(itertools.permutations(rows), key=lambda order: sum(ratio[row, place] for row, place in zip(rows, order, strict=True))))


if __name__ == "__main__":
    stream = OnnxStream(sys.argv[1])
    source = sys.stdin.buffer if sys.argv[2] == "-" else open(sys.argv[2], "rb")
    with source, open(sys.argv[3], "wb") as target:
        while block := source.read(4 * 800):
            target.write(stream.push(np.frombuffer(block, np.float32)).T.tobytes())
        target.write(stream.finish().T.tobytes())
