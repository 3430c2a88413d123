"""The names of the columns of a table, whatever file they come from."""

from pathlib import Path

from torchmcl._messages import bad_value

__all__ = ["check_names"]


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
