"""Stores of utterances by name: a folder of recordings, or a pack in one file."""

import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torchmcl import checks, io
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl_speech.data.audio import (
    AudioInfo,
    BadAudio,
    Samples,
    audio_files,
    audio_info,
    check_samples,
    read_audio,
    warn_skipped,
)

__all__ = ["AudioFolder", "AudioPack", "AudioStore"]

# Errors that numpy and the standard library raise for bytes that are not an npz file.
_BROKEN = (
    OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, SyntaxError, NotImplementedError, RuntimeError,
    OverflowError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


class AudioStore(Protocol):
    """Store of utterances by name, at one sample rate."""

    sample_rate: int

    def length(self, name: str) -> int:
        """Return the number of samples; raise BadAudio for an unknown utterance."""
        ...

    def read(self, name: str) -> Samples:
        """Return the samples, float32 [length]; raise BadAudio if they are unusable."""
        ...

    def differs(self, name: str) -> str:
        """Return how a recording is converted to mono at the sample rate, as text; empty if it is not converted."""
        ...


class AudioFolder:
    """Recordings below a folder, which are read on demand, mixed down and resampled.

    Args:
        root: Folder to which names are relative; absolute names must be below it.
        sample_rate: Sample rate of all samples; 8 kHz by default, as in the paper.
        outside: Whether to read files outside of the folder, which is only safe for trusted lists of files.
    """

    def __init__(self, root: Path | str, sample_rate: int = 8000, *, outside: bool = False) -> None:
        checks.check_positive_int("AudioFolder", "sample_rate", sample_rate)
        self.root = Path(root)
        self.outside = outside
        self.sample_rate = sample_rate
        self._infos: dict[str, AudioInfo] = {}
        if not self.root.is_dir():
            raise BadAudio(f"{self.root}: no such folder. Check the path.")

    def length(self, name: str) -> int:
        """Return the number of samples after resampling."""
        return self._info(name).length_at(self.sample_rate)

    def read(self, name: str) -> Samples:
        """Return the samples, float32 [length]."""
        return read_audio(self._path(name), self.sample_rate)

    def differs(self, name: str) -> str:
        """Return how a recording is converted to mono at the sample rate, as text; empty if it is not converted."""
        info = self._info(name)
        mixed = [] if info.n_channels == 1 else [f"mixed down from {info.n_channels} channels"]
        rate = [] if info.sample_rate == self.sample_rate else [f"resampled from {info.sample_rate} Hz"]
        return " and ".join([*mixed, *rate])

    def _info(self, name: str) -> AudioInfo:
        if name not in self._infos:
            self._infos[name] = audio_info(self._path(name))
        return self._infos[name]

    def _path(self, name: str) -> Path:
        """Return the path of a recording; links inside the folder are followed."""
        if "\0" in name:
            raise BadAudio(f"{name!r}: is not a file name.")
        path = self.root / name
        if not self.outside and not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(self.root)):
            raise BadAudio(f"{name}: is outside of {self.root}. If you trust the list, use outside=True.")
        return path


