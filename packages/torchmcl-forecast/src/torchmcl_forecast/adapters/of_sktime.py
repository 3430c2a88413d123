"""Forecaster with the sktime interface `fit(y, X, fh)` for single series, several series and panels."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from torchmcl import WTA
from torchmcl.errors import bad_value
from torchmcl_forecast.forecast import Forecast
from torchmcl_forecast.forecaster import Forecaster
from torchmcl_forecast.frames import Columns, Panel, read_panel

if TYPE_CHECKING:
    BaseForecaster: Any = object
else:
    try:
        from sktime.forecasting.base import BaseForecaster
    except ImportError as error:
        raise ImportError("SktimeForecaster needs sktime: pip install sktime.") from error

__all__ = ["SktimeForecaster"]


class SktimeForecaster(BaseForecaster):
    """`Forecaster` with the sktime interface (``pip install sktime``).

    One network is trained on all instances of a panel and all columns of a table. `X` contains covariates with known
    future values. `predict` returns means; `predict_quantiles` and `predict_interval` return quantiles of each step;
    `forecast` returns futures with probabilities, tubes, samples and plots. All instances must end at the same time,
    and the steps between the times must be those of the index: no weekdays in daily periods, for example.

    Args:
        forecaster: Forecaster whose parameters are used; this class sets the column names and the covariates.

    Attributes:
        forecaster_: Fitted `Forecaster`.

    Example:
        >>> import warnings
        >>> import pandas as pd
        >>> from torchmcl_forecast import Forecaster
        >>> from torchmcl_forecast.adapters import SktimeForecaster
        >>> y = pd.Series(range(40), index=pd.period_range("2020-01", periods=40, freq="M"))
        >>> with warnings.catch_warnings(action="ignore"):
        ...     forecaster = SktimeForecaster(Forecaster(n_steps=1)).fit(y, fh=[1, 3])
        >>> forecaster.predict().index.astype(str).tolist()
        ['2023-05', '2023-07']
    """

    _tags = {  # noqa: RUF012
        "authors": ["torchmcl"],
        "maintainers": ["torchmcl"],
        "python_dependencies": ["torch"],
        "y_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "X_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:missing_values": True,
        "capability:unequal_length": False,  # the instances of a panel must end at the same time
        "capability:non_contiguous_X": False,
        "capability:categorical_in_X": False,
        "requires-fh-in-fit": True,
        "X-y-must-have-same-index": False,
    }

    # `update` moves the cutoff from which forecasts begin, so the past is needed.
    _config = {"remember_data": True}  # noqa: RUF012

    def __init__(self, forecaster: Forecaster | None = None) -> None:
        self.forecaster = forecaster
        super().__init__()

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: Any) -> "SktimeForecaster":  # noqa: N803
        horizon = int(_steps(fh, self.cutoff).max())
        self._names = list(y.columns)
        self._n_covariates = 0 if X is None else X.shape[1]
        forecaster = Forecaster() if self.forecaster is None else clone(self.forecaster)
        forecaster.set_params(series="unique_id", time="ds", value="y", known=self._covariates, past=())
        frame = self._long(y, X)
        self._expected_index(fh, read_panel("SktimeForecaster.fit", frame, Columns()), horizon)
        self.forecaster_ = forecaster.fit(frame, horizon=horizon)
        return self

    def forecast(self, X: pd.DataFrame | None = None) -> Forecast:  # noqa: N803
        """Return the forecast from the current cutoff; series are named by instance and column number.

        Args:
            X: Covariates of the horizon; required if `fit` had covariates.
        """
        future = None if not self._n_covariates else self._future(X)
        return self.forecaster_.forecast(self._long(self._y, self._X), future=future)

    def _predict(self, fh: Any, X: pd.DataFrame | None) -> pd.DataFrame:  # noqa: N803
        forecast = self.forecast(X)
        return self._wide(fh, forecast, forecast.mean()["mean"])

    def _predict_quantiles(self, fh: Any, X: pd.DataFrame | None, alpha: list[float]) -> pd.DataFrame:  # noqa: N803
        forecast = self.forecast(X)
        quantiles = forecast.quantiles(np.clip(alpha, 1e-6, 1 - 1e-6))
        parts = [self._wide(fh, forecast, quantiles.iloc[:, 2 + k]) for k in range(len(alpha))]
        names = self._get_varnames()
        columns = pd.MultiIndex.from_product([names, alpha])
        together = [parts[k].iloc[:, place] for place in range(len(names)) for k in range(len(alpha))]
        return pd.concat(together, axis=1).set_axis(columns, axis=1)

    @property
    def _covariates(self) -> list[str]:
        return [f"x{k}" for k in range(self._n_covariates)]

    def _long(self, y: pd.DataFrame, X: pd.DataFrame | None) -> pd.DataFrame:  # noqa: N803
        """Convert to a long frame with a series for each instance and column, in the order of sktime's predictions."""
        y = y.sort_index()
        covariates = {}
        if self._n_covariates and X is not None:
            covariates = dict(zip(self._covariates, X.reindex(y.index).to_numpy(dtype=float).T, strict=True))
        instances = _instances(y.index)
        times = _times(y.index)
        parts = [
            {
                "unique_id": [f"{name}/{k}" for name in instances],
                "ds": times,
                "y": y.iloc[:, k].to_numpy(),
                **covariates,
            }
            for k in range(y.shape[1])
        ]
        return pd.concat(map(pd.DataFrame, parts), ignore_index=True)

    def _future(self, X: pd.DataFrame | None) -> pd.DataFrame:  # noqa: N803
        if X is None:
            raise ValueError("SktimeForecaster: `X` is required in `predict`, because `fit` had covariates.")
        values = pd.DataFrame(X.to_numpy(dtype=float), columns=self._covariates).ffill().bfill()
        values["ds"] = _times(X.index)
        instances = _instances(X.index)
        return pd.concat(
            values.assign(unique_id=[f"{name}/{k}" for name in instances]) for k in range(len(self._names))
        )

    def _wide(self, fh: Any, forecast: Forecast, values: Any) -> pd.DataFrame:
        """Return the values of all series and steps in sktime's format: rows by instance and time of `fh`."""
        index = self._expected_index(fh, forecast.panel, forecast.horizon)
        # As in the long frame, series are ordered by column and then by instance.
        paths = np.asarray(values).reshape(len(self._names), -1, forecast.horizon)
        chosen = paths[:, :, _steps(fh, self.cutoff) - 1].reshape(len(self._names), -1)
        return pd.DataFrame(chosen.T, index=index, columns=self._names)

    def _expected_index(self, fh: Any, panel: Panel, horizon: int) -> pd.Index:
        """Return sktime's index of a forecast, which counts steps of its frequency after the last time of all series.

        Raises:
            ValueError: If the times after the end of each series are not the times of the index.
        """
        steps = _steps(fh, self.cutoff)
        if fh.freq is None and isinstance(self.cutoff, pd.DatetimeIndex):  # true for panels of dates
            times = self._y.index.get_level_values(-1).unique().sort_values()
            fh = type(fh)(steps, is_relative=True, freq=pd.infer_freq(times))
        index = fh.get_expected_pred_idx(self._y, cutoff=self.cutoff)
        times = panel.times_after(horizon).reshape(len(self._names), -1, horizon)[0, :, steps - 1].T
        if not np.array_equal(np.asarray(panel.grid.shown(times.ravel())), _times(index)):
            rule = "have a value at each time of its index frequency, and the same last time for all instances"
            raise ValueError(bad_value("SktimeForecaster", "y", rule, "other times", "Use Forecaster for such series."))
        return index

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters with a single training step for sktime's tests, which fit several hundred forecasters."""
        quick: dict[str, Any] = {"n_steps": 1, "hidden": (4,), "n_hypotheses": 2, "n_futures": 2, "batch_size": 8}
        return [{"forecaster": Forecaster(**quick, rule=WTA(), joint=joint)} for joint in (False, True)]


def _steps(fh: Any, cutoff: Any) -> NDArray[np.int64]:
    """Return the steps of a forecasting horizon, 1 for the first time after the cutoff."""
    return np.asarray(fh.to_relative(cutoff).to_pandas(), dtype=np.int64)


def _instances(index: pd.Index) -> list[str]:
    """Return the instance name of each row; "" without instances."""
    if not isinstance(index, pd.MultiIndex):
        return [""] * len(index)
    return ["/".join(map(str, key[:-1])) for key in index]


def _times(index: pd.Index) -> Any:
    """Return times that `Forecaster` accepts: dates or numbers."""
    times = index.get_level_values(-1)
    return (times.to_timestamp() if isinstance(times, pd.PeriodIndex) else times).to_numpy()
