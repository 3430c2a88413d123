"""Reading and writing recordings, with errors that name the file."""

import os
import struct
import tempfile
import warnings
import wave
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchmcl import io

__all__ = [
    "SILENCE",
    "AudioInfo",
    "BadAudio",
    "Resampler",
    "Samples",
    "StoredSound",
    "Track16",
    "audio_blocks",
    "audio_files",
    "audio_info",
    "check_samples",
    "is_recording",
    "read_audio",
    "warn_skipped",
    "write_audio",
]

Samples = npt.NDArray[np.float32]

_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
#: Peak below which a recording is silent: in a 16-bit file, all samples would be zero.
SILENCE = 2.0**-15
# Maximum magnitude of samples: integers stored as floats reach 2**31, and larger energies overflow in float32.
_LOUDEST = 1e10
# Placeholder chunk sizes in the headers of streamed files, which do not specify the length.
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)


class BadAudio(ValueError):  # noqa: N818  (describes a file)
    """Error for an unusable recording; the message begins with the name of the recording."""


def _unreadable(path: Path | str, error: Any) -> BadAudio:
    return BadAudio(f"{path}: not readable as audio ({error.error_string.rstrip('.')}). Convert it to WAV or FLAC.")


class AudioInfo(NamedTuple):
    """Header of a recording.

    Attributes:
        sample_rate: Samples per second.
        n_channels: Number of channels; 1 for mono.
        length: Number of samples per channel.
    """

    sample_rate: int
    n_channels: int
    length: int

    def length_at(self, sample_rate: int) -> int:
        """Compute the length after resampling."""
        return self.length * sample_rate // self.sample_rate


def audio_info(path: Path | str) -> AudioInfo:
    """Read the header of a recording.

    Raises:
        BadAudio: If the file does not exist, is not audio, is empty or is truncated.
    """
    path = Path(path)
    if not path.is_file():
        raise BadAudio(f"{path}: no such file. Check the path.")
    import soundfile

    try:
        header = soundfile.info(name_on_disk(path))
    except soundfile.LibsndfileError as error:
        raise _unreadable(path, error) from error
    if header.frames < 1 or header.samplerate < 1 or header.channels < 1:
        raise BadAudio(f"{path}: has no samples. Record or copy it again.")
    check_samples(path, header.frames * header.channels)
    missing = _missing_bytes(path)
    if missing > 0:
        raise BadAudio(f"{path}: is truncated; {missing} bytes are missing at its end. Copy it again.")
    return AudioInfo(int(header.samplerate), int(header.channels), int(header.frames))


def read_audio(path: Path | str, sample_rate: int | None = None) -> Samples:
    """Read a recording as float32, mixed down to mono and resampled.

    Args:
        path: Audio file in any format that soundfile reads.
        sample_rate: Sample rate of the result; the sample rate of the file by default.

    Returns:
        Samples [length], with full scale at 1.

    Raises:
        BadAudio: If the file is missing, unreadable, truncated or too short, contains samples that are not finite or
            far above full scale, or has channels that cancel each other.
    """
    info = audio_info(path)
    if sample_rate is not None:
        check_samples(path, info.length_at(sample_rate))  # resampling from 1 Hz multiplies the length by 8000
        if info.length_at(sample_rate) < 1:
            raise BadAudio(f"{path}: is too short ({info.length} samples at {info.sample_rate} Hz). Remove the file.")
    import soundfile

    try:
        samples, _ = soundfile.read(name_on_disk(path), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise _unreadable(path, error) from error
    if len(samples) < info.length:
        raise BadAudio(f"{path}: is truncated; {len(samples)} of {info.length} samples could be read. Copy it again.")
    mono = mixed_down(path, samples)
    check_cancellation(path, _peak(samples), _peak(mono))
    if sample_rate is not None and info.sample_rate != sample_rate:
        import soxr

        mono = soxr.resample(mono, info.sample_rate, sample_rate, quality="VHQ")
    return np.ascontiguousarray(mono, dtype=np.float32)


def mixed_down(path: Path | str, samples: Samples, first: int = 0) -> Samples:
    """Compute the mean [length] of channels [length, channels].

    Args:
        path: File name at the beginning of messages.
        samples: Recording, or a block of it.
        first: Index of the first sample of the block.

    Raises:
        BadAudio: If a sample is not finite or far above full scale.
    """
    bad = ~(np.abs(samples) <= _LOUDEST).all(axis=1)
    if bad.any():
        place = int(bad.argmax())
        value = max(samples[place].tolist(), key=lambda sample: abs(sample) if np.isfinite(sample) else np.inf)
        if not np.isfinite(value):
            raise BadAudio(f"{path}: sample {first + place} is not finite. Export the recording again.")
        advice = "Scale the recording to full scale at 1."
        raise BadAudio(f"{path}: sample {first + place} is {value:g}, louder than any recording. {advice}")
    return samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)


