"""Baseline methods for `series.py`: each function forecasts the windows of a task.

TiDE and PatchTST are left out if neuralforecast is not installed. `simulated.py` computes the paths of statsforecast.
"""

import copy
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import nn

from torchmcl_forecast import Forecaster, reduce_samples
from torchmcl_forecast.calibrating import choose_calibration
from torchmcl_forecast.forecast import LEVELS, Forecast
from torchmcl_forecast.network import PathNetwork, Ridge, Training, drawn, marginal_crps
from torchmcl_forecast.windows import Source, Window

N_PATHS, N_SAMPLES = 16, 200
LEVEL = torch.tensor(LEVELS, dtype=torch.float64)
# Number of (window, series) pairs that a slow method forecasts if the data set has a season.
N_SLOW = 24


class Task(NamedTuple):
    """Data set: training series, histories of the windows, and the true values that follow each history.

    Attributes:
        train: Training series, a wide or long data frame.
        histories: Data frames of past values, one per window.
        truths: True values of each window, [series, horizon].
        horizon: Number of steps to forecast.
        season: Seasonal period of the seasonal naive forecast in GIFT-Eval.
        joint: Whether all series form one path.
    """

    train: pd.DataFrame
    histories: list[pd.DataFrame]
    truths: list[np.ndarray]
    horizon: int
    season: int
    joint: bool = False


class Answer(NamedTuple):
    """Prediction of a method for one window: paths [series, paths, horizon], their weights, samples, quantiles."""

    paths: torch.Tensor | None
    weights: torch.Tensor | None
    samples: torch.Tensor | None
    quantiles: torch.Tensor


def past_windows(forecaster: Forecaster, n: int = 20_000) -> Window:
    """Return random windows of the training part, scaled by the error of the best naive forecast."""
    source = Source(forecaster._panel, forecaster.layout_, forecaster._season)
    places = source.places()
    return source.window(places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0))[:n]])


def ends(forecaster: Forecaster, history: pd.DataFrame) -> Window:
    """Return the window of each series that follows a history."""
    panel = forecaster.forecast(history).panel
    source = Source(panel, forecaster.layout_, forecaster._season)
    return source.window(source.ends())


