"""Training with Lightning: the core's step in a LightningModule, and callbacks (`pip install torchmcl[lightning]`)."""

from torchmcl.lightning.averaging import ExponentialAverage
from torchmcl.lightning.callbacks import CollapseWarning, RecordWriter, RuleLogger
from torchmcl.lightning.finite import FiniteTraining
from torchmcl.lightning.module import MCLModule
from torchmcl.lightning.plateau import Plateau

__all__ = [
    "CollapseWarning",
    "ExponentialAverage",
    "FiniteTraining",
    "MCLModule",
    "Plateau",
    "RecordWriter",
    "RuleLogger",
]
