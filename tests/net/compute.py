# ruff: noqa: E402, N803
"""Compute values with the torchmcl that is importable, of the state before or after the redesign.

    python tests/net/compute.py OUT.npz [--only rules,auto] [--skip speech] [--studies FOLDER] [--data FOLDER]

Each section stores arrays under `section/case/part`. Inputs and initial weights are drawn by NumPy, so that they do
not depend on the order in which torch draws; only estimators and forecasts draw their weights themselves. A case that
fails is left out with a note, and `compare.py` then reports that its arrays are missing.
"""

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[_name] = "1"  # before NumPy and torch are loaded: sums do not depend on the number of cores

import argparse
import importlib
import inspect
import math
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare import is_chosen
from torch import Tensor

# Every name that is used, and the modules where to look for it, in order. A renamed one is written "module:new_name".
# An attribute of a name can be renamed in the helpers below the table.
RULES, COSTS, FLEET = "torchmcl.rules", "torchmcl.costs", ("torchmcl.fleet", "torchmcl_fleet")
TABLES, SPEECH, FORECAST = ("torchmcl.sklearn", "torchmcl_tables"), ("torchmcl_speech",), ("torchmcl_forecast",)
PATHS = ("torchmcl_studies.trajectories",)
WHERE: dict[str, tuple[str, ...]] = {
    # step
    **dict.fromkeys(("Batch", "Distributions", "Predictions", "assign", "mcl_loss", "mcl_step"), ("torchmcl",)),
    # rules
    **dict.fromkeys(("WTA", "RelaxedWTA", "AnnealedWTA", "TopK", "PIT", "EMD", "Sinkhorn"), ("torchmcl",)),
    **dict.fromkeys(("SceneWinners",), ("torchmcl", RULES)),
    **dict.fromkeys(("Thresholded", "OutsideRadius", "by_part", "factorized"), (RULES, "torchmcl")),
    # costs
    **dict.fromkeys(
        (
            *("BivariateNormal", "FullNormal", "LowRankNormal", "MixtureNLL", "MixtureNLLWithCRPS"),
            *("Pairwise", "SumOfCosts", "Symmetric", "VonMisesAngles"),
            *("pairwise_ade", "pairwise_boundary", "pairwise_class_dice", "pairwise_cosine", "pairwise_cross_entropy"),
            *("pairwise_dice", "pairwise_euclidean", "pairwise_fde", "pairwise_focal", "pairwise_gaussian_nll"),
            *("pairwise_geodesic", "pairwise_huber", "pairwise_iou", "pairwise_l1", "pairwise_laplace_nll"),
            *("pairwise_mask_bce", "pairwise_neg_si_sdr", "pairwise_neg_snr", "pairwise_pixel_cross_entropy"),
            *("pairwise_rmsd", "pairwise_sq_ade", "pairwise_sq_angle", "pairwise_sq_euclidean", "pairwise_sq_fde"),
            "pairwise_token_cross_entropy",
        ),
        (COSTS, "torchmcl"),
    ),
    "Anchored": (COSTS, f"{COSTS}:AnchoredCost"),
    # scores, schedules, networks
    **dict.fromkeys(
        ("PresenceScores", "QualityScores", "SigmoidScores", "SoftmaxScores"), ("torchmcl", "torchmcl.scoring")
    ),
    **dict.fromkeys(("normalized_scores", "score_loss", "score_targets"), ("torchmcl",)),
    **dict.fromkeys(("Constant", "Cosine", "CutoffAt", "Exponential", "Linear"), ("torchmcl",)),
    "JoinedSchedule": ("torchmcl", "torchmcl.schedules"),
    **dict.fromkeys(("annealed", "AutoAnnealing", "RuleScheduler"), ("torchmcl",)),
    **dict.fromkeys(("MultiHypothesisMLP",), ("torchmcl",)),
    # fleets
    **dict.fromkeys(("SGD", "Adam", "Fleet", "FleetData", "Validation"), FLEET),
    "native_is_available": ("torchmcl.accel.native.compiled:available", "torchmcl_fleet.native:available"),
    # tables
    **dict.fromkeys(("MCLRegressor", "MCLClassifier"), TABLES),
    "DensityRegressor": ("torchmcl_tables",),
    # speech and forecasts
    **dict.fromkeys(("load_separator", "separate_recording", "shipped_models"), SPEECH),
    **dict.fromkeys(("Forecaster", "reduce_samples"), FORECAST),
    # pedestrians
    **dict.fromkeys(("min_ade", "min_fde"), ("torchmcl.metrics",)),
    **dict.fromkeys(("PathNetwork", "load_rows", "own_frame", "Drawing"), (f"{PATHS[0]}.network", *PATHS)),
    **dict.fromkeys(("predicted", "train_fleet"), (f"{PATHS[0]}.training", *PATHS)),
    **dict.fromkeys(("METHODS", "path_cost"), (f"{PATHS[0]}.methods", *PATHS)),
}
# Names of the backends of fleets on CPUs, in order.
BACKENDS = {"native": ("compiled", "native"), "autograd": ("autograd",), "classes": ("classes",)}


class Found:
    """The names of the table above, imported on first use."""

    def __getattr__(self, name: str) -> Any:
        """Return the object of the first module that has it."""
        for place in WHERE[name]:
            module, _, new_name = place.partition(":")
            try:
                value = getattr(importlib.import_module(module), new_name or name)
            except (ImportError, AttributeError):
                continue
            setattr(self, name, value)
            return value
        raise LookupError(f"{name} is in none of {', '.join(WHERE[name])}: edit the table in compute.py")


mcl = Found()


def step_parts(output: Any) -> dict[str, Any]:
    """Return the parts of a `StepOutput`."""
    losses = [part for part in (output.loss, output.assignment_loss, output.score_loss) if part is not None]
    return {"losses": torch.stack(losses), "weights": output.matching.weights, "cost": output.matching.cost}


def fleet_parts(fleet: Any, history: Any, inputs: Tensor) -> dict[str, Any]:
    """Return the parts of a trained fleet."""
    weights = [torch.nn.utils.parameters_to_vector(module.parameters()) for module in fleet.models]
    predictions = fleet.predict(inputs)
    scores = predictions.score_logits
    parts = {"weights": torch.stack(weights), "losses": history.losses, "hypotheses": predictions.hypotheses}
    return parts if scores is None else parts | {"scores": scores}


def new_fleet(backend: str, *args: Any, **options: Any) -> Any:
    """Return a fleet that computes its steps by the given backend, whatever it is called."""
    for name in BACKENDS[backend][:-1]:
        try:
            return mcl.Fleet(*args, backend=name, **options)
        except ValueError:
            continue
    return mcl.Fleet(*args, backend=BACKENDS[backend][-1], **options)


