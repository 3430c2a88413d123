"""Recurrent, attention and convolutional models train in a fleet as alone, with no layer computed model by model."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import torchmcl as mcl
from plain_loop import train_alone
from torchmcl_fleet import Fleet, FleetData

N_STEPS, WIDTH = 3, 4
OPTIONS = {"n_epochs": 2, "batch_size": 6}


class Net(nn.Module):
    """A layer on sequences of three steps, and three answers with scores."""

    def __init__(self, layer, width):
        super().__init__()
        self.first, self.layer = nn.Linear(2, WIDTH), layer
        self.head = mcl.MultiHypothesisHead(width, 2, 3)

    def forward(self, inputs):
        out = self.layer(self.first(inputs))
        return self.head((out[0] if isinstance(out, tuple) else out).flatten(1))


class Causal(nn.Module):
    """Attention to earlier steps, without a layer of torch."""

    def forward(self, steps):
        return F.scaled_dot_product_attention(steps, steps, steps, is_causal=True)


class GivenState(nn.Module):
    """A state to begin with, and the last one as the result; steps come first."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, proj_size=2)
        self.start = nn.Parameter(torch.ones(1, 1, WIDTH))

    def forward(self, steps):
        start = self.start.expand(1, len(steps), WIDTH)
        return torch.cat(self.lstm(steps.transpose(0, 1), (start[..., :2], start))[1], dim=-1).transpose(0, 1)


def transformer(**options):
    return nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, batch_first=True, **options)


FACTORIES = {
    "GRU": lambda: Net(nn.GRU(WIDTH, 5, batch_first=True), 15),
    "GRU, two layers in both directions": lambda: Net(nn.GRU(WIDTH, 2, 2, batch_first=True, bidirectional=True), 12),
    "GRU without biases": lambda: Net(nn.GRU(WIDTH, 5, batch_first=True, bias=False), 15),
    "LSTM": lambda: Net(nn.LSTM(WIDTH, 5, batch_first=True), 15),
    "LSTM with a projection, from a given state": lambda: Net(GivenState(), 6),
    "RNN": lambda: Net(nn.RNN(WIDTH, 5, batch_first=True), 15),
    "RNN with ReLU": lambda: Net(nn.RNN(WIDTH, 5, batch_first=True, nonlinearity="relu"), 15),
    "attention of one's own": lambda: Net(Causal(), 12),
    "transformer": lambda: Net(transformer(), 12),
    "transformer, norm first": lambda: Net(nn.TransformerEncoder(transformer(norm_first=True), 2), 12),
    "convolution": lambda: Net(nn.Conv1d(N_STEPS, 2, 3, padding=1), 8),
    "weight norm of rows": lambda: Net(weight_norm(nn.Conv1d(N_STEPS, 2, 3, padding=1)), 8),
    "weight norm of columns": lambda: Net(weight_norm(nn.Conv1d(N_STEPS, 2, 3, padding=1), dim=-2), 8),
    "weight norm of all weights": lambda: Net(weight_norm(nn.Conv1d(N_STEPS, 2, 3, padding=1), dim=None), 8),
}


def problem():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, N_STEPS, 2, generator=generator), torch.randn(20, 1, 2, generator=generator)


def trained(factory, device="cpu"):
    fleet, data = Fleet(factory, 2, device=device), FleetData.shared(*problem(), 2)
    history = fleet.fit(data, OPTIONS["n_epochs"], batch_size=6, validation=data, progress=False)
    return fleet, history


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:LSTM with projections")
def test_layers_train_as_alone_and_none_model_by_model(name):
    """A warning of torch.vmap, that a layer is computed model by model, is an error in all tests."""
    factory, (inputs, targets) = FACTORIES[name], problem()
    fleet, history = trained(factory)
    for i in range(2):
        alone, losses, _ = train_alone(factory, i, inputs, targets, **OPTIONS)
        torch.testing.assert_close(history.losses[:, i], losses, atol=2e-5, rtol=1e-4)
        # Not the weights: the biases of keys have no gradient but rounding errors, which Adam makes steps of.
        with torch.no_grad():
            expected = alone.eval()(inputs).hypotheses
        torch.testing.assert_close(fleet.predict(inputs).hypotheses[i], expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:LSTM with projections")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.gpu
def test_layers_train_on_a_gpu_as_on_the_cpu(name):
    (device, history), (cpu, cpu_history) = trained(FACTORIES[name], "cuda"), trained(FACTORIES[name])
    torch.testing.assert_close(history.losses, cpu_history.losses, atol=1e-4, rtol=1e-4)
    answers = (fleet.predict(problem()[0]).hypotheses for fleet in (device, cpu))  # not the weights, as above
    torch.testing.assert_close(*answers, atol=1e-3, rtol=1e-3)


class Masked(nn.Module):
    """Attention that leaves out padding, which is marked by 99."""

    def __init__(self, by_layer):
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True) if by_layer else None
        self.first, self.head = nn.Linear(2, WIDTH), mcl.MultiHypothesisHead(WIDTH, 2, 3)

    def forward(self, inputs):
        steps, real = self.first(inputs), inputs[..., 0] < 50
        if self.layer is not None:
            out = self.layer(steps, steps, steps, key_padding_mask=~real, need_weights=False)[0]
        else:
            out = F.scaled_dot_product_attention(steps, steps, steps, attn_mask=real.unsqueeze(-2))
        return self.head(out.mean(dim=1))


@pytest.mark.parametrize("by_layer", [True, False])
def test_masks_of_late_rows_count_as_alone(by_layer):
    """The first rows, by which models are compared before training, have no padding; the last one has nothing else."""
    inputs, targets = problem()
    inputs[12:, 1:] = 99.0
    if by_layer:
        inputs[-1] = 99.0  # attention to nothing is 0
    fleet = Fleet(lambda: Masked(by_layer), 2)
    losses = fleet.fit(FleetData.shared(inputs, targets, 2), 2, batch_size=6, progress=False).losses
    for i in range(2):
        _, expected, _ = train_alone(lambda: Masked(by_layer), i, inputs, targets, **OPTIONS)
        torch.testing.assert_close(losses[:, i], expected, atol=2e-5, rtol=1e-4)


def test_dropout_between_recurrent_layers_is_drawn_for_each_model():
    fleet, _ = trained(lambda: Net(nn.GRU(WIDTH, 5, 2, batch_first=True, dropout=0.5), 15))
    first, second = (fleet.predict(problem()[0], stochastic=True).hypotheses for _ in range(2))
    assert not torch.equal(first, second)
    torch.testing.assert_close(fleet.predict(problem()[0]).hypotheses, fleet.predict(problem()[0]).hypotheses)
