"""Training with Lightning: the core's step in a LightningModule, and callbacks (the extra `lightning`)."""

from torchmcl.lightning.callbacks import CollapseWarning, ExponentialAverage, RecordWriter, RuleLogger
from torchmcl.lightning.checkpoints import Checkpoints, SafeCheckpointIO
from torchmcl.lightning.module import MCLModule
from torchmcl.lightning.sharding import ShardedStrategy, launcher_options

__all__ = [
    "Checkpoints",
    "CollapseWarning",
    "ExponentialAverage",
    "MCLModule",
    "RecordWriter",
    "RuleLogger",
    "SafeCheckpointIO",
    "ShardedStrategy",
    "launcher_options",
]
