"""Compare the fused LSTM with nn.LSTM; a program, since Triton decides on its interpreter when it is first imported.

TRITON_INTERPRET=1 python bilstm_program.py cpu     small cases, in the interpreter
python bilstm_program.py cuda                       large cases, on the GPU
"""

import sys

import torch
from torch import nn

from torchmcl import dispatch
from torchmcl_speech.nn import FusedBiLSTM

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


if __name__ == "__main__":
    device = sys.argv[1]
    if device == "cpu":
        dispatch.runs_triton = lambda tensor: True
    n_runs = 2 if device == "cuda" else 1  # the interpreter runs programs one after the other
    for case in CASES[device]:
        first, *others = (errors(device, *case) for _ in range(n_runs))
        assert max(first) < (1e-5 if case[3] == torch.float32 else 2e-2), (case, first)
        assert all(first == other for other in others), "two runs differ: a race"
    print("all agree")
