"""The history has the watched value of every epoch; the best of them is the one that was kept."""

import torch

import torchmcl as mcl
from torchmcl_fleet import Fleet, FleetData, Validation


def fitted(patience=None):
    data = FleetData.shared(torch.randn(40, 2), torch.randn(40, 1, 1), n_models=3)
    watched = FleetData.shared(torch.randn(20, 2), torch.randn(20, 1, 1), n_models=3)
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(2, 1, 2, hidden=(4,)), 3, learning_rate=0.05, seeds=[0, 1, 2])
    return fleet.fit(data, 12, validation=Validation(watched, patience=patience), progress=False)


def test_the_least_watched_value_is_the_best_one():
    history = fitted()
    assert history.watched.shape == (12, 3)
    values, epochs = history.watched.min(dim=0)
    assert torch.equal(values, history.best_value)
    assert torch.equal(epochs, history.best_epoch)


def test_after_the_end_of_a_model_nothing_is_watched():
    history = fitted(patience=1)
    for model, stopped in enumerate(history.stopped_epoch.tolist()):
        if stopped >= 0:
            assert history.watched[stopped + 1 :, model].isnan().all()
            assert history.watched[: stopped + 1, model].isfinite().all()
