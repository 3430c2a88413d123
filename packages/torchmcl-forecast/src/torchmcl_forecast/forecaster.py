"""Forecaster of several futures for each series of a table, with one network for all series."""

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

from torchmcl import WTA, AutoAnnealing, checks, io
from torchmcl.annealing.model import check_rule_like
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl_forecast import calibrating
from torchmcl_forecast.forecast import LEVELS, Forecast, drawn_paths, tube_offsets
from torchmcl_forecast.frames import Columns, Panel, check_columns, find_scaling, read_panel, scaled, with_future
from torchmcl_forecast.network import PathNetwork, Ridge, Training, new_codebooks, train
from torchmcl_forecast.saving import CODEC, FITTED, restored, write_fitted
from torchmcl_forecast.seasons import find_seasons
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
# Windows, and paths drawn per window, from which the mixture weights of networks and codebooks are estimated; windows
# from which the factor on the scales is estimated.
_N_WEIGHED, _N_DRAWN, _N_SPREAD = 600, 60, 300
# Mixture weights of the networks and of the codebooks if there are no windows to estimate them.
_UNMEASURED = (0.5, 0.0, 0.5)
# Number of windows per forward pass.
_AT_ONCE = 1024
_COUNT, _OPEN_FRACTION = checks.Bounds(low=1, integer=True), checks.Bounds(0, 1, open_low=True, open_high=True)
_BOUNDS = {
    **dict.fromkeys(("n_futures", "n_hypotheses", "n_members", "batch_size", "context", "n_steps"), _COUNT),
    **dict.fromkeys(("weight_decay", "crps"), checks.Bounds(low=0)),
    "learning_rate": checks.Bounds(low=0, open_low=True),
    "coverage": _OPEN_FRACTION,
    "dropout": checks.Bounds(0, 1, open_high=True),
    "random_state": checks.Bounds(low=0, integer=True),
}
_OPTIONAL = ("context", "n_steps", "seasons")


