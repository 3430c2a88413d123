"""The methods of the table benchmark: each is fitted to a standardised table and gives a `Forecast`.

Whatever a method chooses (an epoch, a number of trees, a leaf size), it chooses on rows that it holds out itself.
"""

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse
from scipy.stats import norm
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.neural_network import MLPRegressor
from torch import Tensor

from _forecasts import FINE_LEVELS, MID_LEVELS, Forecast, Mixture, best_points, one_interval
from torchmcl import Cosine, MCLRegressor, MultiHypothesisMLP
from torchmcl.fleet import Fleet, FleetData, default_batch_size, even_batch_size

Predict = Callable[[np.ndarray], Forecast]

# The trunk of all networks, and the optimizer steps of the mixture density network.
HIDDEN, N_STEPS = (64, 64), 1500
N_POINTS = 5


def ours(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """MCLRegressor with its defaults, five networks: its five points are its hypotheses."""
    model = MCLRegressor(n_hypotheses=N_POINTS, random_state=seed).fit(inputs, targets)

    def predict(rows: np.ndarray) -> Forecast:
        density = model.predict_distribution(rows)
        means = density.hypotheses[..., 0].numpy()
        mixture = Mixture(density.probabilities.numpy(), means, density.widths[..., 0].numpy())

        def points_of(k: int) -> np.ndarray:
            return np.asarray(model.predict_hypotheses(rows, k).values[..., 0])

        values = points_of(N_POINTS)
        intervals = model.predict_interval(rows, 0.1)
        return Forecast(values, values, model.predict(rows), mixture, intervals, points_of=points_of)

    return predict


# ---------------------------------------------------------------------- mixture density network


def mixture_neg_log_likelihood(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log density of targets [..., targets, 1] under one mixture, [..., targets, 1].

    The "hypotheses" [..., kernels, 3] are the logit, mean and log standard deviation of each kernel, so that a mixture
    density network is a fleet with another cost, and a rule that has no choice.
    """
    log_weights = hypotheses[..., 0].log_softmax(dim=-1).unsqueeze(-2)
    log_deviations = hypotheses[..., 2].clamp_min(math.log(1e-3)).unsqueeze(-2)
    steps = (targets - hypotheses[..., 1].unsqueeze(-2)) * (-log_deviations).exp()
    logs = log_weights - log_deviations - 0.5 * steps.square() - 0.5 * math.log(2 * math.pi)
    return -logs.logsumexp(dim=-1, keepdim=True)


def mixture_density_network(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """A mixture of five normals, on the fleet: trunk, optimizer, rate, decay and number of steps as ours."""
    parts = train_test_split(inputs, targets, test_size=0.1, random_state=seed)
    train_x, held_x, train_y, held_y = (torch.from_numpy(part).float() for part in parts)
    batch = even_batch_size(len(train_x), default_batch_size(len(train_x)))
    n_epochs = max(20, min(1000, round(N_STEPS / math.ceil(len(train_x) / batch))))  # as MCLRegressor
    fleet = Fleet(
        lambda: MultiHypothesisMLP(inputs.shape[1], 3, N_POINTS, hidden=HIDDEN, scores=False),
        1,
        learning_rate=Cosine(0.02, 0.0, n_epochs),
        weight_decay=0.05,
        seeds=[seed],
        cost_fn=mixture_neg_log_likelihood,
    )
    fleet.fit(
        FleetData.shared(train_x, train_y.view(-1, 1, 1), 1),
        n_epochs,
        batch_size=batch,
        validation=FleetData.shared(held_x, held_y.view(-1, 1, 1), 1),
        progress=False,
    )
    network = fleet.best_models[0].eval()

    def predict(rows: np.ndarray) -> Forecast:
        with torch.no_grad():
            kernels = network(torch.from_numpy(rows).float()).hypotheses.double()
        weights, means = kernels[..., 0].softmax(dim=-1).numpy(), kernels[..., 1].numpy()
        return _of_density(Mixture(weights, means, kernels[..., 2].clamp_min(math.log(1e-3)).exp().numpy()))

    return predict


def mdn_ensemble(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """Five mixture density networks, each with its own rows to stop early, as one mixture."""
    members = [mixture_density_network(inputs, targets, 5 * seed + member) for member in range(5)]

    def predict(rows: np.ndarray) -> Forecast:
        mixtures = [member(rows).mixture for member in members]
        weights, means, deviations = (np.concatenate(part, axis=1) for part in zip(*mixtures, strict=True))
        return _of_density(Mixture(weights / len(members), means, deviations))

    return predict


def _of_density(mixture: Mixture) -> Forecast:
    """Return the forecast of a method that is a density: its quantiles are its points."""
    fine = mixture.quantiles(FINE_LEVELS)
    ends = mixture.quantiles(np.array([0.05, 0.95]))
    interval = one_interval(ends[:, 0], ends[:, 1])
    return Forecast(mixture.quantiles(MID_LEVELS), best_points(fine), mixture.mean, mixture, interval, fine)


# ---------------------------------------------------------------------- trees


def ngboost(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """A normal distribution by natural gradient boosting; the number of trees on a tenth of the rows."""
    from ngboost import NGBRegressor

    train_x, held_x, train_y, held_y = train_test_split(inputs, targets, test_size=0.1, random_state=seed)
    model = NGBRegressor(n_estimators=500, learning_rate=0.04, verbose=False, random_state=seed)
    model.fit(train_x, train_y, X_val=held_x, Y_val=held_y, early_stopping_rounds=50)

    def predict(rows: np.ndarray) -> Forecast:
        found = model.pred_dist(rows, max_iter=model.best_val_loss_itr).params
        mean, std = found["loc"], found["scale"]
        at = {name: mean[:, None] + std[:, None] * norm.ppf(levels) for name, levels in _LEVELS.items()}
        mixture = Mixture(np.ones((len(mean), 1)), mean[:, None], std[:, None])
        interval = one_interval(*at["ends"].T)
        return Forecast(at["points"], best_points(at["fine"]), mean, mixture, interval, at["fine"])

    return predict


_LEVELS = {"points": MID_LEVELS, "fine": FINE_LEVELS, "ends": np.array([0.05, 0.95])}


class QuantileForest:
    """A quantile regression forest: each row's distribution is that of the training rows in its leaves."""

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
        """Return which leaves each row is in, [rows, leaves of all trees]."""
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


def boosted_quantiles(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """Boosted trees for each of seven quantiles, which stop early by themselves; in between they are interpolated."""
    levels = np.array([0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95])
    models = [
        HistGradientBoostingRegressor(
            loss="quantile", quantile=level, max_iter=300, learning_rate=0.1, early_stopping=True, random_state=seed
        ).fit(inputs, targets)
        for level in levels
    ]

    def predict(rows: np.ndarray) -> Forecast:
        found = np.sort(np.stack([model.predict(rows) for model in models], axis=1), axis=1)
        fine = np.stack([np.interp(FINE_LEVELS, levels, row) for row in found])
        interval = one_interval(found[:, 0], found[:, -1])
        return Forecast(found[:, 1:-1], best_points(fine), fine.mean(axis=1), Mixture.of_atoms(fine), interval, fine)

    return predict


def kmeans_residuals(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """Boosted trees plus five centres of their out-of-fold residuals."""
    trees = _boosted_trees(inputs, targets, seed)
    residuals = targets - cross_val_predict(trees, inputs, targets, cv=5)
    clusters = KMeans(N_POINTS, n_init=10, random_state=seed).fit(residuals[:, None])
    centres = clusters.cluster_centers_[:, 0]
    shares = np.bincount(clusters.labels_, minlength=N_POINTS) / len(residuals)
    ends = np.quantile(residuals, [0.05, 0.95])
    trees.fit(inputs, targets)

    def predict(rows: np.ndarray) -> Forecast:
        mean = trees.predict(rows)
        points = mean[:, None] + centres
        mixture = Mixture.of_atoms(points, shares)
        return Forecast(points, points, mean, mixture, one_interval(mean + ends[0], mean + ends[1]))

    return predict


# ---------------------------------------------------------------------- single-answer networks


def mlp_ensemble(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """Five of scikit-learn's MLPRegressor, each with early stopping; the points are the members."""
    members = []
    for member in range(N_POINTS):
        model = MLPRegressor(
            hidden_layer_sizes=HIDDEN,
            max_iter=1000,
            early_stopping=True,
            n_iter_no_change=20,
            random_state=N_POINTS * seed + member,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the epochs are as many as ours
            members.append(model.fit(inputs, targets))

    def predict(rows: np.ndarray) -> Forecast:
        points = np.stack([member.predict(rows) for member in members], axis=1)
        interval = one_interval(points.min(axis=1), points.max(axis=1))
        return Forecast(points, points, points.mean(axis=1), Mixture.of_atoms(points), interval)

    return predict


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, int], Predict]] = {
    "ours": ours,
    "mdn": mixture_density_network,
    "mdn-ensemble": mdn_ensemble,
    "boosted-quantiles": boosted_quantiles,
    "mlp-ensemble": mlp_ensemble,
    "ngboost": ngboost,
    "quantile-forest": quantile_forest,
    "mapie": mapie,
    "kmeans-residuals": kmeans_residuals,
}
DENSITIES = {name: METHODS[name] for name in ("ours", "mdn-ensemble", "quantile-forest", "boosted-quantiles")} | {
    name: METHODS[name] for name in ("mdn", "kmeans-residuals")
}
NEURAL = ("mdn", "mlp-ensemble")
