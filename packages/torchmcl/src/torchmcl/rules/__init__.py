"""Assignment rules: functions from a pairwise cost to detached weights of the same shape."""

from torchmcl.rules.parts import by_part, factorized
from torchmcl.rules.scenes import SceneWinners
from torchmcl.rules.transport import EMD, PIT, Sinkhorn
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA, TopK

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
    "by_part",
    "factorized",
]
