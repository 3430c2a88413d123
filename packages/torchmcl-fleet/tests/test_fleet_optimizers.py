"""The optimizers of a fleet step as those of torch.optim do, each row with its own numbers."""

import pytest
import torch

from torchmcl_fleet import SGD, Adam

LR = [0.1, 0.003, 0.02]
DECAY = [0.0, 0.1, 1.0]


def steps(optimizer, flat, gradients, lr, decay):
    flat, state = flat.clone(), optimizer.init(flat)
    for gradient in gradients:
        optimizer.update(flat, gradient, state, lr, decay)
    return flat, state


def torch_steps(make, row, gradients):
    parameter = torch.nn.Parameter(row.clone())
    optimizer = make([parameter])
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize(("beta1", "beta2", "epsilon"), [(0.9, 0.999, 1e-8), (0.0, 0.9, 1e-3)])
@pytest.mark.parametrize("decays", [None, DECAY])
def test_each_row_takes_the_steps_of_adamw(beta1, beta2, epsilon, decays):
    flat, gradients = torch.randn(3, 7), torch.randn(30, 3, 7)
    decay = None if decays is None else torch.tensor(decays).view(-1, 1)
    moved, state = steps(Adam(beta1, beta2, epsilon), flat, gradients, torch.tensor(LR).view(-1, 1), decay)
    for i in range(3):
        options = {"lr": LR[i], "betas": (beta1, beta2), "eps": epsilon, "weight_decay": decays[i] if decays else 0.0}
        expected = torch_steps(lambda p, o=options: torch.optim.AdamW(p, **o), flat[i], gradients[:, i])
        torch.testing.assert_close(moved[i], expected, atol=1e-6, rtol=1e-5)
    assert state["n_steps"].flatten().tolist() == [30, 30, 30]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_each_row_takes_the_steps_of_sgd(momentum):
    flat, gradients = torch.randn(3, 7), torch.randn(30, 3, 7)
    moved, _ = steps(SGD(momentum), flat, gradients, torch.tensor(LR).view(-1, 1), None)
    for i in range(3):
        expected = torch_steps(lambda p, i=i: torch.optim.SGD(p, lr=LR[i], momentum=momentum), flat[i], gradients[:, i])
        torch.testing.assert_close(moved[i], expected, atol=1e-6, rtol=1e-5)
