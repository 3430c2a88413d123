"""MCLClassifier: multiple choice learning for classes, with several guesses for each row."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor, nn

from torchmcl import MixtureNLL, MultiHypothesisHead, MultiHypothesisMLP, pairwise_cross_entropy
from torchmcl.errors import bad_value
from torchmcl.schedules import Schedule
from torchmcl_fleet import FleetSearch, MixtureLogLoss, default_batch_size
from torchmcl_tables.estimators import training
from torchmcl_tables.estimators.base import SavedEstimator
from torchmcl_tables.estimators.classes import (
    ClassMixture,
    dealt_folds,
    fitted_temperature,
    fold_data,
    log_probabilities,
    watched_folds,
)
from torchmcl_tables.estimators.results import TopClasses
from torchmcl_tables.estimators.rows import MANY_ROWS, Encoder, Rows, split_rows
from torchmcl_tables.estimators.tables import (
    checked_classes,
    checked_groups,
    checked_table,
    ids_and_factors,
    set_fitted,
)
from torchmcl_tables.estimators.training import as_given, check_parameters, searched, seed_of, trainer_of

#: Cost of each hypothesis: -log(score p(class)).
CLASS_COST = MixtureNLL(pairwise_cross_entropy)
_N_NETWORKS = 5
# Smaller batches are no faster.
_MIN_BATCH = 200
# Number of epochs for small tables; number of optimizer steps for large tables, plus one per `_ROWS_PER_STEP` rows.
_MAX_EPOCHS, _N_STEPS, _ROWS_PER_STEP = 90, 1500, 20
# Weight decay for tables with at most this many rows; for larger tables it falls with the square of the number of rows.
_MAX_DECAY, _MIN_DECAY, _FEW_ROWS = 2.0, 0.05, 200
# By default, training stops after this fraction of the epochs, but at least this many, without improvement.
_PATIENCE, _MIN_PATIENCE = 0.2, 20
# Number of evaluations on held-out rows during training.
_N_EVALUATIONS = 100
# Detection of diverged networks: on at least this fraction of these rows, the true class has almost no probability.
_JUDGED_ROWS, _DIVERGED_FRACTION, _NO_PROBABILITY = 256, 0.2, 1e-20


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn defines comparison and repr of estimators
class MCLClassifier(ClassifierMixin, SavedEstimator):
    """Several guesses of the class of each row, with calibrated probabilities.

    A network returns `n_hypotheses` distributions over the classes and a score for each, and is trained by multiple
    choice learning with the cost -log(score p(class)). Below 50 000 rows there are five networks, each of which holds
    out a different fifth of the rows. The epoch with the lowest log-loss on all held-out rows is kept, and a
    temperature is fitted to these rows. The order, the weights and the copies of rows are treated as in `MCLRegressor`.

    The parameters and attributes are the same as for `MCLRegressor`, with these exceptions:

    Args:
        n_hypotheses: Number of distributions per network, and of classes returned by `predict_hypotheses` (at most the
            number of classes).
        rule: Assignment rule, `AutoAnnealing()` by default. With `Cooling(5.0, 1.0, share=0.5, linear=True)` the
            training ends with the likelihood of the mixture: at a temperature of 1, hypotheses share a row in
            proportion to their responsibilities. At temperatures near 0, each row has a single winner.
        n_bins: Number of bins of each column; 0 (no bins) by default.
        n_epochs: Number of epochs. By default 90 for small tables; for large tables, as many as correspond to 1500
            optimizer steps plus one step per 20 rows.
        batch_size: Number of rows per step; by default three times the square root of the number of rows, between 200
            and 1024.
        weight_decay: Decoupled weight decay. By default 0.05, and more below 1300 rows: up to 2 for 200 rows; derived
            from the noise per row by `AutoAnnealing`, unless its `noise_decay` is 0.
        keep_best: Whether to keep the best epoch instead of the last one; true by default.
        validation_fraction: Fraction of the rows held out by each network, rounded to 1/2, 1/3, 1/4 ...; at most
            10 000 rows. With 0, the last epoch is kept and the probabilities are not calibrated.
        patience: Number of epochs without improvement after which training stops; by default a fifth of the epochs, at
            least 20.
        class_weight: Weights of the classes by label, or "balanced" for equal total weights of all classes.

    Attributes:
        classes_: Sorted classes.
        temperature_: Temperature of the probabilities of each network; 1 without held-out rows.
        validation_losses_: Log-loss of each network on its held-out rows.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2))
        >>> y = np.where(rng.uniform(size=300) < 0.5, "up", np.where(X[:, 0] > 0, "right", "left"))
        >>> model = MCLClassifier(n_hypotheses=2, n_epochs=30, random_state=0).fit(X, y)
        >>> model.oracle_score(X, y) > 0.9 > model.score(X, y)
        True
    """

    n_hypotheses: int = 5
    rule: Any = None
    hidden: Any = (64, 64)
    n_bins: int | None = 0
    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | Schedule = 0.02
    weight_decay: float | None = None
    keep_best: bool = True
    validation_fraction: float = 0.2
    patience: int | None = None
    n_restarts: int | None = None
    ensemble: bool = True
    search: FleetSearch | None = None
    device: str | torch.device = "cpu"
    random_state: Any = None
    progress: bool = False
    class_weight: Mapping[Any, float] | str | None = None

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, checkpoint: str | Path | None = None
    ) -> "MCLClassifier":
        """Train on a table. If an error occurs, the estimator remains unchanged.

        Args:
            X: Array or data frame of numbers, [rows, features]; NaN for missing values.
            y: Class labels, [rows].
            sample_weight: Relative frequency of each row, [rows]; only the ratios matter.
            groups: Labels of rows that belong together (the same patient, site or scene), [rows]. Each group is held
                out as a whole, in every split.
            checkpoint: Folder for checkpoints during training; after an interruption, the same call resumes from there.
        """
        set_fitted(self, classifier_by_rule(self, X, y, sample_weight, groups, checkpoint))
        return self

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict the probability of each class, [rows, classes]."""
        check_is_fitted(self)
        return replace(self._mixture, device=self.device)(checked_table(self, X, reset=False)[0])

    def predict_hypotheses(self, X: Any) -> TopClasses:
        """Predict the `n_hypotheses` most probable classes of each row, or all classes if there are fewer."""
        probabilities = self.predict_proba(X)
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self.n_answers_]
        top = TopClasses(self.classes_[order], np.take_along_axis(probabilities, order, axis=1))
        return top.labeled(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class of each row, [rows]."""
        probabilities = self.predict_proba(X)  # first, because it checks that the estimator is fitted
        return self.classes_[probabilities.argmax(axis=1)]

    def oracle_score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the fraction of rows with at least one correct guess."""
        values = self.predict_hypotheses(X).values
        truth = column_or_1d(y)
        if len(truth) != len(values):
            raise ValueError(bad_value(type(self).__name__, "y", f"have {len(values)} rows", len(truth)))
        right = (values == truth[:, None]).any(axis=1)
        return float(np.average(right, weights=sample_weight))

    @property
    def _exported(self) -> ClassMixture:
        return self._mixture

    def _first_predictions(self) -> list[NDArray[Any]]:
        mixture = replace(self._mixture, device="cpu")
        return [mixture(np.zeros((1, mixture.encoder.n_inputs)))]

    classes_: NDArray[Any] = field(init=False)
    _mixture: ClassMixture = field(init=False)

    @property
    def modules_(self) -> list[nn.Module]:
        """Selected networks."""
        return self._mixture.modules

    @property
    def temperature_(self) -> float:
        """Temperature applied to the probabilities of each network."""
        return self._mixture.temperature

    @property
    def n_answers_(self) -> int:
        """Number of predicted classes per row."""
        head: MultiHypothesisHead = self.modules_[0].head  # type: ignore[assignment]
        return min(head.n_hypotheses, len(self.classes_))


def classifier_by_rule(
    estimator: Any, X: Any, y: Any, sample_weight: Any, groups: Any, checkpoint: str | Path | None
) -> dict[str, Any]:
    """Compute the fitted attributes of `MCLClassifier.fit`."""
    check_parameters(estimator)
    owner, seed = type(estimator).__name__, seed_of(estimator.random_state)
    table = checked_classes(estimator, X, y, sample_weight, reset=True, n_needed=2)
    classes = np.unique(table.y if table.weights is None else table.y[table.weights > 0])
    ids, factors = ids_and_factors(estimator, table, classes)
    together = checked_groups(owner, groups, len(table.X))
    rows = split_rows(table.X, ids, table.weights, seed=seed, groups=together, factors=factors).train
    encoder = Encoder.fit(rows, estimator.n_bins or 0)
    mixture, attributes = _trained(estimator, rows, training.Preprocessor(encoder), len(classes), seed, checkpoint)
    _check_converged(owner, mixture, rows, estimator.learning_rate)
    return {**table.described, **attributes, "classes_": classes, "_mixture": mixture}


def _check_converged(owner: str, mixture: ClassMixture, rows: Rows, learning_rate: Any) -> None:
    rows = rows.head(_JUDGED_ROWS)
    probabilities = mixture(rows.inputs)
    impossible = np.take_along_axis(probabilities, rows.targets.reshape(-1, 1), axis=1) < _NO_PROBABILITY
    if not np.isfinite(probabilities).all() or impossible.mean() > _DIVERGED_FRACTION:
        rule, advice = "let the training converge", "The networks diverged; try 0.02."
        raise ValueError(bad_value(owner, "learning_rate", rule, repr(learning_rate), advice))


def _trained(
    estimator: Any,
    rows: Rows,
    preprocessor: training.Preprocessor,
    n_classes: int,
    seed: int,
    checkpoint: str | Path | None,
) -> tuple[ClassMixture, dict[str, Any]]:
    """Train the networks and calibrate their mixture on held-out rows; also return the attributes of the training."""
    n_networks = int(estimator.n_restarts or (_N_NETWORKS if len(rows) < MANY_ROWS else 1))
    folds = dealt_folds(rows, n_networks, float(estimator.validation_fraction))
    network = partial(_network, estimator, preprocessor.encoder, n_classes)
    trainer, search = _trainer(estimator, rows, preprocessor, network, len(folds[0][0]), n_networks, seed)
    trainer = replace(trainer, checkpoint=checkpoint)
    train, held_out = ([preprocessor(part) for part in parts] for parts in zip(*folds, strict=True))
    n_epochs = trainer.n_epochs
    patience = int(estimator.patience or max(_MIN_PATIENCE, round(_PATIENCE * n_epochs)))
    validation = watched_folds(held_out, every=max(1, n_epochs // _N_EVALUATIONS), patience=patience)
    trained = trainer(network, fold_data(train), validation)
    logs = [
        log_probabilities([module], held.inputs, estimator.device)[0]
        for module, held in zip(trained.modules, held_out, strict=True)
    ]
    losses = [_log_loss(log, held) for log, held in zip(logs, held_out, strict=True)]
    trained = replace(trained, held_out_losses=torch.tensor(losses))
    kept = list(range(n_networks)) if estimator.ensemble else [trained.best()]
    modules = [trained.modules[place] for place in kept]
    attributes = trained.attributes(trainer.rule) | search
    temperature = fitted_temperature([logs[place] for place in kept], [held_out[place] for place in kept])
    return ClassMixture(modules, preprocessor.encoder, temperature, estimator.device), attributes


def _trainer(
    estimator: Any,
    rows: Rows,
    preprocessor: training.Preprocessor,
    network: Any,
    n_train: int,
    n_networks: int,
    seed: int,
) -> tuple[training.Trainer, dict[str, Any]]:
    """Return a trainer with the parameters of the estimator or of the best candidate, and the search attributes."""
    batch = int(estimator.batch_size or max(_MIN_BATCH, default_batch_size(n_train)))
    default_epochs = min(_MAX_EPOCHS, training.default_n_epochs(n_train, batch, _N_STEPS + n_train // _ROWS_PER_STEP))
    n_epochs = int(estimator.n_epochs or default_epochs)
    decay = max(_MIN_DECAY, _MAX_DECAY * min(1.0, _FEW_ROWS / n_train) ** 2)
    settings = as_given(estimator.rule, estimator.learning_rate, estimator.weight_decay, decay, n_epochs)
    search: dict[str, Any] = {}
    if estimator.search is not None:
        sizes = {"seed": seed, "n_epochs": n_epochs, "batch_size": batch}
        options: dict[str, Any] = {"cost_fn": CLASS_COST, "score_weight": 0.0, "monitor": MixtureLogLoss}
        settings, search = searched(estimator, network, rows, preprocessor(rows), **sizes, **options)
    seeds = training.seeds_of(seed, n_networks)
    # Training stops by the mean log-loss of all networks, so they are trained together.
    fields = {"cost_fn": CLASS_COST, "score_weight": 0.0, "models_at_once": n_networks}
    return trainer_of(estimator, settings, n_epochs, batch, seeds, **fields), search


def _network(estimator: Any, encoder: Encoder, n_classes: int) -> nn.Module:
    hidden = tuple(int(size) for size in estimator.hidden)
    return MultiHypothesisMLP(encoder.n_columns, n_classes, int(estimator.n_hypotheses), hidden=hidden).float()


def _log_loss(logs: Tensor, held_out: training.Examples) -> float:
    """Compute the mean log-loss of a network on its held-out rows; infinity if there are none."""
    if not len(held_out.weights):
        return float("inf")
    losses = -logs.gather(1, held_out.targets).squeeze(1).numpy()
    return float(np.average(losses, weights=held_out.weights))
