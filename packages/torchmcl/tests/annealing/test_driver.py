"""The driver of `AutoAnnealing` calls for the changes that the policy decides on, of active models only."""

import pytest
import torch

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing, CostScale
from torchmcl.annealing.driver import AnnealingDriver
from torchmcl.annealing.moves import Samples

N_EPOCHS = 40


class Changes:
    """Weights that only note what is changed."""

    def __init__(self):
        self.rewound, self.parted, self.moved = [], [], []

    def rewind(self, models):
        self.rewound.append(models.tolist())

    def separate(self, factors):
        self.parted.append((factors > 0).tolist())

    def move(self, moves):
        self.moved.append(moves.source.tolist())


def sizes(*means):
    mean = torch.tensor(means)
    return CostScale(mean, mean, torch.zeros_like(mean), torch.ones_like(mean, dtype=torch.bool))


def two_modes_of_one_hypothesis(n_models):
    targets = torch.tensor([-1.0, 1.0, 5.0]).repeat(100).view(1, 300, 1).expand(n_models, 300, 1)
    hypotheses = torch.tensor([0.0, 5.0, 5.01]).view(1, 1, 3, 1).expand(n_models, 300, 3, 1)
    return Samples(hypotheses, targets, torch.ones(n_models, 300, dtype=torch.bool))


def driven(*falls, model=None, active=None):
    """Return the changes of models whose costs are `fall**-epoch`."""
    n_models, changes = len(falls), Changes()
    driver = AnnealingDriver(AutoAnnealing.stacked([AutoAnnealing()] * n_models), model, n_models=n_models)
    driver.state = driver.initial(sizes(*[1.0] * n_models), N_EPOCHS)
    for epoch in range(1, N_EPOCHS + 1):
        measured = sizes(*(fall**-epoch for fall in falls))
        samples = lambda: two_modes_of_one_hypothesis(n_models)  # noqa: E731
        driver.end_epoch(measured, epoch, N_EPOCHS, changes, samples, active=active)
    return changes


@pytest.fixture
def model():
    return mcl.MultiHypothesisMLP(1, 1, 3, hidden=(4,))


def test_a_probe_without_gain_is_rewound_and_hypotheses_are_parted_when_they_begin_to_cool(model):
    changes = driven(1.0, 3.0, model=model)
    assert changes.rewound == [[True, False]]
    assert changes.parted == [[True, False], [False, True]]
    assert changes.moved[0] == [[0, 1, 0], [0, 1, 2]]  # the first one cools earlier


def test_models_that_are_not_active_are_left_alone(model):
    changes = driven(1.0, 3.0, model=model, active=torch.tensor([False, False]))
    assert [changes.rewound, changes.parted, changes.moved] == [[], [], []]


def test_a_model_without_a_head_is_not_changed():
    changes = driven(1.0, 3.0)
    assert [changes.rewound, changes.parted, changes.moved] == [[], [], []]
