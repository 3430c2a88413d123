"""The estimator: one network for all series of a table, trained to predict several futures for each."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor

from torchmcl import WTA, AutoAnnealing, io
from torchmcl.annealing.model import check_rule_like
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl_forecast import calibrating
from torchmcl_forecast.calibrating import Calibration
from torchmcl_forecast.codebook import best_shares, new_codebooks
from torchmcl_forecast.covariates import find_scaling, scaled, standardized
from torchmcl_forecast.forecast import LEVELS, Forecast, drawn_paths, tube_offsets
from torchmcl_forecast.frames import Columns, Panel, check_columns, in_order, read_future, read_panel
from torchmcl_forecast.linear import Ridge
from torchmcl_forecast.network import PathNetwork
from torchmcl_forecast.parameters import check_parameters
from torchmcl_forecast.saving import FITTED, read_fitted, write_fitted
from torchmcl_forecast.seasons import find_seasons
from torchmcl_forecast.training import Training, train
from torchmcl_forecast.windows import Source, Window, choose_layout

__all__ = ["Forecaster"]

# The most recent windows first calibrate the tubes; then the networks are trained on all windows, for this many times
# the first steps. With a fifth of all steps there, at half the rate, the CRPS was up to 5 % higher (taxi rides).
_REFINEMENT = 2 / 3
# Longer training is better on some data sets (ETTh1), but 400 hourly series would take several minutes. Twice the steps
# of one network are better than two networks.
_MOST_STEPS = 1200
# Windows from which linear maps and codebooks are computed.
_N_LINEAR = 20_000
# Windows, and paths drawn per window, to weigh networks and codebooks; windows for the factor on the scales.
_N_WEIGHED, _N_DRAWN, _N_SPREAD = 600, 60, 300
# Shares of the networks and of the codebooks without windows to weigh them.
_UNMEASURED = (0.5, 0.0, 0.5)
# Windows that are forecast at once.
_AT_ONCE = 1024


class Forecaster(io.Shareable, BaseEstimator):
    """Several futures of each series of a table, with probabilities.

    One network is trained on windows of all series, each in units of its own past. Its hypotheses are whole paths with
    scales: a linear map of the past plus the output of a perceptron. A rule of multiple choice learning assigns
    windows to hypotheses. Codebooks of past errors of simple forecasts are mixed in, with shares chosen on the last
    windows. Values may be missing, series may start late or be short, and new series may be predicted. If no value is
    negative, neither is any forecast.

    Args:
        n_futures: the number of futures that `predict` returns.
        n_hypotheses: paths of each network, which are reduced to the futures.
        n_members: networks in the ensemble.
        rule: an assignment rule, a function from the part of the training (at most 40) to a rule, or `AutoAnnealing()`.
        joint: whether all series are forecast together, as channels of one path.
        coverage: the share of whole paths inside tubes.
        context: number of past steps to read; by default it depends on the horizon, the seasons and the lengths.
        seasons: lengths of seasons in steps; detected by default.
        hidden: sizes of the hidden layers.
        dropout: share of hidden units dropped in training.
        n_steps: training steps per network, by default chosen by the number of windows; if tubes can be calibrated, two
            thirds as many follow on all windows.
        batch_size: windows per step.
        learning_rate: the initial learning rate.
        weight_decay: the weight decay of AdamW.
        crps: weight of the CRPS of each step relative to the likelihood of whole paths.
        time: name of the column of times.
        value: name of the column of values; a frame without it is wide.
        series: name of the column of series; a long frame without it has one series.
        known: names of covariate columns whose future is known, such as promotions.
        past: names of covariate columns of which only the past is known, such as visitors.
        device: the device to train on.
        random_state: the seed.
        progress: whether to show a progress bar.

    Attributes:
        horizon_: the number of steps to forecast.
        seasons_: lengths of the seasons, in steps.
        networks_: the trained networks.
        codebooks_: representative past errors, as additional members: of a linear map and of the naive forecast.
        shares_: probabilities of the networks together and of each codebook, chosen on the last windows.
        spread_: factor on the scales with the lowest CRPS, chosen on the last windows.
        correlation_: lag-1 autocorrelation of the error of a sampled path, measured on the last windows.
        tube_level_: factor on the widths for tubes right after the fit; None if the series are too short for it.
        tube_scores_: the scores of held-out paths, from which it is computed.

    Example:
        >>> import pandas as pd
        >>> days = pd.date_range("2024-01-01", periods=120)
        >>> frame = pd.DataFrame({"ds": days, "y": 10 + np.sin(np.arange(120) * 2 * np.pi / 7)})
        >>> forecaster = Forecaster(n_futures=2, n_members=1, n_steps=10, hidden=(16,), batch_size=32)
        >>> forecaster = forecaster.fit(frame, horizon=3)
        >>> forecaster.predict().columns.tolist()
        ['unique_id', 'ds', 'future_1', 'future_2', 'probability_1', 'probability_2']
    """

    def __init__(
        self,
        n_futures: int = 5,
        *,
        n_hypotheses: int = 16,
        n_members: int = 1,
        rule: Any = AutoAnnealing(),  # noqa: B008
        joint: bool = False,
        coverage: float = 0.9,
        context: int | None = None,
        seasons: Sequence[int] | None = None,
        hidden: Sequence[int] = (256, 256, 256),
        dropout: float = 0.1,
        n_steps: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        crps: float = 20.0,
        time: str = "ds",
        value: str = "y",
        series: str = "unique_id",
        known: Sequence[str] = (),
        past: Sequence[str] = (),
        device: str = "cpu",
        random_state: int = 0,
        progress: bool = False,
    ) -> None:
        self.n_futures = n_futures
        self.n_hypotheses = n_hypotheses
        self.n_members = n_members
        self.rule = rule
        self.joint = joint
        self.coverage = coverage
        self.context = context
        self.seasons = seasons
        self.hidden = hidden
        self.dropout = dropout
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.crps = crps
        self.time = time
        self.value = value
        self.series = series
        self.known = known
        self.past = past
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def fit(self, frame: Any, *, horizon: int, checkpoint: Path | str | None = None) -> "Forecaster":
        """Train on a long or wide frame.

        Args:
            frame: of pandas or polars.
            horizon: the number of steps to forecast.
            checkpoint: folder for the training state; after a kill, the same call resumes from it.

        Raises:
            ValueError: for parameters or frames that cannot be used; irregular or duplicate times; series that are all
                shorter than the horizon.
        """
        check_parameters(self.get_params(deep=False), horizon)
        check_rule_like("Forecaster", self.rule)
        check_columns("Forecaster", self._columns())
        panel = read_panel("Forecaster.fit", frame, self._columns(), aligned=self.joint)
        self.scaling_ = find_scaling(panel)
        panel = scaled(panel, self.scaling_)
        self.horizon_ = horizon
        self.seasons_ = find_seasons(panel.values, panel.grid) if self.seasons is None else tuple(self.seasons)
        covariates = (len(self.known), len(self.past))
        self.layout_ = choose_layout(panel, horizon, self.seasons_, self.context, self.joint, *covariates)
        self.least_ = 0.0 if np.nanmin(panel.values) >= 0 else -math.inf
        source = Source(panel, self.layout_, self._season)
        places = source.places()
        if not len(places):
            longest = int((~np.isnan(panel.values)).sum(axis=1).max())
            rule = f"have a series of at least {horizon + 3} values for a horizon of {horizon}"
            raise ValueError(bad_value("Forecaster.fit", "frame", rule, f"{longest} at most"))
        # Dropout and the rule draw from torch's global generators, whose states are restored.
        with torch.random.fork_rng(devices=[self.device] if torch.device(self.device).type == "cuda" else []):
            torch.manual_seed(self.random_state)
            self._train(source, places, calibrating.choose_calibration(source, self.coverage), checkpoint)
        self._panel = panel
        return self

    def predict(self, frame: Any = None, *, future: Any = None) -> Any:
        """Return `n_futures` futures of each series with probabilities, as a frame; see `Forecast.futures`.

        Args:
            frame: series, new ones too, whose futures follow their ends; those of the fit by default.
            future: covariates that are known ahead, see `forecast`.
        """
        return self.forecast(frame, future=future).futures()

    def sample(self, n: int = 100, frame: Any = None, *, future: Any = None) -> Any:
        """Return n whole paths drawn at random for each series, as a frame."""
        return self.forecast(frame, future=future).sample(n, self.random_state)

    def predict_quantiles(self, levels: Sequence[float] = LEVELS, frame: Any = None, *, future: Any = None) -> Any:
        """Return quantiles of each step, as a frame."""
        return self.forecast(frame, future=future).quantiles(levels)

    def forecast(self, frame: Any = None, *, future: Any = None) -> Forecast:
        """Return the mixture of paths of each series, from which all other results are computed.

        Args:
            frame: series, new ones too, whose futures follow their ends; those of the fit by default.
            future: a frame of the covariates `known`, with a row for each time of the horizon, and for each series
                unless all share them.

        Raises:
            ValueError: for frames that cannot be used; missing values in `future`.
        """
        if not hasattr(self, "networks_"):
            raise NotFittedError("Forecaster: fit it first: fit(frame, horizon=28).")
        panel = self._given(frame, future)
        source = Source(panel, self.layout_, self._season)
        paths, scales, probabilities = self._answers(source, source.ends())
        columns, level = self._columns(), self._current_level(source, panel)
        least = -math.inf if (panel.values < 0).any() else self.least_  # new series may be negative
        widths = (level, self.coverage, least, self.correlation_)
        return Forecast(panel, columns, paths, scales, probabilities, self.n_futures, *widths)

    def _given(self, frame: Any, future: Any) -> Panel:
        """Return the series to forecast, with covariates standardized as in the fit."""
        owner, columns = "Forecaster.forecast", self._columns()
        if (future is None) != (not columns.known):
            rule = f"be a frame with {columns.time!r} and {list(columns.known)}" if columns.known else "be None"
            advice = "" if columns.known else "Name covariates that are known ahead: Forecaster(known=['price'])."
            raise ValueError(bad_value(owner, "future", rule, type(future).__name__, advice))
        panel = self._panel
        if frame is not None:
            panel = read_panel(owner, frame, columns, grid=self._panel.grid, aligned=self.joint)
            panel = in_order(owner, panel, self._panel.names) if self.joint else panel
            panel = scaled(panel, self.scaling_)
        if future is None:
            return panel
        ahead = read_future(owner, future, columns, panel, self.horizon_)
        return replace(panel, future=standardized(ahead, self.scaling_[: len(columns.known)]))

    def save(self, folder: Path | str) -> None:
        """Write the fitted forecaster to a folder, with the training series, which `predict` needs. No pickle."""
        if not hasattr(self, "networks_"):
            advice = "fit(frame, horizon=28) first."
            raise NotFittedError(bad_value("Forecaster.save", "self", "be fitted", "an unfitted one", advice))
        parameters = self.get_params(deep=False) | {"progress": False}
        write_fitted(Path(folder), parameters, {name: getattr(self, name) for name in FITTED})

    @classmethod
    def load(cls, folder: Path | str) -> "Forecaster":
        """Return the forecaster that `save` wrote. Nothing from the file is executed.

        Raises:
            ValueError: if the folder does not contain a forecaster, or one that is damaged or of a newer version.
        """

        def made(parameters: dict[str, Any], fitted: dict[str, Any]) -> Forecaster:
            forecaster = cls(**parameters)
            for name, value in fitted.items():
                setattr(forecaster, name, value)
            return forecaster

        return read_fitted("Forecaster.load", Path(folder), made)

    def _columns(self) -> Columns:
        return Columns(self.series, self.time, self.value, tuple(self.known), tuple(self.past))

    @property
    def _season(self) -> int:
        return min(self.seasons_, default=1)

    def _train(
        self, source: Source, places: Tensor, calibration: Calibration | None, checkpoint: Path | str | None
    ) -> None:
        """Train the members, first without the windows that calibrate the tubes, then with them."""
        earlier = places if calibration is None else source.places(last=calibration.n_steps)
        # About 30 passes over the windows: with more, a few windows would be memorized.
        enough = min(max(30 * len(earlier) // self.batch_size, 120), _MOST_STEPS)
        n_steps = enough if self.n_steps is None else self.n_steps
        how = Training(n_steps, self.batch_size, self.learning_rate, self.weight_decay, self.crps, str(self.device))
        ridge = Ridge(self.layout_, past := self._some(source, earlier))
        shape = (self.layout_, self.n_hypotheses, tuple(self.hidden), self.dropout)
        self.networks_ = [PathNetwork(*shape, ridge.solved()) for _ in range(self.n_members)]
        strength = ridge.best_strength(None if calibration is None else self._some(source, calibration.places))
        self.codebooks_ = new_codebooks(self.n_hypotheses, past, ridge.solved(strength), self.random_state)
        del past  # up to 20,000 windows
        self.shares_: tuple[float, ...] = _UNMEASURED
        self.spread_, self.correlation_ = 1.0, 0.0
        again = replace(how, n_steps=max(round(_REFINEMENT * n_steps), 1))
        n_parts = self.n_members * (how.n_parts + (0 if calibration is None else again.n_parts))
        progress = Progress(n_parts, "futures", show=self.progress)
        saved = io.Checkpoint(checkpoint, self._key(source), owner="Forecaster.fit")
        with progress as bar, saved:

            def train_all(phase: str, places: Tensor, rule: Any, how: Training) -> None:
                for member, network in enumerate(self.networks_):
                    stage = f"{phase}-{member}"
                    train(network, source, places, rule, how, stage=stage, checkpoint=saved, bar=bar)

            train_all("training", earlier, self.rule, how)
            self.tube_level_ = self.tube_scores_ = None
            if calibration is not None:
                self.shares_ = saved.once("shares", lambda: self._weighed(source, calibration))
                self.spread_ = saved.once("spread", lambda: self._best_spread(source, calibration))
                self.correlation_ = saved.once("correlation", lambda: self._correlation(source, calibration))
                self.tube_scores_ = saved.once("scores", lambda: self._scores(source, calibration.places))
                self.tube_level_ = calibrating.tube_level(self.tube_scores_, self.coverage)
                train_all("refinement", places, WTA(), again)
                past = self._some(source, places)
                linear = Ridge(self.layout_, past).solved(strength)
                self.codebooks_ = new_codebooks(self.n_hypotheses, past, linear, self.random_state)

    def _key(self, source: Source) -> dict[str, Any]:
        """Return everything that a saved training run must match; `RuleScheduler` compares the rules."""
        unimportant = ("rule", "n_futures", "progress", "device")
        parameters = {name: value for name, value in self.get_params().items() if name not in unimportant}
        series = {"series": source.truth, "covariates": source.covariates, "calendar": source.calendar}
        return {**parameters, "horizon": self.horizon_, **series}

    def _some(self, source: Source, places: Tensor) -> Window:
        """Return windows drawn at random, the same for the same places."""
        generator = torch.Generator().manual_seed(self.random_state)
        return source.window(places[torch.randperm(len(places), generator=generator)[:_N_LINEAR]])

    def _weighed(self, source: Source, calibration: Calibration) -> tuple[float, ...]:
        """Return the shares of networks and codebooks in the mixture, fitted to the held-out windows."""
        places = calibration.places[torch.randperm(len(calibration.places))[:_N_WEIGHED]]
        window = source.window(places)
        # Separate series have equal weight; those of a joint path are weighted by their values.
        unit = window.unit if self.layout_.n_channels == 1 else torch.ones_like(window.unit)
        truth = window.targets * window.unit / unit
        drawn = []
        for alone in torch.eye(1 + len(self.codebooks_)).tolist():
            self.shares_ = tuple(alone)
            paths, scales, shares = self._answers(source, places)
            parts = ((paths - window.naive.unsqueeze(1)) / unit.unsqueeze(1), scales / unit.unsqueeze(1), shares)
            drawn.append(drawn_paths(*parts, _N_DRAWN, calibrating.path_correlation(*parts, truth)).flatten(2))
        return best_shares(drawn, truth.flatten(1))

    def _best_spread(self, source: Source, calibration: Calibration) -> float:
        """Return the factor on the scales, from the held-out windows."""
        places = calibration.places[torch.randperm(len(calibration.places))[:_N_SPREAD]]
        window = source.window(places)
        paths, scales, shares = self._answers(source, places)
        naive, unit = window.naive.unsqueeze(1), window.unit.unsqueeze(1)
        return calibrating.best_spread((paths - naive) / unit, scales / unit, shares, window.targets.double())

    def _correlation(self, source: Source, calibration: Calibration) -> float:
        """Return the correlation between errors of neighboring steps, estimated from the held-out windows."""
        window = source.window(calibration.places)
        truth = window.targets * window.unit + window.naive
        return calibrating.path_correlation(*self._answers(source, calibration.places), truth)

    def _scores(self, source: Source, places: Tensor) -> Tensor:
        """Return the largest offset of each path of the windows in tube widths, [paths]."""
        window = source.window(places)
        truth = window.targets * window.unit + window.naive
        offsets = tube_offsets(*self._answers(source, places), truth).flatten(0, 1)
        return offsets[~offsets.isnan().all(dim=1)].abs().nan_to_num().amax(dim=1)

    def _current_level(self, source: Source, panel: Panel) -> float | None:
        """Return the factor on the widths of tubes, adapted to the windows after the fit."""
        if self.tube_scores_ is None:
            return self.tube_level_
        since = calibrating.places_since(source, panel, self._panel.ends.max())
        return calibrating.tube_level(self.tube_scores_, self.coverage, [self._scores(source, some) for some in since])

    @torch.no_grad()
    def _answers(self, source: Source, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return paths and scales [windows, hypotheses, channels, horizon] and probabilities, of all members."""
        parts = []
        for some in places.split(_AT_ONCE):
            window = source.window(some)
            of_each = self.shares_[0] / len(self.networks_)
            members = [(network(window.inputs), of_each) for network in self.networks_]
            books = zip(self.codebooks_, self.shares_[1:], strict=True)
            members += [(book(window), share) for book, share in books if share > 0]  # others would only take time
            found, weights = zip(*members, strict=True)
            shape = (self.layout_.n_channels, self.layout_.horizon)
            paths, scales = (
                torch.cat([part[..., 0].unflatten(-1, shape) for part in which], dim=1).double()
                for which in ([f.hypotheses for f in found], [f.scale for f in found])
            )
            naive, unit = window.naive.unsqueeze(1), window.unit.unsqueeze(1)
            logits = [one.score_logits.double().softmax(dim=-1) for one in found]
            shares = torch.cat([weight * one for weight, one in zip(weights, logits, strict=True)], dim=1)
            parts.append((paths * unit + naive, self.spread_ * scales * unit, shares))
        paths, scales, shares = (torch.cat(part) for part in zip(*parts, strict=True))
        return paths, scales, shares