def regression_parts(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """Return the answers of a fitted regressor for rows."""
    values, probabilities = model.predict_hypotheses(X)
    lower, upper = model.predict_interval(X, coverage=0.8)[:2]
    return {
        "mean": model.predict(X),
        "hypotheses": values,
        "probabilities": probabilities,
        "lower": lower,
        "upper": upper,
        "log_prob": model.log_prob(X, y),
        "samples": model.sample(X, 3, random_state=0),
    }


def forecast_parts(forecaster: Any) -> dict[str, Any]:
    """Return the frames of a forecast as numbers, and its paths, which include those of the networks."""
    forecast = forecaster.forecast()
    frames = {
        "futures": forecast.futures(),
        "quantiles": forecast.quantiles([0.1, 0.5, 0.9]),
        "mean": forecast.mean(),
        "samples": forecast.sample(20),
        "tube": forecast.tube(),
    }
    arrays = {name: frame.drop(columns=["unique_id", "ds"]).to_numpy(dtype=float) for name, frame in frames.items()}
    paths = forecast.paths - forecast.paths.mean(dim=1, keepdim=True)  # without the level, which hides them
    return arrays | {"paths": paths, "scales": forecast.scales, "probabilities": forecast.probabilities}


def exported_parts(model: Any, X: Any, outputs: list[str]) -> dict[str, Any]:
    """Return outputs of the ONNX file of a fitted estimator."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        chooses = "outputs" in inspect.signature(model.export).parameters
        path = model.export(file, outputs=outputs) if chooses else model.export(file)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return dict(zip(outputs, session.run(outputs, {name: np.asarray(X, dtype=np.float64)}), strict=True))


# ---------------------------------------------------------------------------- what does not change
# `run.sh` computes the old values again if anything below this line changes.

ARRAYS: dict[str, np.ndarray] = {}
NOTES: dict[str, list[str]] = {}  # the cases that failed, by error
SECTIONS: dict[str, Callable[["Recorder"], None]] = {}
OPTIONS = argparse.Namespace()
DTYPES = {"f64": torch.float64, "f32": torch.float32}


class Skip(Exception):  # noqa: N818
    """A section that cannot be computed on this machine."""


def section(name: str) -> Callable[[Any], Any]:
    """Register a section."""

    def register(function: Any) -> Any:
        SECTIONS[name] = function
        return function

    return register


class Recorder:
    """The arrays of one section."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.n_failed = 0

    def case(self, name: str, compute: Callable[[], dict[str, Any]]) -> None:
        """Store all parts of a case, or a note if it fails."""
        try:
            parts = compute()
        except (Skip, KeyboardInterrupt):
            raise
        except Exception as error:
            self.n_failed += 1
            first = (str(error).splitlines() or [""])[0]
            NOTES.setdefault(f"{type(error).__name__}: {first[:200]}", []).append(f"{self.name}/{name}")
            if OPTIONS.traceback:
                traceback.print_exc()
            return
        for part, value in parts.items():
            array = value.detach().numpy() if isinstance(value, Tensor) else np.asarray(value)
            ARRAYS[f"{self.name}/{name}/{part}"] = array.astype("f4" if array.dtype == np.float32 else "f8")


def generator(name: str) -> np.random.Generator:
    """Return a generator of random numbers that depends on a name only."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def tensor(array: Any, dtype: torch.dtype, *, leaf: bool = True) -> Tensor:
    """Return an array of numbers as a tensor that requires a gradient; integers and booleans as they are."""
    made = torch.from_numpy(np.ascontiguousarray(array))
    return made.to(dtype).requires_grad_(leaf) if made.is_floating_point() else made


def gradients(**leaves: Tensor | None) -> dict[str, Tensor]:
    """Return the gradients of the leaves that have one."""
    return {f"d_{name}": leaf.grad for name, leaf in leaves.items() if leaf is not None and leaf.grad is not None}


# ---------------------------------------------------------------------------- rules


def all_rules() -> dict[str, Callable[[], Any]]:
    """Return the rules by name."""
    cold = torch.tensor([0.0, 0.5, 2.0]).view(3, 1, 1)
    return {
        "wta": lambda: mcl.WTA(),
        **{f"relaxed_{e}": lambda e=e: mcl.RelaxedWTA(e) for e in (0.0, 0.3, 1.0)},
        **{f"annealed_{t}": lambda t=t: mcl.AnnealedWTA(t) for t in (0.0, 0.1, 0.5, 3.0, math.inf)},
        **{f"top_{k}": lambda k=k: mcl.TopK(k) for k in (1, 2.4, 3)},
        "pit": lambda: mcl.PIT(),
        "emd": lambda: mcl.EMD(),
        **{f"sinkhorn_{t}": lambda t=t: mcl.Sinkhorn(t) for t in (0.0, 0.5)},
        "sinkhorn_short": lambda: mcl.Sinkhorn(temperature=0.5, n_iters=3),
        "thresholded": lambda: mcl.Thresholded(mcl.AnnealedWTA(0.5), 0.23),
        "outside": lambda: mcl.OutsideRadius(mcl.WTA(), 0.3),
        "relaxed_tensor": lambda: mcl.RelaxedWTA(torch.tensor(0.3)),
        "annealed_tensor": lambda: mcl.AnnealedWTA(torch.tensor(0.5)),
        "annealed_samples": lambda: mcl.AnnealedWTA(cold),
        "top_tensor": lambda: mcl.TopK(torch.tensor(2)),
    }


def target_mask(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return a mask with at least one real target in each sample but the last, which has none."""
    mask = rng.uniform(size=shape) < 0.6
    mask[..., 0] = True
    mask[-1] = False
    return mask


@section("rules")
def rules(out: Recorder) -> None:
    """Weights and losses of cost matrices."""
    shapes = {"single": (3, 1, 4), "several": (3, 3, 5), "square": (3, 4, 4), "leading": (2, 3, 2, 4)}
    for shape_name, shape in shapes.items():
        for kind, dtype in DTYPES.items():
            for masked in (False, True):
                rng = generator(f"rules {shape_name}")
                cost = tensor(rng.gamma(2.0, 0.5, shape), dtype)
                mask = tensor(target_mask(rng, *shape[:-1]), dtype) if masked else None
                for name, rule in all_rules().items():

                    def compute(cost: Any = cost, mask: Any = mask, rule: Any = rule) -> dict[str, Any]:
                        cost.grad = None
                        matching = mcl.assign(cost, rule(), mask)
                        loss = mcl.mcl_loss(matching)
                        loss.backward()
                        weights = rule()(cost, mask)
                        return {"loss": loss, "weights": weights, "cost": matching.cost, "d_cost": cost.grad}

                    out.case(f"{name}/{shape_name}/{'targets' if masked else 'all'}/{kind}", compute)
    for kind, dtype in DTYPES.items():
        _losses(out, kind, dtype)
        _parts(out, kind, dtype)


def _losses(out: Recorder, kind: str, dtype: torch.dtype) -> None:
    """Reductions, weights of samples, trained costs, infinite costs and scenes."""
    rng = generator("losses")
    cost, other = (tensor(rng.gamma(2.0, 0.5, (6, 3, 5)), dtype, leaf=False) for _ in range(2))
    mask = tensor(target_mask(rng, 6, 3), dtype)
    samples = tensor(rng.uniform(0.5, 1.5, 6), dtype, leaf=False)
    forbidden = cost.masked_fill(tensor(rng.uniform(size=(6, 3, 5)) < 0.2, dtype), torch.inf)
    scene = torch.tensor([4, 1, 4, 1, 7, 4])
    for reduction in ("mean", "sample_mean", "none"):
        for name, rule in (("wta", mcl.WTA()), ("annealed", mcl.AnnealedWTA(0.5))):

            def compute(rule: Any = rule, reduction: str = reduction) -> dict[str, Any]:
                matching, plain = mcl.assign(cost, rule, mask), mcl.assign(cost, rule)
                each = {"plain": plain, "masked": matching, "forbidden": mcl.assign(forbidden, rule)}
                losses = {f"{name}_loss": mcl.mcl_loss(one, reduction) for name, one in each.items()}
                trained = mcl.mcl_loss(each["forbidden"], reduction, trained_cost=other)
                weighted = mcl.mcl_loss(matching, reduction, sample_weights=samples)
                return losses | {"trained": trained, "weighted": weighted}

            out.case(f"{name}/{reduction}/{kind}", compute)
    for name in ("wta", "relaxed_0.3", "annealed_0.5", "pit"):
        rule = all_rules()[name]()
        out.case(f"{name}/scenes/{kind}", lambda rule=rule: {"weights": mcl.SceneWinners(rule, scene)(cost, mask)})
        out.case(f"{name}/forbidden/{kind}", lambda rule=rule: {"weights": rule(forbidden)})
    out.case(f"model_axes/{kind}", lambda: {"loss": mcl.mcl_loss(mcl.assign(cost, mcl.WTA(), mask), model_axes=1)})


def _parts(out: Recorder, kind: str, dtype: torch.dtype) -> None:
    """Winners by part, and sums of two sets of hypotheses."""
    rng = generator("parts")
    paths, logits = tensor(rng.normal(size=(4, 3, 5, 2)), dtype), tensor(rng.normal(size=(4, 3)), dtype)
    targets = tensor(rng.normal(size=(4, 2, 5, 2)), dtype, leaf=False)
    second = mcl.Predictions(tensor(rng.normal(size=(4, 2, 5, 2)), dtype), tensor(rng.normal(size=(4, 2)), dtype))
    mask = tensor(target_mask(rng, 4, 2), dtype)

    def by_part(axis: int) -> dict[str, Any]:
        paths.grad = logits.grad = None
        first = mcl.Predictions(paths, logits)
        predictions, batch = mcl.by_part(first, mcl.Batch(None, targets, mask), axis)
        output = mcl.mcl_step(lambda _: predictions, batch, mcl.WTA(), cost_fn=mcl.pairwise_sq_ade)
        output.loss.backward()
        return step_parts(output) | gradients(paths=paths, logits=logits)

    def factorized() -> dict[str, Any]:
        paths.grad = logits.grad = None
        predictions = mcl.factorized(mcl.Predictions(paths, logits), second)
        batch = mcl.Batch(None, targets, mask)
        output = mcl.mcl_step(lambda _: predictions, batch, mcl.AnnealedWTA(0.5), cost_fn=mcl.pairwise_ade)
        output.loss.backward()
        return step_parts(output) | gradients(paths=paths, logits=logits, second=second.hypotheses)

    for axis in (0, 1):
        out.case(f"by_part/{axis}/{kind}", lambda axis=axis: by_part(axis))
    out.case(f"factorized/{kind}", factorized)


# ---------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class Cost:
    """A cost and its inputs.

    Attributes:
        make: returns the cost.
        event: the axes of a hypothesis.
        targets: "real" numbers of the same axes, numbers in "unit" range, "angle"s or class ids, see `ids_axis`.
        ids_axis: the axis of the classes in an event, which the targets lack.
        scale: draws scales for hypotheses [..., *event].
        n_step_axes: the axes of an event that a mask of steps has; 0 if there is none.
        options: of a direct call.
        trains_scores: whether the cost has the score logits as an input.
    """

    make: Callable[[], Any]
    event: tuple[int, ...] = (3,)
    targets: str = "real"
    ids_axis: int | None = None
    scale: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] | None = None
    n_step_axes: int = 0
    takes_event_dims: bool = False
    trains_scores: bool = False

    def arrays(self, rng: np.random.Generator, batch: int, n_targets: int, n_hypotheses: int) -> dict[str, Any]:
        """Return hypotheses, targets, scales and score logits."""
        hypotheses = rng.normal(size=(batch, n_hypotheses, *self.event))
        event = list(self.event)
        if self.ids_axis is not None:
            n_classes = event.pop(self.ids_axis)
            targets = rng.integers(n_classes, size=(batch, n_targets, *event))
        else:
            drawn = rng.normal(size=(batch, n_targets, *event))
            targets = {"real": drawn, "unit": 1 / (1 + np.exp(-3 * drawn)), "angle": 3 * drawn}[self.targets]
        arrays = {"hypotheses": hypotheses, "targets": targets}
        if self.scale is not None:
            arrays["scale"] = self.scale(rng, hypotheses.shape)
        return arrays | {"logits": rng.normal(size=(batch, n_hypotheses))}

    def step_mask(self, rng: np.random.Generator, batch: int, n_targets: int) -> np.ndarray:
        """Return a mask of steps."""
        event = list(self.event)
        if self.ids_axis is not None:
            event.pop(self.ids_axis)
        mask = rng.uniform(size=(batch, n_targets, *event[: self.n_step_axes])) < 0.7
        mask.reshape(batch, n_targets, -1)[:, 0, :2] = True  # two real steps
        mask[-1, -1] = False
        return mask


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape)


