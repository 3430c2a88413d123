"""What a fitted regressor can be asked for: answers, densities, sets, regions, draws."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from torchmcl._checks import bad_value, check_positive_int, check_real
from torchmcl.density import HypothesisDensity, KernelMixture
from torchmcl_tables.estimators._atoms import best_atoms
from torchmcl_tables.estimators._conformal import PredictionIntervals, quantile
from torchmcl_tables.estimators._forecasts import Forecasts, blocks
from torchmcl_tables.estimators._regions import PredictionRegions

__all__ = ["Hypotheses", "Predicting"]


class Hypotheses(NamedTuple):
    """Several answers for each row.

    Attributes:
        values: [rows, hypotheses, outputs], in the units of y.
        probabilities: [rows, hypotheses], summing to 1.
    """

    values: NDArray[Any]
    probabilities: NDArray[Any]


class Predicting(Forecasts):
    """The methods of `MCLRegressor` that predict."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the conditional mean of each row, [rows] or [rows, outputs]."""
        rows = blocks(self._checked_inputs(X))
        if self._few is not None:
            few = torch.from_numpy(self._few)
            means = torch.cat([self._masses(block, knowing=True) @ few for block in rows]).unsqueeze(1).numpy()
            return self._like_y(means)
        return self._like_y(self._of_y(torch.cat([self._means(block) for block in rows]).numpy()))

    def predict_hypotheses(self, X: Any, n_hypotheses: int | None = None) -> Hypotheses:
        """Return the answers for each row and their probabilities.

        Args:
            X: [rows, features]
            n_hypotheses: how many answers; by default as many as the model was fitted for. They are points that stand
                for the density, so any number can be had of one fit (but for a single network that a rule trained). A
                target that takes few values is answered by different ones of them, at most by all.
        """
        if n_hypotheses is not None:
            check_positive_int("MCLRegressor", "n_hypotheses", n_hypotheses)
        rows = blocks(self._checked_inputs(X))
        if self._few is not None:
            values = torch.from_numpy(self._few)
            answers = [
                best_atoms(values, self._masses(block, knowing=True), n_hypotheses or self._n_points) for block in rows
            ]
            places, probabilities = (torch.cat(part).numpy() for part in zip(*answers, strict=True))
            return Hypotheses(self._few[places][..., None], probabilities)
        parts = [self._answers(block, n_hypotheses)[:2] for block in rows]
        standardised, probabilities = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
        return Hypotheses(self._of_y(standardised), probabilities)

    def predict_distribution(self, X: Any) -> HypothesisDensity:
        """Return the density of y at each row: a torch distribution with batch shape [rows], events [outputs]."""
        return self._density_of_y(self._checked_inputs(X), self.density)

    def predict_interval(self, X: Any, alpha: float = 0.1) -> PredictionIntervals:
        """Return sets that hold y with probability 1 - alpha, on average over rows.

        They are highest-density sets, calibrated by split conformal prediction on rows that were used for nothing
        else: unions of intervals where the density has several modes. For several outputs each has its own. With
        too few calibration rows for `alpha` (fewer than 1 / alpha - 1) they are infinite; copies of a row count as one,
        and so do the rows of a group. After a fit with weights they hold for rows drawn in proportion to those. A set
        reaches to the mean of its row if next to nothing lies between; that of a skewed density may lie outside.

        Args:
            X: [rows, features]
            alpha: the share of rows that may be missed, in (0, 1).
        """
        self._check_alpha(alpha)
        return PredictionIntervals(*map(self._like_y, self._sets(self._checked_inputs(X), alpha)))

    def predict_region(self, X: Any, alpha: float = 0.1) -> PredictionRegions:
        """Return regions that hold all outputs of a row together with probability 1 - alpha, on average over rows.

        They are where the density is at least a level, which is calibrated like `predict_interval`: outputs that go
        together have regions that are smaller than the product of their intervals.

        Args:
            X: [rows, features]
            alpha: the share of rows that may be missed, in (0, 1).
        """
        self._check_alpha(alpha)
        density = self._density_of_y(self._checked_inputs(X), KernelMixture)
        assert isinstance(density, KernelMixture)
        surprise = quantile(self._surprise, self._conformity_weights, alpha)
        return PredictionRegions(density, -surprise - float(np.log(self._targets.scale).sum()))

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
        if self._few is not None:
            samples = self._few[np.searchsorted((self._few[1:] + self._few[:-1]) / 2, samples)]
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

    def _check_alpha(self, alpha: float) -> None:
        check_real("MCLRegressor", "alpha", alpha)
        if not 0 < alpha < 1:
            rule = "lie in (0, 1)"
            raise ValueError(bad_value("MCLRegressor", "alpha", rule, repr(alpha), "0.1 is for 90 % intervals."))
