"""MCLClassifier: the original multiple-choice setting, several guesses at the class of each row."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor, nn

from torchmcl._checks import bad_value
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.fleet import MixtureLogLoss, default_batch_size
from torchmcl.nn import MultiHypothesisHead, MultiHypothesisMLP
from torchmcl.rules.winners import AnnealedWTA
from torchmcl.schedules import Linear, Schedule, annealed
from torchmcl.types import Predictions
from torchmcl_tables.estimators._base import MCLEstimator, seeds_of
from torchmcl_tables.estimators._class_training import CLASS_COST, ClassTraining, best_temperature, log_shares
from torchmcl_tables.estimators._folds import dealt_folds
from torchmcl_tables.estimators._networks import Examples, default_n_epochs
from torchmcl_tables.estimators._rows import Rows, split_rows

__all__ = ["Guesses", "MCLClassifier"]

# The temperature of the likelihood to begin with, and the share of the epochs after which it is 1.
_HOT, _COOLING_SHARE = 5.0, 0.5
# Networks by default; one has enough of a table of this many rows.
_N_NETWORKS, _MANY_ROWS = 5, 50_000
# Smaller batches take as long.
_MIN_BATCH = 200
# Epochs of small tables, and optimizer steps of large ones: this many, and one more for every so many rows.
_MAX_EPOCHS, _N_STEPS, _ROWS_PER_STEP = 90, 1500, 20
# Weight decay of a table with this many rows or fewer; it falls with the square of their number.
_MAX_DECAY, _MIN_DECAY, _FEW_ROWS = 2.0, 0.05, 200
# By default a training without improvement for this share of its epochs, and this many, ends.
_PATIENT_SHARE, _MIN_PATIENCE = 0.2, 20
# Rows by which networks that diverged are found out.
_JUDGED_ROWS = 256


class Guesses(NamedTuple):
    """Several guesses for each row, the most probable first.

    Attributes:
        values: [rows, guesses], different classes.
        probabilities: [rows, guesses], of each of them; what is left to 1 is that of all other classes.
    """

    values: NDArray[Any]
    probabilities: NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class MCLClassifier(ClassifierMixin, MCLEstimator):
    """Several guesses at the class of each row, with calibrated probabilities.

    A network gives `n_hypotheses` distributions over the classes and a score for each, and is trained so that their
    mixture is likely: by default with the annealed likelihood, in which all hypotheses learn from each row to begin
    with, and in the end each from those that it explains. Below 50 000 rows there are five networks, each of which
    holds out another fifth of the rows. The epoch with the lowest log-loss on all held-out rows is kept, and the
    temperature that makes the probabilities fit those rows. The fit does not depend on the order of the rows, and
    weighting a row with 2 is the same as having it twice. Copies of a row are held out together, but for tables so
    coarse that rows coincide by chance: there each is a row of its own.

    The parameters and attributes are those of `MCLRegressor`, except for these:

    Args:
        n_hypotheses: distributions that a network mixes, and classes that `predict_hypotheses` returns (at most all).
        rule: "annealed" is `AnnealedWTA` with a temperature that falls from 5 to 1 in the first half of the epochs;
            1 is the likelihood of the mixture, and below it, as with "mcl", a winner takes each row.
        n_knots: none by default.
        n_epochs: by default 90 for small tables, and about 1500 optimizer steps and a twentieth of the rows for others.
        batch_size: by default three times the square root of the rows, between 200 and 1024.
        weight_decay: by default 0.05, and more for fewer than 1300 rows: up to 2 for 200.
        keep_best: true by default.
        validation_fraction: share of the rows that each network holds out, rounded to 1/2, 1/3, 1/4 ...; at most
            10 000 rows. At 0 the last epoch is kept and nothing is calibrated.
        patience: by default a fifth of the epochs, at least 20.
        final_fit_on_all_rows: false by default.
        class_weight: weights of the classes by label, or "balanced" for the same weight of all classes.

    Attributes:
        classes_: the classes, sorted.
        temperature_: of the probabilities of each network, 1 where nothing is held out.
        validation_losses_: log-loss of each network on the rows that it held out.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2))
        >>> y = np.where(rng.uniform(size=300) < 0.5, "up", np.where(X[:, 0] > 0, "right", "left"))
        >>> model = MCLClassifier(n_hypotheses=2, n_epochs=100, random_state=0).fit(X, y)
        >>> model.oracle_score(X, y) > 0.9 > model.score(X, y)
        True
    """

    _cost_fn = CLASS_COST
    _search_options: ClassVar[dict[str, Any]] = {"score_weight": 0.0, "monitor": MixtureLogLoss}
    _default_weight_decay = _MIN_DECAY

    learning_rate: float | Schedule = 0.02
    validation_fraction: float = 0.2
    n_restarts: int | None = None
    ensemble: bool = True
    class_weight: Mapping[Any, float] | str | None = None

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, checkpoint: str | Path | None = None
    ) -> "MCLClassifier":
        """Train on a table.

        Args:
            X: [rows, features], an array of numbers (NaN where one is missing), or a data frame of pandas, polars or
                Arrow with any columns.
            y: [rows], class labels.
            sample_weight: [rows], how often each row occurs relative to the others; only the ratios matter.
            groups: [rows], labels of rows that belong together (of one patient, one place, one scene): they are held
                out together, in every split.
            checkpoint: folder to save the training to on the way; the same call resumes from there after a kill.
        """
        self._check_parameters()
        self._forget()
        X, y, weights = self._validated(X, y, sample_weight, reset=True)
        self.classes_ = np.unique(y if weights is None else y[weights > 0])
        ids = self._class_ids(y, weights)
        factors = self._class_factors(ids, y, weights)
        seed = self._seed()
        rows = split_rows(X, ids, weights, seed=seed, groups=self._checked_groups(groups, X), factors=factors).train
        self._inputs = self._encoder(rows)
        training = self._train_folds(rows, seed, checkpoint)
        if self.final_fit_on_all_rows and self.validation_fraction:
            self._train_on_all(training, rows)
        if not np.isfinite(self._probabilities(rows.head(_JUDGED_ROWS).inputs)).all():
            self._forget()
            rule, advice = "let the training converge", "The networks diverged; try 0.02."
            raise ValueError(bad_value("MCLClassifier", "learning_rate", rule, repr(self.learning_rate), advice))
        return self

    def _train_folds(self, rows: Rows, seed: int, checkpoint: str | Path | None) -> ClassTraining:
        """Train the networks, each on its rows, and calibrate them; return how to continue from there."""
        default = _N_NETWORKS if len(rows) < _MANY_ROWS else 1
        n_networks = default if self.n_restarts is None else int(self.n_restarts)
        folds = dealt_folds(rows, n_networks, float(self.validation_fraction))
        n_train = len(folds[0][0])
        batch = int(self.batch_size or max(_MIN_BATCH, default_batch_size(n_train)))
        default_epochs = min(_MAX_EPOCHS, default_n_epochs(n_train, batch, _N_STEPS + n_train // _ROWS_PER_STEP))
        n_epochs = int(self.n_epochs or default_epochs)
        patience = int(self.patience or max(_MIN_PATIENCE, round(_PATIENT_SHARE * n_epochs)))
        way = self._way_to_train(n_epochs)
        if self.weight_decay is None and not isinstance(way.rule, AutoAnnealing):
            decay = max(_MIN_DECAY, _MAX_DECAY * min(1.0, _FEW_ROWS / n_train) ** 2)
            way = replace(way, weight_decay=decay)
        if self.search is not None:
            way = self._searched(rows, self._examples(rows), seed, n_epochs, batch)
        training = self._training(
            *(way.rule, way.learning_rate, way.weight_decay),
            n_epochs=n_epochs,
            batch_size=batch,
            seeds=seeds_of(seed, n_networks),
            keep_best=bool(self.keep_best),
            patience=patience,
            checkpoint=checkpoint,
        )
        train, held_out = ([self._examples(part) for part in parts] for parts in zip(*folds, strict=True))
        trained = training.run(self._module, train, held_out if len(held_out[0].weights) else None)
        told = [
            log_shares([module], held.inputs, self.device)[0]
            for module, held in zip(trained.modules, held_out, strict=True)
        ]
        losses = torch.tensor([_log_loss(said, held) for said, held in zip(told, held_out, strict=True)])
        trained = replace(trained, distortions=losses)
        kept = list(range(n_networks)) if self.ensemble else [trained.best()]
        self._keep(training, trained, kept)
        self.validation_losses_ = self.validation_distortions_
        del self.validation_distortions_
        self._state_seed = seed
        self.temperature_ = _temperature([told[place] for place in kept], [held_out[place] for place in kept])
        moments = {name: value[kept] for name, value in trained.moments.items()}
        return replace(training, seeds=[training.seeds[place] for place in kept], moments=moments)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "MCLClassifier":
        """Train for one epoch on some more rows, from where the last call (or `fit`) ended.

        One network is trained, or `n_restarts` of them where that is given; after `fit` those that it kept. Nothing is
        held out, so that the probabilities stay as they were calibrated, if they were.

        Args:
            X: [rows, features]
            y: [rows], class labels.
            classes: all classes that will ever come; needed in the first call.
            sample_weight: [rows], how much each row counts.

        Raises:
            ValueError: if the first call has no `classes`, or a label is not among them.
        """
        first = not hasattr(self, "modules_")
        self._check_parameters()
        X, y, weights = self._validated(X, y, sample_weight, reset=first, n_needed=1)
        if first:
            if classes is None:
                advice = "For example classes=np.unique(all_labels)."
                raise ValueError(bad_value("MCLClassifier", "classes", "be given in the first call", None, advice))
            self.classes_ = np.unique(classes)
            self._state_seed, self._moments, self._annealing = self._seed(), None, None
            self.temperature_ = 1.0
        ids = self._class_ids(y, weights)
        factors = self._class_factors(ids, y, weights)
        rows = split_rows(X, ids, weights, seed=self._state_seed, factors=factors).train
        if first:
            self._inputs = self._encoder(rows, default=0)
        self._train_more(rows)
        return self

    # ------------------------------------------------------------------ tables

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, n_needed: int = 2
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]:
        X, y = self._checked_table(X, y, reset=reset, ensure_min_samples=n_needed)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True), self._checked_weights(sample_weight, X)

    def _class_ids(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> NDArray[np.int64]:
        ids = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        counts = np.ones(len(y), dtype=bool) if weights is None else weights > 0
        if (unknown := counts & (self.classes_[ids] != y)).any():
            rule = f"hold classes among {self.classes_.tolist()}"
            raise ValueError(bad_value("MCLClassifier", "y", rule, repr(y[unknown][0])))
        return ids.astype(np.int64)

    def _class_factors(
        self, ids: NDArray[np.int64], y: NDArray[Any], weights: NDArray[np.float64] | None
    ) -> NDArray[np.float64] | None:
        """Return what `class_weight` multiplies the weight of each row by, [rows]; None for nothing."""
        if self.class_weight is None:
            return None
        given = dict(self.class_weight) if isinstance(self.class_weight, Mapping) else self.class_weight
        counted = self.classes_[ids] == y  # rows without weight may have other labels
        classes = np.unique(y[counted])
        counts = None if weights is None else weights[counted]
        found = compute_class_weight(given, classes=classes, y=y[counted], sample_weight=counts)
        own = dict(zip(classes, found, strict=True))
        return np.array([own.get(label, 0.0) for label in self.classes_])[ids]

    def _encoded_targets(self, rows: Rows) -> NDArray[Any]:
        return rows.targets

    def _check_parameters(self) -> None:
        super()._check_parameters()
        given = self.class_weight
        if given is None or given == "balanced" or isinstance(given, Mapping):
            return
        rule = "be None, 'balanced' or a dictionary of weights by label"
        raise ValueError(bad_value("MCLClassifier", "class_weight", rule, repr(given)))

    # ------------------------------------------------------------------ networks

    @property
    def _out_features(self) -> int:
        return len(self.classes_)

    def _module(self) -> nn.Module:
        hidden = tuple(int(size) for size in self.hidden)
        return MultiHypothesisMLP(self._inputs.n_columns, self._out_features, int(self.n_hypotheses), hidden=hidden)

    def _training(self, rule: Any, learning_rate: Any, weight_decay: Any, **how: Any) -> ClassTraining:
        return ClassTraining(**vars(super()._training(rule, learning_rate, weight_decay, **how)))

    def _rule(self, n_epochs: int) -> Any:
        if self.rule != "annealed":
            return super()._rule(n_epochs)
        n_cooling = max(1, round(_COOLING_SHARE * n_epochs))
        return annealed(AnnealedWTA, temperature=Linear(_HOT, 1.0, n_cooling))

    def _costs(self, predictions: Predictions, targets: Tensor) -> Tensor:
        scores = predictions.score_logits
        assert scores is not None
        return self._cost_fn(hypotheses=predictions.hypotheses, targets=targets, score_logits=scores)

    # ------------------------------------------------------------------ predicting

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, [rows, classes]."""
        return self._probabilities(self._checked_inputs(X))

    def _probabilities(self, X: NDArray[Any]) -> NDArray[Any]:
        said = log_shares(self.modules_, torch.from_numpy(self._inputs(X, X.dtype)), self.device)
        mixed: NDArray[Any] = (said / self.temperature_).softmax(dim=-1).mean(dim=0).numpy()
        return mixed / mixed.sum(axis=1, keepdims=True)

    def predict_hypotheses(self, X: Any) -> Guesses:
        """Return the `n_hypotheses` most probable classes of each row, or all if there are fewer."""
        probabilities = self.predict_proba(X)
        head = self.modules_[0].head  # the parameter may have changed since
        assert isinstance(head, MultiHypothesisHead)
        n_guesses = min(head.n_hypotheses, len(self.classes_))
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :n_guesses]
        return Guesses(self.classes_[order], np.take_along_axis(probabilities, order, axis=1))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of each row, [rows]."""
        probabilities = self.predict_proba(X)  # first: it checks that there are classes
        chosen: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return chosen

    def oracle_score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows for which at least one guess is right."""
        values = self.predict_hypotheses(X).values
        truth = column_or_1d(y)
        if len(truth) != len(values):
            raise ValueError(bad_value("MCLClassifier", "y", f"have {len(values)} rows", len(truth)))
        right = (values == truth[:, None]).any(axis=1)
        return float(np.average(right, weights=sample_weight))


def _log_loss(said: Tensor, held_out: Examples) -> float:
    """Return the mean log-loss of a network on rows that it held out; infinity without any."""
    if not len(held_out.weights):
        return float("inf")
    losses = -said.gather(1, held_out.targets).squeeze(1).numpy()
    return float(np.average(losses, weights=held_out.weights))


def _temperature(told: list[Tensor], held_out: list[Examples]) -> float:
    """Return the temperature that makes what networks say of the rows that they held out fit best."""
    if not len(held_out[0].weights):
        return 1.0
    classes = np.concatenate([held.targets.squeeze(1).numpy() for held in held_out])
    found = best_temperature(torch.cat(told), classes, np.concatenate([held.weights for held in held_out]))
    # Networks that are too sure of themselves agree less, so that their mean is flatter than each of them already.
    return found if found < 1 else float(found ** (1 / len(told)))
