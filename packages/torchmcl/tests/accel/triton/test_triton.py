"""The Triton kernels compute what the plain formulas compute: in Triton's interpreter, or on a GPU if there is one."""

import math

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("triton", reason="triton is not installed")

from torchmcl.accel.triton import rows, stacked

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter computes padded entries too, with NumPy, which warns of infinity - infinity.
pytestmark = pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.filterwarnings("ignore::RuntimeWarning")

for_all_shapes = pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 2, 49), (70, 64), (2, 130)], ids=str)


def draw(*shape):
    return torch.randn(*shape, device=DEVICE)


def one_hot_argmin(cost):
    return torch.nn.functional.one_hot(cost.argmin(-1), cost.shape[-1]).to(cost)


# ------------------------------------------------------------------ rows


@for_all_shapes
@pytest.mark.parametrize("temperature", [0.3, 1e-40])
def test_softmin(shape, temperature):
    cost = draw(*shape).square()
    expected = one_hot_argmin(cost) if temperature < 1e-30 else (-cost / temperature).softmax(-1)
    assert_close(rows.softmin(cost, temperature), expected)


@for_all_shapes
def test_winner_weights(shape):
    cost = draw(*shape).square()
    assert_close(rows.winner_weights(cost, 0.9, 0.1), 0.1 + 0.8 * one_hot_argmin(cost))
    assert_close(rows.winner_weights(cost), one_hot_argmin(cost))


@for_all_shapes
def test_mixed_rows_are_soft_for_some_models_and_hard_for_the_others(shape):
    cost = draw(*shape).square()
    n_models, n_hypotheses = len(cost), shape[-1]
    warm = torch.arange(n_models, device=DEVICE) % 2 == 0
    temperatures = torch.where(warm, 0.3, 0.0)
    epsilons = torch.full((n_models,), 0.1, device=DEVICE)
    hard = torch.ones_like(cost)
    if n_hypotheses > 1:
        hard = torch.where(one_hot_argmin(cost) > 0, 0.9, 0.1 / (n_hypotheses - 1))
    expected = torch.where(warm.view(n_models, *[1] * (cost.ndim - 1)), (-cost / 0.3).softmax(-1), hard)
    assert_close(rows.mixed_rows(cost, temperatures, epsilons), expected)
    extremes = rows.mixed_rows(cost, torch.where(warm, 2e-38, 3e38), epsilons)
    coldest_is_hard = torch.where(warm.view(n_models, *[1] * (cost.ndim - 1)), one_hot_argmin(cost), 1 / n_hypotheses)
    assert_close(extremes, coldest_is_hard.to(cost))


def test_the_softmin_of_a_row_with_nan_or_infinity_shows_in_the_loss():
    spoilt = torch.tensor([[1.0, math.nan, 2.0], [0.0, 1.0, math.inf]], device=DEVICE)
    assert (rows.softmin(spoilt, math.log2(math.e)) * spoilt).sum(-1).isnan().all()


@for_all_shapes
def test_weighted_sum_and_its_gradient(shape):
    cost, weights, upstream = draw(*shape).requires_grad_(), draw(*shape), draw(*shape[:-1])
    total = rows.weighted_sum(weights, cost)
    assert_close(total, (weights * cost).sum(-1))
    assert_close(torch.autograd.grad(total, cost, upstream)[0], weights * upstream.unsqueeze(-1))


@for_all_shapes
@pytest.mark.parametrize("twice", [False, True], ids=["once", "differentiable"])
def test_cross_entropy_and_its_gradients(shape, twice):
    logits, upstream = (5 * draw(*shape)).requires_grad_(), draw(*shape[:-1])
    labels = torch.rand(*shape, device=DEVICE, requires_grad=True)
    exact = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(-1)
    actual = rows.summed_cross_entropy(logits, labels)
    assert_close(actual, exact)
    gradients = torch.autograd.grad(actual, (logits, labels), upstream, create_graph=twice)
    pulled = (logits.sigmoid() - labels) * upstream.unsqueeze(-1), -logits * upstream.unsqueeze(-1)
    assert_close(gradients, pulled, rtol=1e-4, atol=1e-5)
    if twice:
        second = torch.autograd.grad(gradients[0].sum(), logits)[0]
        assert_close(second, torch.autograd.grad(pulled[0].sum(), logits)[0], rtol=1e-4, atol=1e-5)


