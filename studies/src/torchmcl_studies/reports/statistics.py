"""Paired differences, p-values and figure files for the reports of the studies."""

import io
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from torchmcl.app.report import spread_of
from torchmcl.io import write_atomically

__all__ = ["Difference", "difference", "p_value", "save_figure", "signed"]


class Difference(NamedTuple):
    """Paired difference of two samples; `p` is the p-value of Wilcoxon's test, None if all pairs are equal."""

    mean: float
    error: float
    median: float
    p: float | None


def difference(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Difference | None:
    """Return the paired difference, ours minus theirs, over the common keys; None for fewer than five.

    Example:
        >>> ours, theirs = {i: 1.0 + i for i in range(6)}, {i: float(i) for i in range(6)}
        >>> difference(ours, theirs)
        Difference(mean=1.0, error=0.0, median=1.0, p=0.03125)
    """
    pairs = [ours[key] - theirs[key] for key in ours if key in theirs]
    if len(pairs) < 5:
        return None
    spread = spread_of(pairs)
    p = float(stats.wilcoxon(pairs).pvalue) if any(pairs) else None
    return Difference(spread.mean, spread.error, statistics.median(pairs), p)


def signed(value: float, decimals: int = 2) -> str:
    """Return a difference as text, with its sign.

    Example:
        >>> signed(0.5), signed(-1.25, decimals=1)
        ('+0.50', '−1.2')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")  # noqa: RUF001


def p_value(p: float | None) -> str:
    """Return a p-value as text; None stands for equal samples.

    Example:
        >>> p_value(0.0312), p_value(1e-12), p_value(None)
        ('p = 0.031', 'p < 1e-10', 'p = 1')
    """
    return "p = 1" if p is None else "p < 1e-10" if p < 1e-10 else f"p = {p:.2g}"


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure beside `path` as .png and .svg."""
    for form, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, bbox_inches="tight", **options)
        write_atomically(path.with_suffix(f".{form}"), buffer.getvalue())
