"""Where utterances come from: a folder of recordings, or a pack of them in one file."""

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torchmcl._checks import bad_value, check_positive_int
from torchmcl._progress import Progress
from torchmcl.persistence.writing import write_atomically
from torchmcl_speech.data.audio import AudioInfo, BadAudio, Samples, audio_files, audio_info, read_audio, warn_skipped
from torchmcl_speech.data.packed import ESCAPE, read_packed

__all__ = ["AudioFolder", "AudioPack", "AudioStore"]


class AudioStore(Protocol):
    """Anything that gives utterances by name, at one sample rate."""

    sample_rate: int

    def length(self, name: str) -> int:
        """Return the number of samples; raises BadAudio if there is no such utterance."""
        ...

    def read(self, name: str) -> Samples:
        """Return the samples, float32 [length]; raises BadAudio if they cannot be used."""
        ...

    def differs(self, name: str) -> str:
        """Return how the recording differs from mono at the sample rate, or nothing."""
        ...


class AudioFolder:
    """Recordings below a folder, read when they are needed, mixed down and resampled.

    Args:
        root: names are relative to it, or absolute and below it.
        sample_rate: of all that is read; 8 kHz by default, as in the paper.
        outside: also read names that lead out of the folder, as a list that you trust may hold; else they are
            refused, for a list of files may come from anywhere.
    """

    def __init__(self, root: Path | str, sample_rate: int = 8000, *, outside: bool = False) -> None:
        check_positive_int("AudioFolder", "sample_rate", sample_rate)
        self.root = Path(root)
        self.outside = outside
        self.sample_rate = sample_rate
        self._infos: dict[str, AudioInfo] = {}
        if not self.root.is_dir():
            raise BadAudio(f"{self.root}: there is no such folder.")

    def length(self, name: str) -> int:
        """Return the number of samples after resampling."""
        return self._info(name).length_at(self.sample_rate)

    def read(self, name: str) -> Samples:
        """Return the samples, float32 [length]."""
        return read_audio(self._path(name), self.sample_rate)

    def differs(self, name: str) -> str:
        """Return how the recording differs from mono at the sample rate, or nothing."""
        info = self._info(name)
        mixed = [] if info.n_channels == 1 else [f"mixed down from {info.n_channels} channels"]
        rate = [] if info.sample_rate == self.sample_rate else [f"resampled from {info.sample_rate} Hz"]
        return " and ".join([*mixed, *rate])

    def _info(self, name: str) -> AudioInfo:
        if name not in self._infos:
            self._infos[name] = audio_info(self._path(name))
        return self._infos[name]

    def _path(self, name: str) -> Path:
        """Return where a recording is; links inside the folder are the user's own and are followed."""
        if "\0" in name:
            raise BadAudio(f"{name!r}: is not a file name.")
        path = self.root / name
        if not self.outside and not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(self.root)):
            raise BadAudio(f"{name}: leads out of {self.root}. If you trust the list, allow it with outside=True.")
        return path


