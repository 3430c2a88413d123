"""The pieces of a step in C: their values and gradients against the definitions in double precision."""

import math

import pytest
import torch

import torchmcl as mcl
from torchmcl import losses, scoring
from torchmcl.accel.native import extension, rows
from torchmcl.fleet import data
from torchmcl.fleet.courses import MixedRule
from torchmcl.rules import winners

pytestmark = pytest.mark.skipif(not extension.available(), reason="the C extension was not built")

# Below, at and above the lanes of each instruction set, and with a last vector of each kind.
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 49, 64, 100)


def graded(function, dtype, *values, upstream=None):
    """Return the result and the gradients of all inputs."""
    leaves = [value.to(dtype).requires_grad_() for value in values]
    result = function(*leaves)
    upstream = torch.ones_like(result) if upstream is None else upstream.to(dtype)
    return [result.detach().double(), *(part.double() for part in torch.autograd.grad(result, leaves, upstream))]


def assert_equal_to_definition(function, *values, upstream=None):
    exact = graded(function.definition, torch.float64, *values, upstream=upstream)
    for own, other in zip(graded(function, torch.float32, *values, upstream=upstream), exact, strict=True):
        torch.testing.assert_close(own, other, rtol=4e-6, atol=4e-6 * float(other.abs().max()))


def serves(function, *arguments):
    """Return the names of the modules that serve the arguments."""
    return [way.compute.__module__ for way in function.ways if way.serves(*arguments)]


@pytest.mark.parametrize("n_columns", COLUMNS)
def test_softmin_and_winners(n_columns):
    cost = 3 * torch.rand(5, 2, n_columns)
    assert rows.__name__ in serves(winners.softmin, cost, 0.3)
    for temperature in (1e-30, 1e-3, 0.3, 1e30):
        exact = winners.softmin.definition(cost.double(), temperature)
        torch.testing.assert_close(rows.softmin(cost, temperature).double(), exact, rtol=0, atol=5e-7)
    exact = winners.winner_weights.definition(cost, 0.75, 0.25)
    assert torch.equal(rows.winner_weights(cost, 0.75, 0.25), exact)


@pytest.mark.parametrize("n_columns", [3, 6, 21])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_costs_that_are_not_finite(special, n_columns):
    cost = torch.rand(n_columns + 1, n_columns)
    cost[:n_columns].fill_diagonal_(special)
    cost[-1] = special
    for function in (winners.winner_weights, lambda own: winners.softmin(own, 0.3)):
        definition = getattr(function, "definition", lambda own: winners.softmin.definition(own, 0.3))
        torch.testing.assert_close(function(cost), definition(cost), equal_nan=True, rtol=0, atol=5e-7)


@pytest.mark.parametrize("n_columns", COLUMNS)
def test_cross_entropy_and_weighted_sums(n_columns):
    logits, labels = 8 * torch.randn(6, n_columns), torch.rand(6, n_columns)
    assert rows.__name__ in serves(scoring._cross_entropy, logits, labels)
    upstream = torch.randn(6)
    assert_equal_to_definition(scoring._cross_entropy, logits, labels, upstream=upstream)
    weights = torch.rand(2, 3, n_columns)
    result = [losses._weighted_sum(weights, cost := torch.rand_like(weights, requires_grad=True)), cost]
    torch.testing.assert_close(result[0], (weights * cost).sum(dim=-1))
    torch.testing.assert_close(torch.autograd.grad(result[0].sum(), cost)[0], weights)


def test_extreme_logits_have_the_cross_entropy_of_the_definition():
    logits = torch.tensor([[-1e30, -200.0, -1e-30, 0.0, 1e-30, 200.0, 1e30]])
    labels = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.5, 0.0, 1.0]])
    torch.testing.assert_close(
        rows.summed_cross_entropy(logits, labels), scoring._cross_entropy.definition(logits, labels)
    )


def test_second_derivatives_are_those_of_the_definition():
    logits, labels = torch.randn(2, 3), torch.rand(2, 3)

    def curvature(entropy):
        leaf = logits.clone().requires_grad_()
        (slope,) = torch.autograd.grad(entropy(leaf, labels).square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), leaf)

    own, exact = curvature(rows.summed_cross_entropy), curvature(scoring._cross_entropy.definition)
    torch.testing.assert_close(own, exact, rtol=1e-4, atol=1e-4)


def test_a_second_backward_pass_gives_the_same_gradient():
    logits = torch.randn(4, 5, requires_grad=True)
    loss = rows.summed_cross_entropy(logits, torch.rand(4, 5)).sum()
    first, second = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("rule", [mcl.WTA(), mcl.RelaxedWTA(0.1), mcl.AnnealedWTA(0.3)])
