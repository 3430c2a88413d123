"""MCLRegressor: several plausible outcomes for each row of a table, with their probabilities."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int, check_real
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.density import (
    Bandwidth,
    HypothesisDensity,
    KernelMixture,
    VoronoiKernels,
    best_points,
    fit_bandwidth,
)
from torchmcl.estimators import _conformal
from torchmcl.estimators._base import MCLEstimator
from torchmcl.estimators._conformal import PredictionIntervals
from torchmcl.estimators._inputs import Scaler
from torchmcl.estimators._networks import answers
from torchmcl.estimators._rows import Rows, fixed_borders, restored, split_rows, stored, target_names
from torchmcl.fleet import FleetSearch
from torchmcl.nn import MultiHypothesisHead
from torchmcl.schedules import Schedule

__all__ = ["Hypotheses", "MCLRegressor"]

# A bandwidth has two numbers: this many rows settle them.
_BANDWIDTH_ROWS = 4096
# With these the calibration adds a quarter of a point to the error of the coverage.
_CALIBRATION_ROWS = 16_384
_VORONOI_ROWS = 512
# With fewer rows that the networks have not seen, partial_fit keeps the bandwidth it has.
_ENOUGH_TO_SELECT = 20


class Hypotheses(NamedTuple):
    """Several answers for each row.

    Attributes:
        values: [rows, hypotheses, outputs], in the units of y.
        probabilities: [rows, hypotheses], summing to 1.
    """

    values: NDArray[Any]
    probabilities: NDArray[Any]


class MCLRegressor(RegressorMixin, TransformerMixin, MCLEstimator):
    """Several plausible outcomes for each row, their probabilities, a density and calibrated intervals.

    A network gives `n_hypotheses` answers and a score for each; it is trained by annealed multiple choice learning
    unless another rule is given. Below 50 000 rows to train on there are five networks; their answers are the
    `n_hypotheses` points that stand best for the density of all. Inputs and targets are standardised inside. A part of
    the rows is held out: one half picks the bandwidth of the density (and the epoch and the restart where those are
    picked), the other half calibrates the intervals and is touched by nothing else. The fit does not depend on the
    order of the rows, weighting a row with 2 is the same as having it twice, and weighting all rows alike is the same
    as not weighting them.

    Args:
        n_hypotheses: how many answers to give for each row.
        rule: an assignment rule, or a function epoch -> rule as `annealed` makes it; "annealed", "mcl" or "relaxed"
            build `AnnealedWTA` with an exponential cooling from 0.5 to 5e-4 over 70 % of the epochs, `WTA` and
            `RelaxedWTA(0.1)`. Temperatures are in units of the variance of the targets.
        schedule: of the rule's field by epoch, instead of the built one. "auto" has no temperature to choose: when to
            cool, from where and how fast, the tail of the learning rate and the weight decay are decided in training
            (`torchmcl.annealing.AutoAnnealing`).
        hidden: sizes of the hidden layers.
        n_knots: places in each column at which the answers may bend, at its quantiles; 0 for none. Unless told 33, if
            there are fewer than 50 000 rows to train on and in half of the columns or more values repeat (each stands
            in two different rows on average), else none; none for `partial_fit`.
        n_epochs: passes over the rows; about 1500 optimiser steps (750 with knots), between 20 and 1000 epochs, unless
            told.
        batch_size: rows of an optimiser step at most, shared out evenly; three times the square root of their number,
            between 64 and 1024, unless told.
        learning_rate: of Adam: a number to begin with, brought to 0 along a cosine, or a schedule by epoch.
        weight_decay: decoupled weight decay; 0.05 unless told, and by the noise per row with `schedule="auto"`.
        early_stopping: keep the epoch with the lowest distortion on the selecting rows instead of the last one.
        validation_fraction: share of the rows that is held out, half for selection and half for calibration, at most
            10 000 and 5 000 rows.
        n_iter_no_change: end the training after this many epochs without improvement on the selecting rows; choose it
            longer than the cooling. Never unless told.
        n_init: networks that begin with different weights, trained together as a fleet; 5 for fewer than 50 000 rows
            to train on and 1 for more, unless told. One network predicts fifty times as fast as five.
        ensemble: let all networks answer together, instead of the best on the selecting rows alone; one that failed
            (three times the median distortion there) is left out.
        refit: when the selecting rows have served, train on with them for another 30 % of the epochs, from a quarter of
            the learning rate down to 0.
        search: "fleet" trains 64 ways to train at once on a part of the training rows and goes on with the one that
            is best on the others, instead of `rule`, `schedule`, `learning_rate` and `weight_decay`; or a
            `torchmcl.fleet.FleetSearch` with candidates of your own.
        device: where to train and predict, "cpu" or "cuda".
        random_state: of the initial weights, the shuffles and the held-out rows.
        verbose: show a progress bar.
        density: `KernelMixture` or `VoronoiKernels`, the density behind `predict_distribution`, `sample` and
            `log_prob`.

    Attributes:
        modules_: the networks that were kept, ordinary torch modules on standardised inputs and targets; with knots
            the place of each column between them comes after the columns.
        n_features_in_: columns of X; `feature_names_in_` has their names where X had any.
        n_outputs_: columns of y; `target_names_` has their names.
        bandwidth_: the rule for the bandwidth, in units of the deviation of y.
        loss_curve_: training loss of each epoch.
        temperature_curve_: the temperature of each epoch, whether a schedule, the search or the training itself decided
            on it; None for a rule without any. `learning_rate_curve_` has the learning rates.
        rule_: the rule, the function epoch -> rule or the `AutoAnnealing` that was used.
        best_init_: which restart was best; `validation_distortions_` has the values, in standardised units.
        best_epoch_: the epoch that was kept, -1 if the last one was.
        n_epochs_: epochs that were trained, `refit` aside.
        trials_: what `search` tried, a record for each; `best_candidate_` is the name of the one that was chosen.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(size=(300, 1))
        >>> y = np.where(rng.uniform(size=300) < 0.5, X[:, 0], -X[:, 0])  # two branches
        >>> model = MCLRegressor(n_hypotheses=2, n_epochs=100, random_state=0).fit(X, y)
        >>> values, probabilities = model.predict_hypotheses([[0.8]])
        >>> np.sort(values[0, :, 0]).round(1), probabilities.shape
        (array([-0.8,  0.8]), (1, 2))
    """

    _usual_decay = 0.05

    def __init__(
        self,
        *,
        n_hypotheses: int = 5,
        rule: Any = "annealed",
        schedule: Schedule | str | None = None,
        hidden: Sequence[int] = (64, 64),
        n_knots: int | None = None,
        n_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | Schedule = 0.02,
        weight_decay: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        n_iter_no_change: int | None = None,
        n_init: int | None = None,
        ensemble: bool = True,
        refit: bool = True,
        search: FleetSearch | str | None = None,
        device: str | torch.device = "cpu",
        random_state: Any = None,
        verbose: bool = False,
        density: type[HypothesisDensity] = KernelMixture,
    ) -> None:
        super().__init__(
            n_hypotheses=n_hypotheses,
            rule=rule,
            schedule=schedule,
            hidden=hidden,
            n_knots=n_knots,
            n_epochs=n_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            n_init=n_init,
            ensemble=ensemble,
            refit=refit,
            search=search,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.density = density

    def __sklearn_tags__(self) -> Any:
        """Say what the estimator can do."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64"]  # answers are in the units of y, not of X
        return tags

    # ------------------------------------------------------------------ fitting

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, checkpoint: str | Path | None = None
    ) -> "MCLRegressor":
        """Train on a table.

        Args:
            X: [rows, features], an array or a data frame of numbers without missing values.
            y: [rows], or [rows, outputs] for several outputs.
            sample_weight: [rows], how often each row occurs relative to the others; only the ratios matter.
            groups: [rows], labels of rows that belong together (of one patient, one place, one scene): they are held
                out together, in every split, and the intervals hold for rows of fresh groups.
            checkpoint: folder to save the training to on the way; the same call goes on from there after a kill.

        Raises:
            ValueError: for a parameter out of range, a table with missing or infinite values, or a constant target.
        """
        self._check_parameters()
        rows = self._validated(X, y, sample_weight, reset=True, n_needed=2)
        self._check_targets_vary(rows[1])
        seed = self._seed()
        half = float(self.validation_fraction) / 2
        together = self._checked_groups(groups, rows[0])
        split = split_rows(*rows, seed=seed, selecting=half, calibrating=half, groups=together)
        self._borders = split.borders
        self._inputs = self._encoder(split.train)
        self._targets = Scaler.of(split.train.targets, split.train.weights)
        cost_fn = pairwise_sq_euclidean
        training = self._train(split.train, split.selection, seed, self.n_outputs_, self._tensors, cost_fn, checkpoint)
        selection = split.selection
        self._choose_bandwidths(selection if len(selection) else split.train)
        if self.refit and len(selection):
            self._train_on_all(training, split.train.joined(selection), self._tensors)
            selection = selection.head(0)  # they cannot select any more
        self._calibrate(split.calibration)
        self._held_out = stored(selection.times(split.largest), split.calibration.times(split.largest))
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MCLRegressor":
        """Go once through some more rows, from where the last call (or `fit`) ended.

        Each call is one epoch of the rule's schedule, whose horizon is `n_epochs`, or 200 unless told; the learning
        rate stays at its first value unless it is a schedule. Inputs and targets are standardised as in the first
        call. The held-out share of each call joins the rows that select and calibrate, of which the latest 4096 are
        kept. A row that comes again is in the same share again; a call of nothing but held-out rows trains nothing. One
        network is trained, or `n_init` of them where that is given with `ensemble`; after `fit` those that it kept.

        Args:
            X: [rows, features]
            y: [rows] or [rows, outputs]
            sample_weight: [rows], how much each row counts.
        """
        first = not hasattr(self, "modules_")
        self._check_parameters()
        rows = self._validated(X, y, sample_weight, reset=first, n_needed=1)
        if first:
            self._state_seed, self._moments, self._annealing = self._seed(), None, None
        if first or not hasattr(self, "_borders"):  # models that were saved before there were borders have none
            half = float(self.validation_fraction) / 2
            self._borders = fixed_borders(selecting=half, calibrating=half)
        split = split_rows(*rows, seed=self._state_seed, borders=self._borders)
        if first and not len(split.train):
            split = split_rows(*rows, seed=self._state_seed)
        if first:
            self._inputs = self._encoder(split.train, usual=0)
            self._targets = Scaler.of(split.train.targets, split.train.weights)
            self._held_out = stored(split.selection.head(0), split.calibration.head(0))
        old = restored(self._held_out)
        new = (share.times(split.largest) for share in (split.selection, split.calibration))
        self._held_out = stored(*(before.joined(share) for before, share in zip(old, new, strict=True)))
        if len(split.train):
            self._train_more(split.train, self.n_outputs_, self._tensors, pairwise_sq_euclidean)
        selection, calibration = restored(self._held_out)
        if len(selection) >= _ENOUGH_TO_SELECT or not hasattr(self, "bandwidth_"):
            self._choose_bandwidths(selection if len(selection) else split.train)
        self._calibrate(calibration)
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.density not in (KernelMixture, VoronoiKernels):
            rule = "be KernelMixture or VoronoiKernels"
            raise ValueError(bad_value("MCLRegressor", "density", rule, repr(self.density)))

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, n_needed: int
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64] | None]:
        names = target_names(y)
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            multi_output=True,
            y_numeric=True,
            dtype=[np.float64, np.float32],
            ensure_min_samples=n_needed,
        )
        weights = self._checked_weights(sample_weight, X)
        y = np.asarray(y, dtype=np.float64)
        columns = y[:, None] if y.ndim == 1 else y
        if reset:
            self.n_outputs_ = columns.shape[1]
            self._flat_y = y.ndim == 1
            default = ["y"] if self.n_outputs_ == 1 else [f"y{i}" for i in range(self.n_outputs_)]
            self.target_names_ = np.array(names or default, dtype=object)
        elif columns.shape[1] != self.n_outputs_:
            rule = f"have {self.n_outputs_} columns, as in the first fit"
            raise ValueError(bad_value("MCLRegressor", "y", rule, columns.shape[1]))
        return X, columns, weights

    def _check_targets_vary(self, y: NDArray[np.float64]) -> None:
        for name, column in zip(self.target_names_, y.T, strict=True):
            if (column == column[0]).all():
                advice = "There is nothing to learn; leave the column out."
                got = f"the constant {column[0]:g} in column {name!r}"
                raise ValueError(bad_value("MCLRegressor", "y", "vary", got, advice))

    def _tensors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        targets = torch.from_numpy(self._targets(rows.targets)).unsqueeze(1)
        return torch.from_numpy(self._inputs(rows.inputs)), targets

    def _choose_bandwidths(self, rows: Rows) -> None:
        """Choose what makes rows most likely that the networks have not seen."""
        rows = rows.head(_BANDWIDTH_ROWS)
        self.bandwidth_ = self._bandwidth(KernelMixture, rows, self._all_answers)
        self._density_bandwidth = self.bandwidth_
        if self.density is VoronoiKernels:
            rows = rows.head(_VORONOI_ROWS)
            self._density_bandwidth = self._bandwidth(VoronoiKernels, rows, lambda X: self._answers(X)[:2])

    def _bandwidth(
        self, kind: type[HypothesisDensity], rows: Rows, answers_of: Callable[[NDArray[Any]], tuple[Tensor, Tensor]]
    ) -> Bandwidth:
        values, probabilities = answers_of(rows.inputs.astype(np.float64))
        targets = torch.from_numpy(self._targets(rows.targets, np.float64))
        return fit_bandwidth(kind, values, probabilities, targets, torch.from_numpy(rows.weights))

    def _calibrate(self, calibration: Rows) -> None:
        """Score the calibrating rows."""
        calibration = calibration.head(_CALIBRATION_ROWS)
        scores = [np.zeros(0)] * self.n_outputs_
        if len(calibration):
            density = self._standardised_density(calibration.inputs.astype(np.float64), KernelMixture)
            targets = torch.from_numpy(self._targets(calibration.targets, np.float64))
            scores = [
                _conformal.conformity(density.marginal(i), targets[:, i : i + 1]).numpy()
                for i in range(self.n_outputs_)
            ]
        self._conformity = np.stack(scores)  # [outputs, calibration rows]
        self._conformity_weights = _conformal.effective_counts(calibration.weights, calibration.units)

    # ------------------------------------------------------------------ predicting

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the conditional mean of each row, [rows] or [rows, outputs]."""
        values, probabilities = self._all_answers(self._checked_inputs(X))
        mean = (probabilities.unsqueeze(-1) * values).sum(dim=1).numpy()
        return self._like_y(self._targets.inverse(mean))

    def predict_hypotheses(self, X: Any) -> Hypotheses:
        """Return the answers for each row and their probabilities."""
        standardised, probabilities, _ = self._answers(self._checked_inputs(X))
        return Hypotheses(self._targets.inverse(standardised.numpy()), probabilities.numpy())

    def predict_distribution(self, X: Any) -> HypothesisDensity:
        """Return the density of y at each row: a torch distribution with batch shape [rows], events [outputs]."""
        return self._in_units_of_y(self._standardised_density(self._checked_inputs(X), self.density))

    def predict_interval(self, X: Any, alpha: float = 0.1) -> PredictionIntervals:
        """Return sets that hold y with probability 1 - alpha, on average over rows.

        They are highest-density sets, calibrated by split conformal prediction on rows that were used for nothing
        else: unions of intervals where the density has several modes. For several outputs each has its own. With
        too few calibration rows for `alpha` (fewer than 1 / alpha - 1) they are infinite; copies of a row count as one,
        and so do the rows of a group. After a fit with weights they hold for rows drawn in proportion to those.

        Args:
            X: [rows, features]
            alpha: the share of rows that may be missed, in (0, 1).
        """
        check_real("MCLRegressor", "alpha", alpha)
        if not 0 < alpha < 1:
            rule = "lie in (0, 1)"
            raise ValueError(bad_value("MCLRegressor", "alpha", rule, repr(alpha), "0.1 is for 90 % intervals."))
        density = self._standardised_density(self._checked_inputs(X), KernelMixture)
        sides = []
        for output in range(self.n_outputs_):
            level = _conformal.quantile(self._conformity[output], self._conformity_weights, alpha)
            lower, upper = _conformal.region(density.marginal(output), level)
            scale, mean = self._targets.scale[output], self._targets.mean[output]
            sides.append((lower.numpy() * scale + mean, upper.numpy() * scale + mean))
        return PredictionIntervals(*(self._like_y(ends) for ends in _conformal.joined(sides)))

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> NDArray[Any]:
        """Return draws from the density of each row, [rows, samples] or [rows, samples, outputs].

        Args:
            X: [rows, features]
            n_samples: draws for each row.
            random_state: a seed or generator, for the same draws again.
        """
        check_positive_int("MCLRegressor", "n_samples", n_samples)
        density = self.predict_distribution(X)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        samples = density.sample((n_samples,), generator).movedim(0, 1).numpy()
        return samples[..., 0] if self._flat_y else samples

    def log_prob(self, X: Any, y: Any) -> NDArray[Any]:
        """Return the log density of y at each row, [rows]."""
        density = self.predict_distribution(X)
        return density.log_prob(torch.from_numpy(self._checked_targets(y, len(density.hypotheses)))).numpy()

    def distortion(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean squared distance of y to the nearest hypothesis, in the units of y."""
        values = self.predict_hypotheses(X).values
        targets = self._checked_targets(y, len(values))
        nearest = ((values - targets[:, None]) ** 2).sum(axis=-1).min(axis=1)
        return float(np.average(nearest, weights=sample_weight))

    def transform(self, X: Any) -> NDArray[Any]:
        """Return hypotheses and probabilities as columns, [rows, hypotheses * outputs + hypotheses].

        The answers of several networks are sorted (one output) or in no order: a column says nothing across rows.
        `get_feature_names_out` has their names, and `set_output(transform="pandas")` makes a data frame of them.
        """
        values, probabilities = self.predict_hypotheses(X)
        return np.concatenate([values.reshape(len(values), -1), probabilities], axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns of `transform`."""
        check_is_fitted(self)
        n_hypotheses = self._n_answers()
        names = [f"{target}_hypothesis{k}" for k in range(n_hypotheses) for target in self.target_names_]
        return np.array([*names, *(f"probability{k}" for k in range(n_hypotheses))], dtype=object)

    # ------------------------------------------------------------------ parts

    def _checked_inputs(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        checked: NDArray[Any] = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return checked

    def _checked_targets(self, y: Any, n_rows: int) -> NDArray[np.float64]:
        values = check_array(y, ensure_2d=False, dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (n_rows, self.n_outputs_):
            rule = f"have {n_rows} rows and {self.n_outputs_} columns"
            raise ValueError(bad_value("MCLRegressor", "y", rule, values.shape))
        return values

    def _n_answers(self) -> int:
        head: MultiHypothesisHead = self.modules_[0].head  # type: ignore[assignment]
        return head.n_hypotheses

    def _all_answers(self, X: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Return standardised answers of all networks and their probabilities, [rows, networks * hypotheses, ...]."""
        return answers(self.modules_, torch.from_numpy(self._inputs(X, X.dtype)), self.device)

    def _answers(self, X: NDArray[Any]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return standardised answers [rows, hypotheses, outputs], probabilities, and the deviation around each.

        Those of several networks are points that stand for the density of all. One network answers for itself, and the
        rule for the bandwidth says how far it can be off.
        """
        values, probabilities = self._all_answers(X)
        if len(self.modules_) == 1:
            return values, probabilities, None
        density = KernelMixture(values, probabilities, self.bandwidth_(values, probabilities))
        points, masses, deviations = best_points(density, self._n_answers())
        return points, masses, deviations

    def _standardised_density(self, X: NDArray[Any], kind: type[HypothesisDensity]) -> Any:
        values, probabilities, deviations = self._answers(X)
        if deviations is None or kind is VoronoiKernels:
            rule = self._density_bandwidth if kind is VoronoiKernels else self.bandwidth_
            return kind(values, probabilities, rule(values, probabilities))
        return kind(values, probabilities, deviations)

    def _in_units_of_y(self, density: HypothesisDensity) -> HypothesisDensity:
        scale, mean = torch.from_numpy(self._targets.scale), torch.from_numpy(self._targets.mean)
        return type(density)(density.hypotheses * scale + mean, density.probabilities, density.bandwidth, scale)

    def _like_y(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[:, 0] if self._flat_y else values
