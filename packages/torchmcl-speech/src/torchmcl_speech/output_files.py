"""Names of the output files of a separation, and the existing files that it may replace."""

from pathlib import Path
from typing import Any

from torchmcl._messages import bad_value
from torchmcl.persistence.reading import read_json

__all__ = ["PAGE_FILE", "RECORD_FILE", "check_replaceable", "sound_names"]

RECORD_FILE, PAGE_FILE = "separation.json", "index.html"


def sound_names(recording: Path | str, n_outputs: int) -> list[str]:
    """Return the names of the written sounds: the mixture first, then each output.

    Example:
        >>> sound_names("talk.flac", 2)
        ['talk-mixture.wav', 'talk-1.wav', 'talk-2.wav']
    """
    stem = Path(recording).stem
    return [f"{stem}-mixture.wav", *(f"{stem}-{place}.wav" for place in range(1, n_outputs + 1))]


def check_replaceable(owner: str, folder: Path, recording: Path | str, names: list[str]) -> None:
    """Check that no output file would replace a foreign file.

    Args:
        owner: named in the error.
        folder: for the files.
        recording: to be separated.
        names: of the sounds; the record and the page are always written.

    Raises:
        ValueError: if files exist that no earlier separation of this recording wrote.
    """
    replaceable = _written_before(folder, recording)
    others = [name for name in (*names, RECORD_FILE, PAGE_FILE) if name not in replaceable and (folder / name).exists()]
    if others:
        rule = "not hold other files of the names to be written"
        got = f"{str(folder)!r} with {', '.join(map(repr, others))}"
        advice = "Give another folder, or replace them with `overwrite=True` (--overwrite)."
        raise ValueError(bad_value(owner, "out", rule, got, advice))


def _written_before(folder: Path, recording: Path | str) -> set[str]:
    """Return the files of an earlier separation of a recording with this name, from its record."""
    try:
        record: dict[str, Any] = read_json("separate_recording", folder / RECORD_FILE)
        if Path(record["recording"]).name != Path(recording).name:
            return set()
        sounds = [record["mixture"], *(output["file"] for output in record["outputs"])]
        sounds += [reference["file"] for reference in record.get("references", [])]
        return {RECORD_FILE, PAGE_FILE, *sounds}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no record, or a file of somebody else
        return set()
