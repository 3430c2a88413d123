"""What the contract does not say: how to write a rule of one's own."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import torchmcl as mcl


@dataclass(frozen=True, eq=False)
class Uniform(mcl.AssignmentRule):
    """A rule of a user: everybody answers, and the last entry of each padded row is spoiled."""

    strength: float = 1.0

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        assert not cost.requires_grad
        assert cost.dtype in (torch.float32, torch.float64)
        if mask is not None:
            assert (cost[~mask] == 0).all()
        return torch.full_like(cost, 1 / cost.shape[-1])


def test_a_rule_of_ones_own_inherits_the_contract():
    cost = torch.rand(2, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    weights = Uniform()(cost, mask)
    assert not weights.requires_grad
    torch.testing.assert_close(weights.sum(-1), mask.float())
    assert mcl.mcl_loss(mcl.assign(cost, Uniform(), mask)).requires_grad


def test_a_rule_of_ones_own_is_a_value_and_can_be_annealed():
    assert Uniform(2.0) == Uniform(2.0)
    assert Uniform(2.0) != Uniform(3.0)
    assert len({Uniform(2.0), Uniform(2.0)}) == 1
    assert mcl.annealed(Uniform(), strength=mcl.Linear(1.0, 0.0, 2))(1) == Uniform(0.5)


def test_the_base_class_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        mcl.AssignmentRule()


def test_relaxed_weights_of_a_half_precision_parameter_sum_to_one():
    cost = torch.rand(2, 3, 4)
    weights = mcl.RelaxedWTA(torch.tensor(0.3, dtype=torch.bfloat16))(cost)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_known_weights_of_each_rule():
    cost = torch.tensor([[0.3, 0.1, 0.2]])
    torch.testing.assert_close(mcl.WTA()(cost), torch.tensor([[0.0, 1.0, 0.0]]))
    torch.testing.assert_close(mcl.RelaxedWTA(0.1)(cost), torch.tensor([[0.05, 0.9, 0.05]]))
    torch.testing.assert_close(mcl.TopK(2)(cost), torch.tensor([[0.0, 0.5, 0.5]]))
    terms = torch.tensor([-3.0, -1.0, -2.0]).exp()
    torch.testing.assert_close(mcl.AnnealedWTA(0.1)(cost), (terms / terms.sum()).unsqueeze(0))


def test_annealed_weights_favour_cheaper_hypotheses_and_spread_with_heat():
    cost = torch.rand(50, 1, 6).sort(-1).values
    cold, warm = mcl.AnnealedWTA(0.1)(cost), mcl.AnnealedWTA(1.0)(cost)
    assert (cold.diff(dim=-1) <= 0).all()
    assert (warm.diff(dim=-1) <= 0).all()
    entropy = [torch.special.entr(weights).sum(-1) for weights in (cold, warm)]
    assert (entropy[0] < entropy[1]).all()