def _factor(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    factor = np.tril(rng.normal(size=(*shape, shape[-1])), -1)
    return factor + _positive(rng, shape)[..., None] * np.eye(shape[-1])


def _plane(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([_positive(rng, shape), rng.uniform(-0.8, 0.8, (*shape[:-1], 1))], axis=-1)


def _low_rank(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([_positive(rng, shape)[..., None], rng.normal(size=(*shape, 2))], axis=-1)


def largest(hypothesis: Tensor, target: Tensor) -> Tensor:
    """A loss of a user."""
    return (hypothesis - target).abs().amax()


def largest_real(hypothesis: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """A loss of a user with a mask of steps."""
    distance = (hypothesis - target).abs().amax(dim=-1)
    return (distance if mask is None else distance * mask).max()


def with_options(name: str, **options: Any) -> Callable[[], Any]:
    """Return a function that makes a cost with options, on vectors."""

    def make() -> Any:
        cost_fn = getattr(mcl, name)
        return lambda *, hypotheses, targets: cost_fn(hypotheses=hypotheses, targets=targets, **options)

    return make


def all_costs() -> dict[str, Cost]:
    """Return the costs by name."""
    path, image, classes, wave = (4, 2), (4, 5), (3, 4, 5), (12,)
    paths = {"event": path, "n_step_axes": 1}
    images = {"event": image, "targets": "unit", "n_step_axes": 2, "takes_event_dims": True}
    maps = {"event": classes, "ids_axis": 0, "n_step_axes": 2}
    own = {"takes_event_dims": True}
    anchors = torch.from_numpy(generator("anchors").normal(size=(4, 3)))
    order = ((0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 2, 3))

    def plain(name: str) -> Callable[[], Any]:
        return lambda: getattr(mcl, name)

    return {
        **{name: Cost(plain(f"pairwise_{name}")) for name in ("sq_euclidean", "euclidean", "l1", "huber", "cosine")},
        **{f"{name}_long": Cost(plain(f"pairwise_{name}"), (40,)) for name in ("sq_euclidean", "euclidean", "l1")},
        "huber_half": Cost(with_options("pairwise_huber", delta=0.5)),
        "cross_entropy": Cost(plain("pairwise_cross_entropy"), (5,), ids_axis=0),
        **{name: Cost(plain(f"pairwise_{name}"), wave) for name in ("neg_si_sdr", "neg_snr")},
        **{
            f"{name}_0": Cost(with_options(f"pairwise_{name}", zero_mean=True), wave)
            for name in ("neg_si_sdr", "neg_snr")
        },
        **{name: Cost(plain(f"pairwise_{name}"), **paths) for name in ("ade", "fde", "sq_ade", "sq_fde", "rmsd")},
        "rmsd_space": Cost(plain("pairwise_rmsd"), (6, 3), n_step_axes=1),
        "rmsd_scaled": Cost(with_options("pairwise_rmsd", scaled=True), (6, 3)),
        "rmsd_reflected": Cost(with_options("pairwise_rmsd", reflected=True), (6, 3)),
        "token_cross_entropy": Cost(plain("pairwise_token_cross_entropy"), (4, 6), ids_axis=1, n_step_axes=1),
        "token_sum": Cost(with_options("pairwise_token_cross_entropy", reduction="sum"), (4, 6), ids_axis=1),
        **{
            name: Cost(plain(f"pairwise_{name}"), **images) for name in ("dice", "iou", "mask_bce", "focal", "boundary")
        },
        "iou_hard": Cost(with_options("pairwise_iou", hard=True), image, "unit"),
        "focal_other": Cost(with_options("pairwise_focal", alpha=0.6, gamma=1.5), image, "unit"),
        "boundary_near": Cost(with_options("pairwise_boundary", width=1), image, "unit"),
        "pixel_cross_entropy": Cost(plain("pairwise_pixel_cross_entropy"), **maps),
        "class_dice": Cost(plain("pairwise_class_dice"), **maps),
        "sq_angle": Cost(plain("pairwise_sq_angle"), (4,), "angle"),
        "sq_angle_degrees": Cost(with_options("pairwise_sq_angle", period=2.0), (4,), "angle"),
        "geodesic": Cost(plain("pairwise_geodesic"), (6,), **own),
        "geodesic_quaternions": Cost(plain("pairwise_geodesic"), (4,), **own),
        "geodesic_joints": Cost(plain("pairwise_geodesic"), (2, 6), **own),
        "gaussian_nll": Cost(plain("pairwise_gaussian_nll"), scale=_positive, **own),
        "laplace_nll": Cost(plain("pairwise_laplace_nll"), scale=_positive, **own),
        "gaussian_nll_paths": Cost(plain("pairwise_gaussian_nll"), scale=_positive, **paths, **own),
        "laplace_nll_paths": Cost(plain("pairwise_laplace_nll"), scale=_positive, **paths, **own),
        "full_normal": Cost(lambda: mcl.FullNormal(), (5,), scale=_factor, **own),
        "full_normal_paths": Cost(lambda: mcl.FullNormal(), scale=_factor, **paths, **own),
        "bivariate_normal": Cost(lambda: mcl.BivariateNormal(), scale=_plane, **paths, **own),
        "low_rank_normal": Cost(lambda: mcl.LowRankNormal(rank=2), (4,), scale=_low_rank, **own),
        "von_mises": Cost(lambda: mcl.VonMisesAngles(), (4,), "angle", scale=_positive, **own),
        "lifted": Cost(lambda: mcl.Pairwise(largest)),
        "lifted_paths": Cost(lambda: mcl.Pairwise(largest_real, hypothesis_dims=2, target_dims=2), **paths),
        "sum": Cost(lambda: mcl.SumOfCosts([(1.0, mcl.pairwise_mask_bce), (2.0, mcl.pairwise_dice)]), **images),
        "anchored": Cost(lambda: mcl.Anchored(mcl.pairwise_euclidean, anchors)),
        "symmetric": Cost(lambda: mcl.Symmetric(mcl.pairwise_ade, order), **paths),
        "mixture_gaussian": Cost(
            lambda: mcl.MixtureNLL(mcl.pairwise_gaussian_nll), scale=_positive, trains_scores=True, **paths, **own
        ),
        "mixture_laplace": Cost(lambda: mcl.MixtureNLL(mcl.pairwise_laplace_nll), scale=_positive, trains_scores=True),
        "mixture_classes": Cost(
            lambda: mcl.MixtureNLL(mcl.pairwise_cross_entropy), (5,), ids_axis=0, trains_scores=True
        ),
        **{
            f"mixture_crps_{w}": Cost(lambda w=w: mcl.MixtureNLLWithCRPS(w), scale=_positive, trains_scores=True)
            for w in (0.0, 3.0)
        },
    }


@section("costs")
def costs(out: Recorder) -> None:
    """Values of costs and their gradients in all inputs."""
    for name, case in all_costs().items():
        for kind, dtype in DTYPES.items():
            for masked in (False, True) if case.n_step_axes else (False,):

                def compute(
                    name: str = name, case: Cost = case, dtype: torch.dtype = dtype, masked: bool = masked
                ) -> dict[str, Any]:
                    rng = generator(f"costs {name}")
                    inputs = {key: tensor(value, dtype) for key, value in case.arrays(rng, 3, 2, 4).items()}
                    logits = inputs.pop("logits")
                    if case.trains_scores:
                        inputs["score_logits"] = logits
                    if masked:
                        inputs["mask"] = tensor(case.step_mask(rng, 3, 2), dtype)
                    options = {"event_dims": len(case.event)} if case.takes_event_dims else {}
                    cost = case.make()(**inputs, **options)
                    if cost.requires_grad:
                        (
                            cost * tensor(generator("cotangent").normal(size=cost.shape), dtype, leaf=False)
                        ).sum().backward()
                    inputs.pop("mask", None)
                    return {"cost": cost, **gradients(**inputs)}

                out.case(f"{name}/{'steps' if masked else 'all'}/{kind}", compute)


def one_step(case: Cost, arrays: dict[str, Any], rule: Any, mask: Any, dtype: torch.dtype, **options: Any) -> Any:
    """Return the parts of a step on given predictions, and the gradients of the predictions."""
    leaves = {key: tensor(value, dtype) for key, value in arrays.items() if key != "targets"}
    targets = tensor(arrays["targets"], dtype, leaf=False)
    if mask is not None:
        mask = torch.from_numpy(mask)
        if targets.is_floating_point():  # the contents of padding are ignored
            real = mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim))
            targets = targets.masked_fill(~real, torch.nan)
    scale = leaves.get("scale")
    parts = (leaves["hypotheses"], leaves["logits"])
    predictions = mcl.Predictions(*parts) if scale is None else mcl.Distributions(*parts, scale)
    if case.trains_scores:
        options = {"score_weight": 0} | options
    batch = mcl.Batch(None, targets, mask)
    output = mcl.mcl_step(lambda _: predictions, batch, rule, **{"cost_fn": case.make()} | options)
    output.loss.sum().backward()
    return step_parts(output) | gradients(**leaves)


def masks_of(case: Cost, name: str, n_samples: int = 3, n_targets: int = 2) -> Iterator[tuple[str, Any]]:
    """Yield no mask, a mask of targets, and a mask of steps if the cost takes one."""
    rng = generator(f"masks {name}")
    yield "all", None
    yield "targets", target_mask(rng, n_samples, n_targets)
    if case.n_step_axes:
        yield "steps", case.step_mask(rng, n_samples, n_targets)


# Rules that "rules" covers, and those that need several hypotheses.
VARIANTS = {
    *("relaxed_0.0", "relaxed_1.0", "annealed_0.0", "annealed_3.0", "annealed_inf", "top_1", "top_3", "sinkhorn_0.0"),
    *("sinkhorn_short", "relaxed_tensor", "annealed_tensor", "top_tensor"),
}
SEVERAL = {"top_2.4", "pit", "emd"}


@section("steps")
def steps(out: Recorder) -> None:
    """Every rule with every cost and mask: losses, weights, and gradients of hypotheses, scores and scales."""
    for name, case in all_costs().items():
        arrays = case.arrays(generator(f"steps {name}"), 3, 2, 4)
        for mask_name, mask in masks_of(case, name):
            for rule_name, rule in all_rules().items():
                if rule_name in VARIANTS or (name.startswith("mixture_crps") and rule_name in SEVERAL):
                    continue
                for kind, dtype in DTYPES.items():

                    def compute(
                        case: Cost = case, arrays: Any = arrays, rule: Any = rule, mask: Any = mask, dtype: Any = dtype
                    ) -> dict[str, Any]:
                        parts = one_step(case, arrays, rule(), mask, dtype)
                        del parts["cost"]  # the same for all rules, and in "costs"
                        return parts

                    out.case(f"{name}/{rule_name}/{mask_name}/{kind}", compute)


# ---------------------------------------------------------------------------- scores


def all_scores() -> dict[str, Callable[[], Any]]:
    """Return the objectives of scores by name."""
    return {
        **{f"sigmoid_{n}": lambda r=r: mcl.SigmoidScores(r()) for n, r in _label_rules().items()},
        **{f"softmax_{n}": lambda r=r: mcl.SoftmaxScores(r()) for n, r in _label_rules().items()},
        **{f"presence_{n}": lambda r=r: mcl.PresenceScores(r()) for n, r in _label_rules().items()},
        "quality": lambda: mcl.QualityScores(),
        "quality_l1": lambda: mcl.QualityScores(cost_fn=mcl.pairwise_l1, temperature=0.3),
    }


def _label_rules() -> dict[str, Callable[[], Any]]:
    return {"wta": lambda: mcl.WTA(), "pit": lambda: mcl.PIT(), "own": lambda: None}


@section("scores")
def scores(out: Recorder) -> None:
    """Objectives of scores; weights of samples, scenes, several models, and a trained cost."""
    chosen = {"wta", "relaxed_0.3", "annealed_0.5", "pit"}
    rules_of = {name: rule for name, rule in all_rules().items() if name in chosen}
    for cost_name in ("sq_euclidean", "cosine"):
        case = all_costs()[cost_name]
        arrays = case.arrays(generator(f"scores {cost_name}"), 3, 2, 4)
        for mask_name, mask in masks_of(case, cost_name):
            for rule_name, rule in rules_of.items():
                for score_name, objective in all_scores().items():
                    for kind, dtype in DTYPES.items():

                        def compute(
                            case: Cost = case, arrays: Any = arrays, rule: Any = rule, mask: Any = mask,
                            objective: Any = objective, dtype: Any = dtype,
                        ) -> dict[str, Any]:  # fmt: skip
                            options = {"scores": objective(), "score_weight": 0.7}
                            return one_step(case, arrays, rule(), mask, dtype, **options)

                        out.case(f"{score_name}/{cost_name}/{rule_name}/{mask_name}/{kind}", compute)
    for kind, dtype in DTYPES.items():
        _score_functions(out, kind, dtype)
        _whole_steps(out, kind, dtype)


def _score_functions(out: Recorder, kind: str, dtype: torch.dtype) -> None:
    rng = generator("score functions")
    logits, cost = tensor(5 * rng.normal(size=(6, 4)), dtype), tensor(rng.gamma(2.0, 0.5, (6, 2, 4)), dtype)
    mask = tensor(target_mask(rng, 6, 2), dtype)
    for name, objective in all_scores().items():
        out.case(f"{name}/probabilities/{kind}", lambda o=objective: {"p": o().probabilities(logits)})
    out.case(f"normalized/{kind}", lambda: {"p": mcl.normalized_scores(logits)})

    def losses() -> dict[str, Any]:
        labels = {f"labels_{n}": mcl.score_targets(cost, m) for n, m in (("all", None), ("masked", mask))}
        loss = {
            f"loss_{n}": mcl.score_loss(logits, labels["labels_masked"], m) for n, m in (("all", None), ("m", mask))
        }
        return labels | loss

    out.case(f"functions/{kind}", losses)


def _whole_steps(out: Recorder, kind: str, dtype: torch.dtype) -> None:
    """Steps with further arguments."""
    case, rng = all_costs()["sq_euclidean"], generator("whole steps")
    arrays, mask = case.arrays(rng, 6, 2, 4), target_mask(rng, 6, 2)
    weights = torch.from_numpy(rng.uniform(0.5, 1.5, 6)).to(dtype)
    scene = torch.tensor([0, 1, 0, 1, 2, 0])
    for name in ("wta", "annealed_0.5", "pit"):
        rule = all_rules()[name]
        for mask_name, own in (("all", None), ("targets", mask)):
            given = (case, arrays, rule(), own, dtype)
            end = f"{name}/{mask_name}/{kind}"
            out.case(f"sample_weights/{end}", lambda g=given: one_step(*g, sample_weights=weights))
            out.case(f"loss_fn/{end}", lambda g=given: one_step(*g, loss_fn=mcl.pairwise_huber))

            def stacked(rule: Any = rule, own: Any = own) -> dict[str, Any]:
                both = {key: np.stack([value, value[::-1]]) for key, value in arrays.items()}
                two = None if own is None else np.stack([own, own[::-1]])
                return one_step(case, both, rule(), two, dtype, stacked=True)

            def scenes(rule: Any = rule, own: Any = own) -> dict[str, Any]:
                leaves = [tensor(arrays[key], dtype) for key in ("hypotheses", "logits")]
                masked = None if own is None else torch.from_numpy(own)
                batch = mcl.Batch(None, tensor(arrays["targets"], dtype, leaf=False), masked, scene)
                output = mcl.mcl_step(lambda _: mcl.Predictions(*leaves), batch, rule())
                output.loss.backward()
                return step_parts(output) | gradients(hypotheses=leaves[0], logits=leaves[1])

            out.case(f"stacked/{end}", stacked)
            out.case(f"scenes/{end}", scenes)


@section("schedules")
def schedules(out: Recorder) -> None:
    """Values of schedules at some steps, and rules that follow them."""
    kinds = {
        "constant": lambda: mcl.Constant(0.3),
        "linear": lambda: mcl.Linear(1.0, 0.1, 7),
        "cosine": lambda: mcl.Cosine(1.0, 0.1, 7),
        "exponential": lambda: mcl.Exponential(0.5, 0.9, cutoff=0.2),
        "cutoff": lambda: mcl.CutoffAt(mcl.Exponential(5.0, 0.9), 4),
        "joined": lambda: mcl.JoinedSchedule((mcl.Linear(0.1, 1.0, 3), mcl.Cosine(1.0, 0.0, 5)), (3,)),
    }
    places = (0, 0.5, 1, 2, 3, 5, 7, 9, 40)
    for name, make in kinds.items():
        out.case(name, lambda make=make: {"values": [make()(step) for step in places]})

        def cooled(make: Any = make) -> dict[str, Any]:
            rule = mcl.annealed(mcl.AnnealedWTA, temperature=make())
            return {"temperatures": [float(rule(step).temperature) for step in places]}

        out.case(f"annealed/{name}", cooled)


# ---------------------------------------------------------------------------- native


def filled(module: Any, seed: int) -> Any:
    """Return a module with weights drawn by NumPy."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            bound = 1 / math.sqrt(parameter.shape[-1])
            parameter.copy_(torch.from_numpy(rng.uniform(-bound, bound, tuple(parameter.shape))))
    return module


@section("native")
def native(out: Recorder) -> None:
    """Batches that loops in C serve: one target, five hypotheses, the squared distance; also several targets."""
    out.case("is_built", lambda: {"yes": float(bool(mcl.native_is_available()))})
    chosen = ("wta", "relaxed_0.3", "annealed_0.5", "annealed_inf")
    for n_rows in (64, 4096):
        for dim in (1, 2):
            case = Cost(lambda: mcl.pairwise_sq_euclidean, (dim,))
            arrays = case.arrays(generator(f"native {n_rows} {dim}"), n_rows, 1, 5)
            for name in chosen:
                for kind, dtype in DTYPES.items():
                    end = f"{n_rows}/{dim}/{name}/{kind}"
                    given = (case, arrays, all_rules()[name], None, dtype)
                    out.case(f"step/{end}", lambda g=given: one_step(g[0], g[1], g[2](), *g[3:]))
                    out.case(f"half/{end}", lambda g=given: one_step(g[0], g[1], g[2](), *g[3:], score_weight=0.5))
                    out.case(f"network/{end}", lambda g=given: _network_step(g[1], g[2](), g[4]))
    for name in chosen:
        for kind, dtype in DTYPES.items():
            case = all_costs()["sq_euclidean"]
            arrays = case.arrays(generator("native several"), 512, 3, 5)
            mask = target_mask(generator("native mask"), 512, 3)
            given = (case, arrays, all_rules()[name], mask, dtype)
            out.case(f"several/{name}/{kind}", lambda g=given: one_step(g[0], g[1], g[2](), *g[3:]))


def _network_step(arrays: dict[str, Any], rule: Any, dtype: torch.dtype) -> dict[str, Any]:
    targets = tensor(arrays["targets"], dtype, leaf=False)
    inputs = tensor(arrays["hypotheses"][:, 0], dtype, leaf=False)
    network = filled(mcl.MultiHypothesisMLP(inputs.shape[1], targets.shape[2], 5, hidden=(16,)).to(dtype), 0)
    output = mcl.mcl_step(network, mcl.Batch(inputs, targets), rule)
    output.loss.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    return step_parts(output) | {"d_weights": gradient}


# ---------------------------------------------------------------------------- fleets


def _rows(name: str, n_rows: int, n_targets: int = 1, dim: int = 1) -> tuple[Tensor, Tensor]:
    rng = generator(name)
    inputs = rng.uniform(-1, 1, (n_rows, 2))
    side = np.where(rng.uniform(size=(n_rows, n_targets)) < 0.5, -1.0, 1.0)
    targets = (side * inputs[:, :1] + 0.1 * rng.normal(size=(n_rows, n_targets)))[..., None] * np.linspace(1, 2, dim)
    return torch.from_numpy(inputs).float(), torch.from_numpy(targets).float()


def _factory(n_hypotheses: int = 4, out_features: int = 1, **options: Any) -> Callable[[], Any]:
    """Return a factory of networks; a fleet sets the seed of torch before each call."""

    def make() -> Any:
        network = mcl.MultiHypothesisMLP(2, out_features, n_hypotheses, hidden=(16, 8), **options)
        return filled(network, torch.initial_seed() % 1000)

    return make


def _cooling() -> Any:
    return mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, 0.6, cutoff=0.05))


N_MODELS, N_EPOCHS = 3, 8  # of 3 batches: 24 optimizer steps


def _trained(
    backend: str,
    rule: Any,
    data: Any = None,
    *,
    factory: Any = None,
    fit: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    inputs, targets = _rows("fleet", 96)
    data = mcl.FleetData.shared(inputs, targets, N_MODELS) if data is None else data()
    fleet = new_fleet(backend, factory or _factory(), N_MODELS, rule=rule, seeds=[11, 12, 13], **options)
    history = fleet.fit(data, **{"n_epochs": N_EPOCHS, "batch_size": 32, "progress": False} | (fit or {}))
    parts = fleet_parts(fleet, history, inputs[:20])
    if fit is not None and "validation" in fit:
        return parts | {"watched": history.watched, "best": fleet.predict(inputs[:20], best=True).hypotheses}
    return parts


@section("fleets")
def fleets(out: Recorder) -> None:
    """Three networks, 24 optimizer steps, in C and by autograd."""
    rule_kinds = {
        "wta": lambda: mcl.WTA(),
        "relaxed": lambda: mcl.RelaxedWTA(0.1),
        "annealed": _cooling,
        "each": lambda: [mcl.WTA(), mcl.RelaxedWTA(0.2), _cooling()],
        "top": lambda: mcl.TopK(2),
    }
    for name, rule in rule_kinds.items():
        for backend in ("native", "autograd") if name != "top" else ("autograd",):
            out.case(f"{name}/{backend}", lambda rule=rule, backend=backend: _trained(backend, rule()))
    for backend in ("native", "autograd"):
        for name, make in _variants().items():
            if backend == "native" and name in ("softmax", "sets", "masked"):  # which it does not support
                continue

            def compute(backend: str = backend, make: Any = make) -> dict[str, Any]:
                return _trained(backend, [mcl.WTA(), mcl.RelaxedWTA(0.2), _cooling()], **make())

            out.case(f"{name}/{backend}", compute)
        out.case(f"crps/{backend}", lambda backend=backend: _trained(backend, mcl.WTA(), **_mixture()))
    for backend in ("classes", "autograd"):
        out.case(f"classes/{backend}", lambda backend=backend: _trained(backend, mcl.AnnealedWTA(1.0), **_classes()))


def _variants() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return options of fleets and their training by name."""
    inputs, targets = _rows("fleet", 96)
    held_out = _rows("held out", 40)
    weights = torch.from_numpy(generator("weights").uniform(0.5, 1.5, 96)).float()
    wide = _rows("wide", 96, dim=2)
    several = _rows("several", 96, n_targets=2)
    mask = torch.from_numpy(target_mask(generator("mask"), 96, 2))
    sets = [(inputs[:70], targets[:70]), (inputs[30:], targets[30:])]
    rates = [0.02, mcl.Cosine(0.03, 0.0, N_EPOCHS), mcl.Linear(0.02, 0.001, N_EPOCHS)]
    return {
        "rates": lambda: {"learning_rate": rates, "weight_decay": [0.0, 0.1, 0.5]},
        "sgd": lambda: {"optimizer": mcl.SGD(), "learning_rate": 0.05},
        "l1": lambda: {"cost_fn": mcl.pairwise_l1},
        "softmax": lambda: {"scores": mcl.SoftmaxScores(), "score_weight": 0.5},
        "detached": lambda: {"factory": _factory(detach_scores=True)},
        "two_columns": lambda: {
            "factory": _factory(out_features=2),
            "data": lambda: mcl.FleetData.shared(*wide, N_MODELS),
        },
        "weighted": lambda: {"data": lambda: mcl.FleetData.shared(inputs, targets, N_MODELS, weights=weights)},
        "sets": lambda: {"data": lambda: mcl.FleetData.of_sets(sets, [0, 1, 1])},
        "masked": lambda: {"data": lambda: mcl.FleetData.shared(*several, N_MODELS, mask=mask)},
        "validated": lambda: {
            "fit": {"validation": mcl.Validation(mcl.FleetData.shared(*held_out, N_MODELS), every=2)}
        },
    }


def _mixture() -> dict[str, Any]:
    return {"factory": _factory(scales=True), "cost_fn": mcl.MixtureNLLWithCRPS(3.0), "score_weight": 0.0}


def _classes() -> dict[str, Any]:
    inputs, targets = _rows("fleet", 96)
    ids = (targets[:, :, 0] > 0).long() + (inputs[:, :1] > 0).long()
    return {
        "factory": _factory(3, 3),
        "cost_fn": mcl.MixtureNLL(mcl.pairwise_cross_entropy),
        "score_weight": 0.0,
        "data": lambda: mcl.FleetData.shared(inputs, ids, N_MODELS),
    }


@section("auto_fleets")
def auto_fleets(out: Recorder) -> None:
    """AutoAnnealing: fleets of 24 steps, and a loop of 24 epochs."""
    fit = {"n_epochs": 24, "batch_size": "all"}
    rules_of = {"auto": lambda: mcl.AutoAnnealing(), "mixed": lambda: [mcl.AutoAnnealing(), mcl.WTA(), _cooling()]}
    for backend in ("native", "autograd"):
        for name, rule in rules_of.items():
            out.case(f"{name}/{backend}", lambda b=backend, rule=rule: _trained(b, rule(), fit=fit))

    def loop() -> dict[str, Any]:
        inputs, targets = _rows("fleet", 96)
        model = filled(mcl.MultiHypothesisMLP(2, 1, 4, hidden=(16,)), 5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        torch.manual_seed(0)
        scheduler = mcl.RuleScheduler(mcl.AutoAnnealing(), optimizer, model=model, n_epochs=24)
        seen = []
        for _ in range(24):
            output = mcl.mcl_step(model, mcl.Batch(inputs, targets), scheduler.rule)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            scheduler.observe(output)
            seen.append((float(output.loss), float(scheduler.rule.temperature), optimizer.param_groups[0]["lr"]))
            scheduler.step()
        return {"seen": np.array(seen, dtype="f4"), "hypotheses": model(inputs[:20]).hypotheses}

    out.case("loop", loop)


# ---------------------------------------------------------------------------- tables


# Short trainings at a low rate: differences of rounding do not grow.
SHORT = {
    "n_hypotheses": 3,
    "hidden": (24,),
    "n_epochs": 4,
    "learning_rate": 0.002,
    "n_restarts": 2,
    "random_state": 0,
}


def _diabetes() -> tuple[Any, Any, Any]:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return X[:300], y[:300], (X[300:340], y[300:340])


def _regressor(rule: Any, **options: Any) -> Any:
    X, y, _ = _diabetes()
    return mcl.MCLRegressor(rule=rule, **SHORT | options).fit(X, y)


def _classifier(rule: Any, **options: Any) -> Any:
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    return mcl.MCLClassifier(rule=rule, **SHORT | {"n_hypotheses": 2, "n_epochs": 8} | options).fit(X[::2], y[::2])


def _classifier_parts(model: Any) -> dict[str, Any]:
    from sklearn.datasets import load_wine

    X = load_wine(return_X_y=True)[0][1::4]
    values, probabilities = model.predict_hypotheses(X)
    all_of = {"probabilities": model.predict_proba(X), "classes": model.predict(X)}
    return all_of | {"top": values, "top_probabilities": probabilities}


def _bimodal(n_rows: int, n_columns: int = 1) -> tuple[Any, Any]:
    rng = generator(f"bimodal {n_rows}")
    X = rng.uniform(-1, 1, (n_rows, 3))
    X[rng.uniform(size=X.shape) < 0.02] = np.nan
    side = np.where(rng.uniform(size=n_rows) < 0.4, -1.0, 1.0)
    y = side * (1 + np.nan_to_num(X[:, 0])) + 0.1 * rng.normal(size=n_rows)
    return X, y if n_columns == 1 else np.stack([y, y**2 + 0.1 * rng.normal(size=n_rows)], axis=1)


@section("tables")
def tables(out: Recorder) -> None:
    """Estimators with a few epochs: predictions, prediction sets, probabilities."""
    rules_of = {"wta": lambda: mcl.WTA(), "annealed": lambda: mcl.annealed(mcl.AnnealedWTA, temperature=_of_epochs())}
    for name, rule in rules_of.items():
        out.case(f"regressor/{name}", lambda rule=rule: regression_parts(_regressor(rule()), *_diabetes()[2]))
        out.case(f"classifier/{name}", lambda rule=rule: _classifier_parts(_classifier(rule())))

    def single() -> dict[str, Any]:
        options = {"n_restarts": 1, "final_fit_on_all_rows": False, "n_bins": 0, "keep_best": True}
        return regression_parts(_regressor(mcl.RelaxedWTA(0.1), **options), *_diabetes()[2])

    def continued() -> dict[str, Any]:
        X, y, test = _diabetes()
        model = _regressor(mcl.WTA()).partial_fit(X[:100], y[:100])
        return regression_parts(model, *test)

    def columns() -> dict[str, Any]:
        X, y = _bimodal(240, 2)
        model = mcl.MCLRegressor(rule=mcl.WTA(), **SHORT).fit(X, y)
        region = model.predict_region(X[:30], coverage=0.8)
        parts = regression_parts(model, X[:30], y[:30])
        return parts | {"inside": region.contains(y[:30]), "volume": region.volume(200)}

    def forked() -> dict[str, Any]:
        rng = generator("forked")
        X = rng.uniform(size=(340, 1))
        y = np.where(rng.uniform(size=340) < 0.5, X[:, 0], -X[:, 0])
        options = {"n_hypotheses": 2, "n_epochs": 40, "learning_rate": 0.02}  # enough for two pieces
        model = mcl.MCLRegressor(rule=mcl.WTA(), **SHORT | options).fit(X[:300], y[:300])
        return regression_parts(model, X[300:], y[300:])

    def density(**options: Any) -> dict[str, Any]:
        X, y = _bimodal(260)
        model = mcl.DensityRegressor(**SHORT | {"n_epochs": 8, "keep_best": False} | options).fit(X[:240], y[:240])
        weights = [model.member_weights_[name] for name in sorted(model.member_weights_)]
        return regression_parts(model, X[230:], y[230:]) | {"members": weights}

    out.case("regressor/single", single)
    out.case("regressor/continued", continued)
    out.case("regressor/columns", columns)
    out.case("regressor/forked", forked)
    out.case("density/blend", density)
    out.case("density/one", lambda: density(ensemble=False, n_bins=0))

    def values() -> dict[str, Any]:
        X, y = _bimodal(260)
        model = mcl.DensityRegressor(**SHORT | {"n_epochs": 8, "keep_best": False})
        counts = np.round(2 * y)
        return regression_parts(model.fit(X[:240], counts[:240]), X[230:], counts[230:])

    out.case("density/values", values)


def _of_epochs() -> Any:
    return mcl.Exponential(0.5, 0.6, cutoff=0.05)


@section("table_quality")
def table_quality(out: Recorder) -> None:
    """Longer trainings: errors, densities and sets on test rows, where rows may differ."""

    def quality(model: Any, X: Any, y: Any) -> dict[str, Any]:
        parts = regression_parts(model, X, y)
        inside = (parts["lower"] <= y[:, None]) & (y[:, None] <= parts["upper"])
        return {
            "rmse": np.sqrt(np.mean((parts["mean"] - y) ** 2)),
            "nearest": np.sqrt(model.distortion(X, y)),
            "perplexity": np.exp(-parts["log_prob"].mean()),
            "coverage": inside.any(axis=1).mean(),
            "width": np.nansum(parts["upper"] - parts["lower"], axis=1).mean(),
        }

    def diabetes() -> dict[str, Any]:
        from sklearn.datasets import load_diabetes

        X, y = load_diabetes(return_X_y=True)
        return quality(_regressor(_cooling(), n_epochs=30, learning_rate=0.01, n_restarts=3), X[300:], y[300:])

    def bimodal() -> dict[str, Any]:
        X, y = _bimodal(1000)
        model = mcl.DensityRegressor(**SHORT | {"n_epochs": 60, "learning_rate": 0.01})
        return quality(model.fit(X[:400], y[:400]), X[400:], y[400:])

    def wine() -> dict[str, Any]:
        from sklearn.datasets import load_wine

        X, y = load_wine(return_X_y=True)
        model = _classifier(_cooling(), n_epochs=40, learning_rate=0.01)
        log_loss = -np.log(model.predict_proba(X[1::2])[np.arange(len(y[1::2])), y[1::2]]).mean()
        return {"perplexity": np.exp(log_loss), "accuracy": (model.predict(X[1::2]) == y[1::2]).mean()}

    out.case("regressor", diabetes)
    out.case("density", bimodal)
    out.case("classifier", wine)


@section("auto_tables")
def auto_tables(out: Recorder) -> None:
    """Estimators with the default rule."""
    out.case("regressor", lambda: regression_parts(_regressor(None, n_epochs=20), *_diabetes()[2]))
    out.case("classifier", lambda: _classifier_parts(_classifier(None, n_epochs=20)))


@section("exported")
def exported(out: Recorder) -> None:
    """Means and probabilities of exported estimators, as onnxruntime computes them."""

    def regressor(**options: Any) -> dict[str, Any]:
        names = ["mean"] if options["n_restarts"] > 1 else ["mean", "hypotheses", "probabilities"]
        return exported_parts(_regressor(mcl.WTA(), **options), _diabetes()[2][0], names)

    def classifier() -> dict[str, Any]:
        from sklearn.datasets import load_wine

        X = load_wine(return_X_y=True)[0][1::4]
        return exported_parts(_classifier(mcl.WTA()), X, ["probabilities"])

    def density() -> dict[str, Any]:
        X, y = _bimodal(260)
        model = mcl.DensityRegressor(**SHORT | {"n_epochs": 8, "keep_best": False}).fit(X[:240], y[:240])
        return exported_parts(model, X[230:], ["mean"])

    out.case("regressor/one", lambda: regressor(n_restarts=1))
    out.case("regressor/several", lambda: regressor(n_restarts=2))
    out.case("classifier", classifier)
    out.case("density", density)


# ---------------------------------------------------------------------------- pedestrians and forecasts


@section("pedestrians")
def pedestrians(out: Recorder) -> None:
    """A network of the pedestrian study: 24 steps on fixed rows without dropout, errors on the test scene."""
    train, test = _pedestrian_rows()
    chosen = generator("pedestrians").choice(len(train.paths), 256, replace=False)
    rows = type(train)(*(part[torch.from_numpy(chosen)] for part in train))
    few = type(test)(*(part[:512] for part in test))

    def compute(rule: Any) -> dict[str, Any]:
        inputs, frame = mcl.own_frame(rows.paths[:, :8], rows.near)
        targets = frame.offsets(rows.paths[:, 8:]).unsqueeze(1)

        def factory() -> Any:
            network = filled(mcl.PathNetwork(), torch.initial_seed() % 1000)
            for module in network.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            return network

        fleet = mcl.Fleet(
            factory, 1, rule=rule, seeds=[3], cost_fn=mcl.path_cost, scores=mcl.SoftmaxScores(), score_weight=0.3,
            learning_rate=2e-3,
        )  # fmt: skip
        fleet.fit(mcl.FleetData.shared(inputs, targets, 1), 6, batch_size=64, progress=False)
        return _path_errors(fleet.models[0], few)

    out.case("wta", lambda: compute(mcl.WTA()))
    out.case("annealed", lambda: compute(mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(3.0, 0.5))))


@section("pedestrian_study")
def pedestrian_study(out: Recorder) -> None:
    """The training of the study, with its augmentation and dropout: 20 steps of a small batch."""
    _, test = _pedestrian_rows()
    few = type(test)(*(part[:512] for part in test))

    def compute() -> dict[str, Any]:
        drawing = mcl.Drawing(*_LOADED[:2])
        method = mcl.METHODS["mcl"]
        network = mcl.train_fleet([(method, 0)], drawing, 1, batch_size=64, device="cpu", progress=False)[0]
        errors = _path_errors(network, few)
        return {name: errors[name] for name in ("min_ade", "min_fde")}

    out.case("mcl", compute)


_LOADED: list[Any] = []


def _pedestrian_rows() -> tuple[Any, Any]:
    folder = OPTIONS.data / "pedestrians"
    if not folder.is_dir():
        raise Skip(f"there are no recordings in {folder}")
    if not _LOADED:
        without = ("students001", "students003", "uni_examples", "crowds_zara03")  # the large ones
        _LOADED.extend(mcl.load_rows("zara1", folder, without=without))
    return _LOADED[0], _LOADED[2]


def _path_errors(network: Any, rows: Any) -> dict[str, Any]:
    forecast = mcl.predicted(network, rows)
    best = {"hypotheses": forecast.paths, "targets": rows.paths[:, 8:]}
    errors = {"min_ade": mcl.min_ade(**best), "min_fde": mcl.min_fde(**best)}
    return errors | {"paths": forecast.paths[:8], "probabilities": forecast.probabilities[:64]}


def _series() -> Any:
    import pandas as pd

    rng, steps = generator("series"), np.arange(150)
    frames = []
    for name, period, level in (("a", 7, 10.0), ("b", 12, 20.0)):
        values = level + 3 * np.sin(2 * np.pi * steps / period) + 0.02 * steps + rng.normal(size=len(steps))
        frames.append(pd.DataFrame({"unique_id": name, "ds": pd.date_range("2024-01-01", periods=150), "y": values}))
    return pd.concat(frames, ignore_index=True)


def _forecast(**options: Any) -> dict[str, Any]:
    given = {"n_futures": 3, "n_hypotheses": 6, "n_steps": 30, "hidden": (24,), "batch_size": 32, "dropout": 0.0}
    forecaster = mcl.Forecaster(**given | {"learning_rate": 0.01} | options).fit(_series(), horizon=5)
    return forecast_parts(forecaster)


@section("forecasts")
def forecasts(out: Recorder) -> None:
    """Two series, 20 steps: quantiles, futures, scenarios."""
    out.case("wta", lambda: _forecast(rule=mcl.WTA(), seasons=(7,)))
    out.case("relaxed", lambda: _forecast(rule=mcl.RelaxedWTA(0.1)))

    def scenarios(moved: bool) -> dict[str, Any]:
        rng = generator("scenarios")
        level = rng.choice([5.0, 10.0, 12.0], size=(2, 300, 1), p=[0.3, 0.5, 0.2])
        made = mcl.reduce_samples(level + 0.3 * rng.normal(size=(2, 300, 4)).cumsum(axis=-1), n=4, moved=moved)
        return {name: getattr(made, name) for name in ("paths", "probabilities", "loss", "spread", "energy")}

    for moved in (True, False):
        out.case(f"scenarios/{'moved' if moved else 'samples'}", lambda moved=moved: scenarios(moved))


@section("auto_forecasts")
def auto_forecasts(out: Recorder) -> None:
    """The default rule of forecasts."""
    out.case("default", lambda: _forecast(n_steps=40))


# ---------------------------------------------------------------------------- speech


def _recording(n_samples: int) -> np.ndarray:
    """Return two synthetic voices: harmonics of a gliding pitch with syllables, and a little noise."""
    rng, t = generator("recording"), np.arange(n_samples) / 8000
    total = np.zeros(n_samples)
    for pitch, rate, tilt in ((120.0, 3.1, 1.0), (210.0, 4.3, 1.3)):
        phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.05 * np.sin(2 * np.pi * 0.7 * t))) / 8000
        voice = sum(np.sin(k * phase + rng.uniform(0, 6)) / k**tilt for k in range(1, 12))
        total += np.clip(np.sin(2 * np.pi * rate * t + rng.uniform(0, 6)), 0, None) * voice
    return (0.1 * total + 0.002 * rng.normal(size=n_samples)).astype(np.float32)


