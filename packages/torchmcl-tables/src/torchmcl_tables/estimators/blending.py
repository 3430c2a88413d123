"""Fitting of a blend: functions from a table to the fitted attributes, which do not change the estimator."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from torch import Tensor, nn

from torchmcl import WTA, Cosine, MultiHypothesisMLP
from torchmcl.costs import MixtureNLLWithCRPS
from torchmcl_fleet import default_batch_size
from torchmcl_tables.estimators import tables, training
from torchmcl_tables.estimators.atoms import atoms_of
from torchmcl_tables.estimators.blend import Blend, calibrated, supported_gaps
from torchmcl_tables.estimators.calibration import FittedDensity
from torchmcl_tables.estimators.preprocessing import MANY_ROWS, N_BINS, Encoder
from torchmcl_tables.estimators.regression import check_converged, first_split
from torchmcl_tables.estimators.rows import Rows, Split
from torchmcl_tables.estimators.tables import Targets, read_frame
from torchmcl_tables.estimators.training import check_parameters, seed_of
from torchmcl_tables.estimators.weighing import CRPS_WEIGHT, weighed

_WEIGHT_DECAY = 0.05
# Number of kernels of a network. It is independent of the number of hypotheses, which are points of the joint density.
_N_KERNELS, _N_KERNELS_OF_MANY_ROWS = 5, 8
# Large tables need fewer networks.
_N_RESTARTS, _MEDIUM_ROWS, _N_RESTARTS_OF_MEDIUM = 5, 10_000, 3
# Maximum number of optimizer steps, by the number of rows; most training runs stop earlier.
_STEPS = ((3_000, 2_500), (MANY_ROWS, 3_000))
_EPOCHS_OF_MANY_ROWS = 12
# Training stops after this fraction of the epochs without a better score on held-out rows.
_PATIENCE = 0.4
# Networks with bins have more weights, and are trained at this fraction of the learning rate.
_RATE_WITH_BINS = 0.5
# Epochs are compared mainly by the CRPS on held-out rows, which has this weight. The likelihood deteriorates earlier
# than the CRPS, because kernels become too narrow, but their widths are corrected afterwards on the same rows.
_WATCHED = MixtureNLLWithCRPS(1e3)
# A network whose held-out score is this many times the median has failed.
_FAILED = 2.0
# The score includes a likelihood, so that it may be close to 0; differences smaller than this do not count as failures.
_LEAST_SCORE = 5.0
# Early stopping ends most training runs at a high learning rate, which leaves noise in the weights. Runs that stop
# within this range of their epochs are continued for some epochs at a low rate. Runs that stop earlier would overfit,
# and in runs that stop later the rate is already low.
_STILL_LEARNING, _COOLING_EPOCHS, _COOLING_RATE = (0.1, 0.8), 0.1, 0.1
_N_TREES = 50


@dataclass(frozen=True)
class _KindSettings:
    """Training settings of one kind of network, relative to the defaults of the estimator.

    Attributes:
        hidden: Sizes of the hidden layers.
        n_restarts: Number of networks.
        steps: Multiple of the default number of optimizer steps.
        rate: Multiple of the learning rate.
        weight_decay: Decoupled weight decay.
        relevance: Factors of the inputs during training, [encoded columns]; the first layer absorbs them afterwards.
    """

    hidden: tuple[int, ...]
    n_restarts: int
    steps: float = 1.0
    rate: float = 1.0
    weight_decay: float = _WEIGHT_DECAY
    relevance: Tensor | None = None


# Networks that still improve after this fraction of their epochs have learned too little: wider networks follow, which
# are trained for longer, at a lower rate and without weight decay. On noisy tables networks stop earlier.
_LATE, _WIDER, _LONGER, _SLOWER = 0.8, 4, 4.0, 0.3
_WIDE_RESTARTS = 2


def blend_of(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any, checkpoint: str | Path | None
) -> dict[str, Any]:
    """Compute the fitted attributes of `DensityRegressor.fit`."""
    check_parameters(estimator)
    seed = seed_of(estimator.random_state)
    frame, X = read_frame(type(estimator).__name__, X, None, reset=True)
    table = tables.checked_regression(estimator, X, y, sample_weight, targets=None, n_needed=2)
    table = table if frame is None else table._replace(described=frame.described)
    split, targets = first_split(estimator, table, groups, seed)
    encoders = _encoders(estimator, split.train, targets, seed)
    blend, attributes = _trained(estimator, encoders, targets, split, seed, checkpoint)
    blend = replace(blend, values=atoms_of(split.train.targets, split.selection.targets))
    n_trees = _N_TREES if estimator.ensemble and len(split.train) < MANY_ROWS else 0
    blend = weighed(blend, split.train, split.selection, n_trees, seed)
    fill = supported_gaps(blend, split.selection)
    check_converged(blend, blend.encoders[0], split.train, estimator.learning_rate)
    fitted = FittedDensity(blend, calibrated(blend, split.calibration, fill))
    values = {
        "_fitted": fitted,
        "_frame": frame,
        "member_weights_": blend.member_weights,
        "target_values_": blend.values,
    }
    return {**table.described, **attributes, **values}


def _encoders(estimator: Any, train: Rows, targets: Targets, seed: int) -> list[Encoder]:
    """Fit the encoder of each kind of network.

    If there are two kinds, the encoder without bins scales the columns by relevance. The encoder with bins does not,
    because columns of little relevance are decisive where there is little noise.
    """
    plain = Encoder.fit(train, estimator.n_bins, default=0)
    if estimator.n_bins is not None or len(train) >= MANY_ROWS:
        return [plain]
    binned = Encoder.fit(train, None, default=N_BINS)
    relevance = relevance_of(plain, train, targets.standardized(train.targets).numpy(), seed)
    return [plain.scaled(relevance), binned] if binned.run_lengths else [plain]


# Settings of the forest that measures the relevance of columns: number of trees, minimum size of a leaf, maximum and
# minimum number of rows. With fewer rows, all columns count as relevant.
_RELEVANCE_TREES, _SMALLEST_LEAF, _MAX_RELEVANCE_ROWS, _MIN_RELEVANCE_ROWS = 20, 5, 2_000, 50
_LEAST_RELEVANCE = 0.01


def relevance_of(encoder: Encoder, rows: Rows, targets: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Estimate the relevance of each column in (0, 1], with 1 for the most relevant column.

    Relevance is the square root of the fraction of the variance that a small forest explains by splits at the column.
    Inputs of little relevance are scaled down, so that networks cannot use them to memorize rows.

    Args:
        encoder: Encoder of the rows.
        rows: Training rows.
        targets: Standardized targets, [rows, outputs].
        seed: Seed of the forest.
    """
    if len(rows) < _MIN_RELEVANCE_ROWS:
        return np.ones(encoder.n_inputs)
    rows, targets = rows.head(_MAX_RELEVANCE_ROWS), targets[:_MAX_RELEVANCE_ROWS]
    kinds: dict[str, Any] = {"min_samples_leaf": _SMALLEST_LEAF, "max_features": 0.5, "random_state": seed % 2**32}
    forest = RandomForestRegressor(_RELEVANCE_TREES, **kinds)
    known = targets[:, 0] if targets.shape[1] == 1 else targets
    forest.fit(encoder.dense(rows.inputs), known, sample_weight=rows.weights / rows.weights.max())
    importances = forest.feature_importances_[-encoder.n_inputs :]
    if not importances.max() > 0:
        return np.ones(encoder.n_inputs)
    return np.maximum(np.sqrt(importances / importances.max()), _LEAST_RELEVANCE)


