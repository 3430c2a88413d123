"""What to do with the predictions of a trained network: fewer hypotheses, calibrated scores, regions, a diagnosis.

Imported from ``torchmcl.after``. Everything takes `Predictions` of any model, as tensors or arrays.
"""

from torchmcl.after.objectives import ExpectedCost, MissRate, ReductionObjective
from torchmcl.after.reducing import concatenate, expected_cost, reduce

__all__ = ["ExpectedCost", "MissRate", "ReductionObjective", "concatenate", "expected_cost", "reduce"]