@section("speech")
def speech(out: Recorder) -> None:
    """The bundled separators on a synthetic recording, every 20th sample."""
    sound = _recording(10_000)

    def separated(name: str) -> dict[str, Any]:
        separator, _ = mcl.load_separator(name)
        with torch.inference_mode():
            hypotheses, logits = separator(torch.from_numpy(sound).unsqueeze(0))[:2]
        parts = {"sounds": hypotheses[0, :, ::20]}
        return parts if logits is None else parts | {"scores": logits[0]}

    for name in ("any-number", "three-speakers", "two-speakers", "two-speakers-small"):
        out.case(name, lambda name=name: separated(name))
    out.case("n_models", lambda: {"n": len(mcl.shipped_models())})

    def recording() -> dict[str, Any]:
        import soundfile

        with tempfile.TemporaryDirectory() as folder:
            path, out_folder = Path(folder) / "talk.wav", Path(folder) / "out"
            soundfile.write(path, _recording(20_000), 8000)
            options = {"n_voices": 2, "chunk_seconds": 2.0, "progress": False}
            record = mcl.separate_recording(path, out_folder, "two-speakers-small", **options)
            files = [record["mixture"], *(output["file"] for output in record["outputs"])]
            sounds = [soundfile.read(out_folder / file)[0][::20] for file in files]
            return {"sounds": np.stack(sounds), "scores": [output["score"] for output in record["outputs"]]}

    out.case("recording", recording)