def _network(hidden: tuple[int, ...], encoder: Encoder, n_outputs: int, n_rows: int) -> nn.Module:
    n_kernels = _N_KERNELS_OF_MANY_ROWS if n_rows >= MANY_ROWS else _N_KERNELS
    return MultiHypothesisMLP(encoder.n_columns, n_outputs, n_kernels, hidden=hidden, scales=True)


def _hidden(estimator: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in estimator.hidden)


def _trained(
    estimator: Any, encoders: list[Encoder], targets: Targets, split: Split, seed: int, checkpoint: Any
) -> tuple[Blend, dict[str, Any]]:
    """Train the networks of each kind; return a blend with equal weights, and the attributes of the training run."""
    kinds: list[training.Trained] = []

    def train(encoder: Encoder, settings: _KindSettings) -> None:
        place = len(kinds)
        folder = None if checkpoint is None else Path(checkpoint) / f"kind-{place}"
        preprocessor = training.Preprocessor(encoder, targets)
        kinds.append(_trained_kind(estimator, settings, preprocessor, split, seed + place, folder))

    for encoder in encoders:
        train(encoder, _first_settings(estimator, encoder, len(split.train)))
    best = int(torch.tensor([float(kind.distortions.nanmedian()) for kind in kinds]).nan_to_num(torch.inf).argmin())
    if still_learn(estimator, kinds[best], len(kinds[best].history.losses)):
        encoders = [*encoders, encoders[best]]
        train(encoders[best], _wide_settings(estimator, encoders[best], split.train, targets, seed))
    attributes = kinds[0].attributes(WTA())
    attributes["seconds_"] = sum(float(kind.history.seconds) for kind in kinds)
    del attributes["rule_"], attributes["temperature_curve_"]  # no assignment, and no annealing
    if estimator.ensemble:
        networks = [[kind.modules[i] for i in _not_failed(kind.distortions)] for kind in kinds]
    else:
        scores = torch.tensor([float(kind.distortions[kind.best()]) for kind in kinds]).nan_to_num(torch.inf)
        best = int(scores.argmin())
        encoders, networks = [encoders[best]], [[kinds[best].modules[kinds[best].best()]]]
    equal = np.full(len(encoders) + 1, 1 / (len(encoders) + 1))
    return Blend(encoders, networks, equal, targets, int(estimator.n_hypotheses), estimator.device), attributes


