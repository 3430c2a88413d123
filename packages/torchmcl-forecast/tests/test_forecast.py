"""Frames that are read off a forecast agree with each other and with the mixture."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from quick_sales import sales

from torchmcl_forecast.forecast import mixture_quantiles


def test_quantiles_are_those_of_samples(fitted):
    found = fitted.forecast()
    drawn = found.sample(4000).filter(like="sample").to_numpy()
    exact = found.quantiles([0.1, 0.5, 0.9])
    spread = drawn.std(axis=1)
    for level in (0.1, 0.5, 0.9):
        off = (np.quantile(drawn, level, axis=1) - exact[f"q{level}"]) / spread
        assert np.abs(off).max() < 0.15


def test_quantiles_of_two_narrow_paths_jump_between_them():
    paths = torch.tensor([0.0, 10.0]).double().view(1, 2, 1, 1)
    found = mixture_quantiles(paths, torch.full_like(paths, 1e-3), torch.tensor([[0.3, 0.7]]).double(), [0.2, 0.4])
    torch.testing.assert_close(found.flatten(), torch.tensor([0.0, 10.0]).double(), atol=0.01, rtol=0)


def test_quantiles_far_from_zero_are_those_of_double_precision():
    generator = torch.Generator().manual_seed(0)
    paths = 1e9 + 5 * torch.randn(3, 6, 1, 2, dtype=torch.float64, generator=generator)
    scales = 0.01 + torch.rand(paths.shape, dtype=torch.float64, generator=generator)
    shares = torch.rand(3, 6, dtype=torch.float64, generator=generator).softmax(dim=1)
    found = mixture_quantiles(paths, scales, shares, [0.1, 0.5, 0.9])
    below = torch.special.ndtr((found.unsqueeze(2) - paths) / scales)
    levels = (shares[:, :, None, None] * below).sum(dim=2)
    torch.testing.assert_close(
        levels, torch.tensor([0.1, 0.5, 0.9]).double().view(3, 1, 1, 1).expand_as(levels), atol=1e-5, rtol=0
    )


def test_the_mean_is_that_of_the_futures_too(fitted):
    found = fitted.forecast()
    futures, shares = (found.futures().filter(like=name).to_numpy() for name in ("future", "probability"))
    # Futures are medians of sampled paths.
    np.testing.assert_allclose((futures * shares).sum(axis=1), found.mean()["mean"], rtol=0.02)


def test_fewer_futures_are_reduced_from_more(fitted):
    assert fitted.forecast().futures(1).filter(like="future").shape == (21, 1)
    most = fitted.forecast().paths.shape[1]
    with pytest.raises(ValueError, match=rf"Forecast\.futures: `n` must be at most the number of hypotheses, {most}"):
        fitted.forecast().futures(most + 1)


def test_the_mean_of_values_with_a_bound_is_that_of_samples(fitted):
    given = fitted.forecast()
    found = replace(given, paths=given.paths - given.paths.mean(dim=1, keepdim=True), least=0.0)
    drawn = found.sample(4000).filter(like="sample").to_numpy()
    off = (drawn.mean(axis=1) - found.mean()["mean"]) / drawn.std(axis=1)
    assert np.abs(off).max() < 0.08


def test_tubes_lie_around_the_median_and_are_wider_than_the_quantiles(fitted):
    found = fitted.forecast()
    tube, quantiles = found.tube(), found.quantiles([0.1, 0.5, 0.9])
    assert (tube.low <= quantiles["q0.5"]).all()
    assert (tube.high >= quantiles["q0.5"]).all()


def test_a_large_level_costs_a_forecast_no_digits(fitted, frame):
    found, level = replace(fitted.forecast(), least=-np.inf), 1e9
    high = replace(found, paths=found.paths + level)
    truth = actual(frame)
    for kind in ("futures", "quantiles", "mean", "tube", "sample"):
        one, other = (getattr(part, kind)().drop(columns=["unique_id", "ds"]) for part in (found, high))
        levels = [0 if "probability" in name else level for name in one]
        np.testing.assert_allclose(other - levels, one, atol=1e-3)
    scores = found.scores(truth) | {"crps": 0}
    assert high.scores(truth.assign(y=truth.y + level)) | {"crps": 0} == pytest.approx(scores, abs=1e-3)


def test_samples_are_repeatable_and_differ_between_seeds(fitted):
    found = fitted.forecast()
    assert found.sample(2, 1).equals(found.sample(2, 1))
    assert not found.sample(2, 1).equals(found.sample(2, 2))
    assert fitted.sample(3).filter(like="sample").shape == (21, 3)


def actual(frame):
    after = sales(157)
    return after[after.ds > frame.ds.max()]


def test_scores_are_better_for_what_was_forecast_than_for_the_opposite(fitted, frame):
    found, truth = fitted.forecast(), actual(frame)
    good, bad = found.scores(truth), found.scores(truth.assign(y=2 * truth.y.to_numpy()[::-1]))
    assert good.keys() == {"crps", "energy", "variogram", "distortion", "coverage"}
    assert all(good[name] < bad[name] for name in ("crps", "energy", "variogram", "distortion"))


def test_the_crps_is_that_of_gift_eval_by_hand(fitted, frame):
    truth = actual(frame)
    y = truth.y.to_numpy()
    quantiles = fitted.predict_quantiles()
    losses = []
    for level in np.arange(1, 10) / 10:
        error = y - quantiles[f"q{level:g}"].to_numpy()
        losses.append(2 * np.maximum(level * error, (level - 1) * error).sum() / np.abs(y).sum())
    assert fitted.forecast().scores(truth)["crps"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_missing_values_are_left_out_of_the_scores(fitted, frame):
    truth = actual(frame)
    truth.loc[truth.index[3], "y"] = np.nan
    assert all(np.isfinite(value) for value in fitted.forecast().scores(truth).values())


def test_scores_name_what_does_not_fit(fitted, frame):
    truth = actual(frame)
    with pytest.raises(ValueError, match="`actual`"):
        fitted.forecast().scores(truth[truth.unique_id != "shop 0"])
    with pytest.raises(ValueError, match="`actual`"):
        fitted.forecast().scores(truth.groupby("unique_id").head(5))


def test_a_far_path_costs_the_others_no_digits():
    paths, shares = torch.tensor([0.0, 1.0, 1e6]).double(), torch.tensor([0.6, 0.399, 0.001]).double()
    every = mixture_quantiles(paths.view(1, 3, 1, 1), torch.ones(1, 3, 1, 1).double(), shares.view(1, 3), [0.1, 0.9])
    cdf = (shares * torch.distributions.Normal(paths, 1.0).cdf(every.view(2, 1))).sum(dim=1)
    torch.testing.assert_close(cdf, torch.tensor([0.1, 0.9]).double(), rtol=0, atol=1e-6)


def test_futures_of_many_series_are_placed_in_parts(fitted):
    found = fitted.forecast()
    copies = 120  # 360 series, more than are placed at a time
    parts = [part.repeat(copies, *[1] * (part.ndim - 1)) for part in (found.paths, found.scales, found.probabilities)]
    many = replace(found, paths=parts[0], scales=parts[1], probabilities=parts[2])
    few, shares = many.reduced(3)
    assert few.shape == (copies * len(found.paths), 3, *found.paths.shape[2:])
    assert (shares[:, :-1] >= shares[:, 1:]).all()
    means = [(p * w[:, :, None, None]).sum(dim=1) for p, w in ((few, shares), (many.paths, many.probabilities))]
    torch.testing.assert_close(*means, rtol=0.05, atol=0.0)
    alone = found.reduced(3)[0]  # futures of a series do not depend on the others
    torch.testing.assert_close(few[: len(alone)], alone, rtol=1e-3, atol=0.0)
    assert many.reduced(3)[0] is few  # computed once


def test_scores_refuse_a_series_that_ends_before_the_others(fitted):
    found = fitted.forecast()
    actual = found.mean().rename(columns={"mean": "y"})
    last = actual.index[-1]
    assert found.scores(actual.assign(y=actual.y.where(actual.index != last)))["coverage"] == 1
    with pytest.raises(ValueError, match="the same steps after the end of every series"):
        found.scores(actual.drop(index=last))
