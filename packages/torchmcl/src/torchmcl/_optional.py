"""Optional dependencies of torchmcl."""

import importlib
import importlib.util
from types import ModuleType

__all__ = ["check_extra", "optional_import"]


def optional_import(module: str, *, extra: str, needed_by: str) -> ModuleType:
    """Return `module`, or raise an error that names its extra.

    Raises:
        ImportError: if the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{needed_by} needs {package}: pip install 'torchmcl[{extra}]'.") from error


def check_extra(*modules: str, extra: str, needed_by: str, package: str = "torchmcl") -> None:
    """Check that packages are installed, without loading them; the error names the extra that installs all of them.

    Args:
        *modules: names of top-level modules; alternatives are separated by "|".
        extra: that brings all of them.
        needed_by: the command that needs them.
        package: whose extra it is.

    Raises:
        ImportError: if one is not installed.
    """
    missing = [names.partition("|")[0] for names in modules if not any(map(_is_installed, names.split("|")))]
    if missing:
        *others, last = missing
        listed = f"{', '.join(others)} and {last}" if others else last
        raise ImportError(f"{needed_by} needs {listed}: pip install '{package}[{extra}]'.")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module without a specification, as tests put there
        return False
