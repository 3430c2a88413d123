"""Recordings in pieces, read, resampled and written in constant memory."""

import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from torchmcl.persistence.writing import replaced_file
from torchmcl_speech.data.audio import BadAudio, Samples, audio_info, check_cancellation, mixed_down, name_on_disk

__all__ = ["Resampler", "StoredSound", "Track16", "audio_blocks"]

_BLOCK = 1 << 16


class Resampler:
    """Samples at another rate, block by block; equal rates pass through unchanged.

    Args:
        old_rate: of what comes in.
        new_rate: of what goes out.
    """

    def __init__(self, old_rate: int, new_rate: int) -> None:
        self._stream = None
        if old_rate != new_rate:
            import soxr

            self._stream = soxr.ResampleStream(old_rate, new_rate, 1, dtype="float32", quality="VHQ")

    def __call__(self, samples: Samples, *, last: bool = False) -> Samples:
        """Return the output so far; after the last samples, the rest."""
        if self._stream is None:
            return samples
        resampled: Samples = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32), last=last)
        return resampled


def audio_blocks(path: Path | str, n_samples: int = _BLOCK) -> Iterator[Samples]:
    """Yield a recording in blocks of float32 [at most n_samples], mixed down to mono, at its own rate.

    Raises:
        BadAudio: if the file is missing, unreadable, cut short, holds samples that are not finite or far above full
            scale; after the last block, if its channels cancel each other.
    """
    info = audio_info(path)
    import soundfile

    n_read, channel_peak, mono_peak = 0, 0.0, 0.0
    try:
        for block in soundfile.blocks(name_on_disk(path), blocksize=n_samples, dtype="float32", always_2d=True):
            mono = mixed_down(path, block, n_read)
            n_read += len(mono)
            channel_peak = max(channel_peak, float(np.abs(block).max(initial=0.0)))
            mono_peak = max(mono_peak, float(np.abs(mono).max(initial=0.0)))
            yield np.ascontiguousarray(mono, dtype=np.float32)
    except soundfile.LibsndfileError as error:
        raise BadAudio(f"{path}: not readable as audio ({error.error_string}).") from error
    if n_read < info.length:
        raise BadAudio(f"{path}: is cut short; {n_read} of {info.length} samples could be read.")
    check_cancellation(path, channel_peak, mono_peak)


class StoredSound:
    """The samples of a mono recording, read on demand; use it in a `with` block.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path | str) -> None:
        import soundfile

        self._length = audio_info(path).length
        self._file = soundfile.SoundFile(name_on_disk(path))

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, place: slice) -> Samples:
        """Return the samples of a slice without steps."""
        start, stop, _ = place.indices(len(self))
        self._file.seek(start)
        samples: Samples = self._file.read(max(stop - start, 0), dtype="float32", always_2d=True)[:, 0]
        return samples

    def __enter__(self) -> "StoredSound":
        """Open the temporary file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()


class Track16:
    """Samples collected on disk until their level is known, and then written as a 16-bit WAV.

    Args:
        folder: where to collect them, in a file without a name that ends with the process.
    """

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed by `close`)
        self.length = 0
        self.peak = 0.0

    def add(self, samples: Samples) -> None:
        """Append samples."""
        if len(samples):
            self._file.write(np.ascontiguousarray(samples, dtype=np.float32).tobytes())
            self.length += len(samples)
            self.peak = max(self.peak, float(np.abs(samples).max()))

    def write(self, path: Path, sample_rate: int, length: int, gain: float = 1.0) -> None:
        """Write exactly `length` samples times a gain, padded with silence and clipped at 1."""
        self._file.seek(0)
        with replaced_file(path) as file, wave.Wave_write(file) as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(sample_rate)
            sound.setnframes(length)
            for start in range(0, length, _BLOCK):
                n_wanted = min(_BLOCK, length - start)
                block = np.frombuffer(self._file.read(4 * n_wanted), dtype=np.float32)
                block = np.pad(block, (0, n_wanted - len(block)))
                whole = np.clip(np.round(32768 * gain * block), -32768, 32767).astype("<i2")
                sound.writeframesraw(whole.tobytes())

    def close(self) -> None:
        """Forget the samples."""
        self._file.close()
