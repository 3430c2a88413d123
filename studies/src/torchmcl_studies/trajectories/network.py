"""Network and training rows of the study: windows with the nearest people, and their random augmentation.

The networks are tested at a new location, so they must not depend on where and how the training recordings were made.
For every batch, rows are randomly mirrored, scaled and reversed in time, and noise is added to observed positions.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchmcl.errors import bad_value
from torchmcl.types import Batch, Distributions, Predictions
from torchmcl_studies.data import pedestrians

__all__ = [
    "N_HYPOTHESES",
    "N_INPUTS",
    "N_NEAR",
    "N_OBSERVED",
    "Drawing",
    "Frame",
    "PathNetwork",
    "Rows",
    "load_rows",
    "own_frame",
    "rows_of",
]

N_OBSERVED, N_FUTURE = 8, 12  # steps of 0.4 s
# Number of nearest people in the input.
N_NEAR = 6
N_HYPOTHESES = 20
# Steps over which heading and velocity are averaged: one step is noisy, seven lag behind in a turn.
_HEADING_STEPS = 3
# Inputs of the person: 7 steps and 7 offsets from constant velocity (two coordinates each), two speeds. Inputs of each
# other person: 9 values, and whether there is such a person.
_N_OWN = 4 * (N_OBSERVED - 1) + 2
_N_OF_OTHER = 9
N_INPUTS = _N_OWN + N_NEAR * (_N_OF_OTHER + 1)
_WIDTH, _N_BLOCKS, _OTHERS_WIDTH = 256, 2, 64
_DROPOUT = 0.1


class Frame(NamedTuple):
    """Reference frame of a person.

    Attributes:
        origin: Last observed position, [..., 2].
        axes: Matrix whose columns are the x- and y-axis of the person, [..., 2, 2].
        velocity: Displacement per step in the axes of the person, [..., 2].
    """

    origin: Tensor
    axes: Tensor
    velocity: Tensor

    def offsets(self, future: Tensor) -> Tensor:
        """Return true positions [..., 12, 2] as offsets from constant velocity, in the person's axes."""
        return (future - self.origin.unsqueeze(-2)) @ self.axes - self._straight_on(future)

    def positions(self, offsets: Tensor) -> Tensor:
        """Return the positions of hypotheses from their offsets [..., hypotheses, 12, 2]."""
        local = offsets + self._straight_on(offsets).unsqueeze(-3)
        return local @ self.axes.mT.unsqueeze(-3) + self.origin[..., None, None, :]

    def _straight_on(self, like: Tensor) -> Tensor:
        steps = torch.arange(1.0, like.shape[-2] + 1, device=like.device)
        return steps.unsqueeze(-1) * self.velocity.unsqueeze(-2)  # [..., 12, 2]


def own_frame(observed: Tensor, near: Tensor) -> tuple[Tensor, Frame]:
    """Return the inputs of the network and the reference frame of its hypotheses.

    Args:
        observed: Observed positions in meters, [..., 8, 2].
        near: Nearest people, [..., 6, 5]: relative position, velocity per step, and 1 if there is such a person.

    Returns:
        Inputs [..., 90], and the frame.
    """
    last = observed[..., -1, :]
    velocity = (last - observed[..., -1 - _HEADING_STEPS, :]) / _HEADING_STEPS
    speed = velocity.norm(dim=-1, keepdim=True)
    ahead = torch.cat([torch.ones_like(speed), torch.zeros_like(speed)], dim=-1)
    x_axis = torch.where(speed > 1e-4, velocity / speed.clamp(min=1e-6), ahead)  # arbitrary if standing still
    axes = torch.stack([x_axis, torch.stack([-x_axis[..., 1], x_axis[..., 0]], dim=-1)], dim=-1)
    frame = Frame(last, axes, speed * ahead)

    path = (observed - last.unsqueeze(-2)) @ axes
    steps = path.diff(dim=-2)
    before = torch.arange(1.0 - N_OBSERVED, 0.0, device=observed.device).unsqueeze(-1)
    from_straight = path[..., :-1, :] - before * frame.velocity.unsqueeze(-2)
    mean_step = (steps.norm(dim=-1).mean(dim=-1, keepdim=True) + 0.05).log()
    own = [2 * steps.flatten(-2), from_straight.flatten(-2), mean_step, 2 * speed]

    place = near[..., :2] @ axes
    motion = 2 * (near[..., 2:4] @ axes - frame.velocity.unsqueeze(-2))
    distance = place.norm(dim=-1, keepdim=True)
    close, far = torch.exp(-distance / 2), 1 / (1 + 0.3 * distance)
    others = torch.cat([place * far, place * close, motion * close, motion * far, close, near[..., 4:]], dim=-1)
    return torch.cat([*own, others.flatten(-2)], dim=-1), frame


