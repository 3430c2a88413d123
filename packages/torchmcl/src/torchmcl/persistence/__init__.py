"""Saved states: one format for all of them, the last few of a run, and stopping on signals.

Imported from ``torchmcl.persistence`` (``pip install torchmcl[checkpoint]``).
"""

from torchmcl.persistence.codec import decode, encode
from torchmcl.persistence.files import Checkpoint, CheckpointError, digest_of_json, read_checkpoint, write_checkpoint
from torchmcl.persistence.series import CheckpointSeries
from torchmcl.persistence.stopping import Stopped, stop_on_signals

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