def _first_settings(estimator: Any, encoder: Encoder, n_rows: int) -> _KindSettings:
    n_restarts = _default_restarts(n_rows) if estimator.n_restarts is None else int(estimator.n_restarts)
    return _KindSettings(_hidden(estimator), n_restarts, rate=_RATE_WITH_BINS if encoder.has_bins else 1.0)


def _wide_settings(estimator: Any, encoder: Encoder, train: Rows, targets: Targets, seed: int) -> _KindSettings:
    """Return the settings of wide networks.

    With bins, inputs are scaled by relevance; otherwise wide networks would memorize rows by irrelevant columns.
    """
    first = _first_settings(estimator, encoder, len(train))
    n_restarts = min(first.n_restarts, _WIDE_RESTARTS)
    hidden = tuple(_WIDER * size for size in first.hidden)
    relevance = None
    if encoder.has_bins:
        columns = relevance_of(encoder, train, targets.standardized(train.targets).numpy(), seed)
        relevance = torch.from_numpy(encoder.repeated(columns)).float()
    return _KindSettings(hidden, n_restarts, _LONGER, _SLOWER * first.rate, weight_decay=0.0, relevance=relevance)


def still_learn(estimator: Any, trained: training.Trained, n_epochs: int) -> bool:
    """Return whether networks with default training settings were best on held-out rows near the end of training."""
    overridden = (estimator.n_epochs, estimator.weight_decay, estimator.patience)
    if any(value is not None for value in overridden) or callable(estimator.learning_rate):
        return False
    if not estimator.keep_best or not estimator.hidden:  # without hidden layers, there is nothing to widen
        return False
    kept = (trained.best_epochs + 1).double().median() / n_epochs
    return bool(trained.distortions.isfinite().any()) and float(kept) >= _LATE


