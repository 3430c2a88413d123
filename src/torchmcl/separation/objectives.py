"""The objectives of the study: the core's rules on the core's cost, chosen by name."""

from torch import Tensor

from torchmcl.annealing import AutoAnnealing, RuleLike
from torchmcl.assignment import WTA, AnnealedWTA, AssignmentRule, RelaxedWTA
from torchmcl.losses import match, mcl_loss
from torchmcl.schedules import Exponential, Linear, Until, annealed
from torchmcl.separation.config import ObjectiveConfig
from torchmcl.transport import PIT, Sinkhorn
from torchmcl.types import Matching, StepOutput

__all__ = ["mcl_si_sdr", "pit_si_sdr", "rule_of", "si_sdr_under"]


def rule_of(objective: ObjectiveConfig) -> RuleLike:
    """Return the rule that an objective spells: a rule, a function epoch -> rule, or `AutoAnnealing`.

    Example:
        >>> rule_of(ObjectiveConfig(rule="amcl", temperature=0.1, annealing_epochs=100))(50)
        AnnealedWTA(temperature=0.05)

    Reference:
        Eq. (38) for PIT, (39) to (41) for the others; Eq. (43) and (44) for the schedules.
    """
    if objective.rule == "amcl":
        start, end = objective.temperature, objective.annealing_epochs
        cooling = Linear(start, 0.0, end) if objective.decay is None else Exponential(start, objective.decay)
        return annealed(AnnealedWTA, temperature=Until(cooling, end))
    rules: dict[str, RuleLike] = {
        "pit": PIT(),
        "mcl": WTA(),
        "relaxed-wta": RelaxedWTA(objective.epsilon),
        "sinkhorn": Sinkhorn(objective.temperature),
        "auto": AutoAnnealing(),
    }
    return rules[objective.rule]


def si_sdr_under(rule: AssignmentRule, matching: Matching) -> Tensor:
    """Return the mean SI-SDR in dB over all real sources, each with the output that `rule` gives it."""
    return -mcl_loss(match(matching.cost, rule, matching.mask))


def pit_si_sdr(output: StepOutput) -> Tensor:
    """Return the SI-SDR of the best one-to-one assignment."""
    return si_sdr_under(PIT(), output.matching)


def mcl_si_sdr(output: StepOutput) -> Tensor:
    """Return the SI-SDR of the best output for each source, whoever else it serves."""
    return si_sdr_under(WTA(), output.matching)
