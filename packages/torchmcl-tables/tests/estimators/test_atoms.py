"""Targets that take few values: answers, draws, means and sets are made of these values."""

import itertools

import numpy as np
import pytest
import torch

from tables import QUICK
from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators.blend import AtomCalibrator, atoms_of, best_atoms, masses_above, pieces_of_atoms
from torchmcl_tables.estimators.calibration import reaching
from torchmcl_tables.estimators.rows import Rows

SHORT = {**QUICK, "n_epochs": 10, "n_restarts": 1, "n_bins": 0}


@pytest.mark.parametrize("n_points", [1, 2, 3, 6, 9])
def test_the_best_atoms_are_those_that_brute_force_finds(n_points):
    rng = np.random.default_rng(n_points)
    atoms = np.sort(rng.normal(size=6))
    masses = rng.dirichlet(np.full(6, 0.3), size=20)
    places, shares = (part.numpy() for part in best_atoms(torch.from_numpy(atoms), torch.from_numpy(masses), n_points))
    assert places.shape == shares.shape == (20, min(n_points, 6))
    assert (np.diff(places, axis=1) > 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    for own, chosen in zip(masses, places, strict=True):
        squares = (atoms[:, None] - atoms) ** 2
        every = [own @ squares[:, list(some)].min(axis=1) for some in itertools.combinations(range(6), len(chosen))]
        assert own @ squares[:, chosen].min(axis=1) == pytest.approx(min(every), abs=1e-12)


def test_masses_above_and_pieces():
    masses = torch.tensor([[0.5, 0.2, 0.3, 0.0]], dtype=torch.float64)
    above = masses_above(masses)
    assert above[0, 0] == 0
    assert 0 < above[0, 2] < 0.5 < above[0, 1] + 0.3
    assert above[0, 3] == pytest.approx(1)
    lower, upper = pieces_of_atoms(torch.tensor([[True, False, True, True]]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert (lower.tolist(), upper.tolist()) == ([[1, 3]], [[1, 4]])


def test_a_set_reaches_to_a_mean_that_is_near_and_not_to_one_behind_other_values():
    ends = torch.tensor([[0.0, 2.0], [0.0, torch.nan]]), torch.tensor([[1.0, 3.0], [1.0, torch.nan]])
    for mass, expected in ((0.01, [[-0.5, 3.0], [0.0, 1.5]]), (0.1, [[0.0, 3.0], [0.0, 1.0]])):
        means = torch.tensor([[-0.5], [1.5]])
        lower, upper = reaching(ends, means, lambda rows, low, high, mass=mass: torch.full((len(rows),), mass))
        assert [[lower[0, 0], upper[0, 1]], [lower[1, 0], upper[1, 0]]] == expected


@pytest.mark.parametrize("values", [[0.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [0.1, 0.2, 0.3]])
def test_few_values_are_answered_by_these_values_and_each_once(values):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    y = np.array(values)[rng.binomial(len(values) - 1, X[:, 0])]
    model = DensityRegressor(**SHORT).fit(X, y)
    answers, probabilities = model.predict_hypotheses(X)
    assert answers.shape == (300, min(5, len(values)), 1)
    assert np.isin(answers, values).all()  # to the last bit
    assert (np.diff(answers[..., 0], axis=1) > 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert model.transform(X).shape[1] == len(model.get_feature_names_out()) == 2 * answers.shape[1]
    assert model.predict_hypotheses(X, 2).values.shape == (300, 2, 1)
    assert np.isin(model.sample(X, 3, random_state=0), values).all()
    low, high = model.predict_interval(X).hull
    mean = model.predict(X)
    assert ((low <= mean) & (mean <= high)).all()


COUNTS = {
    "poisson": lambda rng, x: rng.poisson(np.exp(0.5 + 0.5 * x)),
    "geometric": lambda rng, x: rng.geometric(0.4, len(x)),
    "negative binomial": lambda rng, x: rng.negative_binomial(2, 0.3, len(x)),
    "tens": lambda rng, x: 10 * rng.poisson(2, len(x)),
    "halves": lambda rng, x: 0.5 * rng.poisson(2, len(x)) - 3,
    "cents": lambda rng, x: np.round(0.01 * rng.geometric(0.3, len(x)), 2),
}
CONTINUOUS = {
    "normal": lambda rng, x: x,
    "mostly zero": lambda rng, x: np.where(rng.random(len(x)) < 0.9, 0.0, x),
    "mostly zero or one": lambda rng, x: np.where(rng.random(len(x)) < 0.9, rng.integers(0, 2, len(x)), x),
    "rounded": lambda rng, x: x.round(2),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", [*COUNTS, *CONTINUOUS])
def test_counts_with_rare_values_are_discrete_and_continuous_targets_are_not(name, seed):
    rng = np.random.default_rng(seed)
    y = (COUNTS | CONTINUOUS)[name](rng, rng.normal(size=(300, 1))).astype(float)
    y = y.reshape(-1, 1)
    values = atoms_of(y[:250], y[250:])
    assert (values is not None) == (name in COUNTS)
    assert values is None or np.isin(y, values).all()


def test_a_target_without_noise_has_means_inside_of_its_sets():
    rng = np.random.default_rng(0)
    X = rng.integers(0, [4, 5], size=(400, 2)).astype(float)
    y = 9 + 3.1 * X[:, 0] + 0.7 * X[:, 1]
    model = DensityRegressor(**{**SHORT, "n_epochs": 60}).fit(X, y)
    sets, mean = model.predict_interval(X), model.predict(X)
    low, high = sets.hull
    assert ((low <= mean) & (mean <= high)).all()
    assert sets.contains(y).mean() > 0.88


def test_a_value_that_calibrates_and_is_none_of_the_few_is_in_no_set():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(400, 2)), rng.integers(0, 3, size=400).astype(float)
    model = DensityRegressor(**SHORT).fit(X, y)
    rows = Rows(X[:3], np.array([[0.0], [0.5], [7.0]]), np.ones(3), np.arange(3))
    assert AtomCalibrator.fit(model._fitted.predictive, rows, np.zeros(1)).scores.tolist()[1:] == [np.inf, np.inf]
    assert not model.predict_interval(X).contains(np.full(400, 0.5)).all()