def check_cancellation(path: Path | str, loudest_channel: float, loudest_mono: float) -> None:
    """Check that channels do not cancel each other when they are mixed down.

    Raises:
        BadAudio: If the mean is silent although the channels are not.
    """
    if loudest_mono < SILENCE <= loudest_channel:
        advice = "Invert one channel, or save one channel as a mono file."
        raise BadAudio(f"{path}: its channels cancel each other, so their mean is silent. {advice}")


def _peak(samples: Samples) -> float:
    return float(np.abs(samples).max(initial=0.0))


def check_samples(path: Path | str, n_samples: int, name: str = "audio_samples") -> None:
    """Check that a recording or a pack of recordings is not larger than the limit.

    Raises:
        BadAudio: If it is larger; the message explains how to raise the limit.
    """
    try:
        io.check_limit("audio", str(path), name, n_samples)
    except ValueError as error:
        raise BadAudio(f"{path}: {error}") from error


def write_audio(path: Path | str, samples: Any, sample_rate: int) -> None:
    """Write samples [length] as a 16-bit WAV file; samples beyond full scale are clipped."""
    buffer = BytesIO()
    import soundfile

    soundfile.write(buffer, np.asarray(samples, dtype=np.float32), sample_rate, format="WAV", subtype="PCM_16")
    io.write_atomically(Path(path), buffer.getvalue())


def is_recording(path: Path) -> bool:
    """Return whether a file has the suffix of a recording."""
    return path.suffix.lower() in _SUFFIXES


def audio_files(folder: Path | str) -> list[Path]:
    """Return the sorted paths of all recordings below a folder.

    Raises:
        BadAudio: If the folder is missing or contains no recordings.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BadAudio(f"{folder}: no such folder. Check the path.")
    files = sorted(path for path in folder.rglob("*") if is_recording(path))
    if not files:
        raise BadAudio(f"{folder}: contains no recordings ({', '.join(_SUFFIXES)}). Check the path.")
    return files


def warn_skipped(owner: str, messages: Sequence[str]) -> None:
    """Warn about skipped recordings: their number, and the problems of the first few."""
    if messages:
        warnings.warn(f"{owner}: {len(messages)} bad recordings were skipped: {' '.join(messages[:3])}", stacklevel=3)


def name_on_disk(path: Path | str) -> str | bytes:
    """Return a file name for soundfile: as bytes, because it may not be valid text, except on Windows."""
    return str(path) if os.name == "nt" else os.fsencode(path)


def _missing_bytes(path: Path) -> int:
    """Return the number of missing bytes of a WAV file, because libsndfile accepts truncated files."""
    with path.open("rb") as file:
        head = file.read(12)
        if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return 0
        while len(chunk := file.read(8)) == 8:
            name, size = chunk[:4], struct.unpack("<I", chunk[4:])[0]
            if name == b"data":
                left = path.stat().st_size - file.tell()
                return 0 if size in _UNKNOWN_SIZES else max(size - left, 0)
            file.seek(size + size % 2, os.SEEK_CUR)
    return 0


_BLOCK = 1 << 16


class Resampler:
    """Resampler that processes blocks; samples are unchanged if the rates are equal.

    Args:
        old_rate: Sample rate of the input.
        new_rate: Sample rate of the output.
    """

    def __init__(self, old_rate: int, new_rate: int) -> None:
        self._stream = None
        if old_rate != new_rate:
            import soxr

            self._stream = soxr.ResampleStream(old_rate, new_rate, 1, dtype="float32", quality="VHQ")

    def __call__(self, samples: Samples, *, last: bool = False) -> Samples:
        """Resample a block and return the samples that are available; after the last block, all remaining samples."""
        if self._stream is None:
            return samples
        return self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32), last=last)


def audio_blocks(path: Path | str, n_samples: int = _BLOCK) -> Iterator[Samples]:
    """Yield a recording in float32 blocks of at most `n_samples`, mixed down to mono, at its original sample rate.

    Raises:
        BadAudio: If the file is missing, unreadable or truncated, or contains samples that are not finite or far above
            full scale; after the last block, if its channels cancel each other.
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
        raise _unreadable(path, error) from error
    if n_read < info.length:
        raise BadAudio(f"{path}: is truncated; {n_read} of {info.length} samples could be read. Copy it again.")
    check_cancellation(path, channel_peak, mono_peak)


class StoredSound:
    """Samples of a mono recording that are read on demand; used in a `with` block.

    Args:
        path: Path of the file.
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
        return self._file.read(max(stop - start, 0), dtype="float32", always_2d=True)[:, 0]

    def __enter__(self) -> "StoredSound":
        """Return the open file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()


class Track16:
    """Samples that are collected on disk until their level is known, and then written as a 16-bit WAV file.

    Args:
        folder: Folder for the anonymous temporary file, which is removed when the process ends.
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
        """Write exactly `length` samples with a gain, padded with silence and clipped at 1."""
        self._file.seek(0)
        with io.replaced_file(path) as file, wave.Wave_write(file) as sound:
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
        """Discard the samples."""
        self._file.close()
