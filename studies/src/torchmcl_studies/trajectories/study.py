"""Definition and runner of the trajectory study: missing results are computed, one scene at a time.

Protocol. Networks are trained on the training parts of all recordings except the test scene, and evaluated on the test
scene. The weights after the last step are used; nothing is selected on a test scene or on the validation parts.

Selection of hyperparameters. Network, augmentation and optimizer were selected on *inner splits*: networks trained
without two scenes were evaluated on one of the two, for all 20 ordered pairs, with six seeds each. The selected
hyperparameters have minADE20/minFDE20 0.1968/0.3203 there. They are the same for all scenes, so that a test scene
influences them through the pairs in which it was the inner scene. Selecting the last hyperparameters (number of steps
for the heading, weight of the scores) separately for each scene, on pairs without it, gave 0.1945/0.3152 on the test
scenes, and the common selection 0.1953/0.3160: the leakage is negligible. Other results on inner splits: without
neighbors +4 %, without time reversal +1 %; ensembles reduced to 20 hypotheses are within noise, and larger numbers of
hypotheses reduced to 20 are worse.

The initial temperatures of aMCL (0.1, 0.3, 1 or 3 m) and of the annealed MDN (3, 5, 10 or 30) were selected on 16 of
these pairs, in runs of 3000 steps with two seeds: 3 m with 0.2074/0.3361 (WTA 0.2075/0.3363, 1 m 0.2082/0.3390),
and 5 with 0.2184/0.3692 and an NLL of -18.02 (MDN without annealing 0.2208/0.3731, -17.62). Epsilon and AutoAnnealing
have their defaults.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from torchmcl.checks import available_device, check_positive_int, device_of
from torchmcl.errors import bad_value
from torchmcl_studies.common import KeyedRecords, check_known
from torchmcl_studies.data import pedestrians
from torchmcl_studies.trajectories.methods import METHODS, Method
from torchmcl_studies.trajectories.network import Drawing, Rows, load_rows
from torchmcl_studies.trajectories.training import (
    GROUP_SIZE,
    Forecast,
    constant_velocity,
    fork_rows,
    forks_of,
    numbers_of,
    predicted,
    train_fleet,
    train_jointly,
)

__all__ = ["KEYS", "QUICK_SCENES", "TrajectoryStudy", "run_study"]

_OWNER = "reproduce trajectories"
KEYS = ("scene", "method", "seed")
QUICK_SCENES = ("eth",)
QUICK_EPOCHS, QUICK_BATCH = 5, 64
# Batches of scenes are larger, so fewer of them are needed.
_EPOCH_FACTOR_OF_SCENES = 0.4


@dataclass(frozen=True)
class TrajectoryStudy:
    """Options of the study.

    Raises:
        ValueError: If a scene, method or device is unknown, or a count is below 1.
    """

    scenes: Sequence[str] = tuple(pedestrians.SCENES)
    methods: Sequence[str] = tuple(METHODS)
    n_seeds: int = 1
    n_epochs: int = 370
    batch_size: int = 256
    data: Path | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Check the fields."""
        device_of(_OWNER, self.device)
        check_known(_OWNER, "scenes", self.scenes, pedestrians.SCENES)
        check_known(_OWNER, "methods", self.methods, METHODS)
        for field in ("scenes", "methods"):  # remove duplicates
            object.__setattr__(self, field, tuple(dict.fromkeys(getattr(self, field))))
        check_positive_int(_OWNER, "seeds", self.n_seeds)
        check_positive_int(_OWNER, "epochs", self.n_epochs)
        if self.batch_size < 1 or self.batch_size % GROUP_SIZE:
            rule = f"be a multiple of {GROUP_SIZE}"
            raise ValueError(bad_value(_OWNER, "batch_size", rule, self.batch_size))


def run_study(study: TrajectoryStudy, out: Path, *, progress: bool = True) -> KeyedRecords:
    """Train the methods missing in `out/records.jsonl`, and return all records.

    The predictions of seed 0 for a few sharp turns are stored in `out/forks.jsonl`, for figures.

    Raises:
        ValueError: If the records on disk belong to a different study.
        OSError: If the recordings are missing and cannot be downloaded.
    """
    available_device(_OWNER, study.device)
    settings = {"epochs": study.n_epochs, "windows a batch": study.batch_size}
    records, forks = (KeyedRecords(_OWNER, KEYS, out / f"{name}.jsonl", settings) for name in ("records", "forks"))
    for scene in study.scenes:
        missing = [
            (METHODS[name], seed)
            for name in study.methods
            for seed in (range(study.n_seeds) if METHODS[name].kind != "none" else [0])
            if (scene, name, seed) not in records
        ]
        if missing:
            _run_scene(study, scene, missing, records, forks, progress=progress)
    return records


def _run_scene(
    study: TrajectoryStudy,
    scene: str,
    missing: list[tuple[Method, int]],
    records: KeyedRecords,
    forks: KeyedRecords,
    *,
    progress: bool,
) -> None:
    train, backwards, test = load_rows(scene, study.data)
    test = test.to(study.device)
    drawn = fork_rows(test)
    for kind in dict.fromkeys(method.kind for method, _ in missing):
        models = [(method, seed) for method, seed in missing if method.kind == kind]
        start = time.perf_counter()
        networks = _trained(kind, models, (train, backwards), study, f"{scene}, {kind}" if progress else False)
        seconds = time.perf_counter() - start
        rows, fork_records = [], []
        for (method, seed), network in zip(models, networks, strict=True):
            forecast: Forecast = constant_velocity(test) if network is None else predicted(network, test)
            key: dict[str, Any] = {"scene": scene, "method": method.name, "seed": seed}
            counts = {"windows": len(test.paths), "seconds": round(seconds / len(models), 3)}
            rows.append(key | numbers_of(forecast, test) | counts)
            if seed == 0:
                fork_records.append(key | {"forks": forks_of(forecast, test, drawn)})
        forks.add(fork_records)  # written first, so that every record has its forks
        records.add(rows)


def _trained(
    kind: str,
    models: list[tuple[Method, int]],
    rows: tuple[Rows, Rows],
    study: TrajectoryStudy,
    progress: str | bool,
) -> Sequence[nn.Module | None]:
    """Return a trained network for each model; None for methods without training."""
    if kind == "none":
        return [None] * len(models)
    options: dict[str, Any] = {"batch_size": study.batch_size, "device": study.device, "progress": progress}
    if kind in ("paths", "mixture"):
        return train_fleet(models, Drawing(*rows), study.n_epochs, **options)
    drawing = Drawing(*rows, group_size=GROUP_SIZE)
    n_epochs = max(1, round(_EPOCH_FACTOR_OF_SCENES * study.n_epochs))
    if kind == "scenes":
        return train_fleet(models, drawing, n_epochs, **options)
    return train_jointly([seed for _, seed in models], drawing, n_epochs, **options)
