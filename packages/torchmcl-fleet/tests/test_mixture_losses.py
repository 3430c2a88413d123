"""Mixture losses in compiled code equal those of autograd."""

import pytest
import torch

import torchmcl as mcl
from torchmcl.costs import MixtureNLLWithCRPS
from torchmcl_fleet import Fleet, FleetData, Validation, native

needs_extension = pytest.mark.skipif(not native.available(), reason="the extension was not built")


def rows(n_rows=130, n_targets=1, dim=1):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(n_rows, 3, generator=generator)
    return inputs, 2 * torch.randn(n_rows, n_targets, dim, generator=generator)


def ladder(inputs):
    """Return inputs with columns that climb behind them."""
    steps = ((inputs[:, :1] + 2) / 4 * 12 - torch.arange(12)).clamp(0, 1)
    return torch.cat([inputs, steps], dim=1)


@needs_extension
@pytest.mark.parametrize("climbing", [False, True])
@pytest.mark.parametrize(
    ("crps", "n_targets", "dim", "hidden"), [(0.0, 1, 1, (9,)), (3.0, 1, 1, ()), (3.0, 3, 2, (9, 5)), (0.0, 2, 3, (9,))]
)
def test_compiled_code_trains_and_evaluates_as_autograd(climbing, crps, n_targets, dim, hidden):
    inputs, targets = rows(n_targets=n_targets, dim=dim)
    inputs = ladder(inputs) if climbing else inputs
    weights = torch.rand(len(inputs), generator=torch.Generator().manual_seed(2))

    def train(backend):
        fleet = Fleet(
            lambda: mcl.MultiHypothesisMLP(inputs.shape[1], dim, 4, hidden=hidden, scales=True),
            3,
            cost_fn=MixtureNLLWithCRPS(crps),
            score_weight=0,
            learning_rate=0.01,
            backend=backend,
        )
        held_out = Validation(FleetData.shared(inputs[:33], targets[:33], 3))
        data = FleetData.shared(inputs, targets, 3, weights=weights / weights.mean())
        history = fleet.fit(data, 8, batch_size=50, validation=held_out, progress=False)
        return {**fleet.state_dict(), "losses": history.losses, "watched": history.watched}

    expected, result = train("autograd"), train("compiled")
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@needs_extension
def test_far_and_narrow_mixtures_have_finite_losses():
    inputs, targets = rows()
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(3, 1, 4, hidden=(5,), scales=True),
        1,
        cost_fn=MixtureNLLWithCRPS(3.0),
        score_weight=0,
        backend="compiled",
    )
    history = fleet.fit(FleetData.shared(inputs, 1e4 * targets, 1), 2, progress=False)
    assert history.losses.isfinite().all()