def _trained_kind(
    estimator: Any,
    settings: _KindSettings,
    preprocessor: training.Preprocessor,
    split: Split,
    seed: int,
    checkpoint: Path | None,
) -> training.Trained:
    """Train the networks of one kind; each network keeps the epoch with the best score on the selection rows."""
    n_rows, encoder = len(split.train), preprocessor.encoder
    batch = int(estimator.batch_size or default_batch_size(n_rows))
    n_epochs = int(estimator.n_epochs or round(settings.steps * _default_epochs(n_rows, batch)))
    rate = estimator.learning_rate
    if not callable(rate):
        rate = Cosine(rate * settings.rate, 0.0, n_epochs)
    keeps, patience = bool(estimator.keep_best), estimator.patience
    if keeps and patience is None:
        patience = max(1, round(_PATIENCE * n_epochs))
    decay = settings.weight_decay if estimator.weight_decay is None else float(estimator.weight_decay)
    trainer = replace(
        _trainer(estimator, rate, n_epochs, batch),
        weight_decay=decay,
        seeds=training.seeds_of(seed, settings.n_restarts),
        keep_best=keeps,
        checkpoint=checkpoint,
        progress=type(estimator).__name__ if estimator.progress else False,
    )
    network = partial(_network, settings.hidden, encoder, split.train.targets.shape[1], n_rows)
    examples, held_out = (_scaled(preprocessor(rows), settings.relevance) for rows in (split.train, split.selection))
    patience = None if patience is None else int(patience)
    validation = trainer.watching(held_out, patience, _WATCHED)
    trained = trainer(network, examples.for_all(settings.n_restarts), validation)
    if keeps and validation is not None:
        trained = cooled(trainer, trained, examples)
    return _absorbed(trained, settings.relevance)


def _scaled(examples: training.Examples, factors: Tensor | None) -> training.Examples:
    return examples if factors is None else examples._replace(inputs=examples.inputs * factors)


@torch.no_grad()
def _absorbed(trained: training.Trained, factors: Tensor | None) -> training.Trained:
    """Convert networks that were trained on inputs multiplied by factors to networks for unscaled inputs."""
    if factors is None:
        return trained
    for module in trained.modules:
        first = next(layer for layer in module.modules() if isinstance(layer, nn.Linear))
        first.weight *= factors
    return trained


def _trainer(estimator: Any, rate: Any, n_epochs: int, batch: int) -> training.Trainer:
    cost = MixtureNLLWithCRPS(CRPS_WEIGHT)  # a single cost per target, so that the rule has no effect
    return training.Trainer(WTA(), rate, 0.0, n_epochs, batch, (), cost, estimator.device, score_weight=0.0)


def cooled(trainer: training.Trainer, trained: training.Trained, train: training.Examples) -> training.Trained:
    """Continue the training of networks for a few epochs at a low learning rate, if they stopped at a high one."""
    stopped = float((trained.best_epochs + 1).double().median()) / trainer.n_epochs
    earliest, latest = _STILL_LEARNING
    if not earliest <= stopped <= latest:
        return trained
    further = trainer.further(trained.modules, train, epochs=_COOLING_EPOCHS, rate=_COOLING_RATE, name="cooling")
    history = trained.history._replace(seconds=trained.history.seconds + further.history.seconds)
    return replace(trained, modules=further.modules, history=history, moments=further.moments)


def _default_epochs(n_rows: int, batch: int) -> int:
    for most, n_steps in _STEPS:
        if n_rows < most:
            return training.default_n_epochs(n_rows, batch, n_steps)
    return _EPOCHS_OF_MANY_ROWS


def _default_restarts(n_rows: int) -> int:
    if n_rows >= MANY_ROWS:
        return 1
    return _N_RESTARTS if n_rows < _MEDIUM_ROWS else _N_RESTARTS_OF_MEDIUM


def _not_failed(scores: Tensor) -> list[int]:
    """Return the indices of the networks that are not far worse than the median on held-out rows."""
    middle = scores.nanmedian()
    bound = middle + (_FAILED - 1) * middle.abs().clamp_min(_LEAST_SCORE)
    kept = [place for place, value in enumerate(scores) if value <= bound]
    return kept or list(range(len(scores)))  # all of them, without held-out rows
