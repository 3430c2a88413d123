"""DensityRegressor: a density for each row of a table, by a blend of mixture density networks and a forest."""

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import nn

from torchmcl.schedules import Schedule
from torchmcl_tables.data.schema import TableSchema
from torchmcl_tables.estimators.blending import blend_of
from torchmcl_tables.estimators.forest import blurred
from torchmcl_tables.estimators.regression import DensityEstimator
from torchmcl_tables.estimators.tables import FrameColumns, checked_table, read_frame, set_fitted


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn compares and prints estimators in its own way
class DensityRegressor(DensityEstimator):
    """A density for each row, several answers that represent it, and calibrated intervals.

    The density of a row is a *blend*: mixture density networks on columns scaled by their relevance, others on columns
    with bins, wider networks if longer training still helped, a forest whose leaves are kernels, and an
    input-independent background, each with the weight that predicts held-out rows best. Answers are the `n_hypotheses`
    points that best represent the density, intervals its calibrated highest-density sets; these have gaps only where
    held-out rows support them, and neither exceeds bounds that all targets respect. A target that takes few values (at
    most 64, nearly all of them more than once) is answered by those values only, and by fewer answers if there are
    fewer values; its sets begin and end with them, or with the mean.
    `torchmcl_tables.MCLRegressor` is multiple choice learning itself.

    A part of the rows is held out: two thirds of it select (when to stop, weights, widths, gaps), the others
    calibrate the intervals and are used for nothing else. The fit does not depend on the order of the rows, weighting a
    row with 2 is the same as having it twice, and weighting all rows alike is the same as not weighting them. Copies of
    a row are held out together. In a table so coarse that rows coincide by chance, they are treated as separate rows.

    Args:
        n_hypotheses: the number of answers per row.
        hidden: sizes of the hidden layers.
        n_bins: bins of the piecewise linear encoding of each column, between its quantiles; 0 for none. By default
            there are networks with 0 and with 32 below 50 000 rows to train on, and with 0 above or with more than 128
            columns that take more than two values; a number is for all networks.
        n_epochs: maximum number of passes. By default 2500 to 3000 optimizer steps, depending on the number of
            rows, and 12 epochs for 50 000 rows or more; if networks were best on the selecting rows after 80 % of them
            (little noise, or many rows), up to two with layers four times as wide follow, trained four times as long.
        batch_size: maximum number of rows in an optimizer step, split evenly; by default three times the square root of
            their number, between 64 and 1024.
        learning_rate: of Adam: a number to begin with, halved for networks with bins and brought to 0 along a cosine,
            or a schedule by epoch.
        weight_decay: decoupled weight decay; by default 0.05.
        keep_best: keep the epoch with the best score on the selecting rows instead of the last one.
        validation_fraction: share of the rows that is held out from training: two thirds select, the others calibrate
            (9, 19, 29 ... rows, of a small table more than a third), at most 10 000 and 5 000 rows.
        patience: end the training of a network after this many epochs without improvement on the selecting rows; by
            default 40 % of the epochs if the best is kept.
        n_restarts: networks of each kind that begin with different weights, trained together as a fleet. By default 5,
            3 from 10 000 rows to train on and 1 from 50 000 on.
        ensemble: blend all networks and the forest instead of taking the best network on the selecting rows. Networks
            that failed there are left out.
        device: where to train and predict, "cpu" or "cuda".
        random_state: of the initial weights, the shuffles and the held-out rows.
        progress: show a progress bar.

    Attributes:
        member_weights_: the weight of each member of the blend: "networks", "networks with bins", "wide networks",
            "forest" and "background", if present. If the background weight is large (above 0.3), little was learned.
        modules_: the networks that were kept, ordinary torch modules on standardized inputs and targets, kind by kind.
        n_features_in_: columns of X; `feature_names_in_` has their names where X had any.
        schema_: the kind of each column of a data frame with non-numeric columns.
        n_outputs_: columns of y; `target_names_` has their names, `target_scale_` their deviations.
        target_values_: the values of a discrete y; None otherwise.
        n_answers_: the number of answers for a row.
        loss_curve_: training loss of each epoch, of the best network of the first kind. `learning_rate_curve_` has the
            learning rates, `validation_curve_` the scores on the selecting rows.
        best_restart_: which restart was best; `validation_distortions_` has the scores, the lower the better.
        best_epoch_: the epoch that was kept, -1 for the last one.
        n_epochs_: the number of trained epochs.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(size=(300, 1))
        >>> y = np.where(rng.uniform(size=300) < 0.5, X[:, 0], -X[:, 0])  # two branches
        >>> model = DensityRegressor(n_hypotheses=2, n_epochs=100, random_state=0).fit(X, y)
        >>> values, probabilities = model.predict_hypotheses([[0.8]])
        >>> np.sort(values[0, :, 0]).round(1), probabilities.shape
        (array([-0.8,  0.8]), (1, 2))
        >>> model.predict_interval([[0.8]], coverage=0.9).n_pieces  # the answer forks
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
        """Train on a table. A failing fit leaves the estimator unchanged.

        Args:
            X: [rows, features], an array of numbers (NaN where one is missing), or a data frame of pandas, polars or
                Arrow with any columns.
            y: [rows], or [rows, outputs] for several outputs.
            sample_weight: [rows], how often each row occurs relative to the others; only the ratios matter.
            groups: [rows], labels of rows that belong together (of one patient, one place, one scene): they are held
                out together, in every split, and the intervals hold for rows of fresh groups.
            checkpoint: folder to save the training to on the way; the same call resumes from there after a kill.

        Raises:
            ValueError: for a parameter out of range, a table with infinite values, a target that is missing, constant,
                or as small as 1e-120 or as large as 1e120, or a learning rate at which all networks diverge.
        """
        set_fitted(self, blend_of(self, X, y, sample_weight, groups, checkpoint))
        return self

    def _numbers(self, X: Any) -> NDArray[Any]:
        """Return a checked table as numbers, [rows, columns]."""
        frame, X = read_frame(type(self).__name__, X, self._frame, reset=False)
        return checked_table(self, X, reset=frame is not None)[0]

    _frame: FrameColumns | None = field(init=False)

    def without_rows(self) -> Self:
        """Return a copy of a fitted estimator without rows of the table: the leaves of its forest are averaged.

        Means, quantiles, bounds, categories and the values of discrete targets remain.
        """
        bare, blend = copy.copy(self), self._fitted.predictive
        if blend.forest is not None:
            bare._fitted = replace(self._fitted, predictive=replace(blend, forest=blurred(blend.forest)))
        return bare

    @property
    def modules_(self) -> list[nn.Module]:
        """The networks that were kept, kind by kind."""
        return [module for kind in self._fitted.predictive.networks for module in kind]

    @property
    def schema_(self) -> TableSchema:
        """The kind of each column of a data frame."""
        if self._frame is None:
            raise AttributeError("schema_: the model was fitted to columns of numbers")
        return self._frame.schema
