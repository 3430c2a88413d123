"""MCLRegressor: hypotheses, densities, intervals, weights, restarts, partial_fit, and bad input."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import torchmcl as mcl
from tables import QUICK, Counting, forked, noisy, two_outputs
from torchmcl.density import Mixture, best_points
from torchmcl_tables import Cooling, DensityRegressor, Hypotheses, MCLRegressor, PredictionIntervals
from torchmcl_tables.estimators.predictive import network_hypotheses


@pytest.fixture(scope="module")
def model():
    X, y = forked(600)
    return MCLRegressor(n_hypotheses=2, n_epochs=150, n_restarts=1, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def double():
    X, Y = two_outputs()
    return MCLRegressor(**QUICK).fit(X, Y)


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
    np.testing.assert_allclose(model.predict_distribution(X).mean[:, 0].numpy(), model.predict(X), atol=1e-5)


def test_distortion_is_the_squared_distance_to_the_nearest_hypothesis(model):
    X, y = forked(50, seed=1)
    values = model.predict_hypotheses(X).values[..., 0]
    expected = ((values - y[:, None]) ** 2).min(axis=1)
    assert model.distortion(X, y) == pytest.approx(expected.mean())
    weights = np.arange(50.0)
    assert model.distortion(X, y, weights) == pytest.approx((weights * expected).sum() / weights.sum())


def test_samples_have_both_branches_and_are_repeatable(model):
    samples = model.sample([[0.5, 0.5], [0.0, 0.0]], 400, random_state=0)
    assert samples.shape == (2, 400)
    assert 0.3 < (samples[0] > 0).mean() < 0.7
    np.testing.assert_array_equal(samples, model.sample([[0.5, 0.5], [0.0, 0.0]], 400, random_state=0))
    before = torch.random.get_rng_state()
    model.sample([[0.5, 0.5]])
    assert torch.equal(before, torch.random.get_rng_state())


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


@pytest.mark.slow
def test_coverage_on_fresh_rows_is_within_two_points_of_nominal():
    # Conformal coverage is a mean over calibration sets too. With 240 rows each the error of one is 3 points at 0.7;
    # over 20 of them, each with 300 fresh rows of its own, it is 0.9.
    settings = {**QUICK, "n_epochs": 5, "n_restarts": 1, "validation_fraction": 0.8, "n_bins": 0}
    coverages = (0.9, 0.7)
    covered = []
    for seed in range(20):
        fitted = MCLRegressor(**{**settings, "random_state": seed}).fit(*forked(600, seed=seed))
        fresh, truth = forked(300, seed=1000 + seed)
        covered.append([fitted.predict_interval(fresh, each).contains(truth).mean() for each in coverages])
    assert np.mean(covered, axis=0) == pytest.approx([0.9, 0.7], abs=0.02)


def test_too_few_calibration_rows_give_infinite_intervals():
    X, y = forked(40)
    intervals = MCLRegressor(**QUICK).fit(X, y).predict_interval(X[:2], 0.99)
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
    settings = {**QUICK, "batch_size": 16, "n_epochs": 5}
    weighted = MCLRegressor(**settings).fit(X, y, sample_weight=weights)
    repeated = MCLRegressor(**settings).fit(X.repeat(weights, axis=0), y.repeat(weights))
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))
    np.testing.assert_array_equal(weighted.predict_interval(X).lower, repeated.predict_interval(X).lower)


def test_learning_rate_may_be_a_schedule():
    X, y = forked(60)
    quick = {**QUICK, "n_epochs": 5, "rule": mcl.WTA()}
    one = MCLRegressor(**{**quick, "learning_rate": 0.05}).fit(X, y)
    two = MCLRegressor(**{**quick, "learning_rate": mcl.Cosine(0.05, 0.0, 5)}).fit(X, y)
    other = MCLRegressor(**{**quick, "learning_rate": mcl.Constant(0.05)}).fit(X, y)
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    assert not np.array_equal(one.predict(X), other.predict(X))


def test_the_best_of_several_restarts_is_kept():
    X, y = forked(200)
    fitted = MCLRegressor(**QUICK, n_restarts=4, ensemble=False).fit(X, y)
    assert fitted.validation_losses_.shape == (4,)
    assert fitted.best_restart_ == fitted.validation_losses_.argmin()
    assert len(fitted.modules_) == 1
    assert fitted.predict_hypotheses(X).values.shape == (200, 5, 1)


def test_an_ensemble_answers_with_the_points_that_stand_for_the_density_of_all():
    X, y = forked(200)
    fitted = MCLRegressor(**QUICK, rule=Cooling(), n_restarts=3).fit(X, y)
    n_networks = len(fitted.modules_)
    assert n_networks > 1
    values, probabilities = fitted.predict_hypotheses(X)
    assert values.shape == (200, 5, 1)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert fitted.transform(X).shape[1] == len(fitted.get_feature_names_out()) == 10
    parts = fitted._fitted.predictive
    every, shares = network_hypotheses(parts.modules, parts.encoder(X, np.float64), "cpu")
    assert every.shape == (200, 5 * n_networks, 1)
    points = best_points(Mixture(every, shares, fitted.bandwidth_(every, shares)), 5)
    expected = points.points.numpy() * parts.targets.scaler.scale + parts.targets.scaler.mean
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)
    density = fitted.predict_distribution(X)
    torch.testing.assert_close(density.widths[..., 0], points.deviations * parts.targets.scaler.scale[0])
    np.testing.assert_allclose(density.mean[:, 0], fitted.predict(X), atol=1e-5)


def test_a_network_that_failed_is_left_out():
    X, y = forked(600)
    fitted = MCLRegressor(
        n_hypotheses=2, rule=Cooling(), n_epochs=150, hidden=(32,), learning_rate=0.03, random_state=2
    ).fit(X, y)
    distortions = fitted.validation_losses_
    assert (distortions > 3 * np.median(distortions)).sum() == 5 - len(fitted.modules_) == 1


def test_small_tables_have_five_networks_and_large_ones_one():
    X, y = noisy(60)
    assert len(MCLRegressor(**{**QUICK, "n_epochs": 1}).fit(X, y).validation_losses_) == 5
    X, y = noisy(70_000)
    large = MCLRegressor(n_epochs=1, hidden=(2,), batch_size=60_000, random_state=0).fit(X, y)
    assert len(large.modules_) == 1


def test_the_final_fit_has_the_selecting_rows_too_and_keeps_the_bandwidth():
    X, y = noisy(200)
    quick = {**QUICK, "rule": Cooling(), "n_restarts": 2}
    without = MCLRegressor(**quick, final_fit_on_all_rows=False).fit(X, y)
    on = MCLRegressor(**quick).fit(X, y)
    assert on.bandwidth_ == without.bandwidth_
    np.testing.assert_array_equal(on.loss_curve_, without.loss_curve_)
    assert not np.array_equal(on.predict(X), without.predict(X))
    all_trained = MCLRegressor(**quick, validation_fraction=0.0)
    np.testing.assert_array_equal(
        all_trained.fit(X, y).predict(X),
        clone(all_trained).set_params(final_fit_on_all_rows=False).fit(X, y).predict(X),
    )


@pytest.mark.parametrize("given", [None, 112])
def test_no_batch_is_left_with_a_few_rows(given):
    # Of 225 rows, twice 112 leave one, whose gradient would throw the networks off.
    rule = Counting()
    settings = {**QUICK, "n_epochs": 2, "batch_size": given, "rule": rule, "n_restarts": 1, "n_bins": 0}
    MCLRegressor(**settings).fit(*noisy(244))
    steps = [rows for rows in rule.rows if rows != 24]  # so many rows are looked at after an epoch
    assert sum(steps) == 2 * 201 + 225  # two epochs, and one on all rows
    rule.rows.clear()
    MCLRegressor(**settings).partial_fit(*noisy(249))
    for rows in (steps[:-4], steps[-4:], rule.rows):
        assert max(rows) <= (given or 64)
        assert min(rows) > 0.7 * max(rows)


def test_the_bandwidth_is_never_chosen_on_rows_that_were_trained_on():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 6))
    y = X[:, 0] + 0.3 * rng.normal(size=200)
    model = MCLRegressor(rule=Cooling(), n_epochs=80, n_restarts=2, hidden=(32,), random_state=0).fit(X, y)
    chosen = model.bandwidth_
    model.set_params(learning_rate=1e-9, weight_decay=0.0).partial_fit(X[:1], y[:1])
    assert model.bandwidth_ == chosen
    for _ in range(10):  # a tenth of each call selects
        new = rng.normal(size=(60, 6))
        model.partial_fit(new, new[:, 0] + 0.3 * rng.normal(size=60))
    assert model.bandwidth_ != chosen
    assert model.bandwidth_.floor > 0.05


def test_a_setting_that_is_changed_after_the_fit_changes_no_answer():
    X, y = noisy(60)
    fitted = MCLRegressor(**{**QUICK, "n_epochs": 5}).fit(X, y)
    before = fitted.predict_hypotheses(X).values
    np.testing.assert_array_equal(fitted.set_params(n_hypotheses=2).predict_hypotheses(X).values, before)


def test_the_best_epoch_can_be_kept_and_patience_ends_the_training():
    X, y = noisy(60)
    kept = MCLRegressor(**{**QUICK, "n_epochs": 80}, rule=Cooling(), keep_best=True, n_restarts=1).fit(X, y)
    assert 0 <= kept.best_epoch_ < 80 == kept.n_epochs_
    assert kept.best_epoch_ == kept.validation_curve_.argmin()
    assert len(kept.loss_curve_) == 80
    patient = MCLRegressor(**{**QUICK, "n_epochs": 400, "rule": mcl.WTA()}, keep_best=True, patience=5)
    assert patient.fit(X, y).n_epochs_ < 400
    last = MCLRegressor(**QUICK, rule=Cooling()).fit(X, y)
    assert last.best_epoch_ == -1


def test_same_seed_same_fit_and_other_seed_other_fit():
    X, y = forked(80)
    fits = [MCLRegressor(**{**QUICK, "n_epochs": 5, "random_state": seed}).fit(X, y) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(fits[0].predict(X), fits[1].predict(X))
    assert not np.array_equal(fits[0].predict(X), fits[2].predict(X))


def test_answers_are_double_whatever_the_question(model):
    X, y = forked(10)
    for rows in (X, X.astype(np.float32)):
        assert model.predict(rows).dtype == model.sample(rows).dtype == model.log_prob(rows, y).dtype == np.float64
        assert {part.dtype for part in model.predict_hypotheses(rows)} == {np.dtype(np.float64)}
        assert {ends.dtype for ends in model.predict_interval(rows)} == {np.dtype(np.float64)}
        assert model.predict_distribution(rows).hypotheses.dtype == torch.float64
    np.testing.assert_allclose(model.predict(X.astype(np.float32)), model.predict(X), rtol=1e-4, atol=1e-5)


def test_partial_fit_learns_batch_by_batch():
    batches = [forked(100, seed=seed) for seed in range(15)]
    X, y = forked(200, seed=99)
    fitted = MCLRegressor(n_hypotheses=2, hidden=(16,), learning_rate=0.05, n_epochs=25, random_state=0)
    first = fitted.partial_fit(*batches[0]).distortion(X, y)
    for batch in batches[1:]:
        fitted.partial_fit(*batch)
    assert fitted.n_epochs_ == 15
    assert fitted.distortion(X, y) < min(0.2 * first, 0.02)
    assert fitted.predict_interval(X).contains(y).mean() == pytest.approx(0.9, abs=0.07)


def test_partial_fit_goes_on_after_fit_and_from_one_row():
    X, y = forked(100)
    fitted = MCLRegressor(**QUICK).fit(X, y)
    before = fitted.predict(X)
    fitted.partial_fit(X[:1], y[:1])
    assert not np.array_equal(before, fitted.predict(X))
    assert np.abs(before - fitted.predict(X)).max() < 1.5
    alone = MCLRegressor(**QUICK).partial_fit(X[:1], y[:1])
    assert np.isfinite(alone.predict(X)).all()


def test_constant_columns_of_inputs_do_no_harm():
    X, y = forked(80)
    fitted = MCLRegressor(**QUICK).fit(np.hstack([X, np.full((80, 1), 7.3)]), y)
    assert np.isfinite(fitted.predict(np.hstack([X, np.full((80, 1), 7.3)]))).all()


def test_unfitted_estimators_say_so():
    for method in ("predict", "predict_hypotheses", "predict_distribution", "predict_interval", "sample", "transform"):
        with pytest.raises(NotFittedError):
            getattr(MCLRegressor(), method)([[0.0]])


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"n_hypotheses": 0}, ValueError, r"MCLRegressor: `n_hypotheses` must be >= 1, got 0"),
        ({"n_restarts": 1.5}, TypeError, r"MCLRegressor: `n_restarts` must be a.* got 1.5"),
        ({"hidden": 64}, TypeError, r"MCLRegressor: `hidden` must be a sequence of sizes, got 64. One layer"),
        ({"hidden": (0,)}, ValueError, r"MCLRegressor: `hidden` must be >= 1, got 0"),
        ({"n_epochs": 0}, ValueError, r"MCLRegressor: `n_epochs` must be >= 1, got 0"),
        ({"batch_size": -1}, ValueError, r"MCLRegressor: `batch_size` must be >= 1, got -1"),
        ({"learning_rate": -1.0}, ValueError, r"MCLRegressor: `learning_rate` must be >= 0, got -1.0"),
        ({"weight_decay": -1.0}, ValueError, r"MCLRegressor: `weight_decay` must be >= 0, got -1.0"),
        ({"validation_fraction": 1.0}, ValueError, r"`validation_fraction` must lie in \[0, 1\), got 1.0"),
        ({"rule": "anneal"}, TypeError, r"MCLRegressor: `rule` must be an assignment rule, .* got 'anneal'"),
        (
            {"rule": 3},
            TypeError,
            r"MCLRegressor: `rule` must be an assignment rule, a function step -> rule or AutoAnn.* got 3",
        ),
    ],
)
def test_bad_parameters_are_named_in_fit(parameters, error, message):
    X, y = forked(20)
    with pytest.raises(error, match=message):
        MCLRegressor(**parameters).fit(X, y)


@pytest.mark.parametrize("kind", [MCLRegressor, DensityRegressor])
def test_masks_and_dates_are_refused_because_arrays_of_numbers_would_lose_what_is_missing(kind):
    X, y = forked(20)
    missing = np.arange(20) == 3
    days = np.where(missing, np.datetime64("NaT"), np.datetime64("2020-01-01", "D") + np.arange(20))
    masked = np.ma.array(X, mask=np.stack([missing, missing], axis=1))
    for inputs, targets, name in [(masked, y, "X"), (days[:, None], y, "X"), (X, masked[:, 0], "y"), (X, days, "y")]:
        with pytest.raises(ValueError, match=f"{kind.__name__}: `{name}` must be numbers without a mask, got"):
            kind(**QUICK).fit(inputs, targets)


def test_bad_tables_are_named(model):
    X, y = forked(20)
    with pytest.raises(ValueError, match=r"MCLRegressor: `y` must vary, got the constant 3 in column 'y'"):
        MCLRegressor().fit(X, np.full(20, 3.0))
    with pytest.raises(ValueError, match=r"`y` must vary, got the constant 1 in column 'y1'"):
        MCLRegressor().fit(X, np.stack([y, np.ones(20)], axis=1))
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        MCLRegressor().fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="infinity"):
        MCLRegressor().fit(np.where(X > 0.9, np.inf, X), y)
    with pytest.raises(ValueError, match="NaN"):
        MCLRegressor().fit(X, np.where(y > 0, np.nan, y))
    with pytest.raises(ValueError, match="at least one non-zero"):
        MCLRegressor().fit(X, y, sample_weight=np.zeros(20))
    with pytest.raises(ValueError, match=r"MCLRegressor: `coverage` must lie in \(0, 1\), got 0"):
        model.predict_interval(X, 0)
    with pytest.raises(ValueError, match=r"MCLRegressor: `y` must have 20 rows and 1 columns, got \(19, 1\)"):
        model.log_prob(X, y[:19])
    with pytest.raises(ValueError, match=r"MCLRegressor: `y` must have 1 columns, as in the first fit, got 2"):
        clone(model).set_params(**QUICK).fit(X, y).partial_fit(X, np.stack([y, y], axis=1))


def test_progress_shows_a_bar_with_the_name_of_the_estimator(capsys):
    X, y = forked(40)
    MCLRegressor(**{**QUICK, "n_epochs": 3}, progress=True).fit(X, y)
    assert "MCLRegressor" in capsys.readouterr().err
    MCLRegressor(**{**QUICK, "n_epochs": 3}).fit(X, y)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("how", ["fit", "partial_fit"])
@pytest.mark.parametrize("rule", [None, mcl.WTA()])
@pytest.mark.filterwarnings("ignore")
def test_networks_that_all_diverge_are_no_model(rule, how):
    X, y = noisy(100)
    model = MCLRegressor(**{**QUICK, "learning_rate": 1e30, "rule": rule, "validation_fraction": 0.0, "n_restarts": 1})
    with pytest.raises(ValueError, match=r"`learning_rate` must let the training converge, got 1e\+30"):
        getattr(model, how)(X, y)
    assert not hasattr(model, "_fitted")


def test_further_rows_far_away_are_no_divergence():
    X, y = noisy(100)
    model = MCLRegressor(**{**QUICK, "learning_rate": 0.01}).partial_fit(X, y)
    for scale in (1e6, 1e9):
        model.partial_fit(scale * X, y)
        model.partial_fit(scale * X[:1], y[:1])
        model.partial_fit(X, scale * y)
        assert np.isfinite(model.predict(X)).all()


def everything(model, X):
    sets = model.predict_interval(X)
    return [model.predict(X), model.transform(X), sets.lower, model.sample(X, 2, random_state=0), model.loss_curve_]


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_fails_leaves_the_model_as_it_was():
    X, y = noisy(100)
    model = MCLRegressor(**{**QUICK, "n_epochs": 5, "n_restarts": 1}).fit(X, y)
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


def test_columns_that_are_not_numbers_are_named_with_the_package_that_reads_them():
    pandas = pytest.importorskip("pandas")
    X, y = forked(40)
    table = pandas.DataFrame({"size": X[:, 0], "town": ["Ulm", "Bonn"] * 20})
    with pytest.raises(
        ValueError, match=r"MCLRegressor: `X` must have columns of numbers, got .*'town'.*torchmcl-tables"
    ):
        MCLRegressor().fit(table, y)


FAR = [(1.7e9, 10.0), (-1e15, 1e4), (0.0, 1e-12), (1e35, 1e30), (0.0, 1e-100)]


@pytest.mark.parametrize(("center", "unit"), FAR)
def test_targets_and_inputs_of_any_size_lose_no_digits(center, unit):
    X, y = forked(120)
    model = MCLRegressor(**{**QUICK, "n_epochs": 60, "n_hypotheses": 2, "n_restarts": 1}, rule=Cooling())
    values = model.fit(center + unit * X, center + unit * y).predict_hypotheses(center + unit * X).values[..., 0]
    assert (((values - center) / unit - y[:, None]) ** 2).min(axis=1).mean() < 0.1
