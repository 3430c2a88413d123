"""Problems for annealing: modes with a known floor, UCI sets, digits, diabetes and pedestrians, as sets for a fleet.

Nothing is chosen per problem. A tenth of the training rows of each set is held out. The files of UCI and of the
pedestrians lie in the folders uci/ and pedestrians/ of a data folder; the others are generated or part of scikit-learn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor

import torchmcl as mcl
from torchmcl_fleet import Candidate, Fleet, FleetData, Validation, default_batch_size, hard_distortion
from torchmcl_studies.data import pedestrians
from torchmcl_studies.data.uci import UCI_SETS, load_uci
from torchmcl_studies.modes import MODE_PROBLEMS, mode_problem
from torchmcl_studies.trajectories.network import N_OBSERVED, load_rows, own_frame

__all__ = ["PROBLEMS", "UCI", "Outcome", "Problem", "load", "train"]

N_STEPS = 1500
N_SETS = 20
UCI = tuple(f"UCI {name}" for name in UCI_SETS if name != "year")
PROBLEMS = (*(problem.name for problem in MODE_PROBLEMS), *UCI, "digits", "diabetes", "pedestrians")


@dataclass(frozen=True)
class Problem:
    """Training, held-out and test rows of several sets, and the settings of a training run.

    Attributes:
        name: Name of the problem.
        train: Standardized inputs and targets of each set.
        held_out: Held-out rows of each set.
        test: Test rows of each set.
        units: Factor from the distortion of standardized targets to the reported one, for each set.
        seeds: Seed of the network of each set.
        n_hypotheses: Number of hypotheses.
        hidden: Sizes of the hidden layers.
        learning_rate: Initial learning rate.
        n_epochs: Number of epochs.
        batch_size: Number of rows per batch.
        floor: Lowest possible distortion; None if it is unknown.
    """

    name: str
    train: list[tuple[Tensor, Tensor]]
    held_out: list[tuple[Tensor, Tensor]]
    test: list[tuple[Tensor, Tensor]]
    units: list[float]
    seeds: list[int]
    n_hypotheses: int
    hidden: tuple[int, ...]
    learning_rate: float
    n_epochs: int
    batch_size: int
    floor: float | None = None


@dataclass(frozen=True)
class Outcome:
    """Results of a candidate, one entry per set: distortions of held-out and of test rows, in the problem's units."""

    held_out: list[float]
    test: list[float]


def load(name: str, data: Path | None, device: str, n_sets: int = N_SETS) -> Problem:
    """Return a problem with 20 sets: seeds, official folds or random splits."""
    if name in UCI:
        return _uci(name, data)
    if name == "pedestrians":
        return _pedestrians(data)
    if name in ("digits", "diabetes"):
        return _scikit(name, n_sets)
    problem = mode_problem(name)
    drawn = [problem.rows(problem.n_rows, 1000 + seed)[:2] for seed in range(n_sets)]
    fresh = [problem.rows(4000, 500_000 + seed)[:2] for seed in range(n_sets)]
    floor = problem.floor(*((12, 8000) if problem.n_hypotheses > 20 else (48, 8000)), device=device)
    settings = (problem.n_hypotheses, problem.hidden, problem.learning_rate)
    return _problem(name, drawn, fresh, settings, problem.batch_size, problem.n_epochs, floor)


def train(
    problem: Problem, candidates: Sequence[Candidate], device: str, *, detached: bool = True, best: bool = False
) -> list[Outcome]:
    """Train every candidate on every set; return the distortions after the last epoch, or after the best one."""
    n_sets = len(problem.train)
    own = list(range(n_sets)) * len(candidates)
    each = [candidate for candidate in candidates for _ in range(n_sets)]
    sizes = problem.train[0][0].shape[-1], problem.train[0][1].shape[-1], problem.n_hypotheses
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(*sizes, hidden=problem.hidden, detach_scores=detached),
        len(own),
        rule=[candidate.rule for candidate in each],
        learning_rate=[candidate.learning_rate for candidate in each],
        weight_decay=[candidate.weight_decay for candidate in each],
        seeds=problem.seeds * len(candidates),
        device=device,
    )
    held_out = FleetData.of_sets(problem.held_out, own)
    fleet.fit(
        FleetData.of_sets(problem.train, own),
        problem.n_epochs,
        batch_size=problem.batch_size,
        validation=Validation(held_out, monitor=hard_distortion),
        progress=False,
    )
    units = torch.tensor(problem.units, dtype=torch.float64)
    parts = (held_out, FleetData.of_sets(problem.test, own))
    found = [fleet.evaluate(part, best=best)["distortion"].double().view(-1, n_sets) * units for part in parts]
    return [Outcome(*values) for values in zip(*(part.tolist() for part in found), strict=True)]


