"""Automatic annealing of fleets: hypotheses are set apart, moved and lose no mode."""

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from problems import three_branches
from torchmcl_fleet import SGD, Adam, Fleet, FleetData


@pytest.mark.slow
@for_each("probabilities", [(1, 1, 1), (0.05, 0.9, 0.05)])
def test_automatic_annealing_loses_no_mode(probabilities):
    batch, fresh = three_branches(3000, probabilities), three_branches(2000, probabilities, seed=1)
    scale = batch.targets.std()
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(1, 1, 3, hidden=(64, 64)), 5, rule=mcl.AutoAnnealing())
    fleet.fit(FleetData.shared(batch.inputs, batch.targets / scale, 5), 60, batch_size=150, progress=False)
    hypotheses = scale * fleet.predict(fresh.inputs).hypotheses
    distortions = (hypotheses - fresh.targets).square().sum(dim=-1).amin(dim=-1).mean(dim=-1)
    assert (distortions < 1.5 * 0.03**2).all()


AUTO = mcl.AutoAnnealing()


@for_each("rule, n_epochs, constants", [(AUTO, 5, False), (AUTO, 20, True), (mcl.WTA(), 5, False)])
def test_hypotheses_of_a_fleet_begin_to_cool_with_constants_between_them_after_a_probe(rule, n_epochs, constants):
    data = FleetData.shared(torch.rand(40, 1), torch.randn(40, 1, 1), 2)
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(1, 1, 3, hidden=(8,)), 2, rule=rule, learning_rate=1e-9)
    fleet.fit(data, n_epochs, progress=False)  # without and with a probe
    hypotheses = fleet.predict(data.inputs[0]).hypotheses
    gaps = hypotheses[:, :, 1:] - hypotheses[:, :, :1]
    assert bool((gaps.std(dim=1) < 1e-5).all()) == constants
    assert (gaps.abs().amax(dim=1) > 1e-3).all()


@for_each("dtype, optimizer", [(torch.float32, Adam()), (torch.float64, SGD()), (torch.float32, SGD(momentum=0.9))])
def test_models_are_set_back_parted_and_moved_in_every_type_and_under_every_optimizer(dtype, optimizer):
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(80, 1, generator=random)
    branch = torch.where(torch.rand(80, 1, generator=random) < 0.5, 1.0, -1.0)
    sets = [(inputs.to(dtype), targets.unsqueeze(1).to(dtype)) for targets in (branch, 3 * inputs + 0.1 * branch)]
    data = FleetData.of_sets(sets, [0, 1])
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(1, 1, 3, hidden=(8,)).to(dtype), 2, rule=mcl.AutoAnnealing(), optimizer=optimizer
    )
    history = fleet.fit(data, 30, validation=data, progress=False)
    assert history.losses.isfinite().all()
    assert (history.temperatures[-1] == 0).all()
    assert fleet.state_dict()["last"].dtype == dtype
