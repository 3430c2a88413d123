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


def test_mean_is_the_weighted_mean_of_the_hypotheses(model):
    X, _ = forked(20, seed=1)
    values, probabilities = model.predict_hypotheses(X)
    np.testing.assert_allclose(model.predict(X), (values[..., 0] * probabilities).sum(axis=1), atol=1e-5)


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


def test_wider_intervals_for_a_larger_coverage(model):
    X, _ = forked(50, seed=3)
    narrow, wide = model.predict_interval(X, 0.7).width, model.predict_interval(X, 0.95).width
    assert (wide >= narrow).all()
    assert wide.mean() > narrow.mean()


def test_too_few_calibration_rows_give_infinite_intervals():
    X, y = forked(40)
    intervals = DensityRegressor(**SHORT).fit(X, y).predict_interval(X[:2], 0.99)
    assert np.isneginf(intervals.lower).all()
    assert np.isposinf(intervals.upper).all()
    assert intervals.n_pieces.tolist() == [1, 1]


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


def test_a_weight_is_a_number_of_copies_also_in_minibatches():
    X, y = forked(60)
    weights = np.random.default_rng(0).integers(0, 4, size=60)
    settings = {**QUICK, "batch_size": 16, "n_epochs": 5, "n_restarts": 2}
    weighted = DensityRegressor(**settings).fit(X, y, sample_weight=weights)
    repeated = DensityRegressor(**settings).fit(X.repeat(weights, axis=0), y.repeat(weights))
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))
    np.testing.assert_array_equal(weighted.predict_interval(X).lower, repeated.predict_interval(X).lower)


def test_the_best_of_several_restarts_is_kept():
    X, y = forked(200)
    fitted = DensityRegressor(**{**SHORT, "n_restarts": 4}, ensemble=False).fit(X, y)
    assert fitted.validation_distortions_.shape == (4,)
    assert fitted.best_restart_ == fitted.validation_distortions_.argmin()
    assert len(fitted.modules_) == 1
    assert fitted.predict_hypotheses(X).values.shape == (200, 5, 1)


def test_small_tables_have_five_networks_and_large_ones_one():
    X, y = noisy(60)
    settings = {"n_epochs": 1, "hidden": (2,), "batch_size": 60_000, "random_state": 0, "ensemble": False}
    assert len(DensityRegressor(**settings).fit(X, y).validation_distortions_) == 5
    X, y = noisy(60_000)
    assert len(DensityRegressor(**settings).fit(X, y).validation_distortions_) == 1


def test_a_setting_that_is_changed_after_the_fit_changes_no_answer():
    X, y = noisy(60)
    fitted = DensityRegressor(**SHORT).fit(X, y)
    before = fitted.predict_hypotheses(X).values
    np.testing.assert_array_equal(fitted.set_params(n_hypotheses=2).predict_hypotheses(X).values, before)


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


def test_answers_are_double_whatever_the_question(model):
    X, y = forked(10)
    for rows in (X, X.astype(np.float32)):
        assert model.predict(rows).dtype == model.sample(rows).dtype == model.log_prob(rows, y).dtype == np.float64
        assert {part.dtype for part in model.predict_hypotheses(rows)} == {np.dtype(np.float64)}
        assert {ends.dtype for ends in model.predict_interval(rows)} == {np.dtype(np.float64)}
        assert model.predict_distribution(rows).hypotheses.dtype == torch.float64
    np.testing.assert_allclose(model.predict(X.astype(np.float32)), model.predict(X), rtol=1e-4, atol=1e-5)


def test_partial_fit_goes_on_after_fit_and_from_one_row():
    X, y = forked(100)
    fitted = DensityRegressor(**SHORT).fit(X, y)
    before = fitted.predict(X)
    fitted.partial_fit(X[:1], y[:1])
    assert not np.array_equal(before, fitted.predict(X))
    assert np.abs(before - fitted.predict(X)).max() < 1.5
    alone = DensityRegressor(**SHORT).partial_fit(X[:1], y[:1])
    assert np.isfinite(alone.predict(X)).all()


def test_bad_tables_are_named(model):
    X, y = forked(20)
    with pytest.raises(ValueError, match=r"DensityRegressor: `y` must vary, got the constant 3 in column 'y'"):
        DensityRegressor().fit(X, np.full(20, 3.0))
    with pytest.raises(ValueError, match=r"`y` must vary, got the constant 1 in column 'y1'"):
        DensityRegressor().fit(X, np.stack([y, np.ones(20)], axis=1))
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        DensityRegressor().fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="infinity"):
        DensityRegressor().fit(np.where(X > 0.9, np.inf, X), y)
    with pytest.raises(ValueError, match="NaN"):
        DensityRegressor().fit(X, np.where(y > 0, np.nan, y))
    with pytest.raises(ValueError, match="at least one non-zero"):
        DensityRegressor().fit(X, y, sample_weight=np.zeros(20))
    with pytest.raises(ValueError, match=r"DensityRegressor: `coverage` must lie in \(0, 1\), got 0"):
        model.predict_interval(X, 0)
    with pytest.raises(ValueError, match=r"DensityRegressor: `y` must have 20 rows and 1 columns, got \(19, 1\)"):
        model.log_prob(X, y[:19])
    with pytest.raises(ValueError, match=r"DensityRegressor: `y` must have 1 columns, as in the first fit, got 2"):
        clone(model).set_params(**SHORT).fit(X, y).partial_fit(X, np.stack([y, y], axis=1))


