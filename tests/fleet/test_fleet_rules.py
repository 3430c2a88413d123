"""A table of rules gives each model the weights of its own rule at its own epoch."""

import pytest
import torch
from torchmcl.fleet.rules import RuleTable

import torchmcl as mcl

COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 3))
RULES = [
    mcl.WTA(),
    mcl.AnnealedWTA(0.3),
    COOLING,
    mcl.AnnealedWTA(0.0),
    mcl.RelaxedWTA(0.1),
    mcl.annealed(mcl.RelaxedWTA(0.1), epsilon=mcl.Linear(1.0, 0.0, 4)),
    mcl.WTA(),
    mcl.annealed(mcl.TopN(3), n=mcl.Linear(3, 1, 4)),
    mcl.Sinkhorn(0.2, n_iters=5),
    mcl.Sinkhorn(torch.tensor(0.5), n_iters=5),
    mcl.Sinkhorn(0.2, n_iters=2),
    mcl.PIT(),
    mcl.EMD(),
]
N_EPOCHS = 5


def weights(table, cost, mask, epoch, models=None):
    buffers = table.buffers(torch.device("cpu"))
    table.fill(buffers, epoch)
    return table.rule(buffers, table.pattern(buffers, epoch), models)(cost, mask)


def rule_at(rule, epoch):
    return rule if isinstance(rule, mcl.AssignmentRule) else rule(epoch)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("models", [slice(0, 13), slice(2, 6), slice(5, 6), slice(11, 13)])
def test_each_model_gets_the_weights_of_its_own_rule(models, masked):
    table = RuleTable(RULES, N_EPOCHS)
    cost = torch.rand(13, 4, 2, 3)[models]
    mask = (torch.rand(13, 4, 2) < 0.7)[models] if masked else None
    for epoch in range(N_EPOCHS):
        together = weights(table, cost, mask, epoch, models)
        for i, rule in enumerate(RULES[models]):
            expected = rule_at(rule, epoch)(cost[i], None if mask is None else mask[i])
            torch.testing.assert_close(together[i], expected)


def test_neighbours_of_one_kind_are_one_group():
    groups = RuleTable(RULES, N_EPOCHS).groups
    bounds = [(rows.start, rows.stop) for rows, _, _ in groups]
    assert bounds == [(0, 1), (1, 4), (4, 6), (6, 7), (7, 8), (8, 10), (10, 11), (11, 12), (12, 13)]


def test_a_group_is_cold_only_when_all_its_temperatures_are_zero():
    table = RuleTable([COOLING, mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 4))], N_EPOCHS)
    buffers = table.buffers(torch.device("cpu"))
    assert [table.pattern(buffers, epoch) for epoch in range(N_EPOCHS)] == [(False,)] * 4 + [(True,)]


def test_filling_changes_the_buffers_in_place():
    table = RuleTable([COOLING], N_EPOCHS)
    buffers = table.buffers(torch.device("cpu"))
    rule = table.rule(buffers, (False,))
    cost = torch.rand(1, 2, 1, 3)
    for epoch in range(3):
        table.fill(buffers, epoch)
        torch.testing.assert_close(rule(cost), COOLING(epoch)(cost))


def test_epochs_can_be_filled_in_any_order():
    table = RuleTable([COOLING], N_EPOCHS)
    buffers = table.buffers(torch.device("cpu"))
    cost = torch.rand(1, 2, 1, 3)
    for epoch in (3, 0, 2, 1, 0):
        table.fill(buffers, epoch)
        torch.testing.assert_close(table.rule(buffers, table.pattern(buffers, epoch))(cost), COOLING(epoch)(cost))


def test_a_function_that_gives_no_rule_is_refused():
    with pytest.raises(TypeError, match=r"Fleet: `rules` must be rules or functions step -> rule, got 0\.5"):
        RuleTable([lambda epoch: 0.5], 2)


@pytest.mark.parametrize(
    "rule",
    [
        lambda epoch: mcl.WTA() if epoch < 2 else mcl.RelaxedWTA(0.5),
        lambda epoch: mcl.RelaxedWTA(0.5) if epoch < 2 else mcl.WTA(),
        lambda epoch: mcl.Sinkhorn(0.5, n_iters=1 + 5 * (epoch // 2)),
    ],
    ids=["hard, then relaxed", "relaxed, then hard", "more iterations"],
)
def test_a_rule_that_changes_its_kind_is_followed_or_refused(rule):
    cost = torch.rand(1, 4, 2, 3)
    try:
        table = RuleTable([rule], N_EPOCHS)
    except (ValueError, TypeError) as error:
        assert "Fleet: `rules` must" in str(error)  # noqa: PT017  (either outcome is right)
        return
    for epoch in range(N_EPOCHS):
        torch.testing.assert_close(weights(table, cost, None, epoch), rule(epoch)(cost))
