"""The published tables of the UCI study, shipped as data."""

import csv
from importlib.resources import files
from typing import NamedTuple

__all__ = ["PublishedCell", "published_cells"]


class PublishedCell(NamedTuple):
    """A published mean, and its standard deviation over folds if there are several."""

    mean: float
    std: float | None
    text: str


def published_cells() -> dict[tuple[str, str, str], PublishedCell]:
    """Return the cells by (set, published method name, metric)."""
    cells = {}
    for table in ("distortion", "rmse", "epsilon", "scheduler"):
        source = files("torchmcl_studies.uci") / "published" / f"uci_{table}.csv"
        for row in csv.DictReader(source.read_text().splitlines()):
            std = float(row["std"]) if row["std"] else None
            text = f"{row['mean']} ± {row['std'] or 'NA'}"
            cells[row["dataset"], row["method"], row["metric"]] = PublishedCell(float(row["mean"]), std, text)
    return cells
