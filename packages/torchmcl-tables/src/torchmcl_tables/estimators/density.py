"""DensityRegressor: a density for each row of a table from a blend of mixture density networks and a forest.

The estimator comes first, then the functions that compute its fitted attributes from a table.
"""

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from torch import Tensor, nn

from torchmcl import WTA, Cosine, MultiHypothesisMLP
from torchmcl.costs import MixtureNLLWithCRPS
from torchmcl.schedules import Schedule
from torchmcl_fleet import default_batch_size
from torchmcl_tables.data.table import TableSchema
from torchmcl_tables.estimators import tables, training
from torchmcl_tables.estimators.base import DensityEstimator, check_converged, first_split
from torchmcl_tables.estimators.blend import Blend, atoms_of, calibrated, supported_gaps
from torchmcl_tables.estimators.calibration import FittedDensity
from torchmcl_tables.estimators.forest import blurred
from torchmcl_tables.estimators.rows import MANY_ROWS, Encoder, Rows, Split
from torchmcl_tables.estimators.tables import FrameColumns, Targets, checked_table, read_frame, set_fitted
from torchmcl_tables.estimators.training import check_parameters, seed_of
from torchmcl_tables.estimators.weighing import CRPS_WEIGHT, weighed


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn defines comparison and repr of estimators
class DensityRegressor(DensityEstimator):
    """A density for each row, several hypotheses that represent it, and calibrated prediction sets.

    The density of a row is a *blend* of several members: mixture density networks on columns scaled by their relevance,
    networks on columns with bins, wider networks if longer training still helps, a forest whose leaves are kernels, and
    an input-independent background. The weights of the members are fitted to held-out rows. Hypotheses are the
    `n_hypotheses` points that best represent the density. Prediction sets are its calibrated highest-density sets; they
    have gaps only where held-out rows support them. Neither hypotheses nor sets exceed bounds that all targets respect.
    For counts and other discrete targets (at most 64 distinct values) the hypotheses are different values, at most all
    of them, and the ends of the sets are values or the mean. For multiple choice learning itself, use
    `torchmcl_tables.MCLRegressor`.

    A part of the rows is held out. Two thirds of them are selection rows (for early stopping, weights, widths and
    gaps); the others are used only to calibrate the prediction sets. The fit does not depend on the order of the rows.
    A row of weight 2 is equivalent to two copies of the row, and equal weights are equivalent to no weights. Copies of
    a row are held out together. In a table so coarse that rows coincide by chance, each row counts as a separate row.

    Args:
        n_hypotheses: Number of hypotheses per row.
        hidden: Sizes of the hidden layers.
        n_bins: Number of bins of the piecewise linear encoding of each column, between its quantiles; 0 for none. By
            default, one kind of network has no bins, and a second kind with 32 bins is added if there are fewer than
            50 000 training rows and at most 128 columns with more than two distinct values. A number applies to all
            networks.
        n_epochs: Maximum number of epochs. By default 2500 to 3000 optimizer steps, depending on the number of rows,
            and 12 epochs for 50 000 rows or more. If the best epoch on the selection rows lies in the last 20 % (little
            noise, or many rows), up to two networks with four times as wide layers are trained four times as long.
        batch_size: Maximum number of rows in an optimizer step; by default three times the square root of the number of
            rows, between 64 and 1024. Batches have equal sizes.
        learning_rate: Learning rate of Adam: an initial value, halved for networks with bins and annealed to 0 along a
            cosine, or a schedule by epoch.
        weight_decay: Decoupled weight decay; by default 0.05.
        keep_best: Whether to keep the epoch with the best score on the selection rows instead of the last one.
        validation_fraction: Fraction of the rows that is held out from training: two thirds for selection, the rest for
            calibration (9, 19, 29 ... rows; in a small table more than a third), at most 10 000 and 5 000 rows.
        patience: Number of epochs without improvement on the selection rows after which the training of a network
            stops; by default 40 % of the epochs if the best epoch is kept.
        n_restarts: Number of networks of each kind with different initial weights, trained together as a fleet. By
            default 5, 3 for 10 000 or more training rows, and 1 for 50 000 or more.
        ensemble: Whether to blend all networks and the forest instead of using the best network on the selection rows.
            Networks that failed on these rows are excluded.
        device: Device for training and prediction, "cpu" or "cuda".
        random_state: Seed of the initial weights, the shuffles and the held-out rows.
        progress: Whether to show a progress bar.

    Attributes:
        member_weights_: Weight of each member of the blend: "networks", "networks with bins", "wide networks",
            "forest" and "background", if present. If the background weight is large (above 0.3), little was learned.
        modules_: Selected networks, ordinary torch modules on standardized inputs and targets, kind by kind.
        n_features_in_: Number of columns of X; `feature_names_in_` contains their names if X has any.
        schema_: Schema of a data frame with non-numeric columns.
        n_outputs_: Number of columns of y; `target_names_` contains their names, `target_scale_` their standard
            deviations.
        target_values_: Values of a discrete y; None otherwise.
        n_answers_: Number of hypotheses per row.
        loss_curve_: Training loss of each epoch, for the best network of the first kind. `learning_rate_curve_`
            contains the learning rates, `validation_curve_` the scores on the selection rows.
        best_restart_: Index of the best restart; `validation_losses_` contains the losses on held-out rows.
        best_epoch_: Selected epoch; -1 for the last one.
        n_epochs_: Number of epochs trained.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(size=(300, 1))
        >>> y = np.where(rng.uniform(size=300) < 0.5, X[:, 0], -X[:, 0])  # two branches
        >>> model = DensityRegressor(n_hypotheses=2, n_epochs=100, random_state=0).fit(X, y)
        >>> values, probabilities = model.predict_hypotheses([[0.8]])
        >>> np.sort(values[0, :, 0]).round(1), probabilities.shape
        (array([-0.8,  0.8]), (1, 2))
        >>> model.predict_interval([[0.8]], coverage=0.9).n_pieces  # one interval for each branch
        array([2])
        >>> sorted(model.member_weights_)
        ['background', 'forest', 'networks', 'networks with bins']
    """

    n_hypotheses: int = 5
    hidden: Any = (64, 64)
    n_bins: int | None = None
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | Schedule = 0.01
    weight_decay: float | None = None
    keep_best: bool = True
    validation_fraction: float = 0.15
    patience: int | None = None
    n_restarts: int | None = None
    ensemble: bool = True
    device: str | torch.device = "cpu"
    random_state: Any = None
    progress: bool = False

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, checkpoint: str | Path | None = None
    ) -> "DensityRegressor":
        """Train on a table. If an error occurs, the estimator remains unchanged.

        Args:
            X: Array of numbers (NaN for missing values), or pandas, polars or Arrow data frame with columns of any
                kind, [rows, features].
            y: Targets, [rows], or [rows, outputs] for several outputs.
            sample_weight: Relative frequency of each row, [rows]; only the ratios matter.
            groups: Labels of rows that belong together (the same patient, site or scene), [rows]. Each group is held
                out as a whole, in every split, and the prediction sets are valid for rows of new groups.
            checkpoint: Folder for checkpoints during training; after an interruption, the same call resumes from there.

        Raises:
            ValueError: If a parameter is out of range, X contains infinite values, targets are missing or constant or
                vary by less than 1e-120 or more than 1e120, or all networks diverge at the learning rate.
        """
        set_fitted(self, blend_of(self, X, y, sample_weight, groups, checkpoint))
        return self

    def _numbers(self, X: Any) -> NDArray[Any]:
        """Check a table and convert it to numbers, [rows, columns]."""
        frame, X = read_frame(type(self).__name__, X, self._frame, reset=False)
        return checked_table(self, X, reset=frame is not None)[0]

    _frame: FrameColumns | None = field(init=False)

    def without_rows(self) -> Self:
        """Return a copy of the fitted estimator that contains no rows of the table: the forest's leaves are averaged.

        Means, quantiles, bounds, categories and the values of discrete targets remain.
        """
        bare, blend = copy.copy(self), self._fitted.predictive
        if blend.forest is not None:
            bare._fitted = replace(self._fitted, predictive=replace(blend, forest=blurred(blend.forest)))
        return bare

    @property
    def modules_(self) -> list[nn.Module]:
        """Selected networks, kind by kind."""
        return [module for kind in self._fitted.predictive.networks for module in kind]

    @property
    def schema_(self) -> TableSchema:
        """Schema of the data frame."""
        if self._frame is None:
            raise AttributeError("schema_: the model was fitted to numeric columns only")
        return self._frame.schema


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
    plain, *binned = Encoder.candidates(train, estimator.n_bins)
    if not binned:
        return [plain]
    relevance = relevance_of(plain, train, targets.standardized(train.targets).numpy(), seed)
    return [plain.scaled(relevance), *binned]


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
    importances = forest.feature_importances_[-encoder.n_inputs :].clip(min=0)  # rounding errors may be negative
    if not importances.max() > 0:
        return np.ones(encoder.n_inputs)
    return np.maximum(np.sqrt(importances / importances.max()), _LEAST_RELEVANCE)


