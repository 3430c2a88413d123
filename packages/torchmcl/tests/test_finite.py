"""A loss that is not finite is said with its batch, before it reaches the weights."""

import math

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.loop import FiniteGuard, NonFiniteLossError
from torchmcl.loop.finite import largest_gradient


def batches(bad=None, where="inputs", value=math.nan, n=5):
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(n):
        inputs = torch.randn(6, 2, generator=generator)
        targets = torch.randn(6, 1, 2, generator=generator)
        if number == bad:
            (inputs if where == "inputs" else targets)[3, ..., 1] = value
        made.append(mcl.Batch(inputs, targets))
    return made


def train(data, max_skipped=0):
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    guard = FiniteGuard(model.parameters(), max_skipped=max_skipped)
    error = None
    for number, batch in enumerate(data):
        output = mcl.mcl_step(model, batch, mcl.WTA())
        optimizer.zero_grad()
        output.loss.backward()
        try:
            if guard(output, batch, f"batch {number}"):
                optimizer.step()
        except NonFiniteLossError as stopped:
            error = stopped
            break
    return model.state_dict(), error, guard


@for_each("value", [math.nan, math.inf, -math.inf])
@for_each("where", ["inputs", "targets"])
def test_a_bad_batch_is_named_and_the_weights_are_those_from_before_it(where, value):
    weights, error, _ = train(batches(bad=3, where=where, value=value))
    assert error is not None
    assert error.place == "batch 3"
    assert error.cause == where
    assert str(error).startswith("FiniteGuard: the loss of batch 3 is ")
    assert "Check the data, lower the learning rate" in str(error)
    expected, none, _ = train(batches()[:3])
    assert none is None
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_bad_batches_can_be_left_out_with_a_warning():
    data = batches(bad=2)
    with pytest.warns(RuntimeWarning, match=r"batch 2 is nan; .* the inputs.* Skipped \(1 of at most 2\)"):
        weights, error, guard = train(data, max_skipped=2)
    assert error is None
    assert guard.n_skipped == 1
    expected, _, _ = train(data[:2] + data[3:])
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_the_next_one_beyond_the_allowed_number_is_an_error():
    data = [batch for number in range(3) for batch in batches(bad=0, n=1)]
    with pytest.warns(RuntimeWarning, match="Skipped"):
        _, error, guard = train(data, max_skipped=2)
    assert guard.n_skipped == 3
    assert "or skip such batches with `max_skipped`, now 2" in str(error)


def test_padding_is_not_blamed():
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8,))
    targets = torch.randn(4, 2, 2)
    targets[:, 1] = math.nan
    mask = torch.tensor([True, False]).expand(4, 2)
    guard = FiniteGuard(model.parameters())
    batch = mcl.Batch(torch.randn(4, 2), targets, mask)
    output = mcl.mcl_step(model, batch, mcl.WTA())
    output.loss.backward()
    assert guard(output, batch, "batch 0")
    with torch.no_grad():
        model.head.linear.bias[0] = math.inf
    output = mcl.mcl_step(model, batch, mcl.WTA())
    output.loss.backward()
    with pytest.raises(
        NonFiniteLossError, match="the first values that are not finite are in the weights of the model"
    ):
        guard(output, batch, "batch 1")


def test_a_gradient_that_overflows_under_a_finite_loss_is_found():
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, math.inf])
    batch = mcl.Batch(torch.zeros(1, 1), torch.zeros(1, 1, 1))
    output = mcl.mcl_step(lambda x: mcl.Predictions(torch.zeros(1, 2, 1), None), batch, mcl.WTA())
    with pytest.raises(NonFiniteLossError, match="the gradient of batch 7 is not finite"):
        FiniteGuard([parameter])(output, batch, "batch 7")


def test_the_largest_gradient_shows_every_bad_value():
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    assert float(largest_gradient(parameters)) == 0
    parameters[0].grad, parameters[2].grad = torch.tensor([1.0, -3.0]), torch.tensor([2e30, 0.0])
    assert float(largest_gradient(parameters)) == pytest.approx(2e30)
    parameters[0].grad[0] = math.nan
    assert math.isnan(float(largest_gradient(parameters)))


def test_a_negative_number_of_batches_is_refused():
    with pytest.raises(ValueError, match="FiniteGuard: `max_skipped`"):
        FiniteGuard([], max_skipped=-1)
    with pytest.raises(TypeError, match="FiniteGuard: `max_skipped`"):
        FiniteGuard([], max_skipped=1.5)
