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


@pytest.mark.parametrize("optimizer", [Adam(), SGD(), SGD(0.9)], ids=repr)
def test_weight_decay_shrinks_by_the_rate_whatever_the_gradient(optimizer):
    flat = torch.randn(3, 7)
    lr, decay = torch.tensor(LR).view(-1, 1), torch.tensor(DECAY).view(-1, 1)
    moved, _ = steps(optimizer, flat, torch.zeros(2, 3, 7), lr, decay)
    torch.testing.assert_close(moved, flat * (1 - lr * decay) ** 2)


@pytest.mark.parametrize("optimizer", [Adam(), SGD(0.9)], ids=repr)
def test_a_row_does_not_feel_the_others(optimizer):
    flat, gradients = torch.randn(3, 7), torch.randn(5, 3, 7)
    lr = torch.tensor(LR).view(-1, 1)
    moved, _ = steps(optimizer, flat, gradients, lr, None)
    broken = gradients.clone()
    broken[:, 1] = torch.nan
    harmed, _ = steps(optimizer, flat, broken, lr, None)
    assert torch.equal(moved[[0, 2]], harmed[[0, 2]])
    assert harmed[1].isnan().all()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Adam(beta1=1.0), ValueError, r"Adam: `beta1` must lie in \[0, 1\), got 1.0"),
        (lambda: Adam(beta2=-0.1), ValueError, r"Adam: `beta2` must lie in \[0, 1\), got -0.1"),
        (lambda: Adam(beta1="0.9"), TypeError, "Adam: `beta1` must be a number"),
        (lambda: Adam(beta2=float("nan")), ValueError, "Adam: `beta2` must be a number"),
        (lambda: Adam(epsilon=-1.0), ValueError, "Adam: `epsilon` must be >= 0"),
        (lambda: SGD(momentum=1.0), ValueError, r"SGD: `momentum` must lie in \[0, 1\), got 1.0"),
        (lambda: SGD(momentum=True), TypeError, "SGD: `momentum` must be a number"),
    ],
)
def test_bad_fields_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