def _network(hidden: tuple[int, ...], encoder: Encoder, n_outputs: int, n_rows: int) -> nn.Module:
    n_kernels = _N_KERNELS_OF_MANY_ROWS if n_rows >= MANY_ROWS else _N_KERNELS
    return MultiHypothesisMLP(encoder.n_columns, n_outputs, n_kernels, hidden=hidden, scales=True).float()


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
    best = int(torch.tensor([float(kind.held_out_losses.nanmedian()) for kind in kinds]).nan_to_num(torch.inf).argmin())
    if still_learn(estimator, kinds[best], len(kinds[best].history.losses)):
        encoders = [*encoders, encoders[best]]
        train(encoders[best], _wide_settings(estimator, encoders[best], split.train, targets, seed))
    attributes = kinds[0].attributes(WTA())
    attributes["seconds_"] = sum(float(kind.history.seconds) for kind in kinds)
    del attributes["rule_"], attributes["temperature_curve_"]  # no assignment, and no annealing
    if estimator.ensemble:
        networks = [[kind.modules[i] for i in _not_failed(kind.held_out_losses)] for kind in kinds]
    else:
        scores = torch.tensor([float(kind.held_out_losses[kind.best()]) for kind in kinds]).nan_to_num(torch.inf)
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
    return bool(trained.held_out_losses.isfinite().any()) and float(kept) >= _LATE


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
