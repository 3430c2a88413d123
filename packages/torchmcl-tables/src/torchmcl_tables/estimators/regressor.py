"""MCLRegressor: several plausible outcomes for each row of a table, with their probabilities."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from torchmcl._checks import bad_value
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.density import HypothesisDensity, KernelMixture, VoronoiKernels
from torchmcl.schedules import Schedule
from torchmcl_tables.estimators._blending import Blending
from torchmcl_tables.estimators._bounds import never_left, unbounded
from torchmcl_tables.estimators._inputs import Scaler
from torchmcl_tables.estimators._predicting import Predicting
from torchmcl_tables.estimators._rows import fixed_borders, split_rows

__all__ = ["MCLRegressor"]


@dataclass(kw_only=True, eq=False, repr=False)
class MCLRegressor(RegressorMixin, TransformerMixin, Predicting, Blending):
    """Several plausible outcomes for each row, their probabilities, a density and calibrated intervals.

    By default the density of a row is a *blend*: networks on standardised columns, networks on columns with knots, a
    forest whose leaves are kernels, and a wide kernel for what nobody knows, each with the share that foresees held-out
    rows best. Answers are the `n_hypotheses` points that stand best for the density, intervals its calibrated
    highest-density sets; these have gaps only where held-out rows support them, and neither leaves bounds that the
    targets keep. A target that takes few values (at most 64, nearly all of them more than once) is answered by those
    values only, and by fewer answers if there are fewer values; its sets begin and end with them, or with the mean.

    With `rule` (or `search`) networks are trained by multiple choice learning instead: each gives `n_hypotheses`
    answers with scores, and one bandwidth makes a density of all of them. Choose it for the method itself: a
    temperature curve, answers that compete, one small network that answers fast.

    A part of the rows trains nothing: two thirds of it select (when to stop, shares, widths, gaps; with a rule the
    bandwidth), the others calibrate the intervals and are touched by nothing else. The fit does not depend on the
    order of the rows, weighting a row with 2 is the same as having it twice, and weighting all rows alike is the same
    as not weighting them. Copies of a row are held out together. In a table so coarse that rows coincide by chance,
    each is a row of its own: the values of different rows decide which of the two it is.

    Args:
        n_hypotheses: how many answers to give for each row. The blend has more kernels than that.
        rule: None for the blend. An assignment rule, a function epoch -> rule as `annealed` makes it, or
            `AutoAnnealing(...)`, which has no temperature to choose: it decides in training when to cool, from where
            and how fast, on the tail of the learning rate and on the weight decay. Or a name: "annealed" is
            `AnnealedWTA` with an exponential cooling from 0.5 to 5e-4 over 70 % of the epochs, "auto" is
            `AutoAnnealing()`, "mcl" is `WTA()` and "relaxed" is `RelaxedWTA(0.1)`. Temperatures are in units of the
            variance of the targets.
        hidden: sizes of the hidden layers.
        n_knots: places in each column at which the answers may bend, at its quantiles; 0 for none. By default the blend
            has networks with 0 and with 33 below 50 000 rows to train on, and with 0 above; a number is for all of its
            networks. With a rule the default is 33, if there are fewer than 50 000 rows and in half of the columns or
            more values repeat (each stands in two different rows on average), else none. None for `partial_fit`, and by
            default none for more than 128 columns that take more than two values.
        n_epochs: passes over the rows, at most. By default 2500 to 3000 optimizer steps for the blend, by the number of
            rows, and 12 epochs from 50 000 rows on; with a rule about 1500 steps (750 with knots), between 20 and 1000
            epochs.
        batch_size: at most this many rows in an optimizer step, split evenly; by default three times the square root of
            their number, between 64 and 1024.
        learning_rate: of Adam: a number to begin with, brought to 0 along a cosine, or a schedule by epoch. By default
            0.02 with a rule, 0.01 without one, and half of that for networks with knots.
        weight_decay: decoupled weight decay; by default 0.05, and by the noise per row with `AutoAnnealing`.
        keep_best: keep the epoch that is best on the selecting rows instead of the last one. By default True for the
            blend (the best score) and False with a rule (where True keeps the lowest distortion).
        validation_fraction: share of the rows that is held out of the training: two thirds select, the others calibrate
            (9, 19, 29 ... rows, of a small table more than a third), at most 10 000 and 5 000 rows.
        patience: end the training of a network after this many epochs without improvement on the selecting rows. By
            default 40 % of the epochs for the blend; with a rule every network is trained to the end: choose it
            longer than the cooling.
        n_restarts: networks that begin with different weights, trained together as a fleet; for the blend, of each
            kind. By default 5, and 1 from 50 000 rows to train on; for the blend 3 from 10 000 rows on.
        ensemble: let all networks answer together, and the forest in the blend, instead of the best network on the
            selecting rows alone. One that failed there is left out.
        final_fit_on_all_rows: with a rule, and by default there: when the selecting rows have served, continue the
            training with them for another 30 % of the epochs, from a quarter of the learning rate down to 0. The blend
            cannot, as those rows end its training. Rows that calibrate are never trained on.
        search: a `torchmcl.fleet.FleetSearch`: its candidates (64 by default) are trained at once on a part of the
            training rows, and the best on the others is used. It chooses `rule`, `learning_rate` and `weight_decay`,
            which must be left at their defaults.
        device: where to train and predict, "cpu" or "cuda".
        random_state: of the initial weights, the shuffles and the held-out rows.
        progress: show a progress bar.
        density: `KernelMixture` or, with a rule, `VoronoiKernels`: the density behind `predict_distribution`, `sample`
            and `log_prob`.

    Attributes:
        shares_: the share of each member of the blend: "networks", "networks with knots", "forest" and "ignorance", as
            far as it has them. A large share of ignorance (above 0.3) says that little was learned. Not with a rule.
        modules_: the networks that were kept, ordinary torch modules on standardised inputs and targets; with knots
            the place of each column between them comes after the columns. Those of a blend come kind by kind, and give
            scales, too.
        n_features_in_: columns of X; `feature_names_in_` has their names where X had any.
        n_outputs_: columns of y; `target_names_` has their names.
        bandwidth_: the rule for the bandwidth, in units of the deviation of y; with a rule only.
        loss_curve_: training loss of each epoch, of the best network of the first kind.
        temperature_curve_: the temperature of each epoch, whether a schedule, the search or the training itself decided
            on it; None for the blend and for a rule without any. `learning_rate_curve_` has the learning rates.
        rule_: the rule, the function epoch -> rule or the `AutoAnnealing` that was used; None for the blend.
        best_restart_: which restart was best; `validation_distortions_` has the values, in standardised units: with a
            rule distortions, in the blend scores, the lower the better.
        best_epoch_: the epoch that was kept, -1 if the last one was.
        n_epochs_: epochs that were trained, those on all rows aside.
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
        >>> model.predict_interval([[0.8]], alpha=0.1).n_pieces  # the answer forks
        array([2])
        >>> sorted(model.shares_)
        ['forest', 'ignorance', 'networks', 'networks with knots']
    """

    _default_weight_decay = 0.05
    _cost_fn = staticmethod(pairwise_sq_euclidean)

    # What differs from the other estimators; `Parameters` has the rest.
    n_knots: int | None = None
    learning_rate: float | Schedule | None = None
    rule: Any = None
    keep_best: bool | None = None
    validation_fraction: float = 0.15
    n_restarts: int | None = None
    ensemble: bool = True
    final_fit_on_all_rows: bool | None = None
    density: type[HypothesisDensity] = KernelMixture

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
        self._check_parameters()
        self._forget()
        rows = self._validated(X, y, sample_weight, reset=True, n_needed=2)
        self._check_targets_vary(rows[1])
        seed = self._seed()
        together = self._checked_groups(groups, rows[0])
        selecting, calibrating = self._held_out_shares()
        split = split_rows(*rows, seed=seed, selecting=selecting, calibrating=calibrating, groups=together)
        self._borders = split.borders
        self._inputs = self._encoder(split.train)
        self._targets = Scaler.of(split.train.targets, split.train.weights)
        self._limits = never_left(split.train.joined(split.selection))
        self._n_train, self._n_points = len(split.train), int(self.n_hypotheses)
        split = (self._fit_blend if self._blends else self._fit_rule)(split, seed, checkpoint)
        self._check_converged(split.train)
        self._calibrate(split.calibration)
        self._held_out = tuple(share.latest() for share in split.held_out)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MCLRegressor":
        """Train for one epoch on some more rows, from where the last call (or `fit`) ended.

        Each call is one epoch of the rule's schedule, whose horizon is `n_epochs`, 200 by default; the learning rate
        stays at its first value if it is not a schedule. Inputs and targets are standardised as in the first
        call. The held-out share of each call joins the rows that select and calibrate, of which the latest 4096 are
        kept. A row that comes again is in the same share again; a call of nothing but held-out rows trains nothing. One
        network is trained, or `n_restarts` of them where that is given with `ensemble`; after `fit` those that it kept.

        Args:
            X: [rows, features]
            y: [rows] or [rows, outputs]
            sample_weight: [rows], how much each row counts.
        """
        first = not hasattr(self, "modules_")
        self._check_parameters()
        if not first:
            self._check_same_way()
        rows = self._validated(X, y, sample_weight, reset=first, n_needed=1)
        if first:
            self._state_seed, self._moments, self._annealing = self._seed(), None, None
            self._blend, self._few, self._n_train, self._n_points = None, None, 0, int(self.n_hypotheses)
            selecting, calibrating = self._held_out_shares()
            self._borders = fixed_borders(selecting=selecting, calibrating=calibrating)
        split = split_rows(*rows, seed=self._state_seed, borders=self._borders)
        if first and not len(split.train):
            split = split_rows(*rows, seed=self._state_seed)
        if first:
            self._inputs = self._encoder(split.train, default=0)
            self._targets = Scaler.of(split.train.targets, split.train.weights)
            self._held_out = split.selection.head(0), split.calibration.head(0)
            self._limits = unbounded(self.n_outputs_)
        self._believe_less(rows[1])
        both = zip(self._held_out, split.held_out, strict=True)
        self._held_out = selection, calibration = tuple(old.joined(new).latest() for old, new in both)
        if len(split.train):
            self._train_more(split.train)
        self._select(selection, split.train)
        self._calibrate(calibration)
        return self

    def _held_out_shares(self) -> tuple[float, float]:
        """Return the shares of the rows that select and that calibrate."""
        third = float(self.validation_fraction) / 3
        return 2 * third, third

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.density not in (KernelMixture, VoronoiKernels):
            rule = "be KernelMixture or VoronoiKernels"
            raise ValueError(bad_value("MCLRegressor", "density", rule, repr(self.density)))

    # ------------------------------------------------------------------ columns (`set_output` wraps what stands here)

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
