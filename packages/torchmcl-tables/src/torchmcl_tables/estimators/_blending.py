"""The default way to fit a regressor: networks of several kinds and a forest, blended by held-out rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl._checks import bad_value
from torchmcl.costs import MixtureNLLWithCRPS
from torchmcl.density import VoronoiKernels
from torchmcl.fleet import default_batch_size
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.rules.winners import WTA
from torchmcl.schedules import Cosine
from torchmcl_tables.estimators._atoms import atoms_of
from torchmcl_tables.estimators._base import MANY_ROWS, N_KNOTS, N_RESTARTS, seeds_of
from torchmcl_tables.estimators._blend import Blend, known
from torchmcl_tables.estimators._forecasts import Forecasts
from torchmcl_tables.estimators._forest import Forest
from torchmcl_tables.estimators._inputs import Bends, Gaps, Scaler
from torchmcl_tables.estimators._judging import CRPS_WEIGHT, blended, fitted_stretch, fitted_trim, fitted_widths
from torchmcl_tables.estimators._kernels import Kernels
from torchmcl_tables.estimators._networks import Trained, Training, default_n_epochs
from torchmcl_tables.estimators._rows import Rows, Split

__all__ = ["Blending"]

# Kernels of one network. Answers are points of the density of all, so their number is another.
_N_KERNELS, _N_KERNELS_OF_MANY_ROWS = 5, 8
# Fewer networks do where rows are many: each is surer of itself.
_MEDIUM_ROWS, _N_RESTARTS_OF_MEDIUM = 10_000, 3
# Optimizer steps at most, by the number of rows; what held-out rows say ends most trainings earlier.
_STEPS = ((3_000, 2_500), (MANY_ROWS, 3_000))
_EPOCHS_OF_MANY_ROWS = 12
# A training ends after this share of its epochs without a better score on held-out rows.
_PATIENCE = 0.4
# Learning rates, by default. A likelihood asks for smaller steps than a distance.
_RATE, _RATE_WITH_A_RULE = 0.01, 0.02
# Networks with knots have more weights and learn at this share of the rate.
_RATE_WITH_KNOTS = 0.5
# A network whose held-out score is this much worse than the median has failed.
_FAILED = 1.0
_N_TREES = 50
# Held-out rows that settle the shares; with fewer than the second number nothing is known.
_MAX_JUDGES, _MIN_JUDGES = 2_000, 5
_IGNORANT_SHARE = 0.05


class Blending(Forecasts):
    """Fits a blend; `MCLRegressor` documents it."""

    @property
    def _blends(self) -> bool:
        """Whether the parameters ask for a blend, and not for networks that are trained by a rule."""
        return self.rule is None and self.search is None

    @property
    def _default_rate(self) -> float:
        return _RATE if self._blends else _RATE_WITH_A_RULE

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not self._blends:
            return
        advice = 'Give a rule, for example rule="annealed".'
        if self.final_fit_on_all_rows:
            rule = "be False or None without a rule: held-out rows decide when to stop"
            raise ValueError(bad_value("MCLRegressor", "final_fit_on_all_rows", rule, True, advice))
        if self.density is VoronoiKernels:
            rule = "be KernelMixture without a rule: kernels have widths of their own"
            raise ValueError(bad_value("MCLRegressor", "density", rule, "VoronoiKernels", advice))

    def _check_same_way(self) -> None:
        """Check that more rows are learned in the way of the first ones."""
        if self._blends != (self._blend is not None):
            rule = "be as in the first fit: networks of a rule do not become a blend, nor the reverse"
            raise ValueError(bad_value("MCLRegressor", "rule", rule, repr(self.rule), "Clone the model and fit it."))

    # ------------------------------------------------------------------ fitting

    def _fit_blend(self, split: Split, seed: int, checkpoint: str | Path | None) -> Split:
        """Train networks of each kind and a forest, choose their shares and which gaps are believed."""
        kinds = self._kinds(split.train)
        modules: list[nn.Module] = []
        scores: list[Tensor] = []
        n_networks = []
        for place, encoder in enumerate(kinds):
            self._inputs = encoder
            folder = None if checkpoint is None else Path(checkpoint) / f"kind-{place}"
            training, trained = self._train_kind(split, seed + place, folder)
            kept = _not_failed(trained.distortions) if self.ensemble else [trained.best()]
            if place == 0:
                self._keep(training, trained, kept)
            else:
                self.seconds_ += float(trained.history.seconds)
            modules += [trained.modules[i] for i in kept]
            scores.append(trained.distortions[kept])
            n_networks.append(len(kept))
        self._inputs, self.modules_, self.rule_ = kinds[0], modules, None
        self._moments = None
        self._family_moments: list[Any] = [None] * len(kinds)
        self._blend = Blend(kinds, n_networks, np.full(len(kinds) + 1, 1 / (len(kinds) + 1)))
        if not self.ensemble:
            self._keep_one(scores)
        self._few = atoms_of(split.train.targets, split.selection.targets)
        if self._few is not None:
            self._blend = replace(self._blend, atoms=self._targets(self._few[:, None], np.float64)[:, 0])
        forest = self.ensemble and len(split.train) < MANY_ROWS
        self._choose_shares(split, _N_TREES if forest else 0, seed)
        self._choose_fill(split.selection)
        self._state_seed = seed
        return split

    def _keep_one(self, scores: list[Tensor]) -> None:
        """Keep the kind whose network is best."""
        assert self._blend is not None
        best = int(torch.tensor([float(score[0]) for score in scores]).nan_to_num(torch.inf).argmin())
        self._inputs, self.modules_ = self._blend.encoders[best], [self.modules_[best]]
        self._blend = Blend([self._inputs], [1], np.full(2, 0.5))
        self._family_moments = [None]

    def _kinds(self, train: Rows) -> list[Scaler | Bends | Gaps]:
        """Return what makes inputs of columns, for each kind of networks."""
        if self.n_knots is not None or len(train) >= MANY_ROWS:
            return [self._encoder(train, default=0)]
        plain, bent = (self._encoder(train, default=n_knots) for n_knots in (0, N_KNOTS))
        return [plain, bent] if bent.run_lengths else [plain]

    def _train_kind(self, split: Split, seed: int, checkpoint: Path | None) -> tuple[Training, Trained]:
        """Train the networks of one kind; each keeps the epoch with the best score on the selecting rows."""
        n_rows = len(split.train)
        batch = int(self.batch_size or default_batch_size(n_rows))
        n_epochs = int(self.n_epochs or _default_epochs(n_rows, batch))
        rate = self._rate
        if not callable(rate):
            rate = Cosine(rate * (_RATE_WITH_KNOTS if self._inputs.has_knots else 1.0), 0.0, n_epochs)
        keeps, patience = self.keep_best is not False, self.patience
        if keeps and patience is None:
            patience = max(1, round(_PATIENCE * n_epochs))
        n_restarts = _default_restarts(n_rows) if self.n_restarts is None else int(self.n_restarts)
        training = self._training(
            *(WTA(), rate, self._weight_decay(WTA())),
            n_epochs=n_epochs,
            batch_size=batch,
            seeds=seeds_of(seed, n_restarts),
            keep_best=keeps,
            patience=None if patience is None else int(patience),
            checkpoint=checkpoint,
        )
        examples = self._examples(split.train)
        watched = self._examples(split.selection) if len(split.selection) else None
        trained = training.run(self._module, examples, watched)
        return training, training.cooled(trained, examples) if keeps and watched is not None else trained

    def _module(self) -> nn.Module:
        if not self._blends:
            return super()._module()
        many = getattr(self, "_n_train", 0) >= MANY_ROWS
        return MultiHypothesisMLP(
            self._inputs.n_columns,
            self._out_features,
            _N_KERNELS_OF_MANY_ROWS if many else _N_KERNELS,
            hidden=tuple(int(size) for size in self.hidden),
            scales=True,
        )

    def _training(self, rule: Any, learning_rate: Any, weight_decay: Any, **how: Any) -> Training:
        training = super()._training(rule, learning_rate, weight_decay, **how)
        if not self._blends:
            return training
        return replace(training, cost_fn=MixtureNLLWithCRPS(CRPS_WEIGHT), score_weight=0.0)

    # ------------------------------------------------------------------ shares

    def _choose_shares(self, split: Split, n_trees: int, seed: int) -> None:
        """Choose the share of each member by rows that trained none; the forest grows on the others of these too."""
        assert self._blend is not None
        judges = split.selection.head(_MAX_JUDGES)
        members, targets = [], self._known(judges)
        if len(judges):
            self._stretch(judges)
            members = self._blend.members(self.modules_, judges.inputs.astype(np.float64), self.device)
        if n_trees:
            members[-1:-1] = self._grow(split.train, judges, n_trees, seed)
        if len(judges) >= _MIN_JUDGES:
            self._judge(members, targets, torch.from_numpy(judges.weights))
            return
        n_members = len(self._blend.shares) + bool(n_trees)
        self._use_shares(np.append(np.full(n_members - 1, (1 - _IGNORANT_SHARE) / (n_members - 1)), _IGNORANT_SHARE))

    def _judge(self, members: list[Kernels], targets: Tensor, weights: Tensor) -> None:
        """Choose shares, and what answers leave out, by the kernels of members for rows that trained none of them."""
        assert self._blend is not None
        members = [self._blend.at_atoms(member) for member in members]
        shares = blended(members, targets, weights)
        self._use_shares(shares)
        if self.n_outputs_ == 1:
            whole = self._blend.at_atoms(known(members, shares))
            trim = fitted_trim(whole, targets, weights, self._n_points, self._atoms)
            self._blend = replace(self._blend, trim=trim)

    @property
    def _atoms(self) -> Tensor | None:
        """The only values of the targets, in standardised units."""
        assert self._blend is not None
        return None if self._blend.atoms is None else torch.from_numpy(self._blend.atoms)

    def _use_shares(self, shares: NDArray[np.float64]) -> None:
        assert self._blend is not None
        self._blend = replace(self._blend, shares=shares)
        names = ["networks", "networks with knots"][: len(self._blend.encoders)]
        names += ["forest"] * (self._blend.forest is not None)
        self.shares_ = dict(zip([*names, "ignorance"], map(float, shares), strict=True))

    def _stretch(self, judges: Rows) -> None:
        """Choose how wide the kernels of each kind of networks are, relative to what these say."""
        assert self._blend is not None
        self._blend = replace(self._blend, stretches=None)
        members = self._blend.members(self.modules_, judges.inputs.astype(np.float64), self.device)
        known, weights = self._known(judges), torch.from_numpy(judges.weights)
        kinds = members[: len(self._blend.encoders)]
        stretches = np.array([fitted_stretch(kind, known, weights, self._atoms) for kind in kinds])
        self._blend = replace(self._blend, stretches=stretches)

    def _choose_again(self, selection: Rows, train: Rows) -> None:
        """Choose the shares again, by other rows; the forest stays as it is."""
        if self._blend is None:
            super()._choose_again(selection, train)
            return
        judges = selection.head(_MAX_JUDGES)
        if len(judges) < _MIN_JUDGES:
            return
        self._stretch(judges)
        members = self._blend.members(self.modules_, judges.inputs.astype(np.float64), self.device)
        self._judge(members, self._known(judges), torch.from_numpy(judges.weights))

    def _grow(self, train: Rows, judges: Rows, n_trees: int, seed: int) -> list[Any]:
        """Grow the forest on all rows that the networks know, and return its kernels for the judging rows.

        They are judged by the trees that have not seen them.
        """
        assert self._blend is not None
        rows = train.joined(judges)
        inputs = self._blend.encoders[0].places(rows.inputs).dense
        known, together = self._targets(rows.targets, np.float64), rows.units if rows.in_groups else None
        forest, seen = Forest.grown(inputs, known, rows.weights, n_trees, seed, together)
        self._blend = replace(self._blend, forest=forest)
        if not len(judges):
            return []
        values, spreads = forest.answers(inputs[len(train) :])
        unseen: NDArray[np.bool_] = ~seen[len(train) :]
        factor, floor, kernels = fitted_widths(
            values, spreads, unseen, self._known(judges), torch.from_numpy(judges.weights), self._atoms
        )
        self._blend = replace(self._blend, factor=factor, floor=floor)
        return [kernels]

    # ------------------------------------------------------------------ row by row

    def _train_more(self, train: Rows) -> None:
        """Train one epoch of every kind on the rows, from where the last call ended."""
        if not self._blends:
            super()._train_more(train)
            return
        if not hasattr(self, "modules_"):
            self._family_moments = [None]
            super()._train_more(train)
            self._blend = Blend([self._inputs], [len(self.modules_)], np.zeros(2))
            self._use_shares(np.array([1 - _IGNORANT_SHARE, _IGNORANT_SHARE]))
            self._family_moments = [self._moments]
            return
        assert self._blend is not None
        epoch, networks, trained = self.n_epochs_, self.modules_, []
        start = 0
        for place, (encoder, n) in enumerate(zip(self._blend.encoders, self._blend.n_networks, strict=True)):
            self._inputs, self.modules_, self.n_epochs_ = encoder, networks[start : start + n], epoch
            self._moments = self._family_moments[place]
            super()._train_more(train)
            self._family_moments[place] = self._moments
            trained += self.modules_
            start += n
        self._inputs, self.modules_ = self._blend.encoders[0], trained


def _default_epochs(n_rows: int, batch: int) -> int:
    for most, n_steps in _STEPS:
        if n_rows < most:
            return default_n_epochs(n_rows, batch, n_steps)
    return _EPOCHS_OF_MANY_ROWS


def _default_restarts(n_rows: int) -> int:
    if n_rows >= MANY_ROWS:
        return 1
    return N_RESTARTS if n_rows < _MEDIUM_ROWS else _N_RESTARTS_OF_MEDIUM


def _not_failed(scores: Tensor) -> list[int]:
    """Return the networks but for those that are far worse than most on held-out rows."""
    bound = scores.nanmedian() + _FAILED
    kept = [place for place, value in enumerate(scores) if value <= bound]
    return kept or list(range(len(scores)))  # without held-out rows nothing is known
