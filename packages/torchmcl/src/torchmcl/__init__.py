"""torchmcl: several answers instead of one, for PyTorch.

Multiple choice learning and annealed multiple choice learning: costs, assignment rules, schedules,
losses, scores, modules and metrics that drop into any training loop.

The names are loaded on first use, so that the command line can check its input, and print its help, without torch.
"""

from typing import TYPE_CHECKING, Any

from torchmcl._version import __version__ as __version__

if TYPE_CHECKING:
    from torchmcl._public import *  # noqa: F403
    from torchmcl._public import __all__ as __all__


def __getattr__(name: str) -> Any:
    import importlib
    import importlib.util

    # Modules first: a module imported while the public names are being loaded must not depend on them.
    if not name.startswith("__") and importlib.util.find_spec(f"torchmcl.{name}") is not None:
        return importlib.import_module(f"torchmcl.{name}")
    public = importlib.import_module("torchmcl._public")
    if name == "__all__" or name in public.__all__:
        value = getattr(public, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'torchmcl' has no attribute {name!r}")


def __dir__() -> list[str]:
    from torchmcl import _public

    return sorted({*globals(), *_public.__all__})