class AudioPack:
    """Utterances in memory as int16, saved in one compressed npz file that numpy reads without soundfile.

    Args:
        utterances: Mapping from names to samples, int16 [length].
        sample_rate: Sample rate of all utterances.

    Example:
        >>> pack = AudioPack({"ann/1.wav": np.array([0, 16384, -16384], dtype=np.int16)}, sample_rate=8000)
        >>> pack.read("ann/1.wav")
        array([ 0. ,  0.5, -0.5], dtype=float32)
    """

    def __init__(self, utterances: Mapping[str, npt.NDArray[np.int16]], sample_rate: int = 8000) -> None:
        checks.check_positive_int("AudioPack", "sample_rate", sample_rate)
        self._utterances = dict(utterances)
        self.sample_rate = sample_rate

    @property
    def names(self) -> list[str]:
        """Names of the utterances, in the order of the pack."""
        return list(self._utterances)

    @property
    def n_bytes(self) -> int:
        """Memory of the samples in bytes."""
        return sum(samples.nbytes for samples in self._utterances.values())

    def length(self, name: str) -> int:
        """Return the number of samples."""
        return len(self._find(name))

    def read(self, name: str) -> Samples:
        """Return the samples, float32 [length]."""
        return self._find(name).astype(np.float32) / np.float32(32768)

    def differs(self, name: str) -> str:
        """Return an empty string, because a pack contains mono recordings at one sample rate."""
        return ""

    def _find(self, name: str) -> npt.NDArray[np.int16]:
        if name not in self._utterances:
            raise BadAudio(f"{name}: is not in the pack of {len(self._utterances)} utterances. Pack the folder again.")
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
        """Pack the recordings below a folder, all of them by default; recordings above full scale are attenuated to it.

        Raises:
            BadAudio: For the first unusable recording, unless `skip_bad` is True and a warning counts them.
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
                    samples = samples / np.abs(samples).max(initial=1.0)  # rather than clipping it
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
        """Write the pack to a file and return its size in bytes."""
        samples = np.concatenate([np.zeros(0, np.int16), *self._utterances.values()])
        buffer = BytesIO()
        np.savez_compressed(
            buffer,
            names=np.array(self.names, dtype=np.str_),
            lengths=np.array([len(x) for x in self._utterances.values()], dtype=np.int64),
            sample_rate=np.int64(self.sample_rate),
            # Differences of neighboring samples are smaller than samples. They may overflow, which their sums reverse.
            differences=np.diff(samples, prepend=np.int16(0)),
        )
        io.write_atomically(Path(path), buffer.getvalue())
        return buffer.tell()

    @classmethod
    def load(cls, path: Path | str) -> "AudioPack":
        """Load a pack from a file.

        Raises:
            BadAudio: If the file is missing, is not a pack, or is larger than the limit.
        """
        path = Path(path)
        try:
            names, lengths, sample_rate, differences = _pack_arrays(path)
        except FileNotFoundError as error:
            raise BadAudio(f"{path}: no such file. Check the path.") from error
        except BadAudio:
            raise
        except _BROKEN as error:
            raise BadAudio(
                f"{path}: is not a pack of utterances ({str(error)[:200]}). Pack the folder again."
            ) from error
        samples = np.cumsum(differences, dtype=np.int16)
        return cls(dict(zip(names, np.split(samples, np.cumsum(lengths)[:-1]), strict=True)), sample_rate)

    def checked_rate(self, sample_rate: int) -> "AudioPack":
        """Check the sample rate of the pack and return the pack."""
        if sample_rate != self.sample_rate:
            advice = "Pack the recordings again at that rate."
            raise ValueError(bad_value("AudioPack", "sample_rate", f"be {sample_rate}", self.sample_rate, advice))
        return self


def _pack_arrays(path: Path) -> tuple[list[str], npt.NDArray[np.int64], int, npt.NDArray[np.int16]]:
    """Read names, lengths, sample rate and sample differences of a pack, and check their consistency."""
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile) or file.zip is None:
            raise ValueError("it contains a single array")
        check_samples(path, sum(int(member.file_size) for member in file.zip.infolist()) // 2, "audio_samples")
        parts: list[npt.NDArray[Any]] = [file[name] for name in ("names", "lengths", "sample_rate", "differences")]
    names, lengths, sample_rate, differences = parts
    if names.dtype.kind != "U" or lengths.dtype.kind not in "iu" or differences.dtype != np.int16:
        raise ValueError("its arrays have the wrong types")
    if names.ndim != 1 or not len(names) or lengths.shape != names.shape or len(set(names.tolist())) < len(names):
        raise ValueError("its names are not distinct, or their number differs from the number of lengths")
    if (lengths < 0).any() or differences.ndim != 1 or sum(lengths.tolist()) != len(differences):
        raise ValueError("its lengths do not sum to its number of samples")
    if not 1 <= int(sample_rate.item()) < 2**31:
        raise ValueError("its sample rate is invalid")
    return names.tolist(), lengths.astype(np.int64), int(sample_rate.item()), differences