class PathNetwork(nn.Module):
    """A residual perceptron with 20 hypotheses of 12 steps and their scores; other people are pooled.

    Args:
        scales: Whether to return the standard deviation of each step of each hypothesis, for mixture density networks.
    """

    def __init__(self, *, scales: bool = False) -> None:
        super().__init__()
        self.others = _linear(_N_OF_OTHER, _OTHERS_WIDTH)
        self.first = _linear(_N_OWN + 2 * _OTHERS_WIDTH, _WIDTH, gain=1.2)
        self.blocks = nn.ModuleList(_linear(_WIDTH, _WIDTH) for _ in range(_N_BLOCKS))
        self.paths = _linear(_WIDTH, N_HYPOTHESES * N_FUTURE * 2, gain=0.5)
        self.scores = _linear(_WIDTH, N_HYPOTHESES, gain=0.1)
        self.log_scales = _linear(_WIDTH, N_HYPOTHESES * N_FUTURE, gain=0.1) if scales else None
        self.dropout = nn.Dropout(_DROPOUT)
        nn.init.normal_(self.paths.bias, std=0.05)  # so that hypotheses differ initially

    def forward(self, inputs: Tensor) -> Predictions | Distributions:
        """Return hypotheses [batch, 20, 12, 2] as offsets from constant velocity."""
        own, others = inputs.split([_N_OWN, N_NEAR * (_N_OF_OTHER + 1)], dim=-1)
        others = others.unflatten(-1, (N_NEAR, _N_OF_OTHER + 1))
        seen = self.others(others[..., :-1]).relu() * others[..., -1:]  # 0 for absent people
        hidden = torch.cat([own, seen.amax(dim=-2), 0.3 * seen.sum(dim=-2)], dim=-1)
        hidden = self.dropout(nn.functional.gelu(self.first(hidden)))
        for block in self.blocks:
            hidden = hidden + self.dropout(nn.functional.gelu(block(hidden)))
        paths = self.paths(hidden).unflatten(-1, (N_HYPOTHESES, N_FUTURE, 2))
        if self.log_scales is None:
            return Predictions(paths, self.scores(hidden))
        # Between 7 mm and 20 m, to avoid an infinite density at an exact hit.
        log_scales = self.log_scales(hidden).clamp(-5, 3).unflatten(-1, (N_HYPOTHESES, N_FUTURE, 1))
        return Distributions(paths, self.scores(hidden), log_scales.exp())


def _linear(n_in: int, n_out: int, gain: float = 1.0) -> nn.Linear:
    """Return a layer whose outputs have the variance of its inputs times gain^2, and a bias of 0."""
    layer = nn.Linear(n_in, n_out)
    bound = gain * math.sqrt(3 / n_in)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer


# Standard deviation of the noise on each observed coordinate, in meters.
_NOISE = 0.018
# Positions are multiplied by exp(u), u uniform in [-0.4, 0.4]: people are faster in some places than in others.
_SCALE = 0.4
_BACKWARDS, _MIRRORED, _ALONE = 0.5, 0.5, 0.3
# A recording is drawn with probability ~ n_windows^0.7, between equal weights of windows and of recordings.
_BALANCE = 0.7


class Rows(NamedTuple):
    """Windows and the people around them.

    Attributes:
        paths: Positions, 8 observed and 12 future, [rows, 20, 2].
        near: Nearest people, [rows, 6, 5], see `own_frame`.
        scene: Scene numbers, [rows]; a scene has one recording and first frame.
        recording: Recording numbers, [rows].
    """

    paths: Tensor
    near: Tensor
    scene: Tensor
    recording: Tensor

    def to(self, device: torch.device | str) -> "Rows":
        """Return the rows on a device."""
        return Rows(*(part.to(device) for part in self))


