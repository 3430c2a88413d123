"""Plain values from YAML, and dataclasses whose options are checked by type and by rule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from types import NoneType, UnionType
from typing import Any

import yaml

from torchmcl._checks import bad_value, nearest_hint

__all__ = ["check_known", "check_options", "option", "read_options", "shown", "yaml_value"]

# Values that an annotation admits. An integer is a number too; YAML reads 1e-3 as text.
_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number (write 1.0e-3, not 1e-3)"),
    bool: ((bool,), "true or false"),
    NoneType: ((NoneType,), "null"),
    Mapping[str, str]: ((Mapping,), "options by name"),
    Sequence[int]: ((list, tuple, int), "a list of integers"),
}


class _PlainLoader(yaml.SafeLoader):
    """Values without aliases, which can expand a short text to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def yaml_value(owner: str, name: str, text: str) -> Any:
    """Return the value of a text in YAML; tags with code (`!!python/object...`) are rejected.

    Raises:
        ValueError: if it is not YAML, or more than plain values.
    """
    try:
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506  (a SafeLoader)
    except RecursionError:  # not chained: a thousand frames say nothing
        raise ValueError(bad_value(owner, name, "be YAML", "lists in lists without end")) from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # a key that is a list, a 13th month
        raise ValueError(bad_value(owner, name, "be YAML", " ".join(str(error).split())[:300])) from error


def option(default: Any, *checks: Callable[[str, str, Any], None]) -> Any:
    """Return a field of a dataclass; `check_options` calls the checks with owner, name and value."""
    return field(default=default, metadata={"checks": checks})


def check_options(owner: str, config: Any) -> None:
    """Check every option that is not None.

    Raises:
        TypeError, ValueError: from the first check that fails.
    """
    for each in fields(config):
        value = getattr(config, each.name)
        for check in each.metadata.get("checks", ()) if value is not None else ():
            check(owner, each.name, value)


def read_options(owner: str, kind: type[Any], options: Any) -> Any:
    """Return a dataclass of plain values, for example from YAML.

    Raises:
        ValueError: if an option is unknown, or its value of another type or impossible.
    """
    if not isinstance(options, Mapping):
        raise ValueError(bad_value("configuration", owner, "hold options by name", shown(options)))
    check_known(owner, options, [each.name for each in fields(kind)])
    for each in fields(kind):
        if each.name in options:
            _check_type(owner, each.name, each.type, options[each.name])
    return kind(**options)


def check_known(owner: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check that no option is unknown.

    Raises:
        ValueError: with the nearest known one.
    """
    if unknown := sorted(str(name)[:80] for name in set(options) - set(known)):
        hint = nearest_hint(unknown[0], known)
        raise ValueError(f"{owner}: unknown option {unknown}; known options are {sorted(known)}.{hint}")


def shown(value: Any) -> str:
    """Return a value for a message, truncated."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_type(owner: str, name: str, annotation: Any, value: Any) -> None:
    kinds = annotation.__args__ if isinstance(annotation, UnionType) else (annotation,)
    types = tuple(kind for each in kinds for kind in _TYPES[each][0])
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        rule = f"be {' or '.join(_TYPES[each][1] for each in kinds)}"
        raise ValueError(bad_value(owner, name, rule, shown(value)))
