"""The parameters of an LSTM go into the orders of its kernels and back."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from grids import for_each

pytest.importorskip("triton", reason="triton is not installed")

from torchmcl_speech.kernels.lstm_weights import parameter_gradients, weights_in_order

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def in_our_order(parameter, by_unit):
    """Return the rows of a parameter of one direction with the gates of each unit as neighbors, or as they were."""
    return parameter.unflatten(0, (4, -1)).transpose(0, 1).flatten(0, 1) if by_unit else parameter


def in_product_order(weight):
    """Return rows and columns such that rows m and m + 8 of 16 are neighboring units."""
    order = torch.arange(weight.shape[1], device=weight.device).view(-1, 8, 2).transpose(1, 2).flatten()
    return weight.unflatten(0, (4, -1))[:, order][..., order].flatten(0, 1)


@for_each("n_in, hidden, by_unit", [(7, 33, False), (20, 32, True)])
def test_weights_stand_in_the_order_of_the_kernels_and_gradients_in_that_of_the_parameters(n_in, hidden, by_unit):
    lstm = nn.LSTM(n_in, hidden, bidirectional=True, device=DEVICE)
    parameters = tuple(parameter.detach() for parameter in lstm.parameters())
    weights = weights_in_order(parameters, torch.float32, by_unit)
    for direction in range(2):
        inputs, recurrent, *biases = (parameters[4 * direction + kind] for kind in range(4))
        bias = in_our_order(sum(biases), by_unit)
        own = slice(4 * hidden * direction, 4 * hidden * (direction + 1))
        assert torch.equal(weights.inputs[own], in_our_order(inputs, by_unit))
        assert torch.equal(weights.bias[own], bias)
        assert torch.equal(weights.recurrent[direction], in_product_order(recurrent) if by_unit else recurrent)
    columns = [(*parameters[4 * way : 4 * way + 2], sum(parameters[4 * way + 2 : 4 * way + 4])) for way in range(2)]
    sums = torch.stack([in_our_order(torch.cat([x, h, b.unsqueeze(1)], 1), by_unit) for x, h, b in columns])
    shares = torch.stack([0.25 * sums, 0.75 * sums])
    back = parameter_gradients(shares, n_in, torch.float64, by_unit)
    for direction in range(2):
        inputs, recurrent, *biases = (parameters[4 * direction + kind] for kind in range(4))
        expected = (inputs, recurrent, sum(biases), sum(biases))
        for gradient, parameter in zip(back[4 * direction :], expected, strict=False):
            assert gradient.dtype == torch.float64
            assert_close(gradient.float(), parameter)
