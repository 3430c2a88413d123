"""Optional packages and lazy names, loaded on first use (PEP 562)."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

__all__ = ["PUBLISHED", "check_extra", "install_command", "lazy_names", "optional_import"]

# Set this to True with the first release on the package index.
PUBLISHED = False
# Packages that must be installed from the clone together with a package.
_BELOW = {
    "torchmcl": (),
    "torchmcl-fleet": ("torchmcl",),
    "torchmcl-tables": ("torchmcl", "torchmcl-fleet"),
    "torchmcl-forecast": ("torchmcl", "torchmcl-fleet", "torchmcl-tables"),
    "torchmcl-speech": ("torchmcl",),
}


def install_command(package: str, extra: str = "") -> str:
    """Return the command that installs a package and its extra; before publication, from a clone of the repository.

    Example:
        >>> install_command("torchmcl-speech", "train")
        "pip install ./packages/torchmcl './packages/torchmcl-speech[train]' (in a clone of the repository)"
    """
    suffix = f"[{extra}]" if extra else ""
    if PUBLISHED:
        return f"pip install '{package}{suffix}'"
    words = [f"./packages/{name}" for name in _BELOW[package]]
    words.append(f"'./packages/{package}{suffix}'" if suffix else f"./packages/{package}")
    return f"pip install {' '.join(words)} (in a clone of the repository)"


def optional_import(module: str, *, extra: str, needed_by: str, package: str = "torchmcl") -> ModuleType:
    """Import a module, or raise an error that names its extra.

    Raises:
        ImportError: If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = module.partition(".")[0]
        raise ImportError(f"{needed_by} needs {missing}: {install_command(package, extra)}.") from error


def check_extra(*modules: str, extra: str, needed_by: str, package: str = "torchmcl") -> None:
    """Check that packages are installed, without importing them; the error names the extra.

    Args:
        *modules: Names of top-level modules; alternatives are separated by "|".
        extra: Extra that installs all of them.
        needed_by: Command that needs them.
        package: Package with the extra.

    Raises:
        ImportError: If one is not installed.
    """
    missing = [names.partition("|")[0] for names in modules if not any(map(_is_installed, names.split("|")))]
    if missing:
        *others, last = missing
        listed = f"{', '.join(others)} and {last}" if others else last
        raise ImportError(f"{needed_by} needs {listed}: {install_command(package, extra)}.")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module without a spec, as inserted by tests
        return False


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: Name of the package.
        homes: Module of each name. Submodules of the package need not be listed.
    """

    def load(name: str) -> Any:
        # Modules first: a module imported while the package's names are being loaded must not depend on them.
        if not name.startswith("__") and importlib.util.find_spec(f"{package}.{name}") is not None:
            value = importlib.import_module(f"{package}.{name}")
        elif name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # cached for later lookups
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
