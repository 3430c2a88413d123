"""Weights of members, widths of their kernels, and targets with few values; on simulated densities."""

import numpy as np
import pytest
import torch

from torchmcl_tables.estimators.blend import at_atoms, atoms_of
from torchmcl_tables.estimators.kernels import Kernels, background, forest_kernels, informed, mixed
from torchmcl_tables.estimators.weighing import blended, fitted_stretch, fitted_trim, fitted_widths, log_density


def normal(means, width=1.0):
    """Return one kernel for each row."""
    means = torch.as_tensor(means, dtype=torch.float64).reshape(-1, 1, 1)
    return Kernels(means, torch.ones(len(means), 1, dtype=torch.float64), torch.full_like(means, width))


def drawn(n=200, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=n)
    return centers, torch.from_numpy(centers + 0.3 * rng.normal(size=n))[:, None]


def loss_of(shares, members, targets, weights):
    """Return what shares minimise, from the definition: by integrals, without the formulas of `blended`."""
    mixed = Kernels.joined([member.times(float(share)) for member, share in zip(members, shares, strict=True)])
    grid = torch.linspace(-12, 12, 1501, dtype=torch.float64)
    cdf = (mixed.probabilities[..., None] * torch.special.ndtr((grid - mixed.values) / mixed.widths)).sum(dim=1)
    scores = torch.trapezoid((cdf - (grid >= targets).double()).square(), grid)
    counts = weights / weights.sum()
    doubt = 4.0 / len(members) / len(targets)
    unlikely = float(-(counts * log_density(mixed, targets)).sum())
    return float((counts * scores).sum().log()) + unlikely - doubt * np.log(shares).sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_shares_minimise_log_score_and_crps(weighted):
    centers, targets = drawn(30)
    members = [normal(centers + 0.4, 0.3), normal(centers - 0.2, 0.6), background(normal(centers))]
    weights = torch.linspace(0.1, 2, 30, dtype=torch.float64) if weighted else torch.ones(30, dtype=torch.float64)
    found = blended(members, targets, weights)
    assert found.sum() == pytest.approx(1)
    best = loss_of(found, members, targets, weights)
    steps = np.linspace(0.02, 0.96, 11)
    for one in steps:
        for two in steps[one + steps < 0.99]:
            assert best <= loss_of(np.array([one, two, 1 - one - two]), members, targets, weights) + 1e-3


def test_shares_do_not_depend_on_how_easily_targets_are_foreseen():
    centers, targets = drawn(60)
    members = [normal(centers + 0.1, 0.4), normal(centers, 0.9)]
    small = [member.moved(torch.tensor(1e-3), torch.tensor(0.0)) for member in members]
    ones = torch.ones(60, dtype=torch.float64)
    np.testing.assert_allclose(blended(small, 1e-3 * targets, ones), blended(members, targets, ones), atol=1e-4)


def test_a_member_that_is_far_better_gets_nearly_everything():
    centers, targets = drawn(500)
    shares = blended(
        [normal(np.zeros(500), 0.3), normal(centers, 0.3), background(normal(centers))], targets, torch.ones(500)
    )
    assert shares[1] > 0.95


def test_weights_are_copies_for_shares():
    centers, targets = drawn(40)
    members = [normal(centers + 0.3, 0.3), normal(centers, 0.8)]
    counts = np.random.default_rng(0).integers(1, 4, size=40)
    # Of a thousand times as many rows, so that the doubt, which counts rows and not weights, is nothing.
    some, many = np.tile(np.arange(40), 100), np.tile(np.arange(40).repeat(counts), 100)

    def shares(rows, weights):
        chosen = [Kernels(*(part[rows] for part in member)) for member in members]
        return blended(chosen, targets[rows], torch.as_tensor(weights, dtype=torch.float64))

    np.testing.assert_allclose(shares(some, np.tile(counts, 100)), shares(many, np.ones(len(many))), atol=2e-3)


def test_the_background_gets_nearly_everything_where_the_others_are_wrong():
    rng = np.random.default_rng(0)
    wrong = [normal(rng.normal(size=300), 0.2), normal(rng.normal(size=300), 0.5)]
    targets = torch.from_numpy(rng.normal(size=(300, 1)))
    assert blended([*wrong, background(wrong[0])], targets, torch.ones(300, dtype=torch.float64))[-1] > 0.85


@pytest.mark.parametrize("said", [0.1, 0.3, 0.6])
def test_widths_are_stretched_to_what_held_out_rows_show(said):
    centers, targets = drawn(2000)
    assert said * fitted_stretch(normal(centers, said), targets, torch.ones(2000)) == pytest.approx(0.3, rel=0.4)
    assert fitted_stretch(normal(centers, 0.3), targets, torch.ones(2000)) == 1.0