def load_rows(scene: str, root: Path | None, *, without: Sequence[str] = ()) -> tuple[Rows, Rows, Rows]:
    """Return the training rows of a scene, the same rows backwards in time, and its test rows.

    Args:
        scene: Name of a scene, as in `torchmcl_studies.data.pedestrians.SCENES`.
        root: Folder that contains the recordings; None for the default locations of `read_recordings`.
        without: Names of recordings to exclude from training as well, for model selection.

    Raises:
        ValueError: If there are no windows to train on or to test on.
        OSError: If the recordings are missing.
    """
    tested = pedestrians.SCENES[scene]
    names = [name for name in pedestrians.RECORDINGS if name not in (*tested, *without)]
    train = pedestrians.read_recordings(names, "train", root)
    test = rows_of(pedestrians.read_recordings(tested, "all", root))
    rows = rows_of(train)
    for part, n_rows in (("train", len(rows.paths)), ("all", len(test.paths))):
        if n_rows == 0:
            rule = f"contain people in {N_OBSERVED + N_FUTURE} consecutive frames in {part}/"
            raise ValueError(bad_value("reproduce trajectories", "data", rule, "none"))
    return rows, rows_of(train, backwards=True), test


def rows_of(recordings: Sequence[pedestrians.Recording], *, backwards: bool = False) -> Rows:
    """Return all windows of recordings; with `backwards`, time-reversed, with the people nearby at the new present."""
    samples = pedestrians.windows(recordings, observed=N_OBSERVED, future=N_FUTURE)
    paths = torch.cat([samples.observed, samples.future], dim=1)
    present = N_FUTURE if backwards else N_OBSERVED - 1  # the step at which the surrounding people are observed
    near = np.zeros((len(samples), N_NEAR, 5), dtype=np.float32)
    for number, recording in enumerate(recordings):
        rows = (samples.recording == number).numpy()
        frames = samples.frame.numpy()[rows] + present * recording.step
        near[rows] = _nearest(recording, frames, samples.person.numpy()[rows], -1 if backwards else 1)
    paths = paths.flip(1) if backwards else paths
    return Rows(paths.contiguous(), torch.from_numpy(near), samples.scene, samples.recording)


def _nearest(recording: pedestrians.Recording, frames: np.ndarray, persons: np.ndarray, direction: int) -> np.ndarray:
    """Return the people nearest to `persons` in `frames`, [rows, 6, 5]; time runs in `direction`."""
    velocities = _velocities(recording, direction)
    by_frame = np.argsort(recording.frames, kind="stable")
    sorted_frames = recording.frames[by_frame]
    near = np.zeros((len(frames), N_NEAR, 5), dtype=np.float32)
    for frame in np.unique(frames):
        begin, end = np.searchsorted(sorted_frames, [frame, frame + 1])
        present = by_frame[begin:end]
        rows = np.flatnonzero(frames == frame)
        person = np.searchsorted(recording.persons[present], persons[rows])  # `present` is sorted by person
        places = recording.positions[present] - recording.positions[present[person], None]  # [rows, people, 2]
        squared = (places**2).sum(-1)
        squared[np.arange(len(rows)), person] = np.inf  # exclude the person itself
        order = np.argsort(squared, axis=1, kind="stable")[:, : min(N_NEAR, len(present) - 1)]
        near[rows, : order.shape[1], :2] = np.take_along_axis(places, order[..., None], axis=1)
        near[rows, : order.shape[1], 2:4] = velocities[present[order]]
        near[rows, : order.shape[1], 4] = 1
    return near


def _velocities(recording: pedestrians.Recording, direction: int) -> np.ndarray:
    """Return the step to each row of a recording from the previous frame, in `direction` of time; 0 without one."""
    velocities = np.zeros_like(recording.positions)
    steps = np.diff(recording.positions, axis=0)
    follows = (np.diff(recording.persons) == 0) & (np.diff(recording.frames) == recording.step)
    if direction > 0:
        velocities[1:][follows] = steps[follows]
    else:
        velocities[:-1][follows] = -steps[follows]
    return velocities