@pytest.mark.parametrize("how", ["fit", "partial_fit"])
@pytest.mark.filterwarnings("ignore")
def test_networks_that_all_diverge_are_no_model(how):
    X, y = noisy(100)
    model = DensityRegressor(**{**QUICK, "learning_rate": 1e30, "validation_fraction": 0.0, "n_restarts": 1})
    with pytest.raises(ValueError, match=r"`learning_rate` must let the training converge, got 1e\+30"):
        getattr(model, how)(X, y)
    assert not hasattr(model, "_fitted")


def test_further_rows_far_away_are_no_divergence():
    X, y = noisy(100)
    model = DensityRegressor(**{**QUICK, "learning_rate": 0.01}).partial_fit(X, y)
    for scale in (1e6, 1e9):
        model.partial_fit(scale * X, y)
        model.partial_fit(scale * X[:1], y[:1])
        model.partial_fit(X, scale * y)
        assert np.isfinite(model.predict(X)).all()


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


def test_a_value_between_that_comes_later_ends_the_atoms():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(200, 2)), rng.integers(0, 3, size=200).astype(float)
    model = DensityRegressor(**SHORT).fit(X, y)
    assert model.target_values_ is not None
    assert model.partial_fit(X, y).target_values_ is not None
    assert model.partial_fit(X[:5], y[:5] + 0.5).target_values_ is None
    assert np.isfinite(model.predict(X)).all()


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


def test_partial_fit_chooses_member_weights_again_and_keeps_the_forest(tmp_path):
    X, y = forked(300)
    model = DensityRegressor(**SHORT).fit(X, y)
    before, forest = model.member_weights_, model._fitted.predictive.forest
    model.partial_fit(*forked(300, seed=1))
    assert model.member_weights_.keys() == before.keys()
    assert model.member_weights_ != before
    assert list(model.member_weights_.values()) == model._fitted.predictive.weights.tolist()
    assert model._fitted.predictive.forest is forest
    fresh = DensityRegressor(**SHORT).partial_fit(X[:1], y[:1])
    assert fresh.member_weights_ == {"networks": 0.95, "background": 0.05}
    fresh.save(tmp_path / "model")
    assert (
        DensityRegressor.load(tmp_path / "model").partial_fit(X, y).member_weights_
        == fresh.partial_fit(X, y).member_weights_
    )


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


def test_the_mean_leaves_out_what_the_answers_leave_out():
    model = DensityRegressor(**SHORT).fit(*noisy(200))
    assert model._fitted.predictive.trim > 0
    X = noisy(20)[0]
    values, probabilities = model.predict_hypotheses(X)
    np.testing.assert_allclose((values[..., 0] * probabilities).sum(axis=1), model.predict(X), atol=1e-4)


def everything(model, X):
    sets = model.predict_interval(X)
    return [model.predict(X), model.transform(X), sets.lower, model.sample(X, 2, random_state=0), model.loss_curve_]


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_fails_leaves_the_model_as_it_was():
    X, y = noisy(100)
    model = DensityRegressor(**{**QUICK, "n_epochs": 5, "n_restarts": 1}).fit(X, y)
    before, names = everything(model, X), set(vars(model))
    wide = np.hstack([X, X, X])
    for targets, parameters in (
        (np.ones(100), {}),
        (np.where(y > 0, np.nan, y), {}),
        (y, {"learning_rate": 1e30, "validation_fraction": 0.0}),
        (y, {"n_epochs": 0}),
    ):
        old = model.get_params()
        with pytest.raises(ValueError, match=r"must|NaN"):
            model.set_params(**parameters).fit(wide, targets)
        model.set_params(**old)
        assert set(vars(model)) == names
        for one, two in zip(everything(model, X), before, strict=True):
            np.testing.assert_array_equal(one, two)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(wide, y)
    for one, two in zip(everything(model, X), before, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_fit_that_was_saved_is_not_repeated_and_another_one_is_refused(tmp_path):
    X, y = forked(60)
    settings = {**QUICK, "n_epochs": 5, "n_restarts": 2}
    whole, saved = DensityRegressor(**settings).fit(X, y), DensityRegressor(**settings).fit(X, y, checkpoint=tmp_path)
    plans = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("plan.json"))
    assert plans == [f"kind-{place}/{part}plan.json" for place in (0, 1) for part in ("cooling/", "")]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = DensityRegressor(**settings).fit(X, y, checkpoint=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    for model in (saved, again):
        np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    with pytest.raises(ValueError, match=r"Fleet.fit: `checkpoint` must be empty or contain this training run"):
        DensityRegressor(**{**settings, "random_state": 5}).fit(X, y, checkpoint=tmp_path)


@pytest.mark.parametrize(
    "parameters", [{"n_bins": 7, "keep_best": False}, {"ensemble": False, "validation_fraction": 0}]
)
def test_a_saved_model_answers_alike_and_learns_on(parameters, tmp_path):
    X, y = forked(100)
    model = DensityRegressor(**{**SHORT, **parameters}).fit(X, y)
    model.save(tmp_path / "model")
    loaded = DensityRegressor.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    for one, two in zip(everything(loaded, X), everything(model, X), strict=True):
        np.testing.assert_array_equal(one, two)
    further = everything(loaded.partial_fit(X, y), X), everything(model.partial_fit(X, y), X)
    for one, two in zip(*further, strict=True):
        np.testing.assert_array_equal(one, two)