def test_kernels_decline_what_they_do_not_serve():
    cost, long = torch.rand(2, 3, device=DEVICE), torch.rand(1, 8193, device=DEVICE)
    assert rows.softmin(cost, torch.tensor(0.3)) is NotImplemented
    assert rows.softmin(cost, math.inf) is NotImplemented
    assert rows.winner_weights(cost, torch.tensor(0.9)) is NotImplemented
    assert rows.weighted_sum(cost, cost[:1]) is NotImplemented
    assert rows.softmin(long, 0.3) is NotImplemented
    assert rows.winner_weights(long) is NotImplemented
    assert rows.weighted_sum(long, long) is NotImplemented
    assert rows.summed_cross_entropy(long, long) is NotImplemented


# ------------------------------------------------------------------ training


@pytest.mark.parametrize("decays", [None, (0.1, 0.0, 0.3)], ids=["no decay", "decay"])
def test_adam_of_three_models_is_that_of_torch(decays):
    flat, rates = draw(3, 700), (0.01, 0.1, 0.003)
    alone = [torch.nn.Parameter(row.clone()) for row in flat]
    optimizers = [
        torch.optim.AdamW([row], lr=lr, weight_decay=decay)
        for row, lr, decay in zip(alone, rates, decays or (0.0, 0.0, 0.0), strict=True)
    ]
    lr = torch.tensor(rates, device=DEVICE).unsqueeze(-1)
    decay = None if decays is None else torch.tensor(decays, device=DEVICE).unsqueeze(-1)
    mean, square, n_steps = torch.zeros_like(flat), torch.zeros_like(flat), torch.zeros(3, 1, device=DEVICE)
    for _ in range(5):
        grad = draw(3, 700)
        n_steps += 1
        stacked.adam_rows(flat, grad, mean, square, n_steps, lr, decay, (0.9, 0.999), 1e-8)
        for row, optimizer, g in zip(alone, optimizers, grad, strict=True):
            row.grad = g.clone()
            optimizer.step()
    assert_close(flat, torch.stack([row.detach() for row in alone]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("needs_inputs", [True, False])
@pytest.mark.parametrize(
    ("n_models", "n_rows", "n_in", "n_out", "rectified"),
    [(3, 5, 6, 50, True), (2, 300, 50, 10, False), (1, 700, 17, 128, True), (2, 1, 1, 1, False)],
)
def test_linear_layers_of_many_models(n_models, n_rows, n_in, n_out, rectified, needs_inputs):
    inputs, weight, bias = draw(n_models, n_rows, n_in), draw(n_models, n_out, n_in), draw(n_models, n_out)
    upstream = draw(n_models, n_rows, n_out)
    leaves = [part.double().requires_grad_() for part in (inputs, weight, bias)]
    exact = torch.einsum("mri,moi->mro", leaves[0], leaves[1]) + leaves[2].unsqueeze(1)
    exact = exact.relu() if rectified else exact
    outputs = stacked.linear_rows(inputs, weight, bias, rectified)
    assert_close(outputs.double(), exact.detach(), rtol=1e-4, atol=1e-4)
    pulled = stacked.linear_rows_backward(inputs, weight, outputs, upstream, rectified, needs_inputs)
    expected = torch.autograd.grad(exact, leaves, upstream.double())
    assert needs_inputs or pulled[0] is None
    for actual, right in zip(pulled, expected, strict=True):
        if actual is not None:
            assert_close(actual.double(), right, rtol=1e-3, atol=1e-3)
