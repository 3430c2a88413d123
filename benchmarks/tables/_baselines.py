"""Methods of the table benchmark: each is fitted to a standardized table and returns a `Forecast`.

Whatever a method chooses (an epoch, a number of trees, a leaf size), it chooses on rows that it holds out itself.
"""

import importlib.util
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from torch import Tensor

from benchmarks.tables._forecasts import (
    FINE_LEVELS,
    N_POINTS,
    Forecast,
    Mixture,
    Predict,
    best_points,
    of_density,
    one_interval,
)
from benchmarks.tables._network_baselines import realmlp, realmlp_folds, skpro_mdn, tabm, tabm_folds
from benchmarks.tables._tree_baselines import (
    boosted_quantiles,
    catboost_quantiles,
    kmeans_residuals,
    lightgbm_quantiles,
    mapie,
    ngboost,
    quantile_forest,
    treeffuser,
    xgboostlss,
)
from torchmcl import Cosine, MultiHypothesisMLP
from torchmcl_fleet import Fleet, FleetData, default_batch_size, even_batch_size
from torchmcl_tables import DensityRegressor

# The trunk of all networks, and the optimizer steps of the mixture density network.
HIDDEN, N_STEPS = (64, 64), 1500


def ours(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """DensityRegressor with its defaults, five networks: its five points are its hypotheses."""
    model = DensityRegressor(n_hypotheses=N_POINTS, random_state=seed).fit(inputs, targets)

    def predict(rows: np.ndarray) -> Forecast:
        density = model.predict_distribution(rows)
        means = density.hypotheses[..., 0].numpy()
        mixture = Mixture(density.probabilities.numpy(), means, density.widths[..., 0].numpy())

        def points_of(k: int) -> np.ndarray:
            return np.asarray(model.predict_hypotheses(rows, k).values[..., 0])

        values = points_of(N_POINTS)
        intervals = model.predict_interval(rows, coverage=0.9)
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
    """Mixture of five normals with the trunk, optimizer, learning rate, weight decay and steps of MCLRegressor."""
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
        return of_density(Mixture(weights, means, kernels[..., 2].clamp_min(math.log(1e-3)).exp().numpy()))

    return predict


def mdn_ensemble(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """Mixture of five mixture density networks, each with its own held-out rows for early stopping."""
    members = [mixture_density_network(inputs, targets, 5 * seed + member) for member in range(5)]

    def predict(rows: np.ndarray) -> Forecast:
        mixtures = [member(rows).mixture for member in members]
        weights, means, deviations = (np.concatenate(part, axis=1) for part in zip(*mixtures, strict=True))
        return of_density(Mixture(weights / len(members), means, deviations))

    return predict


# ---------------------------------------------------------------------- networks that were trained on other tables


def tabpfn(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Predict:
    """TabPFN with the weights of the user's own copy, which `TABPFN_WEIGHTS` names; its bins as 99 quantiles."""
    from tabpfn import TabPFNRegressor

    weights = os.environ[WEIGHTS["tabpfn"]]
    model = TabPFNRegressor(model_path=weights, random_state=seed, device="cpu", ignore_pretraining_limits=True)
    model.fit(inputs, targets)

    def predict(rows: np.ndarray) -> Forecast:
        found = model.predict(rows, output_type="quantiles", quantiles=[float(level) for level in FINE_LEVELS])
        fine = np.sort(np.stack(found, axis=1), axis=1)
        ends = np.stack([np.interp([0.05, 0.95], FINE_LEVELS, row) for row in fine])
        interval = one_interval(ends[:, 0], ends[:, 1])
        return Forecast(fine[:, 9::20], best_points(fine), model.predict(rows), Mixture.of_atoms(fine), interval, fine)

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
    "lightgbm": lightgbm_quantiles,
    "catboost": catboost_quantiles,
    "kmeans-residuals": kmeans_residuals,
    "tabpfn": tabpfn,
    "realmlp": realmlp,
    "realmlp-folds": realmlp_folds,
    "tabm": tabm,
    "tabm-folds": tabm_folds,
    "treeffuser": treeffuser,
    "xgboostlss": xgboostlss,
    "skpro-mdn": skpro_mdn,
}
NEURAL = ("mdn", "mlp-ensemble")
# Those of the contest: all that give a distribution.
DENSITIES = {name: method for name, method in METHODS.items() if name != "mlp-ensemble"}
# Packages that a method needs beside scikit-learn.
PACKAGES = {
    **{name: name for name in ("ngboost", "mapie", "lightgbm", "catboost", "tabpfn", "treeffuser", "xgboostlss")},
    **dict.fromkeys(("realmlp", "realmlp-folds", "tabm", "tabm-folds"), "pytabkit"),
    "skpro-mdn": "skpro",
}
# Variables that name a file of weights, for methods that bring none.
WEIGHTS = {"tabpfn": "TABPFN_WEIGHTS"}


def installed(methods: list[str]) -> list[str]:
    """Return the methods whose packages and weights are installed, and print why other methods are left out."""
    here = []
    for name in methods:
        if name in PACKAGES and not importlib.util.find_spec(PACKAGES[name]):
            print(f"{name} is left out: pip install {PACKAGES[name]} brings it", flush=True)
        elif name in WEIGHTS and not Path(os.environ.get(WEIGHTS[name], "")).is_file():
            print(f"{name} is left out: {WEIGHTS[name]} must name the file of your copy's weights", flush=True)
        else:
            here.append(name)
    return here
