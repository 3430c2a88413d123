"""Files: atomic writes, size-limited reads, one checkpoint format, and clean stops on signals.

Imported from ``torchmcl.io`` (the extra `checkpoint`). The names are loaded on first use: the
command line checks files before it loads torch.
"""

from typing import TYPE_CHECKING

from torchmcl.optional import lazy_names

if TYPE_CHECKING:
    from torchmcl.io.checkpoints import (
        Checkpoint,
        CheckpointSeries,
        digest_of_json,
        read_checkpoint,
        write_checkpoint,
    )
    from torchmcl.io.codec import decode, encode
    from torchmcl.io.headers import CheckpointError
    from torchmcl.io.stopping import Stopped, stop_on_signals

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointSeries",
    "Stopped",
    "decode",
    "digest_of_json",
    "encode",
    "read_checkpoint",
    "stop_on_signals",
    "write_checkpoint",
]
_HOMES = {
    "codec": ("decode", "encode"),
    "stopping": ("Stopped", "stop_on_signals"),
    "headers": ("CheckpointError",),
    "checkpoints": ("Checkpoint", "CheckpointSeries", "digest_of_json", "read_checkpoint", "write_checkpoint"),
}
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"torchmcl.io.{home}" for home, names in _HOMES.items() for name in names}
)
