"""A whole annealing in a compiled function: one graph, and no compilation for each new temperature."""

import math

import pytest
import torch

import torchmcl as mcl
from torchmcl.schedules import JoinedSchedule

# Raised by torch.compile itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
COST = torch.rand(6, 2, 5, generator=torch.Generator().manual_seed(0))
SCHEDULES = [
    mcl.CutoffAt(mcl.Exponential(0.5, 0.9, cutoff=0.05), 20),
    mcl.Cosine(1.0, 0.0, 20),
    JoinedSchedule((mcl.Constant(1.0), mcl.Linear(1.0, 0.0, 15)), (10,)),
]
# A rule made of one number, and numbers for a whole schedule.
RULES = {
    "annealed": (mcl.AnnealedWTA, [1.0, 0.8, 0.0, 0.6, 0.4, 0.3, 0.2, 0.1, 1e-3, 1e-30, 0.0]),
    "relaxed": (mcl.RelaxedWTA, [1.0, 0.8, 0.0, 0.6, 0.4, 0.3, 0.2, 0.1, 1e-3, 0.0]),
    "sinkhorn": (lambda value: mcl.Sinkhorn(value, n_iters=3), [1.0, 0.8, 0.0, 0.6, 0.4, 0.3, 0.2, 0.1, 0.0]),
    "top_k": (mcl.TopK, [5.0, 4.4, 1.0, 4.0, 3.5, 3.0, 2.2, 2.0, 1.4, 1.0]),
}
for_all_rules = pytest.mark.parametrize(("rule_of", "values"), RULES.values(), ids=RULES)
ANNEALED = RULES["annealed"][1]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def compiled(fn, dynamic=None):
    return torch.compile(fn, fullgraph=True, backend="aot_eager", dynamic=dynamic)


def n_compilations():
    """Return how many graphs were made in this test."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@for_all_rules
def test_a_rule_made_inside_is_not_compiled_for_each_number(rule_of, values):
    weigh = compiled(lambda cost, value: rule_of(value)(cost))
    for value in values:
        torch.testing.assert_close(weigh(COST, value), rule_of(value)(COST))
    assert n_compilations() <= 2  # for the first number, and for all others


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_rule_passed_in_is_not_compiled_for_each_number(dynamic):
    weigh = compiled(lambda cost, rule: rule(cost), dynamic)
    for value in ANNEALED:
        torch.testing.assert_close(weigh(COST, mcl.AnnealedWTA(value)), mcl.AnnealedWTA(value)(COST))
    assert n_compilations() <= 2  # for the first number, and for all others


def test_a_number_in_a_tensor_takes_one_graph():
    weigh = compiled(lambda cost, value: mcl.AnnealedWTA(value)(cost))
    for value in ANNEALED:
        torch.testing.assert_close(weigh(COST, torch.tensor(value)), mcl.AnnealedWTA(torch.tensor(value))(COST))
    assert n_compilations() == 1


def test_compiled_rules_take_infinite_and_vanishing_temperatures():
    weigh, cost = compiled(lambda cost, value: mcl.AnnealedWTA(value)(cost)), COST.double()
    for value in (0.5, 0.4, math.inf, 1e-300, 1e300):
        torch.testing.assert_close(weigh(cost, value), mcl.AnnealedWTA(value)(cost))


def test_a_compiled_rule_still_refuses_a_negative_temperature():
    weigh = torch.compile(lambda cost, value: mcl.AnnealedWTA(value)(cost), backend="aot_eager")
    weigh(COST, 1.0), weigh(COST, 0.5)
    with pytest.raises(ValueError, match="`temperature`"):
        weigh(COST, -0.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rule_at_is_not_compiled_for_each_step(schedule):
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=schedule)
    weigh = compiled(lambda cost, step: rule_at(step)(cost))
    for step in range(26):
        torch.testing.assert_close(weigh(COST, step), rule_at(step)(COST), rtol=1e-5, atol=1e-6)
    # The first step, where a part begins, within it, and where it ends.
    assert n_compilations() <= 6


def test_the_loop_of_the_readme_compiles_over_its_whole_schedule():
    x = torch.rand(32, 1)
    y = torch.where(torch.rand(32, 1) < 0.5, x, -x).unsqueeze(1)
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(0.5, decay=0.95, cutoff=5e-4))

    def train(wrap):
        torch.manual_seed(0)
        model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=2, hidden=(8,))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        loss_at = wrap(lambda epoch: mcl.mcl_step(model, mcl.Batch(x, y), rule_at(epoch)).loss)
        losses = []
        for epoch in range(140):
            loss = loss_at(epoch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return torch.tensor(losses)

    torch.testing.assert_close(train(compiled), train(lambda fn: fn), rtol=1e-3, atol=1e-5)
    assert rule_at(139) == mcl.AnnealedWTA(0.0)
    assert n_compilations() <= 4  # epoch 0, all that are warm, and the cold ones