class Drawing:
    """Sampler of training rows, called by `torchmcl_fleet.SampledData` with a number of rows and a generator.

    Args:
        rows: Training rows, forwards in time.
        backwards: Same rows, backwards in time.
        group_size: Size of the groups: 1 draws windows; a larger number draws scenes of up to this size, padded with
            rows whose mask is False. People of a scene are mirrored, scaled and reversed together, and batches of a
            multiple of the size contain whole scenes.

    Example:
        >>> walk = torch.stack([torch.arange(20.0), torch.zeros(20)], dim=-1).expand(3, 20, 2)
        >>> rows = Rows(walk, torch.zeros(3, 6, 5), torch.tensor([0, 0, 1]), torch.zeros(3, dtype=torch.long))
        >>> batch = Drawing(rows, rows)(5, torch.Generator().manual_seed(0))
        >>> batch.inputs.shape, batch.targets.shape
        (torch.Size([5, 90]), torch.Size([5, 1, 12, 2]))
    """

    def __init__(self, rows: Rows, backwards: Rows, *, group_size: int = 1) -> None:
        self.group_size = group_size
        self._on_device: dict[torch.device, tuple[Tensor, ...]] = {}
        self._paths = torch.cat([rows.paths, backwards.paths])
        self._near = torch.cat([rows.near, backwards.near])
        self._groups = _groups(rows, group_size)
        recording = rows.recording[self._groups[:, 0]]
        sizes = torch.bincount(recording)
        self._starts, self._sizes = sizes.cumsum(0) - sizes, sizes
        weights = sizes.double() ** _BALANCE * (sizes > 0)
        self._until = (weights.cumsum(0) / weights.sum()).float()  # cumulative probabilities of the recordings

    def __call__(self, n_rows: int, generator: torch.Generator) -> Batch:
        """Return `n_rows` rows on the device of the generator."""
        device, size = generator.device, self.group_size
        paths, near, groups, starts, sizes, until = self._tensors(device)
        n_groups = n_rows // size

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        recording = torch.searchsorted(until, uniform(n_groups), right=True).clamp(max=len(until) - 1)
        place = (uniform(n_groups) * sizes[recording]).long().clamp(max=sizes[recording] - 1)
        index = groups[starts[recording] + place]  # [groups, size], -1 for padding
        real = (index >= 0).flatten()
        back = (uniform(n_groups, 1) < _BACKWARDS) * (len(paths) // 2)
        row = (index.clamp(min=0) + back).flatten()
        grown = torch.exp((2 * uniform(n_groups) - 1) * _SCALE)
        factor = torch.stack([grown, torch.where(uniform(n_groups) < _MIRRORED, -grown, grown)], dim=-1)
        factor = factor.repeat_interleave(size, dim=0).unsqueeze(1)  # [rows, 1, 2]
        path = paths[row] * factor
        around = near[row] * torch.cat([factor, factor, torch.ones_like(factor[..., :1])], dim=-1)
        hidden = torch.cat([torch.ones(4, device=device), torch.zeros(1, device=device)])
        around = torch.where(uniform(len(row), 1, 1) < _ALONE, around * hidden, around)
        noise = torch.randn(len(row), N_OBSERVED, 2, generator=generator, device=device)
        inputs, frame = own_frame(path[:, :N_OBSERVED] + _NOISE * noise, around)
        targets = frame.offsets(path[:, N_OBSERVED:]).unsqueeze(1)
        return Batch(inputs, targets, None if size == 1 else real.unsqueeze(-1))

    def scenes(self, n_rows: int, device: torch.device | str) -> Tensor:
        """Return the scene of each row of a batch."""
        return torch.arange(n_rows, device=device) // self.group_size

    def _tensors(self, device: torch.device) -> tuple[Tensor, ...]:
        if device not in self._on_device:
            parts = (self._paths, self._near, self._groups, self._starts, self._sizes, self._until)
            self._on_device[device] = tuple(part.to(device) for part in parts)
        return self._on_device[device]


def _groups(rows: Rows, size: int) -> Tensor:
    """Return the rows of each group, [groups, size] with -1 for padding: windows, or scenes cut to `size` people."""
    index = torch.arange(len(rows.paths))
    if size == 1:
        return index.unsqueeze(-1)
    people = torch.bincount(rows.scene)
    place = index - (people.cumsum(0) - people)[rows.scene]
    group = torch.stack([rows.scene, place // size], dim=-1).unique(dim=0, return_inverse=True)[1]
    groups = torch.full((int(group.max()) + 1, size), -1)
    groups[group, place % size] = index
    return groups
