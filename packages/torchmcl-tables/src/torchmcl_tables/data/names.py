"""The names of the columns of a table, whatever file they come from."""

from pathlib import Path

from torchmcl._messages import bad_value

__all__ = ["check_names", "named"]


def check_names(owner: str, path: Path, names: list[str]) -> None:
    """Check that every column has a name, and no two the same.

    Raises:
        ValueError: if not; it gives the columns.
    """
    first: dict[str, int] = {}  # a table can have a hundred thousand columns
    for place, name in enumerate(names, start=1):
        if not name:
            advice = "The first line of a text file must hold the names of the columns."
            raise ValueError(
                bad_value(owner, path.name, "name every column", f"an empty name for column {place}", advice)
            )
        if first.setdefault(name, place) != place:
            rule, got = "have different names for its columns", f"{name!r} for columns {first[name]} and {place}"
            raise ValueError(bad_value(owner, path.name, rule, got, "Rename one of them."))


def named(names: list[str]) -> tuple[list[str], list[str]]:
    """Return a different name for each column, and what was renamed: empty names, and those that came before.

    Example:
        >>> named(["a", "", "a"])
        (['a', 'column_2', 'a_2'], ["column 2 has no name: 'column_2'", "column 3 is another 'a': 'a_2'"])
    """
    given, taken, notes = set(names), set[str](), []
    made = []
    counts: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        new = name or f"column_{place}"
        while new in taken or (new != name and new in given):
            counts[name] = counts.get(name, 1) + 1
            new = f"{name or f'column_{place}'}_{counts[name]}"
        if new != name:
            notes.append(f"column {place} {f'is another {name!r}' if name else 'has no name'}: {new!r}")
        taken.add(new)
        made.append(new)
    return made, notes
