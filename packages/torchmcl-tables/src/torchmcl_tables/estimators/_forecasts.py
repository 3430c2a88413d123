"""Targets of a regressor, and what its networks say of a row: points with probabilities, a density, calibrated sets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_array
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.density import Bandwidth, HypothesisDensity, KernelMixture, VoronoiKernels, best_points, fit_bandwidth
from torchmcl.nn import MultiHypothesisHead
from torchmcl_tables.estimators import _conformal
from torchmcl_tables.estimators._atoms import masses_above, pieces_of_atoms
from torchmcl_tables.estimators._base import MCLEstimator
from torchmcl_tables.estimators._blend import Blend
from torchmcl_tables.estimators._bounds import still_never_left, unbounded
from torchmcl_tables.estimators._inputs import Scaler
from torchmcl_tables.estimators._kernels import Kernels
from torchmcl_tables.estimators._rows import Rows, Split, target_names

__all__ = ["Forecasts", "blocks"]

# A bandwidth has two numbers: this many rows settle them.
_BANDWIDTH_ROWS = 4096
# With these the calibration adds a quarter of a point to the error of the coverage.
_CALIBRATION_ROWS = 16_384
_VORONOI_ROWS = 512
# Rows whose kernels are held at a time.
_ROWS_AT_ONCE = 32_768
# With fewer rows that the networks have not seen, partial_fit keeps what such rows have chosen.
_ENOUGH_TO_SELECT = 20


# Targets whose squares, and those of the narrowest kernels, are numbers in double precision.
_LEAST_SPREAD, _MOST_SPREAD = 1e-120, 1e120
# Means this many deviations away are those of networks that diverged, judged by this many rows.
_DIVERGED, _JUDGED_ROWS = 1e4, 256


class Forecasts(MCLEstimator):
    """From networks to densities, in standardised units of the targets, and back to the units of y."""

    density: type[HypothesisDensity]
    n_outputs_: int
    _targets: Scaler
    _held_out: tuple[Rows, ...]  # that select and that calibrate
    _blend: Blend | None  # None for networks that are trained by a rule
    _limits: NDArray[np.float64]  # [2, outputs], in the units of y
    _few: NDArray[np.float64] | None  # the only values of y, increasing; None where it takes many
    _fill: NDArray[np.float64]  # [outputs], which gaps of the sets are believed
    _surprise: NDArray[np.float64]  # [calibration rows], minus the log density of all outputs together
    _flat_y: bool
    _n_points: int  # that stand for a blend

    def _complete(self) -> None:
        """Add what a model of an earlier version has no word of: no blend, all gaps believed, no bounds."""
        if not hasattr(self, "_blend"):
            self._blend, self._fill, self._limits = None, np.ones(self.n_outputs_), unbounded(self.n_outputs_)
        if hasattr(self, "_bounds"):  # in standardised units
            self._limits = self._targets.inverse(self._bounds)
            del self._bounds
        if not hasattr(self, "_few"):
            atoms = None if self._blend is None else self._blend.atoms
            self._few = None if atoms is None else self._targets.inverse(atoms[:, None])[:, 0]
        if not hasattr(self, "_surprise"):
            self._surprise = np.full(self._conformity.shape[1], np.inf)

    # ------------------------------------------------------------------ targets

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, n_needed: int
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64] | None]:
        names = target_names(y)
        X, y = self._checked_table(X, y, reset=reset, multi_output=True, y_numeric=True, ensure_min_samples=n_needed)
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
            spread = float(np.ptp(column / 2))  # half of it is a number however large the values are
            if not _LEAST_SPREAD < spread < _MOST_SPREAD:
                rule = f"differ by more than {_LEAST_SPREAD:g} and less than {_MOST_SPREAD:g}"
                advice = "Squares of such numbers are not numbers; give it in other units."
                raise ValueError(bad_value("MCLRegressor", "y", rule, f"{2 * spread:g} in column {name!r}", advice))

    @property
    def _out_features(self) -> int:
        return self.n_outputs_

    def _encoded_targets(self, rows: Rows) -> NDArray[Any]:
        return self._targets(rows.targets)

    def _checked_targets(self, y: Any, n_rows: int) -> NDArray[np.float64]:
        values = check_array(y, ensure_2d=False, dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (n_rows, self.n_outputs_):
            rule = f"have {n_rows} rows and {self.n_outputs_} columns"
            raise ValueError(bad_value("MCLRegressor", "y", rule, values.shape))
        return values

    def _like_y(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[:, 0] if self._flat_y else values

    # ------------------------------------------------------------------ answers

    def _n_answers(self) -> int:
        if self._few is not None:
            return min(self._n_points, len(self._few))
        if self._blend is not None:
            return self._n_points
        head: MultiHypothesisHead = self.modules_[0].head  # type: ignore[assignment]
        return head.n_hypotheses

    def _kernels(self, X: NDArray[Any], *, knowing: bool = False) -> Kernels:
        """Return normal kernels for each row, in standardised units; see `Blend.kernels`."""
        if self._blend is not None:
            return self._blend.kernels(self.modules_, X, self.device, knowing=knowing)
        values, probabilities = self._all_answers(X)
        widths = self.bandwidth_(values, probabilities)
        return Kernels(values, probabilities, widths.unsqueeze(-1).expand_as(values))

    def _answers(self, X: NDArray[Any], n_points: int | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return standardised answers [rows, hypotheses, outputs], probabilities, and the deviation around each.

        They are points that stand for the density. One network with a rule answers for itself, and the rule for the
        bandwidth says how far it can be off.
        """
        if self._blend is None and len(self.modules_) == 1:
            if n_points not in (None, self._n_answers()):
                rule, advice = f"be {self._n_answers()}", "The one network has been trained to give this many answers."
                raise ValueError(bad_value("MCLRegressor", "n_hypotheses", rule, n_points, advice))
            return *self._all_answers(X), None
        density = self._kernels(X, knowing=True).density()
        points, masses, deviations = best_points(density, n_points or self._n_answers())
        return self._bounded(points), masses, deviations

    def _bounded(self, values: Tensor) -> Tensor:
        """Return standardised values [..., outputs] inside of what the targets never leave."""
        return values.clamp(*torch.from_numpy((self._limits - self._targets.mean) / self._targets.scale))

    def _of_y(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardised values [..., outputs] in the units of y, inside of what the targets never leave.

        The bounds are kept here and not in standardised units: moved back from there, a bound of 0 may become 1e-17.
        """
        return np.clip(self._targets.inverse(values), *self._limits)

    def _masses(self, X: NDArray[Any], *, knowing: bool = False) -> Tensor:
        """Return the probability of each of the few values, [rows, values]."""
        return self._kernels(X, knowing=knowing).probabilities

    def _standardised_density(self, X: NDArray[Any], kind: type[HypothesisDensity]) -> Any:
        if self._blend is not None:
            return self._kernels(X).density()
        values, probabilities, deviations = self._answers(X)
        if deviations is None or kind is VoronoiKernels:
            rule = self._density_bandwidth if kind is VoronoiKernels else self.bandwidth_
            deviations = rule(values, probabilities)
        return kind(values, probabilities, deviations)

    def _density_of_y(self, X: NDArray[Any], kind: type[HypothesisDensity]) -> HypothesisDensity:
        scale, mean = torch.from_numpy(self._targets.scale), torch.from_numpy(self._targets.mean)
        if self._blend is not None:
            return self._kernels(X).moved(scale, mean).density()
        density: HypothesisDensity = self._standardised_density(X, kind)
        return type(density)(density.hypotheses * scale + mean, density.probabilities, density.bandwidth, scale)

    # ------------------------------------------------------------------ fitting

    def _fit_rule(self, split: Split, seed: int, checkpoint: str | Path | None) -> Split:
        """Train networks by a rule; return the rows that can still select and calibrate."""
        self._blend = self._few = None
        selection = split.selection
        training = self._train(split.train, selection, seed, checkpoint)
        self._choose_bandwidths(selection if len(selection) else split.train)
        self._choose_fill(selection)
        if self.final_fit_on_all_rows is not False and len(selection):
            self._train_on_all(training, split.train.joined(selection))
            split = split._replace(selection=selection.head(0))  # they cannot select any more
        return split

    def _check_converged(self, train: Rows) -> None:
        """Raise an error where nothing was learned but infinity."""
        means = self._means(train.head(_JUDGED_ROWS).inputs.astype(np.float64)).abs().median()
        if not means < _DIVERGED:
            self._forget()
            rule, advice = "let the training converge", "All networks diverged; try 0.01."
            raise ValueError(bad_value("MCLRegressor", "learning_rate", rule, repr(self.learning_rate), advice))

    def _select(self, selection: Rows, train: Rows) -> None:
        """Choose again what held-out rows choose, where there are enough of them."""
        enough, first = len(selection) >= _ENOUGH_TO_SELECT, not hasattr(self, "_fill")
        if enough or first:
            self._choose_again(selection, train)
            self._choose_fill(selection)

    def _choose_again(self, selection: Rows, train: Rows) -> None:
        self._choose_bandwidths(selection if len(selection) else train)

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
        return fit_bandwidth(kind, values, probabilities, self._known(rows), torch.from_numpy(rows.weights))

    def _known(self, rows: Rows) -> Tensor:
        """Return the standardised targets of rows, [rows, outputs]."""
        return torch.from_numpy(self._targets(rows.targets, np.float64))

    def _choose_fill(self, rows: Rows) -> None:
        """Choose which gaps of the sets are believed, by rows that the networks have not seen."""
        rows = rows.head(_BANDWIDTH_ROWS)
        self._fill = np.zeros(self.n_outputs_)
        if len(rows) and self._few is None:
            density, targets = (
                self._standardised_density(rows.inputs.astype(np.float64), KernelMixture),
                self._known(rows),
            )
            for i in range(self.n_outputs_):
                self._fill[i] = _conformal.supported_fill(density.marginal(i), targets[:, i : i + 1])

    def _calibrate(self, calibration: Rows) -> None:
        """Score the calibrating rows."""
        calibration = calibration.head(_CALIBRATION_ROWS)
        scores, self._surprise = np.zeros((self.n_outputs_, 0)), np.zeros(0)
        if len(calibration):
            inputs = calibration.inputs.astype(np.float64)
            density, targets = self._standardised_density(inputs, KernelMixture), self._known(calibration)
            self._surprise = -density.log_prob(targets).numpy()
            if self._few is not None:
                scores = self._scores_of_few(inputs, calibration.targets[:, 0])[None]
            else:
                every = (
                    _conformal.conformity(density.marginal(i), targets[:, i : i + 1], self._fill[i]).numpy()
                    for i in range(self.n_outputs_)
                )
                # What lies outside of the bounds is in no set, however likely the density makes it.
                outside = (calibration.targets < self._limits[0]) | (calibration.targets > self._limits[1])
                scores = np.where(outside.T, np.inf, np.stack(list(every)))
        self._conformity = scores  # [outputs, calibration rows]
        self._conformity_weights = _conformal.effective_counts(calibration.weights, calibration.units)

    def _scores_of_few(self, X: NDArray[Any], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the conformity scores of targets [rows] that take few values; another value conforms with nothing."""
        assert self._few is not None
        place = np.searchsorted(self._few, y).clip(max=len(self._few) - 1)
        scores = masses_above(self._masses(X)).numpy()[np.arange(len(y)), place]
        return np.where(self._few[place] == y, scores, np.inf)

    def _sets(self, X: NDArray[Any], alpha: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the lower and upper ends of the calibrated sets in the units of y, [rows, outputs, pieces]."""
        levels = [_conformal.quantile(scores, self._conformity_weights, alpha) for scores in self._conformity]
        if self._few is not None and np.isfinite(levels[0]):
            parts = [self._sets_of_few(rows, levels[0]) for rows in blocks(X)]
            lower, upper = (ends.unsqueeze(1).numpy() for ends in _conformal.stacked(parts))
            return lower, upper
        every = []
        for rows in blocks(X):
            density, means = self._standardised_density(rows, KernelMixture), self._means(rows)
            parts = []
            for i, how in enumerate(zip(levels, self._fill, strict=True)):
                ends = _conformal.region(density.marginal(i), *how)
                parts.append(_conformal.reaching(ends, means[:, i : i + 1], _mass_between(density.marginal(i))))
            every.append(parts)
        ends = _conformal.joined([_conformal.stacked(parts) for parts in zip(*every, strict=True)])
        lower, upper = (self._of_y(end.movedim(1, -1).numpy()) for end in ends)  # [rows, pieces, outputs]
        # A set that must hold everything holds what nobody foresaw, too.
        lower, upper = np.where(np.isinf(levels), -np.inf, lower), np.where(np.isinf(levels), np.inf, upper)
        return np.moveaxis(lower, -1, 1), np.moveaxis(upper, -1, 1)

    def _sets_of_few(self, X: NDArray[Any], level: float) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of sets of a target that takes few values, in the units of y."""
        assert self._few is not None
        masses, values = self._masses(X), torch.from_numpy(self._few)
        ends = pieces_of_atoms(masses_above(masses) <= level, self._few)
        means = self._masses(X, knowing=True) @ values

        def between(low: Tensor, high: Tensor) -> Tensor:
            return (masses * ((low < values) & (values < high))).sum(dim=1)

        return _conformal.reaching(ends, means.unsqueeze(1), between)

    def _means(self, X: NDArray[Any]) -> Tensor:
        """Return the standardised mean of each row, [rows, outputs]."""
        kernels = self._kernels(X, knowing=True)
        return (kernels.probabilities.unsqueeze(-1) * kernels.values).sum(dim=1)

    def _believe_less(self, targets: NDArray[np.float64]) -> None:
        """Give up what further targets [rows, outputs] contradict: bounds, and values that are all."""
        self._limits = still_never_left(self._limits, targets)
        if self._few is not None and not np.isin(targets, self._few).all():
            assert self._blend is not None
            self._few, self._blend = None, replace(self._blend, atoms=None)


def _mass_between(density: KernelMixture) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda low, high: density.cdf(high) - density.cdf(low)


def blocks(X: NDArray[Any]) -> list[NDArray[Any]]:
    """Return blocks of rows, whose kernels fit into memory."""
    return [X[start : start + _ROWS_AT_ONCE] for start in range(0, max(1, len(X)), _ROWS_AT_ONCE)]
