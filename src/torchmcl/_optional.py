"""Packages that only some parts of torchmcl need."""

import importlib
from types import ModuleType

__all__ = ["optional_import"]


def optional_import(module: str, *, extra: str, needed_by: str) -> ModuleType:
    """Return `module`, or say which extra brings it.

    Raises:
        ImportError: if the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{needed_by} needs {package}: pip install 'torchmcl[{extra}]'.") from error
