"""Problems with several modes and a known optimum, to count the modes that a method finds.

Each problem draws targets for any input, so that the lowest possible distortion with n hypotheses is known: the
distortion of k-means on many draws, averaged over inputs.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from torchmcl import Batch
from torchmcl.checks import check_positive_int
from torchmcl.costs import pairwise_sq_euclidean
from torchmcl.theory import lloyd

__all__ = ["MODE_PROBLEMS", "Draw", "ModeProblem", "mode_problem"]

Draw = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True)
class ModeProblem:
    """A distribution of targets for each input, and the settings of a training run on it.

    Attributes:
        name: Name of the problem.
        n_hypotheses: Number of hypotheses; the number of modes, unless the name states otherwise.
        draw: Function that maps inputs [rows, n_inputs] and a generator to targets [rows, dim].
        n_inputs: Number of input features, each uniform in [-1, 1].
        n_rows: Number of rows of a training set, a tenth of which is held out.
        n_targets: Number of targets that are drawn for each row.
        hidden: Sizes of the hidden layers of the network.
        learning_rate: Learning rate of the network.
        batch_size: Number of rows per batch; None for the default of fleets.
        n_epochs: Number of epochs; None for about 1500 steps.
    """

    name: str
    n_hypotheses: int
    draw: Draw = field(repr=False)
    n_inputs: int = 1
    n_rows: int = 3000
    n_targets: int = 1
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 0.01
    batch_size: int | None = None
    n_epochs: int | None = None

    def rows(self, n_rows: int, seed: int) -> Batch:
        """Return inputs [n_rows, n_inputs] and targets [n_rows, n_targets, dim].

        Example:
            >>> batch = mode_problem("circle").rows(10, seed=0)
            >>> batch.inputs.shape, batch.targets.shape
            (torch.Size([10, 1]), torch.Size([10, 1, 2]))
        """
        check_positive_int("ModeProblem", "n_rows", n_rows)
        generator = Generator().manual_seed(seed)
        inputs = 2 * torch.rand(n_rows, self.n_inputs, generator=generator) - 1
        targets = [self.draw(inputs, generator) for _ in range(self.n_targets)]
        return Batch(inputs, torch.stack(targets, dim=1))

    def floor(self, n_inputs: int = 48, n_draws: int = 8000, device: str = "cpu") -> float:
        """Return the lowest distortion of `n_hypotheses` points (best of 12 k-means runs), averaged over inputs.

        Example:
            >>> round(mode_problem("3 branches").floor(n_inputs=4, n_draws=1000), 4)  # the variance of the noise
            0.0009
        """
        generator = Generator().manual_seed(999)
        inputs = 2 * torch.rand(n_inputs, self.n_inputs, generator=generator) - 1
        draws = self.draw(inputs.repeat_interleave(n_draws, dim=0), generator)
        points = draws.view(n_inputs, n_draws, -1).to(device)
        return float(torch.stack([_k_means(points, self.n_hypotheses, seed) for seed in range(12)]).amin(dim=0).mean())


def _k_means(points: Tensor, n: int, seed: int) -> Tensor:
    """Return the distortion [sets] of points [sets, draws, dim] by n k-means centers, from a greedy k-means++ start."""
    generator = Generator(points.device).manual_seed(seed)
    centers = points[:, :1]
    distance = torch.cdist(centers, points).square().squeeze(1)
    sets = torch.arange(len(points), device=points.device)
    for _ in range(1, n):
        proposals = torch.multinomial(distance.clamp_min(1e-12), 4, generator=generator)
        new = points[sets.unsqueeze(-1), proposals]
        nearer = torch.minimum(distance.unsqueeze(1), torch.cdist(new, points).square())
        best = nearer.sum(dim=-1).argmin(dim=-1)
        centers, distance = torch.cat([centers, new[sets, best].unsqueeze(1)], dim=1), nearer[sets, best]
    centers, _ = lloyd(points, centers, n_steps=40)
    return pairwise_sq_euclidean(hypotheses=centers, targets=points).amin(dim=-1).mean(dim=-1)


def _noise(x: Tensor, generator: Generator, dim: int = 1) -> Tensor:
    return torch.randn(len(x), dim, generator=generator)


def _whole(x: Tensor, generator: Generator, n: int, dim: int = 1) -> Tensor:
    """Return random integers 0 ... n - 1, centered, [rows, dim]."""
    return torch.randint(n, (len(x), dim), generator=generator) - (n - 1) / 2


def _turned(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def _branches(probabilities: list[float], noise: float = 0.03) -> Draw:
    """Lines through (-1.2, 0) whose slopes are one unit apart, with the given probabilities."""
    levels = torch.arange(len(probabilities)) - (len(probabilities) - 1) / 2

    def draw(x: Tensor, generator: Generator) -> Tensor:
        chosen = torch.multinomial(torch.tensor(probabilities), len(x), replacement=True, generator=generator)
        return levels[chosen].unsqueeze(-1) * (1.2 + x[:, :1]) + noise * _noise(x, generator)

    return draw


def _circle(probabilities: list[float], noise: float) -> Draw:
    """Points on a circle that rotates with the input."""

    def draw(x: Tensor, generator: Generator) -> Tensor:
        chosen = torch.multinomial(torch.tensor(probabilities), len(x), replacement=True, generator=generator)
        return _turned(2 * math.pi * chosen / len(probabilities) + x[:, 0]) + noise * _noise(x, generator, 2)

    return draw


def _tree(x: Tensor, generator: Generator) -> Tensor:
    coarse, fine = _whole(x, generator, 3), _whole(x, generator, 3)
    return coarse * (1.2 + x[:, :1]) + 0.12 * fine + 0.01 * _noise(x, generator)


def _deep_tree(x: Tensor, generator: Generator) -> Tensor:
    b = 2 * _whole(x, generator, 2, 3)
    return b[:, :1] * (1.2 + x[:, :1]) + 0.25 * b[:, 1:2] + 0.06 * b[:, 2:] + 0.01 * _noise(x, generator)


def _wavy(x: Tensor, generator: Generator) -> Tensor:
    return torch.sin(6 * x[:, :1]) + 0.6 * _whole(x, generator, 2) + 0.05 * _noise(x, generator)


def _single(x: Tensor, generator: Generator) -> Tensor:
    return torch.sin(3 * x[:, :1]) + 0.1 * _noise(x, generator)


def _grid(n: int) -> Draw:
    def draw(x: Tensor, generator: Generator) -> Tensor:
        return _whole(x, generator, n, 2) * (1 + 0.3 * x[:, :1]) + 0.08 * _noise(x, generator, 2)

    return draw


def _ring(x: Tensor, generator: Generator) -> Tensor:
    angle = 2 * math.pi * torch.rand(len(x), generator=generator)
    return (1 + 0.5 * x[:, :1]) * _turned(angle) + 0.02 * _noise(x, generator, 2)


def _moons(x: Tensor, generator: Generator) -> Tensor:
    first = torch.rand(len(x), 1, generator=generator) < 0.5
    point = _turned(math.pi * torch.rand(len(x), generator=generator))
    point = torch.where(first, point, torch.tensor([1.0, 0.5]) - point)
    return point + x[:, :1] + 0.05 * _noise(x, generator, 2)


def _crossing(x: Tensor, generator: Generator) -> Tensor:
    return _whole(x, generator, 3) * x[:, :1] + 0.03 * _noise(x, generator)


def _fork(x: Tensor, generator: Generator) -> Tensor:
    branch = 2 * _whole(x, generator, 2) * x[:, :1].clamp_min(0)
    return branch + torch.sin(2 * x[:, :1]) + 0.03 * _noise(x, generator)


def _unequal_noise(x: Tensor, generator: Generator) -> Tensor:
    branch = _whole(x, generator, 3)
    deviation = torch.tensor([0.01, 0.05, 0.2])[branch.long() + 1]
    return branch * (1.2 + x[:, :1]) + deviation * _noise(x, generator)


def _heavy_tails(x: Tensor, generator: Generator) -> Tensor:
    student = _noise(x, generator) / _noise(x, generator, 3).square().mean(dim=-1, keepdim=True).sqrt()
    return _whole(x, generator, 4) * (1.2 + 0.5 * x[:, :1]) + 0.03 * student


def _exact(n: int) -> Draw:
    """Lines through (-1, 0) without noise, or one curve."""

    def draw(x: Tensor, generator: Generator) -> Tensor:
        return torch.sin(3 * x) if n == 1 else (1 + x) * _whole(x, generator, n) / (n - 1)

    return draw


def _many_dimensions(x: Tensor, generator: Generator) -> Tensor:
    fixed = Generator().manual_seed(3)
    places, slopes = torch.randn(2, 6, 32, generator=fixed)
    chosen = torch.randint(6, (len(x),), generator=generator)
    return places[chosen] + x[:, :1] * slopes[chosen] + 0.1 * _noise(x, generator, 32)


def _paths(x: Tensor, generator: Generator) -> Tensor:
    """Walks of 12 steps that turn by one of five angles, as 24 coordinates."""
    speed = (1 + 0.05 * _noise(x, generator)).unsqueeze(-1) / 12
    turn = _whole(x, generator, 5) * torch.arange(1, 13) / 12
    steps = speed * _turned(x[:, :1] + turn)
    return steps.cumsum(dim=1).flatten(1) + 0.01 * _noise(x, generator, 24)


def _six_inputs(x: Tensor, generator: Generator) -> Tensor:
    middle = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    return middle + _whole(x, generator, 3) * (1 + 0.5 * x[:, 3:4]) + 0.1 * _noise(x, generator)


def _uniform(x: Tensor, generator: Generator) -> Tensor:
    return (1.5 + x[:, :1]) * torch.rand(len(x), 1, generator=generator)


def _random_branches(seed: int, n: int, dim: int, n_inputs: int) -> Draw:
    """Smooth random branches around random offsets, which may cross."""
    fixed = Generator().manual_seed(seed)
    slopes = torch.randn(n, dim, 24, n_inputs, generator=fixed) / 0.6
    phases = 2 * math.pi * torch.rand(n, dim, 24, generator=fixed)
    heights = torch.randn(n, dim, 24, generator=fixed) * math.sqrt(2 / 24) * (0.5 if seed % 2 else 1.0)
    places = torch.randn(n, dim, generator=fixed)

    def draw(x: Tensor, generator: Generator) -> Tensor:
        chosen = torch.randint(n, (len(x),), generator=generator)
        waves = (torch.einsum("ri,rdfi->rdf", x, slopes[chosen]) + phases[chosen]).cos()
        return places[chosen] + (heights[chosen] * waves).sum(dim=-1) + 0.05 * _noise(x, generator, dim)

    return draw


_THIRDS, _FIFTHS = [1 / 3] * 3, [0.2] * 5

MODE_PROBLEMS: tuple[ModeProblem, ...] = (
    ModeProblem("3 branches", 3, _branches(_THIRDS)),
    ModeProblem("5 branches", 5, _branches(_FIFTHS)),
    ModeProblem("rare branches", 3, _branches([0.05, 0.9, 0.05])),
    ModeProblem("circle", 8, _circle([1 / 8] * 8, 0.055)),
    ModeProblem("rare on a circle", 5, _circle([0.6, 0.2, 0.1, 0.06, 0.04], 0.05)),
    ModeProblem("3 x 3 branches", 9, _tree),
    ModeProblem("tree of 8", 8, _deep_tree),
    ModeProblem("wavy mean", 2, _wavy),
    ModeProblem("one mode", 5, _single),
    ModeProblem("one mode, one hypothesis", 1, _single),
    ModeProblem("grid of 16", 16, _grid(4)),
    ModeProblem("grid of 64", 64, _grid(8), n_rows=20_000, n_epochs=60),
    ModeProblem("ring", 16, _ring),
    ModeProblem("moons", 8, _moons),
    ModeProblem("crossing", 3, _crossing),
    ModeProblem("fork", 2, _fork),
    ModeProblem("fork, more hypotheses", 5, _fork),
    ModeProblem("unequal noise", 6, _unequal_noise),
    ModeProblem("heavy tails", 4, _heavy_tails),
    ModeProblem("32 dimensions", 6, _many_dimensions),
    ModeProblem("paths", 5, _paths),
    ModeProblem("six inputs", 3, _six_inputs, n_inputs=6),
    ModeProblem("uniform", 8, _uniform),
    ModeProblem("more hypotheses than modes", 8, _branches(_THIRDS)),
    ModeProblem("three targets a row", 5, _branches(_FIFTHS), n_rows=1000, n_targets=3),
    ModeProblem("200 rows", 3, _branches(_THIRDS), n_rows=200),
    ModeProblem("200 000 rows", 9, _tree, n_rows=200_000, n_epochs=5),
    ModeProblem("one answer without noise, 4 hypotheses", 4, _exact(1), n_rows=300, n_epochs=300),
    ModeProblem("two answers without noise, 3 hypotheses", 3, _exact(2), n_rows=300, n_epochs=300),
    ModeProblem("three answers without noise, 8 hypotheses", 8, _exact(3), n_rows=1000, n_epochs=300),
    ModeProblem("linear network", 5, _branches(_FIFTHS), hidden=()),
    ModeProblem("deep network", 5, _branches(_FIFTHS), hidden=(128, 128, 128, 128), learning_rate=1e-3),
    ModeProblem("small rate", 8, _circle([1 / 8] * 8, 0.055), learning_rate=1e-3),
    ModeProblem("large rate", 5, _branches(_FIFTHS), learning_rate=0.05),
    ModeProblem("batches of 32", 9, _tree, batch_size=32),
    ModeProblem("batches of 1024", 9, _tree, batch_size=1024),
    *(
        ModeProblem(
            f"random branches, {n} in {dim}-d, {n_inputs} input{'s' * (n_inputs > 1)}",
            n,
            _random_branches(201 + index, n, dim, n_inputs),
            n_inputs=n_inputs,
        )
        for index, (n, dim, n_inputs) in enumerate(itertools.product((3, 5, 8), (1, 2, 4), (1, 2)))
    ),
    *(
        ModeProblem(f"{name}, {n_epochs} epochs", n, draw, batch_size=64, n_epochs=n_epochs, n_inputs=n_inputs)
        for name, n, draw, n_inputs in (
            ("5 branches", 5, _branches(_FIFTHS), 1),
            ("circle", 8, _circle([1 / 8] * 8, 0.055), 1),
            ("3 x 3 branches", 9, _tree, 1),
            ("wavy mean", 2, _wavy, 1),
            ("paths", 5, _paths, 1),
            ("one mode", 5, _single, 1),
            ("six inputs", 3, _six_inputs, 6),
        )
        for n_epochs in (5, 10, 20, 60)
    ),
)
"""Problems for the evaluation of automatic annealing."""


def mode_problem(name: str) -> ModeProblem:
    """Return a problem by its name.

    Raises:
        ValueError: If there is no problem with that name.
    """
    for problem in MODE_PROBLEMS:
        if problem.name == name:
            return problem
    known = ", ".join(problem.name for problem in MODE_PROBLEMS)
    raise ValueError(f"mode_problem: `name` must be one of {known}, got {name!r}.")
