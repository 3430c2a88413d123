"""MCLRegressor: several plausible outcomes for each row of a table, by multiple choice learning."""

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from torchmcl import MultiHypothesisMLP, pairwise_sq_euclidean
from torchmcl.density import Bandwidth
from torchmcl.schedules import Schedule
from torchmcl_fleet import FleetSearch, build_modules, default_batch_size
from torchmcl_tables.estimators import tables, training
from torchmcl_tables.estimators.base import DensityEstimator, check_converged, first_split, held_out_fractions
from torchmcl_tables.estimators.calibration import Calibrator, FittedDensity, supported_gaps
from torchmcl_tables.estimators.predictive import Predictive
from torchmcl_tables.estimators.rows import MANY_ROWS, Encoder, Rows, Split, fixed_borders, split_rows
from torchmcl_tables.estimators.training import as_given, check_parameters, searched, seed_of, trainer_of

_WEIGHT_DECAY = 0.05
# Default number of networks; for tables with `MANY_ROWS` one network is enough, and predicts faster.
_N_RESTARTS = 5
# Default number of optimizer steps, without and with bins.
_N_STEPS, _N_STEPS_WITH_BINS = 1500, 750
# Networks with more bins in total are not compared by default, because their training is slow.
_MOST_BINS = 1024
# With fewer held-out rows, partial_fit keeps the bandwidth and the gaps fitted to earlier rows.
_ENOUGH_TO_SELECT = 20


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn defines comparison and repr of estimators
class MCLRegressor(DensityEstimator):
    """Several plausible outcomes for each row, their probabilities, a density and calibrated prediction sets.

    Networks are trained by multiple choice learning: each network returns `n_hypotheses` hypotheses with scores, and
    kernels with a fitted bandwidth around all hypotheses define a density. `torchmcl_tables.DensityRegressor` is a
    different method, a blend of mixture density networks and a forest, with better likelihoods on most tables.

    A part of the rows is held out. Two thirds of them are selection rows (for the bandwidth, the gaps of the sets and
    the best network); the others are used only to calibrate the prediction sets. The fit does not depend on the order
    of the rows, and a row of weight 2 is equivalent to two copies of the row. Copies of a row are held out together. In
    a table so coarse that rows coincide by chance, each row counts as a separate row.

    Args:
        n_hypotheses: Number of hypotheses per row.
        rule: Assignment rule, function epoch -> rule (for example from `annealed`), `Cooling(...)`, or
            `AutoAnnealing(...)`, the default, which chooses the temperature schedule, the final part of the learning
            rate schedule and the weight decay during training. Temperatures are in units of the variance of the
            targets.
        hidden: Sizes of the hidden layers.
        n_bins: Number of bins of the piecewise linear encoding of each column, between its quantiles; 0 for none. By
            default, networks are trained without bins and with 32 bins, and those with the higher likelihood of the
            selection rows are kept. There are no bins by default for 50 000 or more training rows, more than 1024 bins
            in total, no selection rows, and `partial_fit`.
        n_epochs: Maximum number of epochs. By default 20 to 1000 epochs with about 1500 steps (750 with bins).
        batch_size: Maximum number of rows per step; by default 3 times the square root of the number of rows, from 64
            to 1024.
        learning_rate: Learning rate of Adam: an initial value, annealed to 0 along a cosine, or a schedule by epoch.
        weight_decay: Decoupled weight decay; by default 0.05, or derived from the noise per row by `AutoAnnealing`,
            unless its `noise_decay` is 0.
        keep_best: Whether to keep the epoch with the lowest distortion on the selection rows instead of the last one.
        validation_fraction: Fraction of the rows that is held out: two thirds for selection, the rest for calibration
            (9, 19, 29 ... rows; in a small table more than a third), at most 10 000 and 5 000 rows.
        patience: Number of epochs without improvement on the selection rows after which training stops; by default,
            training does not stop early.
        n_restarts: Number of networks, trained together as a fleet. By default 5, and 1 for 50 000 or more training
            rows.
        ensemble: Whether to combine all networks that did not fail instead of using the best network on the selection
            rows.
        final_fit_on_all_rows: Whether to continue training after selection, with the selection rows included, for
            another 30 % of the epochs, from a quarter of the learning rate down to 0. Networks are never trained on
            calibration rows.
        search: A `torchmcl_fleet.FleetSearch`. Its candidates (64 by default) are trained together on a part of the
            training rows and compared on the others. The search chooses `rule`, `learning_rate` and `weight_decay`,
            which must keep their defaults. It runs for both encodings if `n_bins` is None.
        device: Device for training and prediction, "cpu" or "cuda".
        random_state: Seed of the initial weights, the shuffles and the held-out rows.
        progress: Whether to show a progress bar.

    Attributes:
        modules_: Selected networks, ordinary torch modules on encoded inputs and standardized targets.
        n_features_in_: Number of columns of X; `feature_names_in_` contains their names if X has any.
        n_outputs_: Number of columns of y; `target_names_` contains their names, `target_scale_` their standard
            deviations.
        n_answers_: Number of hypotheses per row.
        n_bins_: Largest number of bins of a column; 0 without bins.
        bandwidth_: Fitted bandwidth, in units of the standard deviation of y.
        loss_curve_: Training loss of each epoch, for the best network; `learning_rate_curve_` contains the learning
            rates.
        temperature_curve_: Temperature of each epoch; None for a rule without a temperature.
        rule_: Assignment rule, function epoch -> rule, or `AutoAnnealing` of the training run.
        best_restart_: Index of the best restart; `validation_losses_` contains the distortions, in standardized
            units.
        best_epoch_: Selected epoch; -1 for the last one.
        n_epochs_: Number of epochs trained, excluding the final epochs on all rows.
        trials_: Trials of `search`, one record per trial; `best_candidate_` is the name of the selected candidate.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(size=(300, 1))
        >>> y = np.where(rng.uniform(size=300) < 0.5, X[:, 0], -X[:, 0])  # two branches
        >>> model = MCLRegressor(n_hypotheses=2, n_epochs=100, random_state=0).fit(X, y)
        >>> values, probabilities = model.predict_hypotheses([[0.8]])
        >>> np.sort(values[0, :, 0]).round(1), probabilities.shape
        (array([-0.8,  0.8]), (1, 2))
        >>> model.predict_interval([[0.8]], coverage=0.9).n_pieces  # one interval for each branch
        array([2])
    """

    n_hypotheses: int = 5
    rule: Any = None
    hidden: Any = (64, 64)
    n_bins: int | None = None
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | Schedule = 0.02
    weight_decay: float | None = None
    keep_best: bool = False
    validation_fraction: float = 0.15
    patience: int | None = None
    n_restarts: int | None = None
    ensemble: bool = True
    final_fit_on_all_rows: bool = True
    search: FleetSearch | None = None
    device: str | torch.device = "cpu"
    random_state: Any = None
    progress: bool = False

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, checkpoint: str | Path | None = None
    ) -> "MCLRegressor":
        """Train on a table. If an error occurs, the estimator remains unchanged.

        Args:
            X: Array or data frame of numbers, [rows, features]; NaN for missing values.
            y: Targets, [rows], or [rows, outputs] for several outputs.
            sample_weight: Relative frequency of each row, [rows]; only the ratios matter.
            groups: Labels of rows that belong together (the same patient, site or scene), [rows]. Each group is held
                out as a whole, in every split, and the prediction sets are valid for rows of new groups.
            checkpoint: Folder for checkpoints during training; after an interruption, the same call resumes from there.

        Raises:
            ValueError: If a parameter is out of range, X contains infinite values, targets are missing or constant, or
                all networks diverge at the learning rate.
        """
        tables.set_fitted(self, fitted_by_rule(self, X, y, sample_weight, groups, checkpoint))
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MCLRegressor":
        """Continue training after the last call (or `fit`) for one epoch on new rows.

        Each call is one epoch of the schedule of the rule, whose horizon is `n_epochs`, 200 by default; the learning
        rate is constant unless it is a schedule. A part of the rows of each call is held out and added to the selection
        and calibration rows, of which the latest 4096 are kept; a repeated row is always assigned to the same part.
        One network is trained, or `n_restarts` if set together with `ensemble`; after `fit`, the selected networks are
        trained.
        """
        tables.set_fitted(self, fitted_further(self, X, y, sample_weight))
        return self

    _continuation: training.Continuation = field(init=False)

    def without_rows(self) -> Self:
        """Return a copy without the held-out rows, which are needed only by `partial_fit`."""
        bare = copy.copy(self)
        bare._continuation = replace(self._continuation, held_out=())
        return bare

    @property
    def modules_(self) -> list[nn.Module]:
        """Selected networks."""
        return self._fitted.predictive.modules

    @property
    def n_bins_(self) -> int:
        """Largest number of bins of a column; 0 without bins."""
        return max(self._fitted.predictive.encoder.run_lengths, default=0)

    @property
    def bandwidth_(self) -> Bandwidth:
        """Fitted bandwidth, in units of the standard deviation of y."""
        return self._fitted.predictive.bandwidth


