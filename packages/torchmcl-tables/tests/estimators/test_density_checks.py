"""DensityRegressor under scikit-learn's own checks."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchmcl_tables import DensityRegressor

# One network, no forest and a batch of the whole table: few steps, which are what takes the time.
CHEAP = {"n_epochs": 12, "hidden": (16,), "batch_size": 512, "learning_rate": 0.1, "n_restarts": 1, "n_bins": 0}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:can't convert np.ndarray of type:UserWarning")
@parametrize_with_checks([DensityRegressor(**CHEAP, ensemble=False)])
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)
