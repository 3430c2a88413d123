"""The Triton kernels compute what the plain formulas compute: in Triton's interpreter, or on a GPU if there is one."""

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("triton", reason="triton is not installed")

from torchmcl_fleet.gpu import linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter computes padded entries too, with NumPy, which warns of infinity - infinity.
pytestmark = pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.filterwarnings("ignore::RuntimeWarning")


def draw(*shape):
    return torch.randn(*shape, device=DEVICE)


@pytest.mark.parametrize("decays", [None, (0.1, 0.0, 0.3)], ids=["no decay", "decay"])
def test_adam_of_three_models_is_that_of_torch(decays):
    flat, rates = draw(3, 700), (0.01, 0.1, 0.003)
    alone = [torch.nn.Parameter(row.clone()) for row in flat]
    optimizers = [
        torch.optim.AdamW([row], lr=lr, weight_decay=decay)
        for row, lr, decay in zip(alone, rates, decays or (0.0, 0.0, 0.0), strict=True)
    ]
    lr = torch.tensor(rates, device=DEVICE).unsqueeze(-1)
    decay = None if decays is None else torch.tensor(decays, device=DEVICE).unsqueeze(-1)
    mean, square, n_steps = torch.zeros_like(flat), torch.zeros_like(flat), torch.zeros(3, 1, device=DEVICE)
    for _ in range(5):
        grad = draw(3, 700)
        n_steps += 1
        linear.adam_rows(flat, grad, mean, square, n_steps, lr, decay, (0.9, 0.999), 1e-8)
        for row, optimizer, g in zip(alone, optimizers, grad, strict=True):
            row.grad = g.clone()
            optimizer.step()
    assert_close(flat, torch.stack([row.detach() for row in alone]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("needs_inputs", [True, False])
@pytest.mark.parametrize(
    ("n_models", "n_rows", "n_in", "n_out", "rectified"),
    [(3, 5, 6, 50, True), (2, 300, 50, 10, False), (1, 700, 17, 128, True), (2, 1, 1, 1, False)],
)
def test_linear_layers_of_many_models(n_models, n_rows, n_in, n_out, rectified, needs_inputs):
    inputs, weight, bias = draw(n_models, n_rows, n_in), draw(n_models, n_out, n_in), draw(n_models, n_out)
    upstream = draw(n_models, n_rows, n_out)
    leaves = [part.double().requires_grad_() for part in (inputs, weight, bias)]
    exact = torch.einsum("mri,moi->mro", leaves[0], leaves[1]) + leaves[2].unsqueeze(1)
    exact = exact.relu() if rectified else exact
    outputs = linear.linear_rows(inputs, weight, bias, rectified)
    assert_close(outputs.double(), exact.detach(), rtol=1e-4, atol=1e-4)
    pulled = linear.linear_rows_backward(inputs, weight, outputs, upstream, rectified, needs_inputs)
    expected = torch.autograd.grad(exact, leaves, upstream.double())
    assert needs_inputs or pulled[0] is None
    for actual, right in zip(pulled, expected, strict=True):
        if actual is not None:
            assert_close(actual.double(), right, rtol=1e-3, atol=1e-3)