def fitted_by_rule(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any, checkpoint: str | Path | None
) -> dict[str, Any]:
    """Compute the fitted attributes of `MCLRegressor.fit`."""
    check_parameters(estimator)
    seed = seed_of(estimator.random_state)
    table = tables.checked_regression(estimator, X, y, sample_weight, targets=None, n_needed=2)
    split, targets = first_split(estimator, table, groups, seed)
    selection = split.selection
    judges = selection if len(selection) else split.train
    n_bins = estimator.n_bins if len(selection) else estimator.n_bins or 0
    encoders = Encoder.candidates(split.train, n_bins)
    if sum(encoders[-1].run_lengths) > _MOST_BINS:
        encoders = encoders[:1]
    runs = []
    for place, encoder in enumerate(encoders):
        folder = None if checkpoint is None else Path(checkpoint) / f"encoder-{place}"
        preprocessor = training.Preprocessor(encoder, targets)
        trainer, trained, search = _trained(estimator, preprocessor, split, seed, folder)
        kept = trained.not_failed() if estimator.ensemble else [trained.best()]
        modules = [trained.modules[place] for place in kept]
        predictive = Predictive.fit(modules, encoder, targets, judges, estimator.device)
        runs.append((predictive, preprocessor, trainer, trained, search, kept))
    surprises = torch.tensor([run[0].surprise(judges) for run in runs])
    predictive, preprocessor, trainer, trained, search, kept = runs[int(surprises.nan_to_num(torch.inf).argmin())]
    attributes = trained.attributes(trainer.rule) | search
    attributes["seconds_"] = sum(float(run[3].history.seconds) for run in runs)
    fill = supported_gaps(predictive, selection)
    if estimator.final_fit_on_all_rows and len(selection):
        examples = preprocessor(split.train.joined(selection))
        final = trainer.on_all_rows(predictive.modules, examples, trained.moments_of(kept))
        predictive = replace(predictive, modules=final.modules)
        attributes["seconds_"] += float(final.history.seconds)
        split = split._replace(selection=selection.head(0))  # the networks are now trained on these rows
    check_converged(predictive, preprocessor.encoder, split.train, estimator.learning_rate)
    fitted = FittedDensity(predictive, Calibrator.fit(predictive, split.calibration, fill))
    state = training.Continuation(seed, attributes["n_epochs_"], split.borders).holding_out(split)
    return {**table.described, **attributes, "_fitted": fitted, "_continuation": state}