def _problem(
    name: str,
    train: list[tuple[Tensor, Tensor]],
    test: list[tuple[Tensor, Tensor]],
    settings: tuple[int, tuple[int, ...], float],
    batch_size: int | None = None,
    n_epochs: int | None = None,
    floor: float | None = None,
) -> Problem:
    """Standardize each set by its training part, and hold out its last tenth; about 1500 steps by default."""
    kept, held_out, tested, units = [], [], [], []
    for (inputs, targets), (test_inputs, test_targets) in zip(train, test, strict=True):
        center, width = inputs.mean(dim=0), inputs.std(dim=0).clamp_min(1e-6)
        middle, spread = targets.mean(dim=(0, 1)), targets.std(dim=(0, 1)).square().mean().sqrt()
        inputs, targets = (inputs - center) / width, (targets - middle) / spread
        n_train = len(inputs) - len(inputs) // 10
        kept.append((inputs[:n_train], targets[:n_train]))
        held_out.append((inputs[n_train:], targets[n_train:]))
        tested.append(((test_inputs - center) / width, (test_targets - middle) / spread))
        units.append(float(spread**2))
    n_train = max(len(inputs) for inputs, _ in kept)
    batch_size = min(n_train, batch_size or default_batch_size(n_train))
    n_epochs = n_epochs or max(20, min(1000, round(N_STEPS / math.ceil(n_train / batch_size))))
    seeds = list(range(len(kept)))
    return Problem(name, kept, held_out, tested, units, seeds, *settings, n_epochs, batch_size, floor)


def _uci(name: str, data: Path | None) -> Problem:
    """Return the official folds with the paper's network and 1000 epochs."""
    entry = UCI_SETS[name.removeprefix("UCI ")]
    folds = load_uci(entry.name, None if data is None else data / "uci")
    seeds = [1_000_000 * seed + fold for seed in range(N_SETS // len(folds)) for fold in range(len(folds))]
    folds = folds * (N_SETS // len(folds))
    rows = [(fold.train_inputs, fold.train_targets) for fold in folds]
    split = [round(0.9 * len(inputs)) for inputs, _ in rows]
    train = [(inputs[:n], targets[:n]) for (inputs, targets), n in zip(rows, split, strict=True)]
    held_out = [(inputs[n:], targets[n:]) for (inputs, targets), n in zip(rows, split, strict=True)]
    test = [(fold.test_inputs, fold.test_targets) for fold in folds]
    units = [fold.target_std**2 for fold in folds]
    return Problem(name, train, held_out, test, units, seeds, 5, (entry.hidden,), 0.01, 1000, 1024)


def _scikit(name: str, n_sets: int) -> Problem:
    """Return random splits of a set of scikit-learn; of digits, the lower six rows of pixels given the upper two."""
    if name == "digits":
        images = torch.tensor(load_digits().images, dtype=torch.float32) / 16
        inputs, targets = images[:, :2].flatten(1), images[:, 2:].flatten(1)
        settings = (8, (128, 128), 1e-3)
    else:
        columns, values = load_diabetes(return_X_y=True)
        inputs, targets = (torch.tensor(part, dtype=torch.float32) for part in (columns, values.reshape(-1, 1)))
        settings = (5, (64, 64), 0.01)
    train, test = [], []
    for seed in range(n_sets):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
        for part, rows in zip((test, train), order.tensor_split([len(order) // 5]), strict=True):
            part.append((inputs[rows], targets[rows].unsqueeze(1)))
    return _problem(name, train, test, settings)


def _pedestrians(data: Path | None) -> Problem:
    """Return four draws of 10 000 training windows for each of the five scenes: 12 positions, in a person's axes."""
    train, test = [], []
    for scene in pedestrians.SCENES:
        rows, _, tested = load_rows(scene, None if data is None else data / "pedestrians")
        both = []
        for part in (rows, tested):
            inputs, frame = own_frame(part.paths[:, :N_OBSERVED], part.near)
            both.append((inputs, frame.offsets(part.paths[:, N_OBSERVED:]).flatten(1).unsqueeze(1)))
        for seed in range(N_SETS // len(pedestrians.SCENES)):
            order = torch.randperm(len(rows.paths), generator=torch.Generator().manual_seed(seed))[:10_000]
            train.append((both[0][0][order], both[0][1][order]))
            test.append(both[1])
    return _problem("pedestrians", train, test, (20, (128, 128), 1e-3))
