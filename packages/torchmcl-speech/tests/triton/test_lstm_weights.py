"""The parameters of an LSTM go into the orders of its kernels and back."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="triton is not installed")

from torchmcl_speech.kernels.lstm_products import ONES
from torchmcl_speech.kernels.lstm_weights import parameter_gradients, weights_in_order

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def in_our_order(parameter, by_unit):
    """Return the rows of a parameter of one direction with the gates of each unit as neighbors, or as they were."""
    return parameter.unflatten(0, (4, -1)).transpose(0, 1).flatten(0, 1) if by_unit else parameter


def in_product_order(weight):
    """Return rows and columns such that rows m and m + 8 of 16 are neighboring units."""
    order = torch.arange(weight.shape[1], device=weight.device).view(-1, 8, 2).transpose(1, 2).flatten()
    return weight.unflatten(0, (4, -1))[:, order][..., order].flatten(0, 1)


@pytest.mark.parametrize(("n_in", "hidden", "by_unit"), [(7, 33, False), (20, 128, True), (128, 128, True)])
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
        columns = [in_our_order(recurrent, by_unit), in_our_order(inputs, by_unit), bias.unsqueeze(1)]
        columns.append(bias.new_zeros(4 * hidden, ONES - 1))
        met = torch.cat(columns if direction == 0 else [*columns[1:], columns[0]], dim=1)
        assert torch.equal(weights.met[direction], met)
    back = parameter_gradients(list(weights.met), n_in, torch.float64, by_unit)
    for direction in range(2):
        inputs, recurrent, *biases = (parameters[4 * direction + kind] for kind in range(4))
        expected = (inputs, recurrent, sum(biases), sum(biases))
        for gradient, parameter in zip(back[4 * direction :], expected, strict=False):
            assert gradient.dtype == torch.float64
            assert torch.equal(gradient.float(), parameter)