def _network(estimator: Any, encoder: Encoder, targets: tables.Targets) -> nn.Module:
    return MultiHypothesisMLP(
        encoder.n_columns,
        targets.n_outputs,
        int(estimator.n_hypotheses),
        hidden=tuple(int(size) for size in estimator.hidden),
        detach_scores=True,  # on targets with little noise, the score loss would dominate the cost in the trunk
    ).float()


def _trained(
    estimator: Any, preprocessor: training.Preprocessor, split: Split, seed: int, checkpoint: str | Path | None
) -> tuple[training.Trainer, training.Trained, dict[str, Any]]:
    """Train the networks; return the trainer, the trained networks, and the fitted attributes of the search."""
    encoder, targets = preprocessor.encoder, preprocessor.targets
    assert targets is not None
    network = partial(_network, estimator, encoder, targets)
    n_train, examples = len(split.train), preprocessor(split.train)
    batch = int(estimator.batch_size or default_batch_size(n_train))
    n_steps = _N_STEPS_WITH_BINS if encoder.has_bins else _N_STEPS
    n_epochs = int(estimator.n_epochs or training.default_n_epochs(n_train, batch, n_steps))
    settings = as_given(estimator.rule, estimator.learning_rate, estimator.weight_decay, _WEIGHT_DECAY, n_epochs)
    search: dict[str, Any] = {}
    if estimator.search is not None:
        sizes = {"seed": seed, "n_epochs": n_epochs, "batch_size": batch}
        settings, search = searched(estimator, network, split.train, examples, **sizes)
    default = _N_RESTARTS if n_train < MANY_ROWS else 1
    seeds = training.seeds_of(seed, default if estimator.n_restarts is None else int(estimator.n_restarts))
    fields = {"cost_fn": pairwise_sq_euclidean, "checkpoint": checkpoint}
    trainer = trainer_of(estimator, settings, n_epochs, batch, seeds, **fields)
    patience = None if estimator.patience is None else int(estimator.patience)
    validation = trainer.watching(preprocessor(split.selection), patience)
    return trainer, trainer(network, examples.for_all(len(trainer.seeds)), validation), search


