"""Compare the fused LSTM with nn.LSTM; a program, since Triton decides on its interpreter when it is first imported.

TRITON_INTERPRET=1 python bilstm_program.py cpu     small cases, in the interpreter
python bilstm_program.py cuda                       large cases, on the GPU
"""

import sys
from contextlib import contextmanager

import torch
from torch import nn

from torchmcl import dispatch
from torchmcl_speech.nn import BiLSTM, FusedBiLSTM
from torchmcl_speech.nn.dprnn import RecurrentPath

# Sizes [outer, sequences, time], features in, hidden units, type, whether the time axis comes first in memory.
CASES = {
    "cpu": (
        ((1, 1, 1), 3, 32, torch.float32, False),
        ((2, 5, 4), 6, 40, torch.float32, True),
        ((1, 17, 3), 6, 140, torch.float32, False),
        ((2, 5, 4), 7, 33, torch.float16, True),
    ),
    "cuda": (
        ((1, 1, 1), 3, 32, torch.float32, False),
        ((2, 37, 20), 64, 128, torch.float32, False),
        ((2, 37, 20), 30, 96, torch.float32, True),
        ((1, 33, 9), 16, 256, torch.float32, True),
        ((1, 700, 11), 30, 96, torch.bfloat16, False),
        ((22, 101, 100), 128, 128, torch.bfloat16, True),
        ((22, 100, 101), 128, 128, torch.bfloat16, False),
        ((1, 2200, 7), 64, 128, torch.bfloat16, False),  # many sequences: programs share tiles, cut at a step
        ((3, 1500, 13), 128, 128, torch.float16, True),
        ((2, 50, 20), 64, 128, torch.float16, False),
        ((1, 3, 1), 128, 128, torch.bfloat16, False),
        ((1, 33, 9), 16, 256, torch.bfloat16, False),
    ),
}

PATHS = {
    "cpu": (((2, 5, 4), 24, torch.float32), ((2, 3, 4), 16, torch.float16)),
    "cuda": (((3, 41, 30), 64, torch.float32), ((3, 101, 100), 128, torch.bfloat16), ((2, 70, 9), 48, torch.float16)),
}


def relative_error(value, exact):
    """Return the norm of the difference, relative to that of the exact value."""
    return float((value.double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))


def errors(device, sizes, n_in, hidden, dtype, transposed):
    """Return the errors of the output and of the gradients of the input and of each parameter."""
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
    of_signals = [relative_error(y.reshape(y_exact.shape), y_exact)]
    of_signals.append(relative_error(x.grad.reshape(x_exact.shape), x_exact.grad))
    return of_signals + [relative_error(getattr(fused, name).grad, p.grad) for name, p in exact.named_parameters()]


def errors_of_a_path(device, sizes, width, dtype):
    """Return the errors of a path of DPRNN (projection, norm and residual too) and of all its gradients."""
    torch.manual_seed(1)
    exact = RecurrentPath(width, width, BiLSTM).to(device, dtype).double()
    fused = RecurrentPath(width, width).to(device, dtype)
    torch.nn.init.normal_(exact.norm.bias)
    fused.load_state_dict(exact.state_dict())
    exact.load_state_dict(fused.state_dict())
    x = torch.randn(*sizes, width, dtype=dtype, device=device).transpose(1, 2).detach().requires_grad_()
    y = fused(x)
    assert type(y.grad_fn).__name__ == "_ProjectedNormBackward", y.grad_fn
    pull = torch.randn_like(y)
    y.backward(pull)
    # The definition, on the CPU without kernels.
    x_exact = x.detach().double().cpu().requires_grad_()
    with without_kernels():
        y_exact = exact.cpu()(x_exact)
    y_exact.backward(pull.double().cpu())
    of_signals = [relative_error(y.cpu(), y_exact), relative_error(x.grad.cpu(), x_exact.grad)]
    wanted = dict(exact.named_parameters())
    return of_signals + [relative_error(p.grad.cpu(), wanted[name].grad) for name, p in fused.named_parameters()]


@contextmanager
def without_kernels():
    """Compute by plain operations."""
    before, dispatch.runs_triton = dispatch.runs_triton, lambda tensor: False
    try:
        yield
    finally:
        dispatch.runs_triton = before


if __name__ == "__main__":
    device = sys.argv[1]
    if device == "cpu":
        dispatch.runs_triton = lambda tensor: True
    n_runs = 2 if device == "cuda" else 1  # the interpreter runs programs one after the other
    for case in CASES[device]:
        first, *others = (errors(device, *case) for _ in range(n_runs))
        assert max(first) < (1e-5 if case[3] == torch.float32 else 2e-2), (case, first)
        assert all(first == other for other in others), "two runs differ: a race"
    for sizes, width, dtype in PATHS[device]:
        first, *others = (errors_of_a_path(device, sizes, width, dtype) for _ in range(n_runs))
        assert max(first) < (1e-4 if dtype == torch.float32 else 3e-2), (sizes, first)
        assert all(first == other for other in others), "two runs differ: a race"
    print("all agree")
