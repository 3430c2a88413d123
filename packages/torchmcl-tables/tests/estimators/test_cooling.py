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
from torchmcl_tables.estimators import MCLRegressor
from torchmcl_tables.estimators._networks import Examples, Training


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
        "progress": False,
    }
    return Training(WTA(), learning_rate, 0.0, **how)


@pytest.fixture
def trained():
    return a_training().run(
        lambda: MultiHypothesisMLP(3, 1, 2, hidden=(16,)), examples(200, seed=0), examples(50, seed=1)
    )


def weights(trained):
    return torch.cat([value.flatten() for module in trained.modules for value in module.state_dict().values()])


@pytest.mark.parametrize(("best", "cools"), [(0, False), (1, True), (15, True), (16, False), (19, False)])
def test_networks_are_cooled_where_they_stopped_between_a_tenth_and_four_fifths(trained, best, cools):
    stopped = replace(trained, best_epochs=torch.tensor([best, best]))
    cooled = a_training().cooled(stopped, examples(200, seed=0))
    assert torch.equal(weights(cooled), weights(stopped)) is not cools
    if cools:
        assert cooled.history.seconds > stopped.history.seconds
        assert torch.equal(cooled.history.losses, stopped.history.losses)
        assert (weights(cooled) - weights(stopped)).abs().max() < 0.1  # it is a short way


def test_cooling_lowers_the_loss_and_leaves_what_it_began_with(trained):
    stopped, train = replace(trained, best_epochs=torch.tensor([5, 9])), examples(200, seed=0)
    before = weights(stopped).clone()
    cooled = a_training().cooled(stopped, train)

    def loss(networks):
        found = [network(train.inputs).hypotheses for network in networks.modules]
        return sum((each - train.targets).square().amin(dim=1).mean().item() for each in found)

    assert loss(cooled) < loss(stopped)
    assert torch.equal(weights(stopped), before)


@pytest.mark.parametrize("rate", [0.02, Cosine(0.02, 0.0, 20), lambda epoch: 0.001 * (epoch + 1)])
def test_a_further_training_begins_at_a_share_of_the_highest_rate(rate, tmp_path):
    training = replace(a_training(rate), progress="Model", checkpoint=tmp_path)
    further = training.further(epochs=0.25, rate=0.1, name="all rows")
    assert further.n_epochs == 5
    assert [further.learning_rate(0), further.learning_rate(5)] == pytest.approx([0.002, 0.0])
    assert further.progress == "Model, all rows"
    assert further.checkpoint == tmp_path / "all-rows"


@pytest.fixture
def cooled(monkeypatch):
    """Return a list that grows by whether networks were cooled, with each kind of networks."""
    calls, plain = [], Training.cooled

    def spy(training, trained, train):
        found = plain(training, trained, train)
        calls.append(found is not trained)
        return found

    monkeypatch.setattr(Training, "cooled", spy)
    return calls


QUICK = {"n_epochs": 30, "n_restarts": 2, "n_knots": 0, "random_state": 0}


@pytest.mark.parametrize("options", [{"keep_best": False}, {"validation_fraction": 0.0}])
def test_without_held_out_rows_or_an_epoch_to_keep_nothing_is_cooled(cooled, options):
    MCLRegressor(**QUICK | options).fit(*noisy(120))
    assert cooled == []


def test_what_is_cooled_is_what_predicts_and_the_same_again(cooled, monkeypatch, tmp_path):
    X, y = noisy(300)
    one, two = MCLRegressor(**QUICK).fit(X, y), MCLRegressor(**QUICK).fit(X, y, checkpoint=tmp_path)
    assert cooled == [True, True]
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    monkeypatch.setattr(Training, "cooled", lambda training, trained, train: trained)
    assert (MCLRegressor(**QUICK).fit(X, y).predict(X) != one.predict(X)).any()
