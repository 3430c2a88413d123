"""The LSTM in C computes what nn.LSTM computes, wherever no gradient is asked for."""

import pytest
import torch
from torch import nn

from torchmcl.accel.native import extension
from torchmcl_speech.kernels import recurrence
from torchmcl_speech.nn import BiLSTM

pytestmark = pytest.mark.skipif(not extension.available(), reason="the extension in C was not built")

# Outer and inner number of sequences, steps, features, hidden units; tiles that are not full, padded units.
SIZES = [(1, 1, 1, 1, 1), (2, 5, 7, 3, 6), (1, 33, 4, 8, 16), (3, 70, 3, 5, 17), (1, 4, 40, 96, 96), (2, 2, 2, 16, 33)]


def definition(lstm, sequences):
    """Return what torch computes in double precision."""
    plain = nn.LSTM(lstm.input_size, lstm.hidden_size, bidirectional=True, batch_first=True)
    plain.load_state_dict(lstm.state_dict())
    hidden, _ = plain.double()(sequences.double().flatten(0, 1))
    return hidden.unflatten(0, sequences.shape[:2])


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the function in C."""
    made = []
    real = recurrence.bilstm
    monkeypatch.setattr(recurrence, "bilstm", lambda *arguments: made.append(1) or real(*arguments))
    return made


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
@pytest.mark.parametrize(("outer", "inner", "steps", "features", "hidden"), SIZES)
def test_it_is_the_definition_for_all_sizes_and_orders_in_memory(calls, outer, inner, steps, features, hidden, order):
    torch.manual_seed(0)
    lstm = BiLSTM(features, hidden)
    shape = [(outer, inner, steps)[axis] for axis in order]
    back = [order.index(axis) for axis in range(3)]
    sequences = torch.randn(*shape, features).permute(*back, 3)
    with torch.no_grad():
        found = lstm(sequences)
        torch.testing.assert_close(found.double(), definition(lstm, sequences), atol=2e-6, rtol=2e-5)
    assert calls


def test_gates_far_out_saturate_and_what_is_not_a_number_stays_so(calls):
    lstm = BiLSTM(2, 5)
    sequences = torch.tensor([1e4, -1e4, 0.0, 1e30]).view(1, 4, 1, 1).expand(1, 4, 3, 2)
    with torch.no_grad():
        torch.testing.assert_close(lstm(sequences).double(), definition(lstm, sequences), atol=1e-6, rtol=1e-5)
        assert lstm(torch.full((1, 1, 1, 2), torch.nan)).isnan().all()
    assert calls


@pytest.mark.parametrize("scale", [30.0, 100.0, 1000.0])
def test_one_gate_far_out_leaves_what_the_others_say(calls, scale):
    torch.manual_seed(0)
    lstm, sequences = BiLSTM(5, 9), scale * torch.randn(1, 40, 7, 5)  # as inputs that were not standardized
    with torch.no_grad():
        torch.testing.assert_close(
            lstm(sequences).double(), definition(lstm, sequences), atol=2e-7 * max(scale, 30), rtol=2e-5
        )
    assert calls


def test_the_number_of_threads_changes_no_bit(calls):
    lstm, sequences, n_threads = BiLSTM(8, 12), torch.randn(1, 50, 6, 8), torch.get_num_threads()
    try:
        with torch.inference_mode():
            torch.set_num_threads(1)
            one = lstm(sequences)
            torch.set_num_threads(3)
            assert torch.equal(lstm(sequences), one)
    finally:
        torch.set_num_threads(n_threads)
    assert len(calls) == 2


def test_gradients_other_types_and_no_sequences_take_the_way_of_torch(calls):
    lstm = BiLSTM(4, 6)
    lstm(torch.randn(1, 2, 3, 4)).sum().backward()
    assert lstm.weight_hh_l0.grad is not None
    with torch.no_grad():
        lstm.double()(torch.randn(1, 2, 3, 4).double())
        assert BiLSTM(4, 6)(torch.randn(1, 0, 3, 4)).shape == (1, 0, 3, 12)
    assert not calls
