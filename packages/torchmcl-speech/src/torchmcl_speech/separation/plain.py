"""Plain values from YAML: no tags, no aliases, no depths, and of the types that the options have."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml

from torchmcl._checks import bad_value
from torchmcl.persistence.limits import NESTING

__all__ = ["check_types", "shown", "yaml_value"]

# Which values an annotation admits. An integer is a number; YAML reads 1e-3 as text, so both are numbers.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number (write 1.0e-3, not 1e-3)"),
    "bool": ((bool,), "true or false"),
    "None": ((type(None),), "null"),
    "Mapping[str, str]": ((Mapping,), "options by name"),
    "Sequence[int]": ((list, tuple, int), "a list of integers"),
}


def yaml_value(owner: str, name: str, text: str) -> Any:
    """Return what a text in YAML says.

    Tags (`!!python/object...`), which other loaders turn into calls, and aliases, which turn a line into gigabytes,
    are refused.

    Raises:
        ValueError: if it is not YAML, or more than plain values.
    """
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ValueError(bad_value(owner, name, "be YAML without anchors and aliases", "one of them"))
            if (tag := getattr(event, "tag", None)) is not None:
                raise ValueError(bad_value(owner, name, "be YAML without tags", repr(tag[:80])))
            if depth > NESTING:
                raise ValueError(bad_value(owner, name, f"be YAML nested at most {NESTING} deep", "more"))
    except yaml.YAMLError as error:
        raise ValueError(bad_value(owner, name, "be YAML", " ".join(str(error).split())[:300])) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # a key that is a list, a 13th month
        raise ValueError(bad_value(owner, name, "be YAML of plain values", str(error)[:200])) from error


def check_types(part: str, kind: type[Any], options: Mapping[str, Any]) -> None:
    """Check that each option has the type of its field.

    Raises:
        ValueError: if not.
    """
    for field in fields(kind):
        if field.name not in options:
            continue
        value = options[field.name]
        allowed = [_TYPES[word.strip()] for word in _words(field.type)]
        wrong_boolean = isinstance(value, bool) and all(bool not in types for types, _ in allowed)
        if wrong_boolean or not any(isinstance(value, types) for types, _ in allowed):
            rule = f"be {' or '.join(text for _, text in allowed)}"
            raise ValueError(bad_value(part, field.name, rule, shown(value)))


def shown(value: Any) -> str:
    """Return a value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _words(annotation: Any) -> list[str]:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if not isinstance(annotation, type) and not isinstance(annotation, str):
        text = str(annotation).replace("collections.abc.", "")
    return text.split("|")
