"""DensityRegressor: a density for each row of a table from a blend of mixture density networks and a forest."""

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


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn defines comparison and repr of estimators
class DensityRegressor(DensityEstimator):
    """A density for each row, several hypotheses that represent it, and calibrated prediction sets.

    The density of a row is a *blend* of several members: mixture density networks on columns scaled by their relevance,
    networks on columns with bins, wider networks if longer training still helps, a forest whose leaves are kernels, and
    an input-independent background. The weights of the members are fitted to held-out rows. Hypotheses are the
    `n_hypotheses` points that best represent the density. Prediction sets are its calibrated highest-density sets; they
    have gaps only where held-out rows support them. Neither hypotheses nor sets exceed bounds that all targets respect.
    For a discrete target (at most 64 distinct values, nearly all of them repeated) the hypotheses are different values,
    at most all of them, and the ends of the sets are values or the mean. For multiple choice learning itself, use
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
        best_restart_: Index of the best restart; `validation_distortions_` contains the scores (lower is better).
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
