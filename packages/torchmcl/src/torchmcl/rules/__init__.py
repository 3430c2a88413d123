"""Assignment rules: a pairwise cost in, detached weights of the same shape out."""

from torchmcl.rules.scenes import SceneWinners
from torchmcl.rules.transport import EMD, PIT, Sinkhorn
from torchmcl.rules.winners import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA, TopK

__all__ = ["EMD", "PIT", "WTA", "AnnealedWTA", "AssignmentRule", "RelaxedWTA", "SceneWinners", "Sinkhorn", "TopK"]