class AudioPack:
    """Utterances in memory, kept as int16; one file on disk, which needs numpy alone to be read.

    The file is lossless: first differences, one byte each with an escape for the large ones, through
    the range coder of the standard library. Recordings kept at 12 bits come out as small as FLAC.

    Args:
        utterances: name -> samples, int16 [length].
        sample_rate: of all of them.

    Example:
        >>> pack = AudioPack({"ann/1.wav": np.array([0, 16384, -16384], dtype=np.int16)}, sample_rate=8000)
        >>> pack.read("ann/1.wav")
        array([ 0. ,  0.5, -0.5], dtype=float32)
    """

    def __init__(self, utterances: Mapping[str, npt.NDArray[np.int16]], sample_rate: int = 8000) -> None:
        check_positive_int("AudioPack", "sample_rate", sample_rate)
        self._utterances = dict(utterances)
        self.sample_rate = sample_rate

    @property
    def names(self) -> list[str]:
        """The names of the utterances, in the order of the pack."""
        return list(self._utterances)

    @property
    def n_bytes(self) -> int:
        """The memory that the samples take."""
        return sum(samples.nbytes for samples in self._utterances.values())

    def length(self, name: str) -> int:
        """Return the number of samples."""
        return len(self._find(name))

    def read(self, name: str) -> Samples:
        """Return the samples, float32 [length]."""
        return self._find(name).astype(np.float32) / np.float32(32768)

    def differs(self, name: str) -> str:
        """Return nothing: a pack is made of mono recordings at one rate."""
        return ""

    def _find(self, name: str) -> npt.NDArray[np.int16]:
        if name not in self._utterances:
            raise BadAudio(f"{name}: is not in the pack of {len(self._utterances)} utterances.")
        return self._utterances[name]

    @classmethod
    def from_folder(
        cls,
        root: Path | str,
        names: Iterable[str] | None = None,
        *,
        sample_rate: int = 8000,
        skip_bad: bool = False,
        progress: bool = False,
    ) -> "AudioPack":
        """Return a pack of the recordings below a folder, all of them by default.

        Raises:
            BadAudio: at the first recording that cannot be used, unless `skip_bad`, which counts them in a warning.
        """
        folder = AudioFolder(root, sample_rate)
        if names is None:
            names = [path.relative_to(folder.root).as_posix() for path in audio_files(folder.root)]
        names = list(names)
        utterances: dict[str, npt.NDArray[np.int16]] = {}
        bad: list[str] = []
        with Progress(len(names), "reading", show=progress, unit="file") as bar:
            for name in names:
                try:
                    samples = folder.read(name)
                    utterances[name] = np.clip(np.round(samples * 32768), -32768, 32767).astype(np.int16)
                except BadAudio as error:
                    if not skip_bad:
                        raise
                    bad.append(str(error))
                bar.step()
        if not utterances:
            raise BadAudio(f"{root}: none of its {len(names)} recordings can be used.")
        warn_skipped("AudioPack", bad)
        return cls(utterances, sample_rate)

    def save(self, path: Path | str) -> int:
        """Write the pack into one file; return its size in bytes."""
        import lzma

        stream = np.concatenate([np.diff(x.astype(np.int32), prepend=np.int32(0)) for x in self._utterances.values()])
        # Recordings stored with fewer bits have zeros at the end of every sample.
        any_bit = int(np.bitwise_or.reduce(stream)) if len(stream) else 0
        shift = (any_bit & -any_bit).bit_length() - 1 if any_bit else 0
        stream >>= shift
        fits = np.abs(stream) < -ESCAPE
        low = np.where(fits, stream, ESCAPE).astype(np.int8)
        coded = lzma.compress(low.tobytes(), format=lzma.FORMAT_XZ, filters=_filters())
        buffer = io.BytesIO()
        np.savez(
            buffer,
            names=np.array(self.names, dtype=np.str_),
            lengths=np.array([len(x) for x in self._utterances.values()], dtype=np.int64),
            sample_rate=np.int64(self.sample_rate),
            shift=np.int64(shift),
            coded=np.frombuffer(coded, dtype=np.uint8),
            large=stream[~fits].astype(np.int32),
        )
        write_atomically(Path(path), buffer.getvalue())
        return buffer.tell()

    @classmethod
    def load(cls, path: Path | str) -> "AudioPack":
        """Return the pack of a file.

        Raises:
            BadAudio: if the file is missing or is not a pack.
        """
        packed = read_packed(Path(path))
        low = packed.low.astype(np.int32)
        low[low == ESCAPE] = packed.large
        pieces = np.split(low << packed.shift, np.cumsum(packed.lengths)[:-1])
        samples = (np.cumsum(piece, dtype=np.int32).astype(np.int16) for piece in pieces)
        return cls(dict(zip(packed.names, samples, strict=True)), packed.sample_rate)

    def checked_rate(self, sample_rate: int) -> "AudioPack":
        """Return the pack itself, if it has this sample rate."""
        if sample_rate != self.sample_rate:
            advice = "Pack the recordings again at that rate."
            raise ValueError(bad_value("AudioPack", "sample_rate", f"be {sample_rate}", self.sample_rate, advice))
        return self


def _filters() -> list[dict[str, int]]:
    """Return settings for bytes whose neighbours say how large they are (lc), without alignment (pb)."""
    import lzma

    return [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 4, "lp": 0, "pb": 0}]
