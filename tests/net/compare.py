"""Compare two files of compute.py, and exit with status 1 if they differ by more than the tolerances.

    python tests/net/compare.py OLD.npz NEW.npz [--only rules,auto] [--skip speech] [--worst 8]

The relative difference of an array is the largest absolute one, divided by its largest number, or by 0.01 if that is
larger. Shapes must be equal, and NaN and infinities must be at the same places. Arrays that only NEW has do no harm.
"""

import argparse
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# The largest relative difference of arrays of 4 and of 8 bytes, by section.
STEP, AFTER_24_STEPS, TRAINED = (1e-6, 1e-10), (1e-5, 1e-5), (1e-4, 1e-4)
TOLERANCES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("rules", "costs", "steps", "scores", "schedules", "native"), STEP),
    **dict.fromkeys(("fleets", "auto_fleets", "pedestrians"), AFTER_24_STEPS),
    **dict.fromkeys(("tables", "auto_tables", "forecasts", "auto_forecasts"), TRAINED),
    "exported": TRAINED,  # of a trained network; the means of one network are equal to 1e-5
    "speech": (1e-5, 1e-5),  # no training: six recurrent blocks in single precision
    # Statistical: the draws of dropout may change, and rounding differences grow in long trainings.
    **dict.fromkeys(("pedestrian_study", "table_quality"), (0.05, 0.05)),
}
# Patterns of arrays with a tolerance of their own, and why. Without the loops in C for normals on a line, prediction
# sets and best points of several networks are those of a grid, and differ by much more than the tolerance of "tables".
EXCEPTIONS: dict[str, tuple[float, str]] = {
    "steps/*_long/*/f32/*": (5e-6, "sums in another order, and exponents of about 100"),
    "steps/geodesic*/f32/*": (5e-4, "half turns: the derivative of the arcsine is infinite there"),
}
# Patterns of arrays whose code was deleted on purpose, and why: they may be missing.
_UNUSED = "no study, example or other package calls it"
DELETED: dict[str, str] = {
    "scores/functions/*": "the functions are methods of `ScoreObjective` now",
    **dict.fromkeys(
        (f"*{name}*" for name in ("thresholded", "outside", "boundary", "symmetric", "low_rank", "von_mises")), _UNUSED
    ),
    **dict.fromkeys((f"*{name}*" for name in ("class_dice", "sq_fde", "by_part", "factorized")), _UNUSED),
}
SMALLEST = 1e-2


class Difference(NamedTuple):
    """The difference of two arrays: a problem if they cannot be compared."""

    absolute: float
    relative: float
    problem: str = ""


def difference(old: np.ndarray, new: np.ndarray) -> Difference:
    """Return the difference of two arrays."""
    if old.shape != new.shape:
        return Difference(np.inf, np.inf, f"shape {new.shape} instead of {old.shape}")
    if old.dtype != new.dtype:
        return Difference(np.inf, np.inf, f"{new.dtype} instead of {old.dtype}")
    finite = np.isfinite(old)
    if not np.array_equal(old[~finite], new[~finite], equal_nan=True) or not np.isfinite(new[finite]).all():
        return Difference(np.inf, np.inf, "NaN or infinity at other places")
    if not finite.any():
        return Difference(0.0, 0.0)
    a, b = old[finite].astype(np.float64), new[finite].astype(np.float64)
    absolute = float(np.abs(a - b).max())
    return Difference(absolute, absolute / max(float(np.abs(a).max()), SMALLEST))


def tolerance(name: str, array: np.ndarray) -> float:
    """Return the tolerance of an array."""
    for pattern, (own, _) in EXCEPTIONS.items():
        if fnmatchcase(name, pattern):
            return own
    return TOLERANCES[name.partition("/")[0]][array.dtype.itemsize == 8]


def is_chosen(name: str, only: str, skip: str) -> bool:
    """Return whether a section is among `only` and not among `skip`; "auto" stands for all that begin with it."""

    def is_in(names: str) -> bool:
        return any(name == each or name.startswith(f"{each}_") for each in names.split(",") if each)

    return (not only or is_in(only)) and not is_in(skip)


def compared(section: str, old: dict[str, Any], new: dict[str, Any], n_worst: int) -> tuple[str, list[str]]:
    """Return a line of the table, and the failures of a section."""
    lost = [name for name in old if name not in new]
    deleted = [name for name in lost if any(fnmatchcase(name, pattern) for pattern in DELETED)]
    missing = [name for name in lost if name not in deleted]
    failures: list[tuple[float, str]] = []
    largest, n_equal = Difference(0.0, 0.0), 0
    for name in (name for name in old if name in new):
        each, most = difference(old[name], new[name]), tolerance(name, old[name])
        n_equal += old[name].tobytes() == new[name].tobytes()
        largest = Difference(max(largest.absolute, each.absolute), max(largest.relative, each.relative))
        if each.relative > most:
            what = each.problem or f"relative difference {each.relative:.1e} > {most:.0e}"
            failures.append((each.relative, f"{name}: {what}"))
    n_extra = len(new.keys() - old.keys())
    numbers = (len(old), len(missing), len(deleted), n_extra, n_equal)
    columns = "".join(f"{number:9}" for number in numbers)
    line = f"{section:18}{columns}{largest.absolute:12.1e}{largest.relative:11.1e}{len(failures):8}"
    failures.sort(key=lambda failure: -failure[0])
    texts = [f"{section}: {len(missing)} arrays are missing, {missing[0]} for example"] if missing else []
    texts += [text for _, text in failures[:n_worst]]
    return line, texts + [f"... and {len(failures) - n_worst} more"] * (len(failures) > n_worst)


def main() -> int:
    """Compare two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="", help="sections, separated by commas")
    parser.add_argument("--skip", default="", help="sections to leave out")
    parser.add_argument("--worst", type=int, default=8, help="failures to print for each section")
    options = parser.parse_args()
    sections: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for place, path in enumerate((options.old, options.new)):
        with np.load(path) as arrays:
            for name in arrays.files:
                section = name.partition("/")[0]
                if is_chosen(section, options.only, options.skip):
                    sections.setdefault(section, ({}, {}))[place][name] = arrays[name]
    heads = ("arrays", "missing", "deleted", "extra", "equal")
    print(f"{'section':18}{''.join(f'{head:>9}' for head in heads)}{'absolute':>12}{'relative':>11}{'failed':>8}")
    failed: list[str] = []
    for section, (old, new) in sections.items():
        line, failures = compared(section, old, new, options.worst)
        print(line)
        failed += failures
    for failure in failed:
        print("  " + failure)
    if not any(old for old, _ in sections.values()):
        print("Nothing was compared.")
        return 1
    print("FAILED" if failed else "All arrays are within their tolerances.")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
