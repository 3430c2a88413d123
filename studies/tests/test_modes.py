"""Problems with several correct answers and a known optimum."""

import pytest
import torch

from grids import for_each
from torchmcl_studies.modes import MODE_PROBLEMS, mode_problem


@for_each("problem", MODE_PROBLEMS)
def test_every_problem_can_be_drawn(problem):
    batch = problem.rows(50, seed=0)
    assert batch.inputs.shape == (50, problem.n_inputs)
    assert batch.targets.shape[:2] == (50, problem.n_targets)
    assert torch.equal(batch.targets, problem.rows(50, seed=0).targets)
    assert batch.targets.isfinite().all()


def test_the_error_for_an_unknown_problem_lists_the_known_ones():
    with pytest.raises(ValueError, match="mode_problem: `name`"):
        mode_problem("spiral")
