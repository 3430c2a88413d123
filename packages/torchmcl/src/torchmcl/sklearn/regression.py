"""Fitting a regressor by a rule: from a table to the fitted attributes, without a change to the estimator."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.fleet import default_batch_size
from torchmcl.fleet.models import build_modules
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.sklearn.answers import Answers, check_converged
from torchmcl.sklearn.calibration import Calibrator, supported_gaps
from torchmcl.sklearn.columns import checked_groups
from torchmcl.sklearn.continuing import PARTIAL_EPOCHS, Continuation
from torchmcl.sklearn.examples import Examples, Preprocessor, default_n_epochs, seeds_of
from torchmcl.sklearn.parameters import as_given, check_parameters, searched, seed_of
from torchmcl.sklearn.predictive import Predictive
from torchmcl.sklearn.preprocessing import MANY_ROWS, Encoder, fit_encoder
from torchmcl.sklearn.rows import Rows, Split, fixed_borders, split_rows
from torchmcl.sklearn.targets import RegressionTable, Targets, check_targets_vary, checked_regression
from torchmcl.sklearn.training import Trained, Trainer

__all__ = ["answer_attributes", "fitted_by_rule", "fitted_further", "further_split", "held_out_shares"]

_WEIGHT_DECAY = 0.05
# Networks by default; one learns enough from a table of `MANY_ROWS`, and predicts faster.
_N_RESTARTS = 5
# Optimizer steps by default, without and with bins.
_N_STEPS, _N_STEPS_WITH_BINS = 1500, 750
# With fewer held-out rows, partial_fit keeps the bandwidth and the gaps that earlier rows selected.
_ENOUGH_TO_SELECT = 20


def fitted_by_rule(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any, checkpoint: str | Path | None
) -> dict[str, Any]:
    """Return the fitted attributes of `MCLRegressor.fit`."""
    check_parameters(estimator)
    owner, seed = type(estimator).__name__, seed_of(estimator.random_state)
    table = checked_regression(estimator, X, y, sample_weight, targets=None, n_needed=2)
    check_targets_vary(owner, table)
    together = checked_groups(owner, groups, len(table.X))
    shares = held_out_shares(estimator.validation_fraction)
    split = split_rows(table.X, table.y, table.weights, seed=seed, groups=together, **shares)
    encoder = fit_encoder(split.train, estimator.n_bins)
    targets = Targets.fit(owner, table, split.train, split.train.joined(split.selection))
    preprocessor = Preprocessor(encoder, targets)
    trainer, trained, found = _trained(estimator, preprocessor, split, seed, checkpoint)
    kept = trained.not_failed() if estimator.ensemble else [trained.best()]
    modules = [trained.modules[place] for place in kept]
    attributes = trained.attributes(trainer.rule) | found
    selection = split.selection
    judges = selection if len(selection) else split.train
    predictive = Predictive.fit(modules, encoder, targets, estimator.density, judges, estimator.device)
    fill = supported_gaps(predictive, selection)
    if estimator.final_fit_on_all_rows and len(selection):
        examples = preprocessor(split.train.joined(selection))
        final = trainer.on_all_rows(modules, examples, trained.moments_of(kept))
        predictive = replace(predictive, modules=final.modules)
        attributes["seconds_"] += float(final.history.seconds)
        split = split._replace(selection=selection.head(0))  # these rows cannot select any more
    check_converged(predictive, encoder, split.train, estimator.learning_rate)
    answers = Answers(predictive, Calibrator.fit(predictive, split.calibration, fill))
    state = Continuation(seed, attributes["n_epochs_"], split.borders).holding_out(split)
    return {**table.described, **attributes, **answer_attributes(answers), "_continuation": state}


def answer_attributes(answers: Answers) -> dict[str, Any]:
    """Return the fitted attributes of the answers."""
    targets = answers.targets
    return {
        "_answers": answers,
        "n_outputs_": targets.n_outputs,
        "target_names_": targets.names,
        "target_scale_": targets.scaler.scale,
        "n_answers_": answers.predictive.n_answers,
        "n_calibrating_": len(answers.calibrator.surprise),
    }


def held_out_shares(fraction: float) -> dict[str, Any]:
    """Return the shares of the rows for selection and calibration."""
    third = float(fraction) / 3
    return {"selecting": 2 * third, "calibrating": third}


def _network(estimator: Any, encoder: Encoder, targets: Targets) -> nn.Module:
    return MultiHypothesisMLP(
        encoder.n_columns,
        targets.n_outputs,
        int(estimator.n_hypotheses),
        hidden=tuple(int(size) for size in estimator.hidden),
        detach_scores=True,  # on low-noise targets the score loss would dwarf the cost in the trunk
    )


def _trained(
    estimator: Any, preprocessor: Preprocessor, split: Split, seed: int, checkpoint: str | Path | None
) -> tuple[Trainer, Trained, dict[str, Any]]:
    """Return the settings of the restarts, the result, and the attributes of a search."""
    encoder, targets = preprocessor.encoder, preprocessor.targets
    assert targets is not None
    network = partial(_network, estimator, encoder, targets)
    n_train, examples = len(split.train), preprocessor(split.train)
    batch = int(estimator.batch_size or default_batch_size(n_train))
    n_steps = _N_STEPS_WITH_BINS if encoder.has_bins else _N_STEPS
    n_epochs = int(estimator.n_epochs or default_n_epochs(n_train, batch, n_steps))
    way = as_given(estimator.rule, estimator.learning_rate, estimator.weight_decay, _WEIGHT_DECAY, n_epochs)
    found: dict[str, Any] = {}
    if estimator.search is not None:
        sizes = {"seed": seed, "n_epochs": n_epochs, "batch_size": batch}
        way, found = searched(estimator, network, split.train, examples, **sizes)
    default = _N_RESTARTS if n_train < MANY_ROWS else 1
    trainer = Trainer(
        *(way.rule, way.learning_rate, way.weight_decay, n_epochs, batch),
        seeds=seeds_of(seed, default if estimator.n_restarts is None else int(estimator.n_restarts)),
        cost_fn=pairwise_sq_euclidean,
        device=estimator.device,
        keep_best=bool(estimator.keep_best),
        checkpoint=checkpoint,
        progress=type(estimator).__name__ if estimator.progress else False,
    )
    patience = None if estimator.patience is None else int(estimator.patience)
    validation = trainer.watching(preprocessor(split.selection), patience)
    return trainer, trainer(network, examples.for_all(len(trainer.seeds)), validation), found


def fitted_further(estimator: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, Any]:
    """Return the fitted attributes of `MCLRegressor.partial_fit`."""
    check_parameters(estimator)
    before: Answers | None = getattr(estimator, "_answers", None)
    targets = None if before is None else before.targets
    table = checked_regression(estimator, X, y, sample_weight, targets=targets, n_needed=1)
    state, split = further_split(estimator, table)
    if before is None:
        encoder = fit_encoder(split.train, estimator.n_bins, default=0)
        targets = Targets.fit(type(estimator).__name__, table, split.train, None)
        n_networks = int(estimator.n_restarts or 1) if estimator.ensemble else 1
        modules = build_modules(partial(_network, estimator, encoder, targets), seeds_of(state.seed, n_networks))
    else:
        encoder, modules = before.predictive.encoder, before.predictive.modules
    assert targets is not None
    targets = targets.without_bounds_crossed_by(table.y)
    if len(split.train):
        trainer = _epoch_trainer(estimator, len(split.train))
        examples = Preprocessor(encoder, targets)(split.train)
        modules, state = state.one_epoch(trainer, modules, examples, _costs, targets.n_outputs)
    answers = _selected(estimator, before, (modules, encoder, targets), state, split.train)
    kept = {} if before is None else {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    fitted = {**kept, **table.described, **answer_attributes(answers)}
    return {**fitted, "n_epochs_": state.n_epochs, "_continuation": state}


def further_split(estimator: Any, table: RegressionTable) -> tuple[Continuation, Split]:
    """Return the state of a continued training run with these rows held out, and the split of the rows."""
    state: Continuation | None = getattr(estimator, "_continuation", None)
    if state is not None:
        split = split_rows(table.X, table.y, table.weights, seed=state.seed, borders=state.borders)
        return state.holding_out(split), split
    borders = fixed_borders(**held_out_shares(estimator.validation_fraction))
    state = Continuation(seed_of(estimator.random_state), 0, borders)
    split = split_rows(table.X, table.y, table.weights, seed=state.seed, borders=borders)
    if not len(split.train):  # the first rows must train
        split = split_rows(table.X, table.y, table.weights, seed=state.seed)
    return state.holding_out(split), split


def _epoch_trainer(estimator: Any, n_rows: int) -> Trainer:
    """Return rule, learning rate and decay over the horizon of `partial_fit`."""
    horizon = int(estimator.n_epochs or PARTIAL_EPOCHS)
    way = as_given(estimator.rule, 0.0, estimator.weight_decay, _WEIGHT_DECAY, horizon)
    batch = int(estimator.batch_size or default_batch_size(n_rows))
    cost, device = pairwise_sq_euclidean, estimator.device
    return Trainer(way.rule, estimator.learning_rate, way.weight_decay, horizon, batch, (), cost, device)


def _costs(module: nn.Module, examples: Examples) -> Tensor:
    return pairwise_sq_euclidean(hypotheses=module(examples.inputs).hypotheses, targets=examples.targets)


def _selected(estimator: Any, before: Answers | None, parts: Any, state: Continuation, train: Rows) -> Answers:
    """Return the answers with the bandwidth, gaps and levels from held-out rows, if there are enough."""
    selection, calibration = state.held_out
    if before is None or len(selection) >= _ENOUGH_TO_SELECT:
        judges = selection if len(selection) else train
        modules, encoder, targets = parts
        predictive = Predictive.fit(modules, encoder, targets, estimator.density, judges, estimator.device)
        fill = supported_gaps(predictive, selection)
    else:
        modules, _, targets = parts
        predictive, fill = replace(before.predictive, modules=modules, targets=targets), before.calibrator.fill
    check_converged(predictive, predictive.encoder, train, estimator.learning_rate)
    return Answers(predictive, Calibrator.fit(predictive, calibration, fill))
