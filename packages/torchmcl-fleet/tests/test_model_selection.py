"""How many hypotheses: known numbers of branches, the floor, and what is refused."""

import pytest
import torch

import torchmcl as mcl
from torchmcl.density import Mixture
from torchmcl_fleet.model_selection import _recommended, choose_n_hypotheses, least_distortions


def branches(n_rows, n_branches, noise=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n_rows, 1, generator=generator)
    branch = torch.randint(n_branches, (n_rows, 1), generator=generator)
    return x, 0.2 * x + branch - (n_branches - 1) / 2 + noise * torch.randn(n_rows, 1, generator=generator)


def network(n):
    return mcl.MultiHypothesisMLP(1, 1, n, hidden=(16,))


def test_as_many_hypotheses_as_branches_are_recommended():
    counts = choose_n_hypotheses(
        network, *branches(240, 3), candidates=(6, 1, 2, 3, 3), n_epochs=200, n_folds=3, n_restarts=2, share=0.95
    )
    assert counts.n_hypotheses == (1, 2, 3, 6)
    assert counts.distortions.shape == (4, 3, 2)
    assert counts.recommended == 3
    assert counts.means[0] > 20 * counts.means[2]
    assert all(error >= 0 for error in counts.errors + counts.restart_spreads)
    assert "3*" in str(counts)


def test_the_floor_is_below_what_was_reached():
    counts = choose_n_hypotheses(
        network, *branches(200, 1, noise=1.0), candidates=(1, 2, 4), n_epochs=60, n_folds=2, n_restarts=1,
        rule=mcl.WTA(), learning_rate=0.02, batch_size="all", scores=mcl.SoftmaxScores(), device="cpu", seed=3,
        progress=False,
    )  # fmt: skip
    assert all(0 < least <= mean * (1 + 1e-9) for least, mean in zip(counts.floor, counts.means, strict=True))


class InUnits(torch.nn.Module):
    def __init__(self, n, unit):
        super().__init__()
        self.network, self.unit = mcl.MultiHypothesisMLP(1, 1, n, hidden=(16,), scores=False), unit

    def forward(self, inputs):
        return mcl.Predictions(self.unit * self.network(inputs).hypotheses)


def test_the_floor_has_the_units_of_the_targets():
    x, y = branches(20, 2, noise=0.3)
    floors = [
        choose_n_hypotheses(
            lambda n, unit=unit: InUnits(n, unit), x, unit * y, candidates=(1, 2), n_epochs=1, n_folds=2,
            n_restarts=1, rule=mcl.WTA(), learning_rate=0.02,
        ).floor
        for unit in (1.0, 2.0**14)
    ]  # fmt: skip
    assert [least / 2.0**28 for least in floors[1]] == pytest.approx(list(floors[0]), rel=1e-3)


def test_several_targets_have_no_floor():
    x = torch.rand(40, 1)
    counts = choose_n_hypotheses(
        network, x, torch.randn(40, 2, 1), candidates=(1, 2), n_epochs=3, n_folds=2, n_restarts=1
    )
    assert counts.floor == (None, None)


def of(values, share=0.9, floor=(None, None, None)):
    return _recommended((1, 2, 4), torch.tensor(values).double().unsqueeze(-1), floor, share)


def test_the_reason_names_what_decided():
    assert "do not lower" in of([[1.0, 1.1], [1.2, 1.3], [1.2, 1.4]]).reason
    close = of([[1.0, 1.0], [0.5, 0.1], [0.1, 0.4]])
    assert close.recommended == 2
    assert "within one standard error" in close.reason
    saves = of([[1.0, 1.0], [0.1, 0.1], [0.01, 0.01]], floor=(0.9, 0.05, 0.001))
    assert saves.recommended == 2
    assert "achieves 91%" in saves.reason
    near = of([[1.0, 1.0], [0.1, 0.1], [0.01, 0.01]], floor=(0.9, 0.097, 0.001))
    assert "3% above the floor for 2" in near.reason
    largest = of([[1.0, 1.0], [0.5, 0.5], [0.1, 0.1]])
    assert largest.recommended == 4
    assert "largest candidate" in largest.reason


@pytest.mark.parametrize("dim", [1, 2])
def test_the_floor_of_a_gaussian_is_just_below_its_distortion_rate_function(dim):
    normal = Mixture(torch.zeros(1, 1, dim), torch.ones(1, 1), widths=1.0)
    floors = least_distortions(normal, [1, 2, 4])
    exact = [dim * number ** (-2 / dim) for number in (1, 2, 4)]
    for least, value in zip(floors, exact, strict=True):
        assert 0.85 * value < least < 1.001 * value


def test_the_floor_of_branches_is_their_noise():
    three = Mixture(torch.tensor([[[-1.0], [0.0], [1.0]]]), torch.full((1, 3), 1 / 3), widths=0.05)
    assert least_distortions(three, [3])[0] == pytest.approx(0.0025, rel=0.05)
