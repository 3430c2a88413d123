"""Fitting a classifier by a rule: from a table to the fitted attributes, without a change to the estimator."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value
from torchmcl.costs import MixtureNLL, pairwise_cross_entropy
from torchmcl.fleet import MixtureLogLoss, default_batch_size
from torchmcl.fleet.models import build_modules
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.sklearn.class_mixture import ClassMixture, fitted_temperature, log_shares
from torchmcl.sklearn.columns import checked_groups
from torchmcl.sklearn.continuing import PARTIAL_EPOCHS, Continuation
from torchmcl.sklearn.examples import Examples, Preprocessor, default_n_epochs, seeds_of
from torchmcl.sklearn.folds import dealt_folds, fold_data, watched_folds
from torchmcl.sklearn.labels import checked_classes, ids_and_factors
from torchmcl.sklearn.parameters import as_given, check_parameters, searched, seed_of
from torchmcl.sklearn.preprocessing import MANY_ROWS, Encoder, fit_encoder
from torchmcl.sklearn.rows import Rows, split_rows
from torchmcl.sklearn.training import Trainer

__all__ = ["classifier_by_rule", "classifier_further"]

#: -log(score p(class)) of each hypothesis.
CLASS_COST = MixtureNLL(pairwise_cross_entropy)
_N_NETWORKS = 5
# Smaller batches take as long.
_MIN_BATCH = 200
# Epochs of small tables, and optimizer steps of large ones: this many, and one more for every so many rows.
_MAX_EPOCHS, _N_STEPS, _ROWS_PER_STEP = 90, 1500, 20
# Weight decay of a table with this many rows or fewer; it falls with the square of their number.
_MAX_DECAY, _MIN_DECAY, _FEW_ROWS = 2.0, 0.05, 200
# By default a training without improvement for this share of its epochs, and this many, ends.
_PATIENT_SHARE, _MIN_PATIENCE = 0.2, 20
# Evaluations on held-out rows in a training.
_N_EVALUATIONS = 100
# Rows by which networks that diverged are found out: they give no probability to the classes of this share of them.
# Further rows may contradict earlier ones, so `partial_fit` asks for finite numbers only.
_JUDGED_ROWS, _DIVERGED_SHARE, _NO_PROBABILITY = 256, 0.2, 1e-20


def classifier_by_rule(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any, checkpoint: str | Path | None
) -> dict[str, Any]:
    """Return the fitted attributes of `MCLClassifier.fit`."""
    check_parameters(estimator)
    owner, seed = type(estimator).__name__, seed_of(estimator.random_state)
    table = checked_classes(estimator, X, y, sample_weight, reset=True, n_needed=2)
    classes = np.unique(table.y if table.weights is None else table.y[table.weights > 0])
    ids, factors = ids_and_factors(estimator, table, classes)
    together = checked_groups(owner, groups, len(table.X))
    rows = split_rows(table.X, ids, table.weights, seed=seed, groups=together, factors=factors).train
    encoder = fit_encoder(rows, estimator.n_bins)
    mixture, attributes = _trained(estimator, rows, Preprocessor(encoder), len(classes), seed, checkpoint)
    _check_converged(owner, mixture, rows, estimator.learning_rate, _DIVERGED_SHARE)
    state = Continuation(seed, attributes["n_epochs_"])
    return {**table.described, **attributes, "classes_": classes, "_mixture": mixture, "_continuation": state}


def _check_converged(owner: str, mixture: ClassMixture, rows: Rows, learning_rate: Any, most: float = 1.0) -> None:
    rows = rows.head(_JUDGED_ROWS)
    shares = mixture(rows.inputs)
    impossible = np.take_along_axis(shares, rows.targets.reshape(-1, 1), axis=1) < _NO_PROBABILITY
    if not np.isfinite(shares).all() or impossible.mean() > most:
        rule, advice = "let the training converge", "The networks diverged; try 0.02."
        raise ValueError(bad_value(owner, "learning_rate", rule, repr(learning_rate), advice))


def _trained(
    estimator: Any, rows: Rows, preprocessor: Preprocessor, n_classes: int, seed: int, checkpoint: str | Path | None
) -> tuple[ClassMixture, dict[str, Any]]:
    """Return trained and calibrated networks, each with its rows, and the attributes of the training run."""
    n_networks = int(estimator.n_restarts or (_N_NETWORKS if len(rows) < MANY_ROWS else 1))
    folds = dealt_folds(rows, n_networks, float(estimator.validation_fraction))
    network = partial(_network, estimator, preprocessor.encoder, n_classes)
    trainer, found = _trainer(estimator, rows, preprocessor, network, len(folds[0][0]), n_networks, seed)
    trainer = replace(trainer, checkpoint=checkpoint)
    train, held_out = ([preprocessor(part) for part in parts] for parts in zip(*folds, strict=True))
    n_epochs = trainer.n_epochs
    patience = int(estimator.patience or max(_MIN_PATIENCE, round(_PATIENT_SHARE * n_epochs)))
    validation = watched_folds(held_out, every=max(1, n_epochs // _N_EVALUATIONS), patience=patience)
    trained = trainer(network, fold_data(train), validation)
    logs = [
        log_shares([module], held.inputs, estimator.device)[0]
        for module, held in zip(trained.modules, held_out, strict=True)
    ]
    losses = [_log_loss(each, held) for each, held in zip(logs, held_out, strict=True)]
    trained = replace(trained, distortions=torch.tensor(losses))
    kept = list(range(n_networks)) if estimator.ensemble else [trained.best()]
    modules = [trained.modules[place] for place in kept]
    attributes = trained.attributes(trainer.rule) | found
    attributes["validation_losses_"] = attributes.pop("validation_distortions_")
    temperature = fitted_temperature([logs[place] for place in kept], [held_out[place] for place in kept])
    if estimator.final_fit_on_all_rows and estimator.validation_fraction:
        one = replace(trainer, seeds=[trainer.seeds[place] for place in kept])
        final = one.on_all_rows(modules, preprocessor(rows), trained.moments_of(kept))
        modules, seconds = final.modules, float(final.history.seconds)
        attributes["seconds_"] += seconds
    return ClassMixture(modules, preprocessor.encoder, temperature, estimator.device), attributes


def _trainer(
    estimator: Any,
    rows: Rows,
    preprocessor: Preprocessor,
    network: Any,
    n_train: int,
    n_networks: int,
    seed: int,
) -> tuple[Trainer, dict[str, Any]]:
    """Return the trainer of the parameters, or of a search, and the attributes of the search."""
    batch = int(estimator.batch_size or max(_MIN_BATCH, default_batch_size(n_train)))
    default_epochs = min(_MAX_EPOCHS, default_n_epochs(n_train, batch, _N_STEPS + n_train // _ROWS_PER_STEP))
    n_epochs = int(estimator.n_epochs or default_epochs)
    decay = max(_MIN_DECAY, _MAX_DECAY * min(1.0, _FEW_ROWS / n_train) ** 2)
    way = as_given(estimator.rule, estimator.learning_rate, estimator.weight_decay, decay, n_epochs)
    found: dict[str, Any] = {}
    if estimator.search is not None:
        sizes = {"seed": seed, "n_epochs": n_epochs, "batch_size": batch}
        how: dict[str, Any] = {"cost_fn": CLASS_COST, "score_weight": 0.0, "monitor": MixtureLogLoss}
        way, found = searched(estimator, network, rows, preprocessor(rows), **sizes, **how)
    trainer = Trainer(
        *(way.rule, way.learning_rate, way.weight_decay, n_epochs, batch),
        seeds=seeds_of(seed, n_networks),
        cost_fn=CLASS_COST,
        device=estimator.device,
        score_weight=0.0,
        keep_best=bool(estimator.keep_best),
        models_at_once=n_networks,  # they are compared with each other
        progress=type(estimator).__name__ if estimator.progress else False,
    )
    return trainer, found


def classifier_further(estimator: Any, X: Any, y: Any, classes: Any, sample_weight: Any) -> dict[str, Any]:
    """Return the fitted attributes of `MCLClassifier.partial_fit`."""
    check_parameters(estimator)
    before: ClassMixture | None = getattr(estimator, "_mixture", None)
    table = checked_classes(estimator, X, y, sample_weight, reset=before is None, n_needed=1)
    if before is not None:
        state, classes = estimator._continuation, estimator.classes_
    elif classes is None:
        advice = "For example classes=np.unique(all_labels)."
        raise ValueError(bad_value(type(estimator).__name__, "classes", "be given in the first call", None, advice))
    else:
        state, classes = Continuation(seed_of(estimator.random_state), 0), np.unique(classes)
    ids, factors = ids_and_factors(estimator, table, classes)
    rows = split_rows(table.X, ids, table.weights, seed=state.seed, factors=factors).train
    if before is None:
        encoder = fit_encoder(rows, estimator.n_bins, default=0)
        n_networks = int(estimator.n_restarts or 1) if estimator.ensemble else 1
        factory = partial(_network, estimator, encoder, len(classes))
        before = ClassMixture(build_modules(factory, seeds_of(state.seed, n_networks)), encoder, 1.0, estimator.device)
    horizon = int(estimator.n_epochs or PARTIAL_EPOCHS)
    way = as_given(estimator.rule, 0.0, estimator.weight_decay, _MIN_DECAY, horizon)
    trainer = Trainer(
        *(way.rule, estimator.learning_rate, way.weight_decay, horizon),
        batch_size=int(estimator.batch_size or default_batch_size(len(rows))),
        seeds=(),
        cost_fn=CLASS_COST,
        device=estimator.device,
        score_weight=0.0,
        models_at_once=len(before.modules),
    )
    examples = Preprocessor(before.encoder)(rows)
    modules, state = state.one_epoch(trainer, before.modules, examples, _costs, len(classes))
    mixture = replace(before, modules=modules)
    _check_converged(type(estimator).__name__, mixture, rows, estimator.learning_rate)
    kept = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    fitted = {**kept, **table.described, "classes_": classes, "n_epochs_": state.n_epochs}
    return {**fitted, "_mixture": mixture, "_continuation": state}


def _network(estimator: Any, encoder: Encoder, n_classes: int) -> nn.Module:
    hidden = tuple(int(size) for size in estimator.hidden)
    return MultiHypothesisMLP(encoder.n_columns, n_classes, int(estimator.n_hypotheses), hidden=hidden)


def _costs(module: nn.Module, examples: Examples) -> Tensor:
    hypotheses, scores, *_ = module(examples.inputs)
    return CLASS_COST(hypotheses=hypotheses, targets=examples.targets, score_logits=scores)


def _log_loss(logs: Tensor, held_out: Examples) -> float:
    """Return the mean log-loss of a network on its held-out rows; infinity without any."""
    if not len(held_out.weights):
        return float("inf")
    losses = -logs.gather(1, held_out.targets).squeeze(1).numpy()
    return float(np.average(losses, weights=held_out.weights))
