"""Networks that held-out rows stop while they still learn are trained for a while more, at a small rate."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tables import noisy
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.rules.winners import WTA
from torchmcl.schedules import Cosine
from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators.density import cooled as cooled_networks
from torchmcl_tables.estimators.training import Examples, Trainer


def examples(n, seed):
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.normal(size=(n, 3))).float()
    return Examples(inputs, torch.sin(2 * inputs[:, :1]).unsqueeze(1), np.ones(n))


RATE = Cosine(0.02, 0.0, 20)


def a_training(learning_rate=RATE):
    how = {
        "n_epochs": 20,
        "batch_size": 32,
        "seeds": [0, 1],
        "cost_fn": pairwise_sq_euclidean,
        "device": "cpu",
    }
    return Trainer(WTA(), learning_rate, 0.0, **how)


@pytest.fixture
def trained():
    trainer = a_training()
    validation = trainer.watching(examples(50, seed=1), None)
    return trainer(lambda: MultiHypothesisMLP(3, 1, 2, hidden=(16,)), examples(200, seed=0).for_all(2), validation)


def weights(trained):
    return torch.cat([value.flatten() for module in trained.modules for value in module.state_dict().values()])


@pytest.mark.parametrize(("best", "cools"), [(0, False), (1, True), (15, True), (16, False), (19, False)])
def test_networks_are_cooled_where_they_stopped_between_a_tenth_and_four_fifths(trained, best, cools):
    stopped = replace(trained, best_epochs=torch.tensor([best, best]))
    cooled = cooled_networks(a_training(), stopped, examples(200, seed=0))
    assert torch.equal(weights(cooled), weights(stopped)) is not cools
    if cools:
        assert cooled.history.seconds > stopped.history.seconds
        assert torch.equal(cooled.history.losses, stopped.history.losses)
        assert (weights(cooled) - weights(stopped)).abs().max() < 0.1  # it is a short way


def test_cooling_lowers_the_loss_and_leaves_what_it_began_with(trained):
    stopped, train = replace(trained, best_epochs=torch.tensor([5, 9])), examples(200, seed=0)
    before = weights(stopped).clone()
    cooled = cooled_networks(a_training(), stopped, train)

    def loss(networks):
        found = [network(train.inputs).hypotheses for network in networks.modules]
        return sum((each - train.targets).square().amin(dim=1).mean().item() for each in found)

    assert loss(cooled) < loss(stopped)
    assert torch.equal(weights(stopped), before)


@pytest.mark.parametrize(
    ("options", "cools"), [({}, True), ({"keep_best": False}, False), ({"validation_fraction": 0.0}, False)]
)
def test_without_held_out_rows_or_an_epoch_to_keep_nothing_is_cooled(options, cools, tmp_path):
    quick = {"n_epochs": 30, "n_restarts": 2, "n_bins": 0, "random_state": 0}
    DensityRegressor(**quick | options).fit(*noisy(300), checkpoint=tmp_path)
    assert (tmp_path / "kind-0" / "cooling").exists() == cools
