"""The work of the extension in C: the arguments that it supports, and its shares of rows on several threads."""

import pytest
import torch

import torchmcl as mcl
from torchmcl_fleet import native

pytestmark = pytest.mark.skipif(not native.available(), reason="the C extension was not built")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_gradients_of_a_step(dtype):
    batch = mcl.Batch(torch.zeros(2, 1), torch.randn(2, 2, 3, dtype=dtype))

    def losses(hypotheses, logits):
        output = mcl.mcl_step(lambda _: mcl.Predictions(hypotheses, logits), batch, mcl.AnnealedWTA(0.5))
        return torch.stack([output.assignment_loss, output.score_loss])

    inputs = torch.randn(2, 4, 3, dtype=dtype), torch.randn(2, 4, dtype=dtype)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(losses, inputs, vectorize=True), jacobian(losses, inputs))


@pytest.mark.parametrize(("n_rows", "entries_of_row"), [(70, 2000), (64, 2000), (1, 200_000), (5, 2)])
def test_blocks_end_with_the_last_row(n_rows, entries_of_row):
    shares = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        native.in_blocks(lambda first, last: shares.append((first, last)), n_rows, entries_of_row, 32)
    finally:
        torch.set_num_threads(before)
    rows = [row for first, last in sorted(shares) for row in range(first, last)]
    assert rows == list(range(n_rows))
    assert all(first % 32 == 0 for first, _ in shares)


def test_no_share_runs_after_an_exception():
    begun, ended = [], []

    def part(first, last):
        begun.append(first)
        if first == 0:
            raise ValueError("the first share")
        torch.randn(200_000).sort()
        ended.append(first)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="the first share"):
            native.on_threads(part, 100)
        assert len(ended) == len(begun) - 1
    finally:
        torch.set_num_threads(before)
