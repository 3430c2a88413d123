"""Number formatting, uniform on all pages: means with errors, percentages, differences and p-values."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchmcl.errors import number_text
from torchmcl.optional import optional_import

# Numbers that need more decimals are written with an exponent.
_MAX_DECIMALS = 6


class Spread(NamedTuple):
    """A mean, the standard deviation of the values, and the standard error of the mean."""

    mean: float
    std: float
    error: float
    n: int


def spread_of(values: Sequence[float]) -> Spread:
    """Return mean, standard deviation and standard error.

    Example:
        >>> spread_of([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, error=1.0, n=2)
    """
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), std, std / math.sqrt(len(values)), len(values))


class Difference(NamedTuple):
    """A paired difference of two samples; `p` is the p-value of Wilcoxon's test, None if all pairs are equal."""

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
    stats = optional_import("scipy.stats", extra="transport", needed_by="The tests of a report")
    spread = spread_of(pairs)
    p = float(stats.wilcoxon(pairs).pvalue) if any(pairs) else None
    return Difference(spread.mean, spread.error, statistics.median(pairs), p)


def number(value: float | None, scale: float | None = None) -> str:
    """Return a number as text, with a precision suitable for values that differ by `scale`.

    Example:
        >>> number(123456.7), number(123456.7, scale=0.5), number(None)
        ('123,457', '123,456.7', 'none')
    """
    return number_text(value, abs(value or 0.0) if scale is None else scale, grouped=True)


def percent(share: float, decimals: int = 0) -> str:
    """Return a fraction as a percentage.

    Example:
        >>> percent(0.123), percent(0.123, decimals=1)
        ('12 %', '12.3 %')
    """
    return f"{100 * share:.{decimals}f} %"


def signed(value: float, decimals: int = 2) -> str:
    """Return a difference as text, with its sign.

    Example:
        >>> signed(0.5), signed(-1.25, decimals=1)
        ('+0.50', '−1.2')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")  # noqa: RUF001


def p_value(p: float | None) -> str:
    """Return a p-value as text; None is the p-value of equal samples.

    Example:
        >>> p_value(0.0312), p_value(1e-12), p_value(None)
        ('p = 0.031', 'p < 1e-10', 'p = 1')
    """
    return "p = 1" if p is None else "p < 1e-10" if p < 1e-10 else f"p = {p:.2g}"


def mean_error(mean: float, error: float, decimals: int | None = None) -> str:
    """Return a mean with its error or standard deviation, as text.

    Args:
        mean: of values.
        error: the number after the ±.
        decimals: of both; by default two significant digits of the error are shown.

    Example:
        >>> mean_error(5.6789, 0.331), mean_error(250.26, 31.0), mean_error(1.5, 0.25, decimals=1)
        ('5.68 ± 0.33', '250 ± 31', '1.5 ± 0.2')
        >>> mean_error(1.2345e-9, 2e-11), mean_error(0.5, 0.0)
        ('1.23e-09 ± 2.00e-11', '0.5 ± 0')
    """
    if decimals is None and (error == 0 or not math.isfinite(error)):
        return f"{number(mean)} ± {error:g}"
    places = max(0, 1 - math.floor(math.log10(error))) if decimals is None else decimals
    form = ".2e" if places > _MAX_DECIMALS else f".{places}f"
    return f"{mean:{form}} ± {error:{form}}"
