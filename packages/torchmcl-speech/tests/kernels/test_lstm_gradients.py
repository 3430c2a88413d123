"""The gradients of the weights of an LSTM are sums over its steps, in Triton's interpreter or on a GPU."""

import pytest
import torch
from torch.testing import assert_close

from grids import for_each

pytest.importorskip("triton", reason="triton is not installed")

from torchmcl_speech.kernels.lstm_gradients import weight_sums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def by_steps(gates, inputs, outputs, time_first):
    """Return the definition, from [sequences, steps, ...] or [steps, sequences, ...], in double precision."""
    if time_first:
        gates, inputs, outputs = (part.transpose(0, 1) for part in (gates, inputs, outputs))
    hidden, (n_sequences, n_steps) = outputs.shape[-1] // 2, gates.shape[:2]
    both = []
    for direction, ahead in ((0, -1), (1, 1)):
        pull = gates[..., 4 * hidden * direction : 4 * hidden * (direction + 1)]
        met = outputs.new_zeros(n_sequences, n_steps, hidden)
        for step in range(n_steps):
            if 0 <= step + ahead < n_steps:
                met[:, step] = outputs[:, step + ahead, hidden * direction : hidden * (direction + 1)]
        columns = torch.cat([inputs, met, torch.ones_like(inputs[..., :1])], dim=-1)
        both.append(torch.einsum("stg,stc->gc", pull, columns))
    return torch.stack(both)


# Hidden units and inputs fill a tile or not; 140 are more than a tile.
@for_each(
    "n_in, hidden, time_first, dtype",
    [
        (5, 16, False, torch.float32),
        (20, 33, True, torch.float32),
        (20, 33, False, torch.float16),
        (140, 16, True, torch.float16),
    ],
)
def test_the_sums_over_steps_are_those_of_the_definition(n_in, hidden, time_first, dtype):
    torch.manual_seed(0)
    n_sequences, n_steps = 9, 5
    sizes = (n_steps, n_sequences) if time_first else (n_sequences, n_steps)
    parts = [torch.randn(*sizes, n, device=DEVICE).to(dtype) for n in (8 * hidden, n_in, 2 * hidden)]
    flat = [part.flatten(0, 1).contiguous() for part in parts]
    sums = weight_sums(*flat, n_steps, stride_t=n_sequences if time_first else 1)
    assert sums.dtype == torch.float32
    exact = by_steps(*(part.double() for part in parts), time_first)
    assert_close(sums.double().sum(dim=0), exact, atol=1e-4, rtol=1e-4)
