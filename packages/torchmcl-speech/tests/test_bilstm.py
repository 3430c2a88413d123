"""The fused bidirectional LSTM computes what nn.LSTM computes, in the interpreter of Triton or on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from grids import for_each
from torchmcl_speech.nn import FusedBiLSTM

PROGRAM = Path(__file__).parent / "bilstm_program.py"
COMPILER = Path(__file__).parent / "hopper_program.py"


def _run(device, **environment):
    return subprocess.run(
        [sys.executable, PROGRAM, device], env=os.environ | environment, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run for real on this machine")
def test_the_kernels_give_the_values_and_gradients_of_an_lstm_in_the_interpreter():
    pytest.importorskip("triton", reason="triton is not installed")
    run = _run("cpu", TRITON_INTERPRET="1")
    assert "all agree" in run.stdout, run.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernels_give_the_values_and_gradients_of_an_lstm_on_the_gpu():
    run = _run("cuda")
    assert "all agree" in run.stdout, run.stderr[-3000:]


@pytest.mark.slow
@for_each("name", ["forward", "backward"])
def test_the_kernels_for_hopper_compile_and_keep_their_loops_in_registers(name):
    """They cannot run in the interpreter, but any machine with Triton can compile them for that GPU."""
    pytest.importorskip("triton", reason="triton is not installed")
    run = subprocess.run([sys.executable, COMPILER, name], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    report = json.loads(run.stdout)
    assert report["products"] >= 32
    assert report["stack_bytes"] <= 64  # a few numbers that wait for the end of a loop


@for_each("shape", [(5, 7, 8), (2, 5, 7, 8)])
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
