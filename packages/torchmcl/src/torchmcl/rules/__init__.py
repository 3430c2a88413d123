"""Assignment rules: functions from a pairwise cost to detached weights of the same shape."""

from torchmcl.rules.transport import EMD, PIT, Sinkhorn
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA, SceneWinners, TopK

__all__ = [
    "EMD",
    "PIT",
    "WTA",
    "AnnealedWTA",
    "AssignmentRule",
    "RelaxedWTA",
    "SceneWinners",
    "Sinkhorn",
    "TopK",
]
