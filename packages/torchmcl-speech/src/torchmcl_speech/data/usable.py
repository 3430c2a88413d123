"""The usable mixtures of a list, and warnings about the others."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torchmcl_speech.data.audio import BadAudio
from torchmcl_speech.data.mixtures import Mixture
from torchmcl_speech.data.stores import AudioStore

__all__ = ["UsableMixtures", "usable_mixtures"]


class UsableMixtures(NamedTuple):
    """The result of checking a list of mixtures.

    Attributes:
        mixtures: those that can be used.
        n_short: how many were dropped because they are shorter than the crop.
        n_bad: how many were dropped because of a recording that cannot be used.
        bad_files: those recordings, and the fault of each.
    """

    mixtures: list[Mixture]
    n_short: int
    n_bad: int
    bad_files: dict[str, str]


def usable_mixtures(
    mixtures: Sequence[Mixture], store: AudioStore, min_length: int, *, skip_bad: bool
) -> UsableMixtures:
    """Return the usable mixtures; a warning reports dropped and changed ones.

    Args:
        mixtures: the list to check.
        store: where their recordings are.
        min_length: samples that a mixture must have.
        skip_bad: read every recording, and drop the mixtures of bad ones instead of raising.

    Raises:
        BadAudio: at the first bad recording unless `skip_bad`, or if no mixture is left.
    """
    names = sorted({name for mixture in mixtures for name in _names(mixture)})
    lengths: dict[str, int] = {}
    bad: dict[str, str] = {}
    silent: list[str] = []
    for name in names:
        try:
            lengths[name] = store.length(name)
            if skip_bad and not store.read(name).any():
                silent.append(name)
        except BadAudio as error:
            if not skip_bad:
                raise
            bad[name] = str(error)
    whole = [mixture for mixture in mixtures if not bad.keys() & set(_names(mixture))]
    kept = [mixture for mixture in whole if _length(mixture, lengths) >= min_length]
    result = UsableMixtures(kept, len(whole) - len(kept), len(mixtures) - len(whole), bad)
    if not kept:
        what = f"{result.n_short} are shorter than {min_length} samples, {result.n_bad} have a bad recording"
        first = f" ({next(iter(bad.values()))})" if bad else ""
        advice = _shorter_crop(max(_length(mixture, lengths) for mixture in whole), store) if whole else ""
        raise BadAudio(f"SpeechMixtures: none of {len(mixtures)} mixtures can be used; {what}{first}.{advice}")
    _warn_about(result, store, [name for name in names if name not in bad], silent, lengths, min_length)
    return result


def _warn_about(
    result: UsableMixtures,
    store: AudioStore,
    names: list[str],
    silent: list[str],
    lengths: dict[str, int],
    min_length: int,
) -> None:
    sentences = []
    if result.n_short:
        sentences.append(
            f"{result.n_short} mixtures are shorter than the crop of {min_length} samples and were dropped."
        )
    if result.n_bad:
        reasons = " ".join(list(result.bad_files.values())[:3])
        sentences.append(f"{result.n_bad} mixtures were skipped for {len(result.bad_files)} bad recordings: {reasons}")
    changes = Counter(change for name in names if (change := store.differs(name)))
    for change, count in changes.items():
        first = next(name for name in names if store.differs(name) == change)
        sentences.append(f"{count} recordings are {change} (the first is {first}).")
    uneven = [mixture for mixture in result.mixtures if mixture.length is None and _is_uneven(mixture, lengths)]
    if uneven:
        sentences.append(
            f"{len(uneven)} mixtures have sources of different length and end with the shortest "
            f"(the first is {uneven[0].name})."
        )
    if silent:
        sentences.append(f"{len(silent)} recordings are silent and count as no target (the first is {silent[0]}).")
    for sentence in sentences:
        warnings.warn(f"SpeechMixtures: {sentence}", stacklevel=4)


def _shorter_crop(longest: int, store: AudioStore) -> str:
    seconds = math.floor(100 * longest / store.sample_rate) / 100
    return f" The longest has {seconds:g} s: give a shorter `crop` (--set data.crop={seconds:g} on the command line)."


def _names(mixture: Mixture) -> list[str]:
    names = [track.name for track in mixture.tracks]
    return names if mixture.recorded is None else [*names, mixture.recorded]


def _length(mixture: Mixture, lengths: dict[str, int]) -> int:
    shortest = min(lengths[name] for name in _names(mixture))
    return shortest if mixture.length is None else min(shortest, mixture.length)


def _is_uneven(mixture: Mixture, lengths: dict[str, int]) -> bool:
    return len({lengths[name] for name in _names(mixture)}) > 1