class Forecaster(io.Shareable, BaseEstimator):
    """Forecaster of several futures of each series of a table, with probabilities.

    One network is trained on windows of all series. Each window is scaled by its own past. The hypotheses are whole
    paths with scales: a linear map of the past plus the output of a perceptron. A rule of multiple choice learning
    assigns windows to hypotheses. Codebooks of past errors of simple forecasts are added to the mixture, with weights
    estimated on held-out windows. Values may be missing, series may start late or be short, and series that were not
    in the training data may be forecast. If all values are nonnegative, so are all forecasts.

    Args:
        n_futures: Number of futures that `predict` returns.
        n_hypotheses: Number of paths of each network, which are reduced to the futures.
        n_members: Number of networks in the ensemble.
        rule: Assignment rule, function from the index of the training segment (at most 40 segments) to a rule, or
            `AutoAnnealing()`.
        joint: Whether to forecast all series together, as channels of one path.
        coverage: Probability with which a tube contains the whole path.
        context: Number of past steps to read; by default it depends on the horizon, the seasons and the series lengths.
        seasons: Season lengths in steps; detected by default.
        hidden: Sizes of the hidden layers.
        dropout: Probability with which a hidden unit is dropped in training.
        n_steps: Training steps per network; by default the number depends on the number of windows. If tubes can be
            calibrated, two thirds as many steps follow on all windows.
        batch_size: Windows per step.
        learning_rate: Initial learning rate.
        weight_decay: Weight decay of AdamW.
        crps: Weight of the CRPS of each step relative to the likelihood of whole paths.
        time: Name of the time column.
        value: Name of the value column; a frame without it is wide.
        series: Name of the series column; a long frame without it has one series.
        known: Names of covariate columns whose future values are known, such as promotions.
        past: Names of covariate columns whose future values are unknown, such as visitors.
        device: Device to train on.
        random_state: Random seed.
        progress: Whether to show a progress bar.

    Attributes:
        horizon_: Number of steps to forecast.
        seasons_: Season lengths in steps.
        networks_: Trained networks.
        codebooks_: Additional mixture members: representative past errors of a linear map and of the naive forecast.
        shares_: Mixture weights of all networks together and of each codebook, estimated on held-out windows.
        spread_: Factor on the scales that minimizes the CRPS of held-out windows.
        correlation_: Lag-1 autocorrelation of the error of a sampled path, estimated on held-out windows.
        tube_scores_: Nonconformity scores of held-out paths, from which `tube_level_` is computed; None if the series
            are too short to calibrate the tubes.

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
            frame: Data frame of pandas or polars.
            horizon: Number of steps to forecast.
            checkpoint: Folder for the training state; after a kill, the same call resumes from it.

        Raises:
            ValueError: For invalid parameters or frames, for irregular or duplicate times, and if all series are too
                short for the horizon.
        """
        _check_parameters(self.get_params(deep=False), horizon)
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
        """Return a frame with `n_futures` futures of each series and their probabilities; see `Forecast.futures`.

        Args:
            frame: Series to forecast from their ends, possibly new ones; the series of the fit by default.
            future: Future values of the `known` covariates; see `forecast`.
        """
        return self.forecast(frame, future=future).futures()

    def sample(self, n: int = 100, frame: Any = None, *, future: Any = None) -> Any:
        """Return a frame with n random paths of each series."""
        return self.forecast(frame, future=future).sample(n, self.random_state)

    def predict_quantiles(self, levels: Sequence[float] = LEVELS, frame: Any = None, *, future: Any = None) -> Any:
        """Return a frame with quantiles of each step."""
        return self.forecast(frame, future=future).quantiles(levels)

    def forecast(self, frame: Any = None, *, future: Any = None) -> Forecast:
        """Return the mixture of paths of each series, from which all other results are computed.

        Args:
            frame: Series to forecast from their ends, possibly new ones; the series of the fit by default.
            future: Data frame with the future values of the `known` covariates: a row for each time of the horizon, and
                for each series unless all series share the covariates.

        Raises:
            ValueError: For invalid frames, and for missing values in `future`.
        """
        if not hasattr(self, "networks_"):
            raise NotFittedError("Forecaster: not fitted yet. Call fit(frame, horizon=28) first.")
        panel = self._series_to_forecast(frame, future)
        source = Source(panel, self.layout_, self._season)
        paths, scales, probabilities, _, naive, unit = self._mixture(source, source.ends())
        paths, scales = paths * unit.unsqueeze(1) + naive.unsqueeze(1), scales * unit.unsqueeze(1)
        columns, level = self._columns(), self._current_level(source, panel)
        least = -math.inf if (panel.values < 0).any() else self.least_  # new series may be negative
        widths = (level, self.coverage, least, self.correlation_)
        return Forecast(panel, columns, paths, scales, probabilities, self.n_futures, *widths)

    def _series_to_forecast(self, frame: Any, future: Any) -> Panel:
        """Return the series to forecast, with their covariates standardized as in the fit."""
        owner, columns = "Forecaster.forecast", self._columns()
        if (future is None) != (not columns.known):
            rule = f"be a frame with {columns.time!r} and {list(columns.known)}" if columns.known else "be None"
            advice = "" if columns.known else "Name covariates with known future values: Forecaster(known=['price'])."
            raise ValueError(bad_value(owner, "future", rule, type(future).__name__, advice))
        panel = self._panel
        if frame is not None:
            together = panel.names if self.joint else None
            panel = scaled(read_panel(owner, frame, columns, grid=panel.grid, together=together), self.scaling_)
        return panel if future is None else with_future(owner, future, columns, panel, self.horizon_, self.scaling_)

    def save(self, folder: Path | str) -> None:
        """Save the fitted forecaster and its training series, which `predict` needs, in a folder, without pickle."""
        if not hasattr(self, "networks_"):
            advice = "Call fit(frame, horizon=28) first."
            raise NotFittedError(bad_value("Forecaster.save", "self", "be fitted", "an unfitted forecaster", advice))
        parameters = self.get_params(deep=False) | {"progress": False}
        write_fitted(Path(folder), parameters, {name: getattr(self, name) for name in FITTED})

    @classmethod
    def load(cls, folder: Path | str) -> "Forecaster":
        """Load a forecaster that `save` wrote. Nothing from the file is executed.

        Raises:
            ValueError: If the folder contains no forecaster, a damaged one, or one of a newer version.
        """

        def made(content: dict[str, Any]) -> Forecaster:
            forecaster, fitted = cls(**content["parameters"]), content["fitted"]
            _check_parameters(forecaster.get_params(deep=False), fitted["horizon_"])
            check_columns("Forecaster", forecaster._columns())
            forecaster.__dict__.update(restored(fitted, len(forecaster.known), len(forecaster.past)))
            return forecaster

        loaded: Forecaster = io.load_model("Forecaster.load", folder, made, kind="Forecaster", codec=CODEC)
        return loaded

    @property
    def tube_level_(self) -> float | None:
        """Factor on the tube widths right after the fit; None if the series are too short to calibrate it."""
        return None if self.tube_scores_ is None else calibrating.tube_level(self.tube_scores_, self.coverage)

    def _columns(self) -> Columns:
        return Columns(self.series, self.time, self.value, tuple(self.known), tuple(self.past))

    @property
    def _season(self) -> int:
        return min(self.seasons_, default=1)

    def _train(
        self, source: Source, places: Tensor, calibration: calibrating.Calibration | None, checkpoint: Path | str | None
    ) -> None:
        """Train all members without the windows that calibrate the tubes, and then on all windows."""
        earlier = places if calibration is None else source.places(last=calibration.n_steps)
        # About 30 passes over the windows; with more passes, the network would memorize a small set of windows.
        enough = min(max(30 * len(earlier) // self.batch_size, 120), _MOST_STEPS)
        n_steps = enough if self.n_steps is None else self.n_steps
        settings = Training(
            n_steps, self.batch_size, self.learning_rate, self.weight_decay, self.crps, str(self.device)
        )
        ridge = Ridge(self.layout_, past := self._subset(source, earlier))
        shape = (self.layout_, self.n_hypotheses, tuple(self.hidden), self.dropout)
        self.networks_ = [PathNetwork(*shape, ridge.solved()) for _ in range(self.n_members)]
        strength = ridge.best_strength(None if calibration is None else self._subset(source, calibration.places))
        self.codebooks_ = new_codebooks(self.n_hypotheses, past, ridge.solved(strength), self.random_state)
        del past  # up to 20,000 windows
        self.shares_: tuple[float, ...] = _UNMEASURED
        self.spread_, self.correlation_ = 1.0, 0.0
        refinement = replace(settings, n_steps=max(round(_REFINEMENT * n_steps), 1))
        n_parts = self.n_members * (settings.n_parts + (0 if calibration is None else refinement.n_parts))
        progress = Progress(n_parts, "futures", show=self.progress)
        saved = io.Checkpoint(checkpoint, self._key(source), owner="Forecaster.fit")
        with progress as bar, saved:

            def train_all(phase: str, places: Tensor, rule: Any, settings: Training) -> None:
                for i, network in enumerate(self.networks_):
                    train(network, source, places, rule, settings, stage=f"{phase}-{i}", checkpoint=saved, bar=bar)

            train_all("training", earlier, self.rule, settings)
            self.tube_scores_ = None
            if calibration is not None:
                self.shares_ = saved.once("shares", lambda: self._mixture_weights(source, calibration))
                self.spread_ = saved.once("spread", lambda: self._best_spread(source, calibration))
                self.correlation_ = saved.once("correlation", lambda: self._correlation(source, calibration.places))
                self.tube_scores_ = saved.once("scores", lambda: self._scores(source, calibration.places))
                train_all("refinement", places, WTA(), refinement)
                past = self._subset(source, places)
                linear = Ridge(self.layout_, past).solved(strength)
                self.codebooks_ = new_codebooks(self.n_hypotheses, past, linear, self.random_state)

    def _key(self, source: Source) -> dict[str, Any]:
        """Return the values that must be equal to resume a saved training run; `RuleScheduler` compares the rules."""
        ignored = ("rule", "n_futures", "progress", "device")
        parameters = {name: value for name, value in self.get_params().items() if name not in ignored}
        series = {"series": source.truth, "covariates": source.covariates, "calendar": source.calendar}
        return {**parameters, "horizon": self.horizon_, **series}

    def _subset(self, source: Source, places: Tensor) -> Window:
        """Return a random subset of windows; the same subset for the same places."""
        generator = torch.Generator().manual_seed(self.random_state)
        return source.window(places[torch.randperm(len(places), generator=generator)[:_N_LINEAR]])

    def _mixture_weights(self, source: Source, calibration: calibrating.Calibration) -> tuple[float, ...]:
        """Return the mixture weights of networks and codebooks, fitted to held-out windows."""
        places = calibration.places[torch.randperm(len(calibration.places))[:_N_WEIGHED]]
        drawn, joint = [], self.layout_.n_channels > 1
        for one_member in torch.eye(1 + len(self.codebooks_)).tolist():
            self.shares_ = tuple(one_member)
            paths, scales, probabilities, truth, _, unit = self._mixture(source, places)
            # Separate series have equal weight; the series of a joint path are weighted by their values.
            unit = unit if joint else torch.ones_like(unit)
            paths, scales, truth = paths * unit.unsqueeze(1), scales * unit.unsqueeze(1), truth * unit
            correlation = calibrating.path_correlation(paths, scales, probabilities, truth)
            drawn.append(drawn_paths(paths, scales, probabilities, _N_DRAWN, correlation).flatten(2))
        return calibrating.best_shares(drawn, truth.flatten(1))

    def _best_spread(self, source: Source, calibration: calibrating.Calibration) -> float:
        """Return the factor on the scales, estimated on held-out windows."""
        places = calibration.places[torch.randperm(len(calibration.places))[:_N_SPREAD]]
        return calibrating.best_spread(*self._mixture(source, places)[:4])

    def _correlation(self, source: Source, places: Tensor) -> float:
        """Return the correlation between errors of neighboring steps, estimated on held-out windows."""
        return calibrating.path_correlation(*self._mixture(source, places)[:4])

    def _scores(self, source: Source, places: Tensor) -> Tensor:
        """Return the nonconformity score of each path, [paths]: its largest offset from the median, in tube widths."""
        offsets = tube_offsets(*self._mixture(source, places)[:4]).flatten(0, 1)
        return offsets[~offsets.isnan().all(dim=1)].abs().nan_to_num().amax(dim=1)

    def _current_level(self, source: Source, panel: Panel) -> float | None:
        """Return the factor on the tube widths, adapted to the windows after the fit."""
        if self.tube_scores_ is None:
            return None
        since = calibrating.places_since(source, panel, self._panel.ends.max())
        return calibrating.tube_level(self.tube_scores_, self.coverage, [self._scores(source, late) for late in since])

    @torch.no_grad()
    def _mixture(self, source: Source, places: Tensor) -> tuple[Tensor, ...]:
        """Compute the whole mixture, in units of the windows and relative to their naive forecasts.

        Returns:
            Paths and scales [windows, hypotheses, channels, horizon], probabilities, and the targets, naive forecasts
            and units of the windows.
        """
        parts = []
        for batch in places.split(_AT_ONCE):
            window = source.window(batch)
            member_weight = self.shares_[0] / len(self.networks_)
            members = [(network(window.inputs), member_weight) for network in self.networks_]
            books = zip(self.codebooks_, self.shares_[1:], strict=True)
            members += [(book(window), weight) for book, weight in books if weight > 0]  # skip codebooks without weight
            distributions, weights = zip(*members, strict=True)
            shape = (self.layout_.n_channels, self.layout_.horizon)
            paths, scales = (
                torch.cat([part[..., 0].unflatten(-1, shape) for part in parts_of_members], dim=1).double()
                for parts_of_members in ([d.hypotheses for d in distributions], [d.scale for d in distributions])
            )
            scores = [one.score_logits.double().softmax(dim=-1) for one in distributions]
            probabilities = torch.cat([weight * one for weight, one in zip(weights, scores, strict=True)], dim=1)
            beside = (window.targets.double(), window.naive, window.unit)
            parts.append((paths, self.spread_ * scales, probabilities, *beside))
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _check_parameters(parameters: dict[str, Any], horizon: Any) -> None:
    """Check the parameters of a forecaster and the horizon.

    Raises:
        TypeError: For a parameter of an invalid type.
        ValueError: For an invalid value; the message names the parameter.
    """
    values = {name: value for name, value in parameters.items() if value is not None or name not in _OPTIONAL}
    _COUNT("Forecaster", "horizon", horizon, "For example fit(frame, horizon=28).")
    for name, bounds in _BOUNDS.items():
        if name in values:
            bounds("Forecaster", name, values[name])
    most = values["n_hypotheses"] * values["n_members"]
    if values["n_futures"] > most:
        rule = f"be at most n_hypotheses * n_members = {most}"
        raise ValueError(bad_value("Forecaster", "n_futures", rule, values["n_futures"], "Raise `n_hypotheses`."))
    for name in ("known", "past"):
        if not isinstance(values[name], list | tuple):
            rule, advice = "be a list of column names", f"For example {name}=['price']."
            raise TypeError(bad_value("Forecaster", name, rule, repr(values[name]), advice))
    for name, least in (("hidden", 1), ("seasons", 2)):
        sizes = values.get(name, ())
        fits = isinstance(sizes, list | tuple) and all(type(size) is int and size >= least for size in sizes)
        if not fits or (name == "hidden" and not sizes):
            raise ValueError(bad_value("Forecaster", name, f"be a sequence of integers >= {least}", repr(sizes)))