# ---------------------------------------------------------------------------- run


def data_folder() -> Path:
    """Return the folder of shared data beside the main worktree."""
    if named := os.environ.get("TORCHMCL_DATA"):
        return Path(named)
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    common = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (Path(common).parent if common else Path(__file__).parents[2]).parent / "shared" / "data"


def main() -> None:
    """Compute the chosen sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="sections, separated by commas")
    parser.add_argument("--skip", default="", help="sections to leave out; auto is all with AutoAnnealing")
    parser.add_argument("--studies", type=Path, help="folder that holds the package torchmcl_studies")
    parser.add_argument("--data", type=Path, default=None, help="folder of shared data")
    parser.add_argument("--traceback", action="store_true", help="print the traceback of a case that fails")
    parser.parse_args(namespace=OPTIONS)
    OPTIONS.data = OPTIONS.data or data_folder()
    if OPTIONS.studies is not None:
        sys.path.insert(0, str(OPTIONS.studies.resolve()))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import torchmcl

    print(f"torchmcl of {Path(torchmcl.__file__).parent}, torch {torch.__version__}")
    for name, compute in SECTIONS.items():
        if not is_chosen(name, OPTIONS.only, OPTIONS.skip):
            continue
        start, before, recorder, note = (time.process_time(), time.perf_counter()), len(ARRAYS), Recorder(name), ""
        try:
            compute(recorder)
        except Skip as reason:
            note = f", skipped: {reason}"
        except Exception as error:
            note = f", stopped by {type(error).__name__}: {error}"
            if OPTIONS.traceback:
                traceback.print_exc()
        failed = f", {recorder.n_failed} cases failed" if recorder.n_failed else ""
        busy, passed = time.process_time() - start[0], time.perf_counter() - start[1]
        times = f"{busy:5.1f} s of the processor in {passed:5.1f} s"
        print(f"{name:18} {len(ARRAYS) - before:6} arrays, {times}{failed}{note}", flush=True)
    for error, cases in NOTES.items():
        print(f"  {cases[0]}{f' and {len(cases) - 1} more' if cases[1:] else ''}: {error}")
    np.savez(OPTIONS.out, **ARRAYS)


if __name__ == "__main__":
    main()
