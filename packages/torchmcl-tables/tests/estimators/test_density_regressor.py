"""DensityRegressor: answers, densities, intervals, members, partial_fit, and bad input."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from tables import QUICK, forked, noisy, two_outputs
from torchmcl_tables import DensityRegressor, Hypotheses, PredictionIntervals

SHORT = {**QUICK, "n_epochs": 4, "n_restarts": 1, "n_bins": 0}


@pytest.fixture(scope="module")
def model():
    X, y = forked(600)
    return DensityRegressor(n_hypotheses=2, n_epochs=150, hidden=(32,), learning_rate=0.03, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def double():
    X, Y = two_outputs()
    return DensityRegressor(**{**QUICK, "n_restarts": 1, "n_bins": 0}).fit(X, Y)


def test_both_branches_are_found_with_their_probabilities(model):
    answer = model.predict_hypotheses([[0.5, 0.5], [0.1, 0.9]])
    assert isinstance(answer, Hypotheses)
    assert answer.values.shape == (2, 2, 1)
    np.testing.assert_allclose(np.sort(answer.values[0, :, 0]), [-1.5, 1.5], atol=0.1)
    np.testing.assert_allclose(answer.probabilities, 0.5, atol=0.15)
    np.testing.assert_allclose(answer.probabilities.sum(axis=1), 1.0)


def test_density_of_a_row_integrates_to_one_in_the_units_of_y(model):
    X, y = forked(300)
    scaled = clone(model).set_params(**SHORT).fit(X, 1000 * y)
    grid = np.linspace(-30_000, 30_000, 30_001)
    logs = scaled.predict_distribution([[0.5, 0.5]]).log_prob(torch.from_numpy(grid)[:, None]).numpy()
    assert np.trapezoid(np.exp(logs), grid) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(scaled.log_prob(np.full((6, 2), 0.5), grid[::6000]), logs[::6000])


def test_intervals_are_unions_where_the_answer_forks(model):
    intervals = model.predict_interval([[0.5, 0.5]])
    assert isinstance(intervals, PredictionIntervals)
    assert intervals.n_pieces.tolist() == [2]
    assert intervals.contains([1.5]).tolist() == [True]
    assert intervals.contains([0.0]).tolist() == [False]
    lower, upper = intervals.hull
    assert lower[0] < -1.4
    assert upper[0] > 1.4
    assert intervals.width[0] < upper[0] - lower[0]


def test_several_outputs(double):
    X, Y = two_outputs()
    assert double.predict(X).shape == Y.shape
    assert double.predict_hypotheses(X).values.shape == (300, 5, 2)
    assert double.sample(X[:4], 3).shape == (4, 3, 2)
    assert double.log_prob(X, Y).shape == (300,)
    intervals = double.predict_interval(X)
    assert intervals.lower.shape[:2] == (300, 2)
    assert intervals.contains(Y).mean(axis=0) == pytest.approx([0.9, 0.9], abs=0.12)
    assert double.predict_distribution(X[:3]).event_shape == (2,)


def test_small_tables_have_five_networks_and_large_ones_one():
    X, y = noisy(60)
    settings = {"n_epochs": 1, "hidden": (2,), "batch_size": 60_000, "random_state": 0, "ensemble": False}
    assert len(DensityRegressor(**settings).fit(X, y).validation_losses_) == 5
    X, y = noisy(60_000)
    assert len(DensityRegressor(**settings).fit(X, y).validation_losses_) == 1


def test_the_best_epoch_is_kept_and_epochs_without_progress_end_the_training():
    X, y = noisy(60)
    quick = {**QUICK, "n_epochs": 80, "n_restarts": 1, "n_bins": 0, "ensemble": False}
    kept = DensityRegressor(**quick).fit(X, y)
    assert kept.best_epoch_ == np.nanargmin(kept.validation_curve_)
    assert kept.n_epochs_ == kept.best_epoch_ + 1 + 32 < 80  # two fifths of the epochs
    longer = DensityRegressor(**quick, patience=30).fit(X, y)
    assert longer.n_epochs_ == longer.best_epoch_ + 1 + 30
    last = DensityRegressor(**quick, keep_best=False).fit(X, y)
    assert (last.best_epoch_, last.n_epochs_) == (-1, 80)
    ended = DensityRegressor(**quick, keep_best=False, patience=5).fit(X, y)
    assert ended.best_epoch_ == -1
    assert ended.n_epochs_ < 80


def test_wide_tables_have_no_bins_by_default():
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(60, 200))
    settings = {**QUICK, "n_epochs": 1, "n_restarts": 1}
    assert "networks with bins" not in DensityRegressor(**settings).fit(wide, wide[:, 0]).member_weights_
    mostly_flags = np.c_[wide[:, :20], wide[:, 20:] > 0]
    assert "networks with bins" in DensityRegressor(**settings).fit(mostly_flags, wide[:, 0]).member_weights_


def test_where_there_is_nothing_to_learn_answers_are_not_worse_than_the_mean():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 5)), rng.normal(size=600)
    model = DensityRegressor(n_epochs=60, n_restarts=2, random_state=0).fit(X, y)
    fresh, truth = rng.normal(size=(2000, 5)), rng.normal(size=2000)
    of_mean = np.mean((truth - y.mean()) ** 2)
    assert np.mean((truth - model.predict(fresh)) ** 2) < 1.05 * of_mean
    best_possible = -0.5 * np.log(2 * np.pi * np.e)
    assert model.log_prob(fresh, truth).mean() > best_possible - 0.1


@pytest.mark.parametrize("n_hypotheses", [5, 7])
def test_integer_targets_are_answered_by_integers(n_hypotheses):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 2))
    y = rng.binomial(4, X[:, 0]).astype(float)
    model = DensityRegressor(n_hypotheses=n_hypotheses, **SHORT).fit(X, y)
    values, probabilities = model.predict_hypotheses(X)
    likely = values[probabilities > 1e-3]
    np.testing.assert_allclose(likely, likely.round(), atol=0.02)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    density = model.predict_distribution(X[:5])
    np.testing.assert_allclose(np.unique(density.hypotheses.numpy().round(9)), np.arange(5), atol=1e-6)
    samples = model.sample(X, 20, random_state=0)
    np.testing.assert_allclose(samples, samples.round(), atol=0.05)
    assert model.predict_interval(X).contains(y).mean() > 0.85
    assert model.score(X, y) > 0.3


def test_kinds_member_weights_and_numbers_of_networks():
    X, y = forked(100)
    quick = {**SHORT, "n_restarts": 2}
    every = DensityRegressor(**{**quick, "n_bins": None}).fit(X, y)
    assert list(every.member_weights_) == ["networks", "networks with bins", "forest", "background"]
    assert sum(every.member_weights_.values()) == pytest.approx(1)
    assert len(every.modules_) == 4
    assert every.predict_distribution(X).probabilities.shape == (100, 4 * 5 + 50 + 2)
    for n_bins in (0, 10):
        one_kind = DensityRegressor(**{**quick, "n_bins": n_bins}).fit(X, y)
        assert list(one_kind.member_weights_) == ["networks", "forest", "background"]
        assert one_kind._fitted.predictive.encoders[0].has_bins == (n_bins > 0)
    single = DensityRegressor(**{**quick, "n_bins": None}, ensemble=False).fit(X, y)
    assert list(single.member_weights_) == ["networks", "background"]
    assert len(single.modules_) == 1


@pytest.mark.parametrize("integers", [False, True])
def test_order_copies_and_equal_weights_do_not_matter_to_the_last_bit(integers):
    X, y = forked(80)
    y = np.maximum(np.round(2 * y), -3) if integers else np.maximum(y, -1.8)  # piled up at an end
    quick = {**SHORT, "n_bins": None}
    counts = np.random.default_rng(0).integers(0, 4, size=80)
    order = np.random.default_rng(1).permutation(int(counts.sum()))
    many = X.repeat(counts, axis=0), y.repeat(counts)
    weighted = DensityRegressor(**quick).fit(X, y, sample_weight=0.7 * counts)
    repeated = DensityRegressor(**quick).fit(*(part[order] for part in many))
    alike = DensityRegressor(**quick).fit(*many, np.full(len(order), 3))
    for one, two in ((weighted, repeated), (repeated, alike)):
        assert one.member_weights_ == two.member_weights_
        np.testing.assert_array_equal(one._fitted.targets.bounds, two._fitted.targets.bounds)
        np.testing.assert_array_equal(one.transform(X), two.transform(X))
        for left, right in zip(one.predict_interval(X), two.predict_interval(X), strict=True):
            np.testing.assert_array_equal(left, right)


def test_without_held_out_rows_all_members_count_alike():
    model = DensityRegressor(**SHORT, validation_fraction=0.0).fit(*forked(60))
    assert model.member_weights_ == pytest.approx({"networks": 0.475, "forest": 0.475, "background": 0.05})
    assert np.isinf(model.predict_interval([[0.5, 0.5]]).lower).all()


@pytest.mark.parametrize("n_rows", [*range(2, 8), 12, 20])
def test_a_handful_of_rows_is_enough_for_answers(n_rows):
    X, y = forked(n_rows)
    model = DensityRegressor(**{**SHORT, "n_bins": None}).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(model.transform(X)).all()
    assert np.isfinite(model.log_prob(X, y)).all()
    assert not np.isnan(model.predict_interval(X).hull).any()


def test_forks_keep_two_pieces_and_one_peak_keeps_one():
    X, y = forked(800)
    quick = {"n_restarts": 1, "n_epochs": 60, "n_bins": 0, "random_state": 0}
    two = DensityRegressor(**quick).fit(X, y).predict_interval(X)
    assert (two.n_pieces == 2).mean() > 0.9
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 3))
    one = DensityRegressor(**quick).fit(X, X @ [1, 2, 3] + rng.normal(size=800)).predict_interval(X)
    assert (one.n_pieces > 1).mean() < 0.05
    X, y = noisy(800)
    assert (DensityRegressor(**quick).fit(X, y).predict_interval(X).n_pieces > 1).mean() < 0.05


def test_any_number_of_answers_comes_of_one_fit(model):
    inputs, _ = forked(20)
    for n in (1, 2, 9):
        values, probabilities = model.predict_hypotheses(inputs[:4], n)
        assert values.shape == (4, n, 1)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.predict_hypotheses(inputs, 2).values, model.predict_hypotheses(inputs).values)
    with pytest.raises(ValueError, match=r"n_hypotheses.*must be"):
        model.predict_hypotheses(inputs, 0)


def test_the_mean_of_skewed_targets_is_not_trimmed():
    X, y = noisy(300)
    model = DensityRegressor(**SHORT).fit(X, np.exp(2 * y))
    blend, background = model._fitted.predictive, model.member_weights_["background"]
    assert blend.trim > 0
    assert background < 0.3  # only the background, with mean 0, is excluded
    np.testing.assert_allclose(blend.standardized(X).mean, (1 - background) * blend.means(X), atol=1e-6)


def everything(model, X):
    sets = model.predict_interval(X)
    return [model.predict(X), model.transform(X), sets.lower, model.sample(X, 2, random_state=0), model.loss_curve_]
