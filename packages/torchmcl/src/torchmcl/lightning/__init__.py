"""Training with Lightning: the core's step in a LightningModule, and callbacks (the extra `lightning`)."""

from torchmcl.lightning.callbacks import Checkpoints, CollapseWarning, RecordWriter, RuleLogger, SafeCheckpointIO
from torchmcl.lightning.module import MCLModule

__all__ = [
    "Checkpoints",
    "CollapseWarning",
    "MCLModule",
    "RecordWriter",
    "RuleLogger",
    "SafeCheckpointIO",
]
