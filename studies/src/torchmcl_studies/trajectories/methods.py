"""Methods of the trajectory study: rule, network and training rows of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from torchmcl import AutoAnnealing
from torchmcl.costs import pairwise_ade, pairwise_fde
from torchmcl.rules.winners import WTA, AnnealedWTA, RelaxedWTA
from torchmcl.schedules import Exponential, Linear, annealed

__all__ = ["CONSTANT_VELOCITY", "METHODS", "PUBLISHED", "Method", "Published", "path_cost"]

# Initial temperature in meters of ADE + FDE / 2; final temperature relative to it; annealed fraction of the training.
_HOT, _COLD, _COOLING = 3.0, 1e-3, 0.7
# Initial temperature in units of the likelihood; 1 is the mixture itself.
_HOT_MIXTURE = 5.0
_EPSILON = 0.1
_FINAL_WEIGHT = 0.5


def path_cost(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the cost of every (true path, hypothesis) pair, in meters: average plus half the final displacement."""
    ade = pairwise_ade(hypotheses=hypotheses, targets=targets)
    return ade + _FINAL_WEIGHT * pairwise_fde(hypotheses=hypotheses, targets=targets)


@dataclass(frozen=True)
class Method:
    """One row of the tables.

    Attributes:
        name: Name in records and on the command line.
        label: Label in reports.
        rule: Function that maps the number of epochs to a rule, a function epoch -> rule, or `AutoAnnealing`.
        kind: Kind of methods that are trained together: "paths", "mixture", "scenes" (batches of whole scenes), "joint"
            (batches of scenes with one winner for all people of a scene) or "none" (without training).
    """

    name: str
    label: str
    rule: Callable[[int], Any]
    kind: str = "paths"


def _cooling(n_epochs: int) -> Any:
    decay = _COLD ** (1 / (_COOLING * n_epochs))
    return annealed(AnnealedWTA, temperature=Exponential(_HOT, decay, cutoff=_HOT * _COLD))


def _cooling_mixture(n_epochs: int) -> Any:
    return annealed(AnnealedWTA, temperature=Linear(_HOT_MIXTURE, 1.0, max(1, round(_COOLING * n_epochs))))


CONSTANT_VELOCITY = "constant-velocity"
METHODS = {
    method.name: method
    for method in (
        Method(CONSTANT_VELOCITY, "constant velocity", lambda _: WTA(), "none"),
        Method("mcl", "MCL (WTA)", lambda _: WTA()),
        Method("relaxed", f"Relaxed-WTA (ε = {_EPSILON})", lambda _: RelaxedWTA(_EPSILON)),
        Method("amcl", f"aMCL (from {_HOT:g} m)", _cooling),
        Method("auto", "aMCL (AutoAnnealing)", lambda _: AutoAnnealing()),
        Method("mdn", "MDN", lambda _: AnnealedWTA(1.0), "mixture"),
        Method("mdn-annealed", f"MDN (annealed from {_HOT_MIXTURE:g})", _cooling_mixture, "mixture"),
        Method("mcl-scenes", "MCL, batches of scenes", lambda _: WTA(), "scenes"),
        Method("mcl-joint", "MCL, joint winners", lambda _: WTA(), "joint"),
    )
}


class Published(NamedTuple):
    """One line of a published table.

    Attributes:
        name: Name of the method.
        min_ade: Mean minADE over the scenes, in meters.
        min_fde: Mean minFDE over the scenes, in meters.
        protocol: Set over which the minimum is taken, if not over each agent separately.
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
