"""A loss of NaN is found at its batch, does not reach the weights, and there is a way on."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import torchmcl as mcl
from torchmcl.training import FiniteSteps, NonFiniteLoss

BATCHES = [torch.randn(4, 1, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def trained(batches, guard_of, upto=None):
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=2, hidden=(3,))
    optimizer = torch.optim.Adam(model.parameters())
    guard = guard_of(model)
    for number, inputs in enumerate(batches[:upto]):
        optimizer.zero_grad()
        loss = mcl.mcl_step(model, mcl.Batch(inputs, inputs.unsqueeze(1)), mcl.WTA()).loss
        loss.backward()
        if guard(loss, f"batch {number}"):
            optimizer.step()
    return model


def poisoned(value):
    return [*BATCHES[:2], torch.full((4, 1), value), BATCHES[3]]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e25])
def test_a_bad_batch_is_named_and_leaves_the_weights_as_they_were(value):
    models = []

    def guard_of(model):
        models.append(model)
        return FiniteSteps(model.parameters())

    with pytest.raises(NonFiniteLoss, match=r"`loss` of batch 2 must be finite, got (nan|inf)\. The weights are"):
        trained(poisoned(value), guard_of)
    assert same(models[0], trained(BATCHES, guard_of, upto=2))


def test_a_batch_may_be_left_out_with_a_warning():
    with pytest.warns(UserWarning, match=r"`loss` of batch 2 .*left out, as 1 of 1 may be"):
        model = trained(poisoned(float("nan")), lambda model: FiniteSteps(model.parameters(), skip=1))
    assert same(model, trained([*BATCHES[:2], BATCHES[3]], lambda model: FiniteSteps(model.parameters())))
    with pytest.raises(NonFiniteLoss, match="batch 1"), pytest.warns(UserWarning, match="batch 0"):
        trained([torch.full((4, 1), float("nan"))] * 3, lambda model: FiniteSteps(model.parameters(), skip=1))


def test_an_infinite_gradient_of_a_finite_loss_is_found_too():
    weight = torch.zeros(2, requires_grad=True)
    loss = weight.sqrt().sum()
    loss.backward()
    with pytest.raises(NonFiniteLoss, match="`gradient` of batch 7 must be finite, got inf"):
        FiniteSteps([weight])(loss, "batch 7")
    assert weight.grad is None


def test_large_gradients_are_not_taken_for_infinite_ones():
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.full((3,), 1e30)
    assert FiniteSteps([weight])(torch.tensor([1.0, 2.0]), "batch 0")


@pytest.mark.parametrize("skip", [-1, 1.5, True, "2"])
def test_the_number_of_batches_to_leave_out_is_checked(skip):
    with pytest.raises(ValueError, match="FiniteSteps: `skip` must be a whole number >= 0"):
        FiniteSteps([], skip=skip)


@pytest.mark.filterwarnings("ignore")
def test_lightning_stops_at_the_batch_and_keeps_the_last_checkpoint(tmp_path):
    pytest.importorskip("lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lightning_program import QUIET
        from torchmcl.lightning import FiniteTraining, MCLModule
        from torchmcl.lightning._backend import pl

    def fitted(skip, batches):
        torch.manual_seed(0)
        network = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=2, hidden=(3,))
        data = DataLoader([mcl.Batch(x, x.unsqueeze(1)) for x in batches], batch_size=None)
        options = {**QUIET, "max_epochs": 1, "callbacks": [FiniteTraining(skip)], "default_root_dir": tmp_path}
        pl.Trainer(**options).fit(MCLModule(network, mcl.WTA()), data)
        return network

    with pytest.raises(NonFiniteLoss, match=r"`loss` of batch 2 of epoch 0 \(step 2\) must be finite, got nan"):
        fitted(0, poisoned(float("nan")))
    network = fitted(1, poisoned(float("nan")))
    assert all(parameter.isfinite().all() for parameter in network.parameters())
    assert same(network, fitted(0, [*BATCHES[:2], BATCHES[3]]))