def fitted_further(estimator: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, Any]:
    """Compute the fitted attributes of `MCLRegressor.partial_fit`."""
    check_parameters(estimator)
    before: FittedDensity | None = getattr(estimator, "_fitted", None)
    targets = None if before is None else before.targets
    table = tables.checked_regression(estimator, X, y, sample_weight, targets=targets, n_needed=1)
    state, split = _further_split(estimator, table)
    if before is None:
        encoder = Encoder.fit(split.train, estimator.n_bins or 0)
        targets = tables.Targets.fit(type(estimator).__name__, table, split.train, None)
        n_networks = int(estimator.n_restarts or 1) if estimator.ensemble else 1
        seeds = training.seeds_of(state.seed, n_networks)
        modules = build_modules(partial(_network, estimator, encoder, targets), seeds)
    else:
        encoder, modules = before.predictive.encoder, before.predictive.modules
    assert targets is not None
    targets = targets.without_bounds_crossed_by(table.y)
    if len(split.train):
        trainer = _epoch_trainer(estimator, len(split.train))
        examples = training.Preprocessor(encoder, targets)(split.train)
        modules, state = state.one_epoch(trainer, modules, examples, _costs, targets.n_outputs)
    fitted = _selected(estimator, before, (modules, encoder, targets), state, split.train)
    kept = {} if before is None else {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    return {**kept, **table.described, "_fitted": fitted, "n_epochs_": state.n_epochs, "_continuation": state}


def _further_split(estimator: Any, table: tables.RegressionTable) -> tuple[training.Continuation, Split]:
    """Split new rows; return the state of the continued training run, with the new held-out rows, and the split."""
    state: training.Continuation | None = getattr(estimator, "_continuation", None)
    if state is not None:
        split = split_rows(table.X, table.y, table.weights, seed=state.seed, borders=state.borders)
        return state.holding_out(split), split
    borders = fixed_borders(**held_out_fractions(estimator.validation_fraction))
    state = training.Continuation(seed_of(estimator.random_state), 0, borders)
    split = split_rows(table.X, table.y, table.weights, seed=state.seed, borders=borders)
    if not len(split.train):  # the first call must have training rows
        split = split_rows(table.X, table.y, table.weights, seed=state.seed)
    return state.holding_out(split), split


def _epoch_trainer(estimator: Any, n_rows: int) -> training.Trainer:
    """Return the trainer for `partial_fit`, with rule, learning rate and weight decay for its horizon in epochs."""
    horizon = int(estimator.n_epochs or training.PARTIAL_EPOCHS)
    settings = as_given(estimator.rule, 0.0, estimator.weight_decay, _WEIGHT_DECAY, horizon)
    batch = int(estimator.batch_size or default_batch_size(n_rows))
    cost, device = pairwise_sq_euclidean, estimator.device
    rule, weight_decay = settings.rule, settings.weight_decay
    return training.Trainer(rule, estimator.learning_rate, weight_decay, horizon, batch, (), cost, device)


def _costs(module: nn.Module, examples: training.Examples) -> Tensor:
    return pairwise_sq_euclidean(hypotheses=module(examples.inputs).hypotheses, targets=examples.targets)


def _selected(
    estimator: Any, before: FittedDensity | None, parts: Any, state: training.Continuation, train: Rows
) -> FittedDensity:
    """Fit the density: bandwidth, gaps and conformal levels are fitted to held-out rows if there are enough."""
    selection, calibration = state.held_out
    if before is None or len(selection) >= _ENOUGH_TO_SELECT:
        judges = selection if len(selection) else train
        modules, encoder, targets = parts
        predictive = Predictive.fit(modules, encoder, targets, judges, estimator.device)
        fill = supported_gaps(predictive, selection)
    else:
        modules, _, targets = parts
        predictive, fill = replace(before.predictive, modules=modules, targets=targets), before.calibrator.fill
    check_converged(predictive, predictive.encoder, train, estimator.learning_rate)
    return FittedDensity(predictive, Calibrator.fit(predictive, calibration, fill))