def codebook(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return the best naive forecast plus k-means centers of its past errors, without a network.

    For joint paths (exchange rates), the centers are past changes of the logarithm of all series together.
    """
    if task.joint:
        logs = np.log(task.train.to_numpy())
        changes = np.stack([logs[t : t + task.horizon] - logs[t - 1] for t in range(1, len(logs) - task.horizon + 1)])
        centers, shares = _centers(changes.transpose(0, 2, 1).reshape(len(changes), -1))
        answers = []
        for history in task.histories:
            last = np.repeat(history.to_numpy()[-1], task.horizon)
            answers.append(_of_atoms(torch.from_numpy(last * np.exp(centers))[None], shares, task))
        return answers
    errors = past_windows(forecaster).targets.flatten(0, 1).numpy()
    errors = np.clip(errors[~np.isnan(errors).any(axis=1)], -20, 20)
    centers, shares = _centers(errors)
    answers = []
    for history in task.histories:
        window = ends(forecaster, history)
        answers.append(_of_atoms(window.naive + window.unit * torch.from_numpy(centers).double(), shares, task))
    return answers


def _centers(rows: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    found = KMeans(N_PATHS, n_init=2, random_state=0).fit(rows)
    return found.cluster_centers_, torch.from_numpy(np.bincount(found.labels_, minlength=N_PATHS) / len(rows))


def _of_atoms(paths: torch.Tensor, shares: torch.Tensor, task: Task) -> Answer:
    """Convert paths [series, paths, steps] to a prediction with the same probabilities for all series."""
    steps = paths.transpose(1, 2).reshape(-1, paths.shape[1])
    values, order = steps.sort(dim=1)
    mass = shares[order].cumsum(dim=1).contiguous()
    place = torch.searchsorted(mass, LEVEL.expand(len(mass), -1).contiguous()).clamp_max(paths.shape[1] - 1)
    quantiles = values.gather(1, place).T.reshape(9, -1, task.horizon)
    return Answer(paths, shares.expand(len(paths), -1), None, quantiles)


def seasonal_naive(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Repeat the last season, with normal errors scaled to the past errors of each series, as in GIFT-Eval.

    Errors accumulate from season to season: sampled paths are seasonal random walks.
    """
    period, horizon = task.season, task.horizon
    noise = torch.randn(N_SAMPLES, -(-horizon // period), period, generator=torch.Generator().manual_seed(1))
    noise = noise.double().cumsum(dim=1).flatten(1)[:, :horizon]
    growth = (torch.arange(horizon) // period + 1).double().sqrt()
    z = torch.distributions.Normal(0.0, 1.0).icdf(LEVEL.float()).double().view(9, 1, 1)
    answers = []
    for history in task.histories:
        values = torch.from_numpy(forecaster.forecast(history).panel.values.copy())
        last = values[:, values.shape[1] - period + torch.arange(horizon) % period]
        error = (values[:, period:] - values[:, :-period]).square().nanmean(dim=1).sqrt().view(-1, 1)
        samples = last.unsqueeze(1) + error.unsqueeze(1) * noise
        samples = samples.transpose(0, 1).flatten(1).unsqueeze(0) if task.joint else samples
        few = reduce_samples(samples, N_PATHS)
        paths, probabilities = torch.as_tensor(few.paths), torch.as_tensor(few.probabilities)
        answers.append(Answer(paths, probabilities, samples, last + z * error * growth))
    return answers


def trained(forecaster: Forecaster, n_hypotheses: int, loss_of: Callable[..., torch.Tensor]) -> PathNetwork:
    """Train the network of the forecaster on the same windows, for about as many steps, with a different loss.

    Args:
        forecaster: Fitted forecaster.
        n_hypotheses: Number of hypotheses that the network predicts.
        loss_of: Function that maps predictions and a batch to the loss.
    """
    source = Source(forecaster._panel, forecaster.layout_, forecaster._season)
    places = source.places()
    n_steps = min(max(50 * len(places) // forecaster.batch_size, 200), 2000)
    n_steps = n_steps if forecaster.n_steps is None else round(5 / 3 * forecaster.n_steps)
    how = Training(n_steps, device=str(forecaster.device))
    torch.manual_seed(forecaster.random_state)
    linear = Ridge(forecaster.layout_, past_windows(forecaster)).solved()
    network = PathNetwork(forecaster.layout_, n_hypotheses, tuple(forecaster.hidden), forecaster.dropout, linear)
    network.to(how.device)
    source = source.to(how.device)
    places = places.to(source.known.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.n_steps)
    for _ in range(how.n_steps):
        batch = drawn(source, places, how)
        loss = loss_of(network(batch.inputs), batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        cosine.step()
    return network.to("cpu").eval()


def nine_quantiles(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return nine unconstrained quantiles of each step from the same network, trained by the quantile loss."""
    level = LEVEL.float().view(1, 9, 1).to(forecaster.device)

    def loss_of(predictions: Any, batch: Any) -> torch.Tensor:
        error = batch.targets.squeeze(-1) - predictions.hypotheses.squeeze(-1)
        return (torch.maximum(level * error, (level - 1) * error) * batch.mask).mean()

    network, answers = trained(forecaster, 9, loss_of), []
    for history in task.histories:
        window = ends(forecaster, history)
        with torch.no_grad():
            found = network(window.inputs).hypotheses.squeeze(-1)
        values = found.sort(dim=1).values.double().unflatten(-1, (-1, task.horizon))
        quantiles = (window.naive.unsqueeze(1) + window.unit.unsqueeze(1) * values).transpose(0, 1)
        answers.append(Answer(None, None, None, quantiles.reshape(9, -1, task.horizon)))
    return answers


def mixture(forecaster: Forecaster) -> Forecaster:
    """Return a copy of the forecaster whose network is trained by the mixture likelihood and the CRPS of each step."""

    def loss_of(predictions: Any, batch: Any) -> torch.Tensor:
        scale, mask = predictions.scale.squeeze(-1), batch.mask
        error = (batch.targets - predictions.hypotheses).squeeze(-1) / scale
        nll = ((error.square() / 2 + scale.log()) * mask).sum(dim=-1)
        likelihood = torch.logsumexp(predictions.score_logits.log_softmax(dim=-1) - nll, dim=1)
        steps = mask.sum(dim=-1).clamp_min(1).squeeze(1)
        return (-likelihood / steps).mean() + forecaster.crps * marginal_crps(predictions, batch.targets, mask)

    baseline = copy.copy(forecaster)
    baseline.networks_ = [trained(forecaster, forecaster.n_hypotheses, loss_of)]
    baseline.shares_, baseline.spread_, baseline.correlation_ = (1.0, 0.0, 0.0), 1.0, 0.0
    baseline.tube_scores_ = None  # tubes are not measured, and would take time
    source = Source(forecaster._panel, forecaster.layout_, forecaster._season)
    late = choose_calibration(source, forecaster.coverage)
    if late is not None:  # without a correlation, samples would cross their path back and forth
        baseline.correlation_ = baseline._correlation(source, late.places)
    return baseline


def mixture_likelihood(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return the mixture components of the same network, trained by likelihood instead of winner-takes-all."""
    baseline, answers = mixture(forecaster), []
    forecaster.mixture_ = baseline  # for `mixture_futures`
    for history in task.histories:
        found = baseline.forecast(history)
        components = found.paths.flatten(2) if task.joint else found.paths[:, :, 0]
        answers.append(answer_of(found, task)._replace(paths=components, weights=found.probabilities))
    return answers


def mixture_futures(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return the futures of the same mixture: medians of sampled paths near the components, as in the forecaster."""
    baseline = getattr(forecaster, "mixture_", None) or mixture(forecaster)
    return [answer_of(baseline.forecast(history), task) for history in task.histories]


def answer_of(found: Forecast, task: Task) -> Answer:
    """Convert a forecast of paths to a prediction."""
    few, weights = found.reduced(N_PATHS)
    quantiles = found.quantiles()[[f"q{level:g}" for level in LEVELS]].to_numpy(copy=True).T
    paths, samples = few.flatten(2) if task.joint else few[:, :, 0], found.sample_paths(N_SAMPLES).flatten(2)
    return Answer(paths, weights, samples, torch.from_numpy(quantiles).view(9, -1, task.horizon))


def part_of(task: Task) -> list[tuple[int, int]]:
    """Return the (window, series) pairs that a slow method forecasts: a random subset, or all without a season."""
    every = [(w, s) for w, truth in enumerate(task.truths) for s in range(len(truth))]
    order = np.random.default_rng(0).permutation(len(every))
    return [every[place] for place in order[: N_SLOW if task.season > 1 else None]]


def of_samples(samples: np.ndarray, task: Task) -> Answer:
    """Convert samples [series, samples, steps] to a prediction; samples of different series are independent."""
    drawn_ = torch.from_numpy(samples.astype(float))
    quantiles = drawn_.quantile(LEVEL, dim=1)
    drawn_ = drawn_.transpose(0, 1).flatten(1).unsqueeze(0) if task.joint else drawn_
    few = reduce_samples(drawn_, N_PATHS)
    return Answer(torch.tensor(few.paths), torch.tensor(few.probabilities), drawn_, quantiles)


def tide(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return nine quantiles from TiDE in neuralforecast with 256 units and 500 steps, on the same context."""
    return _of_neuralforecast("TiDE", task, forecaster, max_steps=500, hidden_size=256, scaler_type="standard")


def patch_tst(task: Task, forecaster: Forecaster) -> list[Answer]:
    """Return nine quantiles from PatchTST in neuralforecast with its defaults and 2,000 steps, on a long context."""
    context = min(max(512, 3 * task.horizon), int(np.median(np.isfinite(forecaster._panel.values).sum(axis=1))) // 2)
    return _of_neuralforecast("PatchTST", task, forecaster, max_steps=2000, input_size=context)


def _of_neuralforecast(name: str, task: Task, forecaster: Forecaster, **settings: Any) -> list[Answer]:
    import neuralforecast.models
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MQLoss

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    quiet = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False}
    common = {"input_size": forecaster.layout_.past, "windows_batch_size": 256, "start_padding_enabled": True}
    loss, place = MQLoss(quantiles=list(LEVELS)), "gpu" if forecaster.device == "cuda" else "cpu"
    made = getattr(neuralforecast.models, name)
    model = made(task.horizon, loss=loss, accelerator=place, devices=1, random_seed=1, **quiet | common | settings)
    machine = NeuralForecast(models=[model], freq=1)
    machine.fit(_numbered(forecaster._panel.values))
    answers = []
    for history in task.histories:
        found = machine.predict(df=_numbered(forecaster.forecast(history).panel.values))
        columns = [column for column in found.columns if column.startswith(name)]
        values = np.sort(found.sort_values(["unique_id", "ds"])[columns].to_numpy(copy=True), axis=1)
        answers.append(Answer(None, None, None, torch.from_numpy(values.T.astype(float)).view(9, -1, task.horizon)))
    return answers


def _numbered(values: np.ndarray) -> pd.DataFrame:
    """Return series as a long data frame with integer times."""
    rows = [pd.DataFrame({"unique_id": k, "ds": np.arange(len(row)), "y": row}) for k, row in enumerate(values)]
    return pd.concat(rows).dropna()


BASELINES: dict[str, Callable[[Task, Forecaster], list[Answer]]] = {
    "seasonal_naive": seasonal_naive,
    "codebook": codebook,
    "nine_quantiles": nine_quantiles,
    "mixture_likelihood": mixture_likelihood,
    "mixture_futures": mixture_futures,
    "tide": tide,
    "patch_tst": patch_tst,
}
_PACKAGES = {"tide": "neuralforecast", "patch_tst": "neuralforecast"}
#: Models of statsforecast whose paths `simulated.py` writes to files.
SIMULATED = {"auto_ets": "AutoETS", "auto_arima": "AutoARIMA"}


def installed(names: list[str]) -> list[str]:
    """Return the baselines whose packages are installed."""
    return [name for name in names if name not in _PACKAGES or importlib.util.find_spec(_PACKAGES[name])]
