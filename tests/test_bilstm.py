"""The fused bidirectional LSTM computes what nn.LSTM computes, in the interpreter of Triton or on a GPU."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from torchmcl.nn import FusedBiLSTM

_CHECKS = """
import itertools, torch
from torch import nn
import torchmcl.kernels
device = "{device}"
if device == "cpu":
    torchmcl.kernels.runs_triton = lambda tensor: True
from torchmcl.nn import FusedBiLSTM

def relative(mine, exact):
    return float((mine.double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))

def errors(sizes, n_in, hidden, dtype, transposed):
    torch.manual_seed(0)
    exact = nn.LSTM(n_in, hidden, bidirectional=True, batch_first=True, device=device)
    fused = FusedBiLSTM(n_in, hidden).to(device)
    fused.load_state_dict(exact.state_dict())
    fused = fused.to(dtype)
    exact = exact.to(dtype).double()
    n_outer, n_inner, n_steps = sizes
    in_memory = (n_outer, n_steps, n_inner, n_in) if transposed else (*sizes, n_in)
    x = torch.randn(in_memory, dtype=dtype, device=device)
    x = (x.transpose(1, 2) if transposed else x).detach().requires_grad_()
    y = fused(x)
    assert type(y.grad_fn).__name__ == "_FusedRecurrenceBackward", y.grad_fn
    pull = torch.randn_like(y)
    y.backward(pull)
    x_exact = x.detach().double().reshape(-1, n_steps, n_in).requires_grad_()
    y_exact, _ = exact(x_exact)
    y_exact.backward(pull.double().reshape(-1, n_steps, 2 * hidden))
    found = [relative(y.reshape(y_exact.shape), y_exact), relative(x.grad.reshape(x_exact.shape), x_exact.grad)]
    return found + [relative(getattr(fused, name).grad, p.grad) for name, p in exact.named_parameters()]

for sizes, n_in, hidden, dtype, transposed in {cases}:
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    found = errors(sizes, n_in, hidden, dtype, transposed)
    again = errors(sizes, n_in, hidden, dtype, transposed)
    assert max(found) < limit, (sizes, n_in, hidden, dtype, transposed, found)
    assert found == again, "two runs differ: a race"
print("all agree")
"""

# Sizes [outer, sequences, time], features in, hidden units, type, whether the time axis stands first in memory.
_SMALL = """(
    ((1, 1, 1), 3, 32, torch.float32, False),
    ((2, 5, 4), 6, 40, torch.float32, True),
    ((1, 17, 3), 6, 140, torch.float32, False),
    ((2, 5, 4), 7, 33, torch.float16, True),
)"""
_LARGE = """(
    ((1, 1, 1), 3, 32, torch.float32, False),
    ((2, 37, 20), 64, 128, torch.float32, False),
    ((2, 37, 20), 30, 96, torch.float32, True),
    ((1, 33, 9), 16, 256, torch.float32, True),
    ((1, 700, 11), 30, 96, torch.bfloat16, False),
    ((22, 101, 100), 128, 128, torch.bfloat16, True),
    ((2, 50, 20), 64, 128, torch.float16, False),
    ((1, 33, 9), 16, 256, torch.bfloat16, False),
)"""


def _run(device, cases, interpret):
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if interpret else {})
    code = _CHECKS.replace("{device}", device).replace("{cases}", cases)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run for real on this machine")
def test_the_kernels_give_the_values_and_gradients_of_an_lstm_in_the_interpreter():
    pytest.importorskip("triton", reason="triton is not installed")
    run = _run("cpu", _SMALL, interpret=True)
    assert "all agree" in run.stdout, run.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernels_give_the_values_and_gradients_of_an_lstm_on_the_gpu():
    run = _run("cuda", _LARGE, interpret=False)
    assert "all agree" in run.stdout, run.stderr[-3000:]


@pytest.mark.parametrize("shape", [(5, 7, 8), (2, 5, 7, 8)])
def test_without_a_gpu_it_is_the_lstm_it_replaces(shape):
    torch.manual_seed(0)
    lstm = nn.LSTM(8, 16, bidirectional=True, batch_first=True)
    fused = FusedBiLSTM(8, 16)
    fused.load_state_dict(lstm.state_dict())
    sequences = torch.randn(shape)
    expected, _ = lstm(sequences.reshape(-1, 7, 8))
    torch.testing.assert_close(fused(sequences), expected.reshape(*shape[:-1], 32))


def test_its_weights_load_into_an_lstm():
    lstm, fused = nn.LSTM(4, 32, bidirectional=True, batch_first=True), FusedBiLSTM(4, 32)
    lstm.load_state_dict(fused.state_dict())
    sequences = torch.randn(3, 5, 4)
    torch.testing.assert_close(lstm(sequences)[0], fused(sequences))


def test_sequences_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"FusedBiLSTM: `sequences` must have shape \[sequences, time, 8\]"):
        FusedBiLSTM(8, 16)(torch.randn(5, 7, 9))
