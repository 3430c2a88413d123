"""Baselines of the table benchmark that consist of trees; each is fitted to a standardized table.

Whatever a method chooses (a number of trees, a leaf size), it chooses on rows that it holds out itself.
"""

import warnings
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import norm
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.model_selection import cross_val_predict, train_test_split

from benchmarks.tables._forecasts import (
    FINE_LEVELS,
    MID_LEVELS,
    N_POINTS,
    Forecast,
    Mixture,
    Predict,
    best_points,
    one_interval,
)


def ngboost(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """A normal distribution by natural gradient boosting; the number of trees on a tenth of the rows."""
    from ngboost import NGBRegressor

    train_x, held_x, train_y, held_y = train_test_split(inputs, targets, test_size=0.1, random_state=seed)
    model = NGBRegressor(n_estimators=500, learning_rate=0.04, verbose=False, random_state=seed)
    model.fit(train_x, train_y, X_val=held_x, Y_val=held_y, early_stopping_rounds=50)

    def predict(rows: np.ndarray) -> Forecast:
        found = model.pred_dist(rows, max_iter=model.best_val_loss_itr).params
        return _normal(found["loc"], found["scale"])

    return predict


_LEVELS = {"points": MID_LEVELS, "fine": FINE_LEVELS, "ends": np.array([0.05, 0.95])}


def _normal(mean: np.ndarray, std: np.ndarray) -> Forecast:
    """Return the forecast of normal distributions of means and deviations [rows]."""
    at = {name: mean[:, None] + std[:, None] * norm.ppf(levels) for name, levels in _LEVELS.items()}
    mixture = Mixture(np.ones((len(mean), 1)), mean[:, None], std[:, None])
    return Forecast(at["points"], best_points(at["fine"]), mean, mixture, one_interval(*at["ends"].T), at["fine"])


def xgboostlss(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """A normal distribution by XGBoostLSS; the number of trees on a tenth of the rows."""
    from xgboost import DMatrix
    from xgboostlss.distributions.Gaussian import Gaussian
    from xgboostlss.model import XGBoostLSS

    train_x, held_x, train_y, held_y = train_test_split(inputs, targets, test_size=0.1, random_state=seed)
    model = XGBoostLSS(Gaussian())
    how: dict[str, Any] = {"eta": 0.05, "nthread": 1, "seed": seed}
    train, held = DMatrix(train_x, train_y, nthread=1), DMatrix(held_x, held_y, nthread=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it turns tensors with gradients into numbers
        model.train(
            how,
            train,
            num_boost_round=1000,
            evals=[(train, "train"), (held, "held")],  # it takes exactly two, and the last one decides
            early_stopping_rounds=50,
            verbose_eval=False,
        )
    model.booster = model.booster[: model.booster.best_iteration + 1]

    def predict(rows: np.ndarray) -> Forecast:
        found = model.predict(DMatrix(rows, nthread=1)).to_numpy(dtype=np.float64)
        return _normal(found[:, 0], found[:, 1])

    return predict


def treeffuser(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """Treeffuser, a diffusion model of boosted trees, with its defaults; 100 samples represent its distribution."""
    from treeffuser import Treeffuser

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls LightGBM in a deprecated way
        model = Treeffuser(seed=seed, n_jobs=1).fit(inputs, targets)

    def predict(rows: np.ndarray) -> Forecast:
        drawn = np.sort(model.sample(rows, n_samples=100, seed=seed).reshape(100, len(rows)).T, axis=1)
        at = {name: np.quantile(drawn, levels, axis=1).T for name, levels in _LEVELS.items()}
        mixture, interval = Mixture.of_atoms(drawn), one_interval(*at["ends"].T)
        return Forecast(at["points"], best_points(at["fine"]), mixture.mean, mixture, interval, at["fine"])

    return predict


class QuantileForest:
    """Quantile regression forest: the training targets in the leaves of a row are its predictive distribution."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray, leaf: int, seed: int) -> None:
        self.forest = RandomForestRegressor(200, min_samples_leaf=leaf, random_state=seed)
        order = np.argsort(targets, kind="stable")
        self.targets = targets[order]
        self.forest.fit(inputs, targets)
        self.offsets = np.cumsum([0] + [tree.tree_.node_count for tree in self.forest.estimators_])
        own = self._leaves(inputs[order])
        sizes = np.asarray(own.sum(axis=0)).ravel()
        self.shares = (own @ sparse.diags_array(1 / np.maximum(sizes, 1))).T.tocsr() / len(self.offsets[1:])

    def _leaves(self, inputs: np.ndarray) -> sparse.csr_array:
        """Return the membership of each row in leaves, [rows, leaves of all trees]."""
        columns = self.forest.apply(inputs) + self.offsets[:-1]
        rows = np.repeat(np.arange(len(inputs)), columns.shape[1])
        shape = (len(inputs), int(self.offsets[-1]))
        return sparse.csr_array((np.ones(columns.size), (rows, columns.ravel())), shape=shape)

    def quantiles(self, inputs: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """Return quantiles [rows, levels]."""
        reached = (self._leaves(inputs) @ self.shares).toarray().cumsum(axis=1)
        places = np.stack([np.searchsorted(row, levels - 1e-9) for row in reached])
        return self.targets[np.minimum(places, len(self.targets) - 1)]


def quantile_forest(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """A quantile regression forest of 200 trees; the leaf size by pinball loss on a tenth of the rows."""
    train_x, held_x, train_y, held_y = train_test_split(inputs, targets, test_size=0.1, random_state=seed)

    def pinball(leaf: int) -> float:
        quantiles = QuantileForest(train_x, train_y, leaf, seed).quantiles(held_x, FINE_LEVELS)
        excess = held_y[:, None] - quantiles
        return float(np.maximum(FINE_LEVELS * excess, (FINE_LEVELS - 1) * excess).mean())

    forest = QuantileForest(inputs, targets, min((1, 3, 10), key=pinball), seed)

    def predict(rows: np.ndarray) -> Forecast:
        levels = np.concatenate([MID_LEVELS, [0.05, 0.95], FINE_LEVELS])
        found = forest.quantiles(rows, levels)
        fine = found[:, 7:]
        interval = one_interval(found[:, 5], found[:, 6])
        mean = forest.forest.predict(rows)
        return Forecast(found[:, :5], best_points(fine), mean, Mixture.of_atoms(fine), interval, fine)

    return predict


def _boosted_trees(inputs: np.ndarray, targets: np.ndarray, seed: int) -> HistGradientBoostingRegressor:
    """Return boosted trees that stop early by themselves, with the leaf size chosen on a tenth of the rows."""
    train_x, held_x, train_y, held_y = train_test_split(inputs, targets, test_size=0.1, random_state=seed)

    def trees(leaf: int) -> HistGradientBoostingRegressor:
        return HistGradientBoostingRegressor(
            max_iter=500, learning_rate=0.05, min_samples_leaf=leaf, early_stopping=True, random_state=seed
        )

    return trees(max((5, 20), key=lambda leaf: trees(leaf).fit(train_x, train_y).score(held_x, held_y)))


def mapie(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """MAPIE's CV+ intervals around boosted trees: the points are the mean and the ends at 40 % and 80 %."""
    from mapie.regression import CrossConformalRegressor

    levels = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98]
    trees = _boosted_trees(inputs, targets, seed)
    model = CrossConformalRegressor(trees, confidence_level=levels, cv=5, random_state=seed)
    model.fit_conformalize(inputs, targets)

    def predict(rows: np.ndarray) -> Forecast:
        mean, found = model.predict_interval(rows)
        lower, upper = found[:, 0], found[:, 1]
        quantiles = np.sort(np.concatenate([lower, mean[:, None], upper], axis=1), axis=1)
        tails = (1 - np.array(levels)) / 2
        at = np.concatenate([tails[::-1], [0.5], 1 - tails])
        middles = (at[1:] + at[:-1]) / 2
        shares = np.diff(np.concatenate([[0.0], middles, [1.0]]))
        fine = np.stack([np.interp(FINE_LEVELS, at, row) for row in quantiles])
        points = np.stack([lower[:, 7], lower[:, 3], mean, upper[:, 3], upper[:, 7]], axis=1)
        mixture = Mixture.of_atoms(quantiles, shares)
        return Forecast(points, best_points(fine), mean, mixture, one_interval(lower[:, 8], upper[:, 8]), fine)

    return predict


# Of the methods that fit one quantile after the other.
_QUANTILES = np.array([0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95])


def _between(found: np.ndarray) -> Forecast:
    """Return the forecast of quantiles [rows, 7], sorted, and interpolated in between."""
    found = np.sort(found, axis=1)
    fine = np.stack([np.interp(FINE_LEVELS, _QUANTILES, row) for row in found])
    interval = one_interval(found[:, 0], found[:, -1])
    return Forecast(found[:, 1:-1], best_points(fine), fine.mean(axis=1), Mixture.of_atoms(fine), interval, fine)


def boosted_quantiles(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """scikit-learn's boosted trees for each of seven quantiles, which stop early by themselves."""
    models = [
        HistGradientBoostingRegressor(
            loss="quantile", quantile=level, max_iter=300, learning_rate=0.1, early_stopping=True, random_state=seed
        ).fit(inputs, targets)
        for level in _QUANTILES
    ]
    return lambda rows: _between(np.stack([model.predict(rows) for model in models], axis=1))


def lightgbm_quantiles(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """LightGBM for each of seven quantiles; the number of trees on a tenth of the rows."""
    import lightgbm

    train_x, held_x, train_y, held_y = train_test_split(inputs, targets, test_size=0.1, random_state=seed)
    how: dict[str, Any] = {"n_estimators": 1000, "learning_rate": 0.05, "n_jobs": 1, "verbose": -1, "seed": seed}
    models = [
        lightgbm.LGBMRegressor(objective="quantile", alpha=level, **how).fit(
            train_x, train_y, eval_set=[(held_x, held_y)], callbacks=[lightgbm.early_stopping(50, verbose=False)]
        )
        for level in _QUANTILES
    ]
    # Without column names LightGBM makes some up, and scikit-learn misses them: the booster is asked itself.
    return lambda rows: _between(np.stack([model.booster_.predict(rows) for model in models], axis=1))


def catboost_quantiles(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """CatBoost for seven quantiles at once; the number of trees on a tenth of the rows."""
    import catboost

    train_x, held_x, train_y, held_y = train_test_split(inputs, targets, test_size=0.1, random_state=seed)
    model = catboost.CatBoostRegressor(
        loss_function="MultiQuantile:alpha=" + ",".join(map(str, _QUANTILES)),
        iterations=1000,
        random_seed=seed,
        thread_count=1,
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(train_x, train_y, eval_set=(held_x, held_y), early_stopping_rounds=50)
    return lambda rows: _between(model.predict(rows))


def kmeans_residuals(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """Boosted trees plus five centers of their out-of-fold residuals."""
    trees = _boosted_trees(inputs, targets, seed)
    residuals = targets - cross_val_predict(trees, inputs, targets, cv=5)
    clusters = KMeans(N_POINTS, n_init=10, random_state=seed).fit(residuals[:, None])
    centers = clusters.cluster_centers_[:, 0]
    shares = np.bincount(clusters.labels_, minlength=N_POINTS) / len(residuals)
    ends = np.quantile(residuals, [0.05, 0.95])
    trees.fit(inputs, targets)

    def predict(rows: np.ndarray) -> Forecast:
        mean = trees.predict(rows)
        points = mean[:, None] + centers
        mixture = Mixture.of_atoms(points, shares)
        return Forecast(points, points, mean, mixture, one_interval(mean + ends[0], mean + ends[1]))

    return predict