def test_the_width_of_the_forest_is_that_of_rows_its_trees_have_not_seen():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(300, 1, 1))
    targets = torch.from_numpy(centers[:, 0] + 0.2 * rng.normal(size=(300, 1)))
    # The second tree has seen all rows and knows them by heart.
    values = np.concatenate([centers, targets.numpy()[:, None]], axis=1)
    unseen = np.zeros((300, 2), dtype=bool)
    unseen[:, 0] = True
    _, floor, kernels = fitted_widths(values, np.zeros((300, 2)), unseen, targets, torch.ones(300))
    assert floor == 0.2
    torch.testing.assert_close(kernels.probabilities[:, 0], torch.ones(300, dtype=torch.float64))
    by_heart = fitted_widths(values, np.zeros((300, 2)), ~unseen, targets, torch.ones(300))
    assert by_heart[1] == 0.001
    nobody = fitted_widths(values, np.zeros((300, 2)), np.zeros_like(unseen), targets, torch.ones(300))
    torch.testing.assert_close(nobody[2].probabilities, torch.full((300, 2), 0.5, dtype=torch.float64))
    wide = forest_kernels(values, np.full((300, 2), 3.0), factor=0.5, floor=2.0)
    torch.testing.assert_close(wide.widths, torch.full_like(wide.widths, 2.5))


# ---------------------------------------------------------------------- few values


def test_values_that_come_again_are_atoms():
    counts = np.random.default_rng(0).integers(0, 6, size=(100, 1)).astype(float)
    np.testing.assert_array_equal(atoms_of(counts, counts[:10]), np.arange(6.0))
    assert atoms_of(counts, np.array([[0.5]])) is None  # held out, and another value
    assert atoms_of(np.random.default_rng(0).normal(size=(100, 1)), counts[:0]) is None
    assert atoms_of(counts.repeat(2, axis=1), counts[:0].repeat(2, axis=1)) is None  # several outputs
    assert atoms_of(np.zeros((20, 1)), counts[:0]) is None
    assert atoms_of(np.arange(4.0)[:, None].repeat(3, axis=0), counts[:0]) is None  # too few rows of each


def test_atoms_have_the_mass_of_what_is_nearest():
    kernels = normal([0.1, 0.5, 5.0], 0.3)
    masses = at_atoms(kernels, torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(masses.probabilities.sum(dim=1), torch.ones(3, dtype=torch.float64))
    expected = torch.special.ndtr(torch.tensor([(0.5 - 0.1) / 0.3, 0.0, (0.5 - 5) / 0.3], dtype=torch.float64))
    torch.testing.assert_close(masses.probabilities[:, 0], expected)
    assert masses.widths.max() <= 1e-3
    near = at_atoms(kernels, torch.tensor([0.0, 1e-4], dtype=torch.float64))
    assert near.widths.max() <= 1e-5


# ---------------------------------------------------------------------- what answers leave out


def test_trimming_takes_the_same_probability_from_both_ends():
    kernels = Kernels(
        torch.tensor([3.0, 0.0, 1.0, 2.0], dtype=torch.float64).reshape(1, 4, 1),
        torch.tensor([[0.1, 0.05, 0.5, 0.35]], dtype=torch.float64),
        torch.ones(1, 4, 1, dtype=torch.float64),
    )
    left = kernels.trimmed(0.1).probabilities
    torch.testing.assert_close(left, torch.tensor([[0.0, 0.0, 0.45, 0.35]], dtype=torch.float64) / 0.8)
    torch.testing.assert_close(kernels.trimmed(0.0), kernels)


def stray(n_rows):
    """Return rows with a narrow kernel at 0 and a few percent of the probability far away, to either side."""
    values = torch.tensor([0.0, 8.0, -8.0], dtype=torch.float64).reshape(1, 3, 1).expand(n_rows, 3, 1)
    probabilities = torch.tensor([0.96, 0.02, 0.02], dtype=torch.float64).expand(n_rows, 3)
    return Kernels(values, probabilities, torch.full_like(values, 0.5))


def test_answers_leave_out_kernels_that_no_target_is_near_to():
    targets = 0.5 * torch.randn(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(400, dtype=torch.float64)
    assert fitted_trim(stray(400), targets, weights, 3) >= 0.02
    targets[::25] = 8.0
    assert fitted_trim(stray(400), targets, weights, 3) < 0.02


def test_the_background_is_left_out_unless_the_others_learned_little():
    members = [normal([0.0, 1.0]), background(normal([0.0, 1.0]))]
    torch.testing.assert_close(informed(members, np.array([0.9, 0.1])), members[0])
    torch.testing.assert_close(informed(members, np.array([0.5, 0.5])), mixed(members, np.array([0.5, 0.5])))
