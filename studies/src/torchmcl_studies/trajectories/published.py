"""Published results on ETH/UCY, mean over the five scenes, for 20 samples and 8 + 12 steps."""

from typing import NamedTuple

__all__ = ["PUBLISHED", "Published"]


class Published(NamedTuple):
    """One line of a published table.

    Attributes:
        name: of the method.
        min_ade: mean over the scenes, in meters.
        min_fde: mean over the scenes, in meters.
        protocol: what its minimum is taken over, where it is not each agent's own.
    """

    name: str
    min_ade: float
    min_fde: float
    protocol: str = ""


PUBLISHED = (
    Published("Social-GAN", 0.48, 0.96, "one sample for all people of a scene; the paper itself prints 0.58 / 1.18"),
    Published("Trajectron++ (corrected)", 0.32, 0.55),
    Published("AgentFormer", 0.23, 0.39),
    Published("EigenTrajectory-LB-EBM", 0.21, 0.34),
)
