"""The records of a figure: tables as CSV, and the verified claims of its caption."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torchmcl.persistence.writing import write_atomically
from torchmcl_studies.figures.settings import FigureSettings

__all__ = ["Claim", "write_summary", "write_table"]


class Claim(NamedTuple):
    """A sentence of a caption, and whether the records of this run confirm it."""

    text: str
    holds: bool


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_atomically(path, text.getvalue())


def write_summary(
    folder: Path, settings: FigureSettings, claims: Sequence[Claim], seconds: float, marks: dict[str, float]
) -> None:
    """Write `summary.json`: settings, claims, and the single numbers of the picture."""
    shown = asdict(settings) | {"optimizer": repr(settings.optimizer)}
    summary = {
        "settings": shown,
        "claims": [claim._asdict() for claim in claims],
        "seconds": seconds,
        "marks": marks,
    }
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1))
