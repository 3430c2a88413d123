"""The rules of `torchmcl fit --rule`, by name."""

from typing import Any

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.rules.winners import WTA, RelaxedWTA
from torchmcl.sklearn import Cooling
from torchmcl_tables.model.classes import CLASS_RULE

__all__ = ["CLASS_RULES", "NAMED_RULES"]

NAMED_RULES: dict[str, Any] = {
    "annealed": Cooling(),  # the temperatures of the paper, in units of the variance of the targets
    "auto": AutoAnnealing(),
    "mcl": WTA(),
    "relaxed": RelaxedWTA(0.1),
}
CLASS_RULES: dict[str, Any] = NAMED_RULES | {"annealed": CLASS_RULE}
