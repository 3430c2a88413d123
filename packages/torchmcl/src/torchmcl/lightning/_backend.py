"""Lightning under either of its two names."""

import importlib
from types import ModuleType

from torchmcl._optional import optional_import

__all__ = ["pl"]


def _backend() -> ModuleType:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return optional_import("lightning", extra="lightning", needed_by="torchmcl.lightning")


pl = _backend()
