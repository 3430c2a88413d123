"""Hypotheses parted and moved under a rule of one's own."""

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from problems import three_branches
from torchmcl.annealing import (
    AnnealingDriver,
    AutoAnnealing,
    Samples,
    cost_scale,
    move_hypotheses,
    separate_hypotheses,
)
from torchmcl.annealing.auto import AutoDecision
from torchmcl.annealing.model import OptimizerWeights


def merged_network(apart=0.0):
    """Return a network with three equal hypotheses, two of them moved away."""
    model = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=3, hidden=(32,))
    for parameter in model.head.linear.parameters():
        parameter.data[:3] = parameter.data[:1]
    model.head.linear.bias.data[1:3] += apart
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def trained(model, optimizer, *, moves):
    batch = three_branches(600)
    n_moved = 0
    for epoch in range(150):
        output = mcl.mcl_step(model, batch, mcl.WTA())
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        if moves and epoch % 25 == 24 and epoch < 100:
            n_moved += move_hypotheses(model, optimizer, mcl.mcl_step(model, batch, mcl.WTA()))
    return mcl.mcl_step(model, batch, mcl.WTA(), score_weight=0.0).loss.item(), n_moved


def test_hypotheses_that_win_nothing_are_moved_to_modes_without_one():
    torch.manual_seed(0)
    stuck, _ = trained(*merged_network(apart=100.0), moves=False)
    torch.manual_seed(0)
    loss, n_moved = trained(*merged_network(apart=100.0), moves=True)
    assert n_moved >= 2
    assert loss < 0.1 * stuck


def test_parted_hypotheses_differ_and_scores_do_not():
    model, optimizer = merged_network()
    before = model(torch.ones(1, 1))
    separate_hypotheses(model, optimizer, factor=0.1)
    after = model(torch.ones(1, 1))
    assert after.hypotheses.unique().numel() == 3
    torch.testing.assert_close(after.score_logits, before.score_logits)


def test_a_moved_hypothesis_takes_its_moments_along():
    model, optimizer = merged_network()
    batch = mcl.Batch(torch.zeros(300, 1), torch.tensor([-1.0, 1.0, 5.0]).repeat(100).view(300, 1, 1))
    mcl.mcl_step(model, batch, mcl.AnnealedWTA(100.0)).loss.backward()
    optimizer.step()
    assert move_hypotheses(model, optimizer, mcl.mcl_step(model, batch, mcl.WTA())) == 1
    moments = optimizer.state[model.head.linear.weight]["exp_avg"][:3]
    assert moments.isfinite().all()
    assert len({tuple(row) for row in moments.tolist()}) < 3, "one hypothesis has the moments of another"


class MovesAlways(AutoAnnealing):
    """Policy that requests moves after each epoch."""

    def update(self, state, *arguments, **options):
        no = torch.zeros_like(state["first"], dtype=torch.bool)
        return AutoDecision(no, no.float(), ~no)


@for_each("activation", [None, torch.tanh, torch.exp, lambda values: 100 * values.sigmoid()])
def test_hypotheses_are_moved_only_where_biases_shift_the_outputs(activation):
    model = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=3, hidden=(), output_activation=activation)
    batch = mcl.Batch(torch.zeros(300, 1), torch.tensor([10.0, 30.0, 50.0]).repeat(100).view(300, 1, 1))
    model.head.linear.weight.data.zero_()
    model.head.linear.bias.data[:3] = torch.tensor([20.0, 50.0, 50.1])
    before = model.head.linear.bias.data.clone()
    optimizer = torch.optim.Adam(model.parameters())
    driver = AnnealingDriver(MovesAlways(), model)  # of loops and fleets
    output = mcl.mcl_step(model, batch, mcl.WTA())
    weights = OptimizerWeights(optimizer, model.head, None)
    driver.end_epoch(cost_scale(output.matching), 5, 10, weights, lambda: Samples.of_step(output))
    assert torch.equal(model.head.linear.bias.data, before) == (activation is not None)
    if activation is not None:
        with pytest.raises(ValueError, match="move_hypotheses: `model` must have no output activation"):
            move_hypotheses(model, optimizer, output)


def test_models_and_targets_that_do_not_fit_are_refused():
    linear = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="separate_hypotheses: `model`"):
        separate_hypotheses(linear, optimizer)
    with pytest.raises(ValueError, match="separate_hypotheses: `optimizer` must train parameters of `model`"):
        separate_hypotheses(merged_network()[0], optimizer)
    model = mcl.MultiHypothesisMLP(1, 3, n_hypotheses=2, hidden=())
    batch = mcl.Batch(torch.zeros(4, 1), torch.zeros(4, 1, dtype=torch.long))
    output = mcl.mcl_step(model, batch, mcl.WTA(), cost_fn=mcl.pairwise_cross_entropy)
    with pytest.raises(ValueError, match="move_hypotheses: `output`"):
        move_hypotheses(model, torch.optim.SGD(model.parameters()), output)
    with pytest.raises(ValueError, match="separate_hypotheses: `factor`"):
        separate_hypotheses(model, optimizer, factor=0)
