"""Saved states: one format for fleets, Lightning and estimators, the last few of a run, and stopping on signals.

Imported from ``torchmcl.checkpoints`` (``pip install torchmcl[checkpoint]``).
"""

from torchmcl.checkpoints.files import Checkpoint, CheckpointError, digest_of_json, read_checkpoint, write_checkpoint
from torchmcl.checkpoints.nested import joined, parted
from torchmcl.checkpoints.series import CheckpointSeries
from torchmcl.checkpoints.stopping import Stopped, stop_on_signals

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointSeries",
    "Stopped",
    "digest_of_json",
    "joined",
    "parted",
    "read_checkpoint",
    "stop_on_signals",
    "write_checkpoint",
]
