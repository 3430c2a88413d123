"""Reading the file of a pack: what it says is checked before memory is taken for it."""

import lzma
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchmcl_speech.data.audio import BadAudio, check_samples

__all__ = ["ESCAPE", "PackedSamples", "read_packed"]

# Stands for a difference that one byte cannot hold.
ESCAPE = -128
# To unpack what we write needs 9 MiB; a header may ask for gigabytes.
_UNPACKER_BYTES = 256 << 20
_PARTS = ("names", "lengths", "sample_rate", "shift", "coded", "large")
# What numpy and the standard library raise for bytes that are not an npz file.
_BROKEN = (
    OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, SyntaxError, NotImplementedError, RuntimeError,
    OverflowError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError,
)  # fmt: skip


class PackedSamples(NamedTuple):
    """What the file holds.

    Attributes:
        names: of the utterances, all different.
        lengths: samples of each.
        sample_rate: of all.
        shift: bits that every sample lacks.
        low: first differences of all samples, with an escape for large ones.
        large: those.
    """

    names: list[str]
    lengths: npt.NDArray[np.int64]
    sample_rate: int
    shift: int
    low: npt.NDArray[np.int8]
    large: npt.NDArray[np.int32]


def read_packed(path: Path) -> PackedSamples:
    """Return what the file of a pack holds.

    Raises:
        BadAudio: if the file is missing, is not a pack, or is larger than the limit.
    """
    try:
        parts = _parts(path)
        names, lengths, sample_rate, shift = _described(parts)
        n_samples = int(lengths.sum())
        check_samples(path, n_samples)
        low = _unpacked(parts["coded"], n_samples)
    except FileNotFoundError as error:
        raise BadAudio(f"{path}: there is no such file.") from error
    except BadAudio:
        raise
    except _BROKEN as error:
        raise BadAudio(f"{path}: is not a pack of utterances ({str(error)[:200]}).") from error
    if np.count_nonzero(low == ESCAPE) != len(parts["large"]):
        raise BadAudio(f"{path}: is not a pack of utterances (its large samples are not as many as it says).")
    return PackedSamples(names, lengths, sample_rate, shift, low, parts["large"].astype(np.int32))


def _parts(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays, after checking how large they would become."""
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile) or file.zip is None:
            raise ValueError("it is one array")
        # What the zip says of a member is all that is ever read of it; two bytes for each sample are plenty.
        sizes = [int(member.file_size) for member in file.zip.infolist()]
        check_samples(path, sum(sizes) // 2)
        return {name: file[name] for name in _PARTS}


def _described(parts: dict[str, npt.NDArray[Any]]) -> tuple[list[str], npt.NDArray[np.int64], int, int]:
    """Return names, lengths, sample rate and shift, if they can be those of a pack."""
    names, lengths = parts["names"], parts["lengths"]
    shift, sample_rate = int(parts["shift"].item()), int(parts["sample_rate"].item())
    if names.dtype.kind != "U" or names.ndim != 1 or lengths.shape != names.shape:
        raise ValueError("its names and lengths do not fit together")
    if len(set(names.tolist())) < len(names):
        raise ValueError("it has a name twice")
    if lengths.dtype.kind not in "iu" or (lengths < 0).any() or lengths.astype(np.float64).sum() > 2**62:
        raise ValueError("its lengths are impossible")
    if parts["coded"].dtype != np.uint8 or parts["large"].dtype.kind != "i" or parts["large"].ndim != 1:
        raise ValueError("its samples are of another type")
    if not len(names):
        raise ValueError("it has no utterances")
    if not 0 <= shift < 16 or not 1 <= sample_rate < 2**31:
        raise ValueError("its shift or its sample rate is impossible")
    return names.tolist(), lengths.astype(np.int64), sample_rate, shift


def _unpacked(coded: npt.NDArray[np.uint8], n_samples: int) -> npt.NDArray[np.int8]:
    """Return as many bytes as the lengths promise; a stream that holds more is never unpacked."""
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_UNPACKER_BYTES)
    content = unpacker.decompress(coded.tobytes(), max_length=n_samples + 1)
    if len(content) != n_samples or not unpacker.eof:
        raise ValueError("it does not hold as many samples as it promises")
    return np.frombuffer(content, dtype=np.int8)
