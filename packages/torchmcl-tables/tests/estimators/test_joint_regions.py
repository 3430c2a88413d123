"""Joint regions of several outputs: how many rows they hold, how large they are, and what is refused."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from tables import QUICK, noisy
from torchmcl.density import Mixture
from torchmcl_tables import Cooling, DensityRegressor, MCLRegressor, PredictionRegions


def together(n_rows, seed=0):
    """Return a table with two outputs that go up and down together."""
    rng = np.random.default_rng(seed)
    X, shared = rng.uniform(-1, 1, size=(n_rows, 2)), rng.normal(size=(n_rows, 1))
    return X, X + 0.5 * shared + 0.05 * rng.normal(size=(n_rows, 2))


@pytest.fixture(scope="module", params=[DensityRegressor(), MCLRegressor(rule=Cooling())], ids=["density", "rule"])
def model(request):
    return clone(request.param).set_params(**{**QUICK, "n_epochs": 60}).fit(*together(1500))


def test_regions_hold_what_they_promise(model):
    X, y = together(2000, seed=1)
    # 75 rows calibrate: over 16 fits the shares are 0.93 +- 0.02 and 0.51 +- 0.06.
    assert 0.85 < model.predict_region(X, 0.9).contains(y).mean() < 0.98
    assert 0.3 < model.predict_region(X, 0.5).contains(y).mean() < 0.7


def test_regions_of_outputs_that_go_together_are_smaller_than_products(model):
    X, _ = together(50, seed=1)
    widths = model.predict_interval(X, 0.95).width
    assert model.predict_region(X, 0.9).volume().mean() < 0.6 * widths.prod(axis=1).mean()


def test_regions_are_in_the_units_of_y():
    X, y = noisy(300)
    settings = {**QUICK, "n_epochs": 5, "n_restarts": 1, "n_bins": 0}
    plain, large = (DensityRegressor(**settings).fit(X, scale * y) for scale in (1.0, 1000.0))
    inside = [model.predict_region(X).contains(scale * y).mean() for model, scale in ((plain, 1.0), (large, 1000.0))]
    assert inside[1] == pytest.approx(inside[0], abs=0.1)  # other rows calibrate
    volumes = [model.predict_region(X[:50]).volume().mean() for model in (plain, large)]
    assert volumes[1] == pytest.approx(1000 * volumes[0], rel=0.5)


def test_the_volume_of_a_normal_is_that_of_its_ellipse():
    normal = Mixture(torch.zeros(1, 1, 2).double(), torch.ones(1, 1).double(), torch.tensor([1.0, 2.0]))
    level = float(normal.log_prob(torch.tensor([[1.5, 0.0]]).double()))  # half axes of 1.5 and 3
    assert PredictionRegions(normal, level).volume(100_000)[0] == pytest.approx(np.pi * 1.5 * 3, rel=0.02)


def test_bad_input_is_refused(model):
    X, y = together(5)
    with pytest.raises(ValueError, match=r"Regressor: `coverage` must lie in \(0, 1\), got 1.5"):
        model.predict_region(X, 1.5)
    regions = model.predict_region(X)
    with pytest.raises(ValueError, match=r"`y` must have the shape \(5, 2\), got \(5, 1\)"):
        regions.contains(y[:, 0])
    with pytest.raises(ValueError, match="`n_samples` must"):
        regions.volume(0)
