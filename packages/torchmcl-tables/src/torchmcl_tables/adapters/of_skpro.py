"""A probabilistic regressor for skpro: `DensityRegressor` with `fit`, `predict_proba` and `predict_interval`."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import erf
from sklearn.base import clone

from torchmcl_tables.estimators import DensityRegressor

if TYPE_CHECKING:
    BaseProbaRegressor: Any = object
    NormalMixture: Any = object
else:
    try:
        from skpro.distributions.normal_mixture import NormalMixture
        from skpro.regression.base import BaseProbaRegressor
    except ImportError as error:
        raise ImportError("SkproRegressor needs skpro: pip install skpro.") from error

__all__ = ["KernelDistribution", "SkproRegressor"]

# Pairs of kernels that are compared at a time.
_AT_ONCE = 2**21


class KernelDistribution(NormalMixture):
    """The mixtures of normal kernels of all rows, as a skpro distribution.

    It is skpro's `NormalMixture` with exact energies, from which skpro computes the CRPS, and faster samples.

    Args:
        pi: [rows, kernels], the probabilities.
        mu: [rows, kernels, outputs], the centers.
        sigma: [rows, kernels, outputs], the standard deviations.
        index: of the rows.
        columns: of the outputs.

    Example:
        >>> import numpy as np
        >>> from torchmcl_tables.adapters import KernelDistribution
        >>> two = KernelDistribution(np.array([[0.5, 0.5]]), np.array([[[-1.0], [1.0]]]), np.full((1, 2, 1), 0.01))
        >>> float(two.energy().iloc[0, 0].round(2))  # the mean distance of two draws
        1.01
    """

    def _energy_self(self) -> Any:
        """Return the mean distance between two draws, [rows, 1], summed over outputs."""
        shares, centres, widths = self._pi, self._mu, self._sigma
        n_rows, n_kernels, _ = centres.shape
        at_once = max(1, _AT_ONCE // n_kernels**2)
        found = np.zeros((n_rows, 1))
        for start in range(0, n_rows, at_once):
            rows = slice(start, start + at_once)
            for centre, width in zip(np.moveaxis(centres[rows], -1, 0), np.moveaxis(widths[rows], -1, 0), strict=True):
                apart = centre[:, :, None] - centre[:, None]
                both = np.hypot(width[:, :, None], width[:, None])
                found[rows, 0] += np.einsum("rk,rkl,rl->r", shares[rows], _distance(apart, both), shares[rows])
        return found if self.ndim else float(found[0, 0])

    def sample(self, n_samples: int | None = None) -> Any:
        """Return draws from numpy's global generator, as skpro does; outputs of a row are drawn together.

        Args:
            n_samples: draws of each row; by default one, in a frame with the index of the distribution.
        """
        n_draws, (n_rows, _, n_outputs) = n_samples or 1, self._mu.shape
        below = self._pi.cumsum(axis=1)[None] < np.random.uniform(size=(n_draws, n_rows, 1))
        kernel = np.minimum(below.sum(axis=-1), self._pi.shape[1] - 1)
        rows = np.arange(n_rows)
        noise = np.random.normal(size=(n_draws, n_rows, n_outputs))
        draws = (self._mu[rows, kernel] + self._sigma[rows, kernel] * noise).reshape(-1, n_outputs)
        if not self.ndim:
            return float(draws[0, 0]) if n_samples is None else pd.DataFrame(draws)
        index = self.index if n_samples is None else pd.MultiIndex.from_product([range(n_draws), self.index])
        return pd.DataFrame(draws, index=index, columns=self.columns)

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> "KernelDistribution":
        return type(self)(**super()._iloc(rowidx, colidx).get_params(deep=False))

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> "KernelDistribution":
        return type(self)(**super()._iat(rowidx, colidx).get_params(deep=False))


def _distance(apart: NDArray[Any], deviation: NDArray[Any]) -> NDArray[Any]:
    """Return the mean absolute value of normal variables."""
    ratio = apart / (np.sqrt(2) * deviation)
    mean: NDArray[Any] = apart * erf(ratio) + np.sqrt(2 / np.pi) * deviation * np.exp(-np.square(ratio))
    return mean


class SkproRegressor(BaseProbaRegressor):
    """`DensityRegressor` with the interface of skpro (``pip install skpro``).

    `predict_interval` returns calibrated intervals: the hull of the sets of `DensityRegressor.predict_interval`, so
    infinite with too few rows to calibrate. `predict_proba` returns the density and `predict_quantiles` its
    quantiles, which are not calibrated.

    Args:
        regressor: with the parameters to use; `DensityRegressor()` by default.

    Attributes:
        regressor_: the fitted `DensityRegressor`, with answers, sets and regions.

    Example:
        >>> import pandas as pd
        >>> from torchmcl_tables import DensityRegressor
        >>> from torchmcl_tables.adapters import SkproRegressor
        >>> X = pd.DataFrame({"size": [float(k % 17) for k in range(80)]})
        >>> y = pd.DataFrame({"price": 3 * X["size"] + [0.1 * (k % 7) for k in range(80)]})
        >>> model = SkproRegressor(DensityRegressor(n_epochs=2, n_restarts=1, random_state=0)).fit(X, y)
        >>> model.predict_interval(X.head(2), coverage=0.5).columns.tolist()
        [('price', 0.5, 'lower'), ('price', 0.5, 'upper')]
    """

    _tags = {  # noqa: RUF012
        "authors": ["torchmcl"],
        "maintainers": ["torchmcl"],
        "python_dependencies": ["torch"],
        "capability:multioutput": True,
        "capability:missing": True,
        "capability:update": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, regressor: DensityRegressor | None = None) -> None:
        self.regressor = regressor
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame) -> "SkproRegressor":
        regressor = DensityRegressor() if self.regressor is None else clone(self.regressor)
        self.regressor_ = regressor.fit(_named(X), _values(y))
        return self

    def _update(self, X: pd.DataFrame, y: pd.DataFrame) -> "SkproRegressor":
        self.regressor_.partial_fit(_named(X), _values(y))
        return self

    def _predict(self, X: pd.DataFrame) -> pd.DataFrame:
        means = self.regressor_.predict(_named(X)).reshape(len(X), -1)
        return pd.DataFrame(means, index=X.index, columns=self._get_columns(method="predict"))

    def _predict_proba(self, X: pd.DataFrame) -> KernelDistribution:
        density = self.regressor_.predict_distribution(_named(X))
        kernels = (part.numpy() for part in (density.probabilities, density.hypotheses, density.widths))
        return KernelDistribution(*kernels, index=X.index, columns=self._get_columns(method="predict"))

    def _predict_interval(self, X: pd.DataFrame, coverage: list[float]) -> pd.DataFrame:
        named, hulls = _named(X), []
        for share in np.clip(coverage, 1e-6, 1 - 1e-6).tolist():
            hulls.append(np.stack(self.regressor_.predict_interval(named, share).hull, axis=-1).reshape(len(X), -1, 2))
        ends = np.stack(hulls, axis=2).reshape(len(X), -1)  # [rows, outputs, coverages, ends]
        columns = self._get_columns(method="predict_interval", coverage=coverage)
        return pd.DataFrame(ends, index=X.index, columns=columns)

    def _predict_quantiles(self, X: pd.DataFrame, alpha: list[float]) -> pd.DataFrame:
        found: pd.DataFrame = self._predict_proba(X).quantile(alpha)
        return found

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters with short training runs, for skpro's tests."""
        quick: dict[str, Any] = {"n_epochs": 1, "n_restarts": 1, "hidden": (4,), "random_state": 0}
        return [{"regressor": DensityRegressor(**quick, ensemble=ensemble)} for ensemble in (True, False)]


def _named(X: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with its column names converted to text."""
    return X.set_axis([str(name) for name in X.columns], axis=1)


def _values(y: pd.DataFrame) -> NDArray[Any]:
    """Return targets in the shape that `DensityRegressor` expects: [rows] for a single output."""
    values = y.to_numpy(dtype=float)
    return values[:, 0] if values.shape[1] == 1 else values
