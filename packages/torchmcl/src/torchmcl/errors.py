"""Texts of error messages, without torch: the command line checks its options before it imports torch."""

import difflib
import math
import re
import shlex
import unicodedata
from collections.abc import Iterable

__all__ = ["bad_value", "nearest_hint", "number_text", "option_text", "printable", "split_names"]

# A name in double quotes, with inner quotes doubled, or anything up to the next comma.
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"\s*|([^,]*))(?:,|$)')

# Exponent up to which numbers are written with all integer digits; for larger ones only if it distinguishes them.
_PLAIN_EXPONENTS = 9
# Unicode categories of characters that a terminal interprets: control, format, surrogates.
_INVISIBLE = ("Cc", "Cf", "Cs")
# Maximum number of significant digits of a float.
_ALL_DIGITS = 17


def bad_value(owner: str, argument: str, rule: str, value: object, advice: str = "") -> str:
    """Return the error message "owner: `argument` must rule, got value. advice"."""
    return f"{owner}: `{argument}` must {rule}, got {value}.{' ' + advice if advice else ''}"


def nearest_hint(value: str, known: Iterable[str]) -> str:
    """Return a suggestion for a message about an unknown name: the nearest known name, "" if none is similar."""
    near = difflib.get_close_matches(value, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def number_text(value: float | None, scale: float, *, digits: int = 4, grouped: bool = False) -> str:
    """Return a number as text, with enough digits to distinguish values that differ by about `scale`.

    Args:
        value: Number; None if it is not known.
        scale: Typical difference of such numbers, the standard deviation of a column for example; 0 for a single
            number.
        digits: Number of significant digits of the differences, and the minimum for the value itself.
        grouped: Whether to separate thousands by commas in numbers of five or more digits; 2008 may be a year.

    Example:
        >>> number_text(1700000003.1274, scale=10.0), number_text(1700000003.1274, scale=1e9)
        ('1700000003.13', '1.7e+09')
        >>> number_text(123456.7, scale=40000.0, grouped=True)
        '123,457'
    """
    if value is None:
        return "none"
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if scale > 0 and math.isfinite(scale):
        needed = max(digits, digits + exponent - math.floor(math.log10(scale)))
    else:
        needed = 15
    if exponent < _PLAIN_EXPONENTS:
        needed = max(needed, exponent + 1)
    return f"{value:{',' if grouped and exponent >= 4 else ''}.{min(needed, _ALL_DIGITS)}g}"


def printable(text: str) -> str:
    r"""Return text for a terminal, with control characters (except line feeds and tabs) and direction marks escaped.

    Example:
        >>> print(printable("price\x1b[2J\u202eX ü"))
        price\x1b[2J\u202eX ü
    """
    return "".join(
        mark if mark in "\n\t" or unicodedata.category(mark) not in _INVISIBLE else ascii(mark)[1:-1] for mark in text
    )


def split_names(text: str) -> list[str]:
    """Return names separated by commas; double quotes protect a name with commas, as in CSV.

    Example:
        >>> split_names('city, "Last, first"')
        ['city', 'Last, first']
    """
    names = [quoted.replace('""', '"') if quoted else plain.strip() for quoted, plain in _NAME.findall(text)]
    return [name for name in names if name]


def option_text(option: str, *names: str) -> str:
    """Return an option with names for a shell; `split_names` is the inverse.

    Example:
        >>> print(option_text("--drop", "Individual ID"))
        --drop 'Individual ID'
        >>> print(option_text("--drop", "Last, first", "city"))
        --drop '"Last, first",city'
    """
    text = ",".join(map(_protected, names))
    # A value that begins with a dash would be parsed as another option.
    return f"{option}{'=' if text.startswith('-') else ' '}{shlex.quote(text)}"


def _protected(name: str) -> str:
    inside = name.replace('"', '""')
    return f'"{inside}"' if "," in name or name.startswith('"') or name != name.strip() else name