def test_composed_by_hand_is_the_step(rule):
    hypotheses, logits, targets = torch.randn(40, 9, 2), torch.randn(40, 9), torch.randn(40, 1, 2)

    def graded_loss(compute):
        leaves = [part.clone().requires_grad_() for part in (hypotheses, logits)]
        loss = compute(*leaves)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    def by_hand(hypotheses, logits):
        cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
        return mcl.mcl_loss(mcl.assign(cost, rule)) + mcl.score_loss(logits, mcl.score_targets(cost))

    def step(*leaves):
        return mcl.mcl_step(lambda _: mcl.Predictions(*leaves), mcl.Batch(targets, targets), rule).loss

    torch.testing.assert_close(graded_loss(by_hand), graded_loss(step))


@pytest.mark.parametrize("n_columns", [1, 5])
def test_rules_of_several_models_are_those_of_each(n_columns):
    cost = torch.rand(3, 5000, 1, n_columns)
    values = torch.tensor([[0.0, 0.3, 0.0], [0.0, 0.0, 0.1]])
    assert rows.serves_models(cost)
    rules = [mcl.WTA(), mcl.AnnealedWTA(0.3), mcl.RelaxedWTA(0.1)]
    exact = torch.stack([rule(own.double()).float() for rule, own in zip(rules, cost, strict=True)])
    torch.testing.assert_close(MixedRule(values)(cost), exact, rtol=0, atol=5e-7)


def test_many_rows_on_several_threads_are_the_rows_one_by_one():
    cost = torch.rand(30_000, 5)
    n_threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            results.append(rows.softmin(cost, 0.3))
    finally:
        torch.set_num_threads(n_threads)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.parametrize("n_rows", [1, 2, 300, 70_000])
def test_shuffles_are_those_of_the_definition(n_rows):
    seeds = torch.tensor([0, 1, -5, 2**40])
    lengths = torch.tensor([n_rows, max(1, n_rows // 2), n_rows, max(1, n_rows - 1)])
    for epoch in (0, 7):
        own = data.shuffled_rows(seeds, epoch, lengths, n_rows)
        assert torch.equal(own, data.shuffled_rows.definition(seeds, epoch, lengths, n_rows))


def test_a_temperature_below_single_precision_is_hard():
    cost = torch.tensor([[0.3, 0.1, 0.2]])
    assert mcl.AnnealedWTA(1e-46)(cost).tolist() == [[0.0, 1.0, 0.0]]


def test_tensors_by_name_are_left_to_the_definition():
    cost = torch.tensor([[0.3, 0.1, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(winners.softmin(cost=cost, temperature=0.5), (-cost / 0.5).softmax(dim=-1))


@pytest.mark.parametrize("n_dims", [2, 20])
def test_batched_gradients(n_dims):
    hypotheses, targets = torch.randn(3, n_dims), torch.randn(2, n_dims)

    def cost(points):
        return mcl.pairwise_sq_euclidean(hypotheses=points, targets=targets)

    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(cost, hypotheses, vectorize=True), jacobian(cost, hypotheses))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_gradients_of_a_step(dtype):
    batch = mcl.Batch(torch.zeros(2, 1), torch.randn(2, 2, 3, dtype=dtype))

    def losses(hypotheses, logits):
        output = mcl.mcl_step(lambda _: mcl.Predictions(hypotheses, logits), batch, mcl.AnnealedWTA(0.5))
        return torch.stack([output.assignment_loss, output.score_loss])

    inputs = torch.randn(2, 4, 3, dtype=dtype), torch.randn(2, 4, dtype=dtype)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(losses, inputs, vectorize=True), jacobian(losses, inputs))


@pytest.mark.parametrize(("n_rows", "entries_of_row"), [(70, 2000), (64, 2000), (1, 200_000), (5, 2)])
def test_blocks_end_with_the_last_row(n_rows, entries_of_row):
    shares = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        extension.in_blocks(lambda first, last: shares.append((first, last)), n_rows, entries_of_row)
    finally:
        torch.set_num_threads(before)
    rows = [row for first, last in sorted(shares) for row in range(first, last)]
    assert rows == list(range(n_rows))
    assert all(first % 32 == 0 for first, _ in shares)


def test_no_share_runs_after_an_exception():
    begun, ended = [], []

    def part(first, last):
        begun.append(first)
        if first == 0:
            raise ValueError("the first share")
        torch.randn(200_000).sort()
        ended.append(first)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="the first share"):
            extension.on_threads(part, 100)
        assert len(ended) == len(begun) - 1
    finally:
        torch.set_num_threads(before)
