"""The inputs of the network for a pedestrian, and the network itself.

Everything is in the person's own frame: the last observed position is the origin, and the x-axis points where the
person was heading over the last three steps. Hypotheses are offsets from walking on at constant velocity. A turned or
shifted scene therefore looks the same, and a network that answers 0 walks straight on.

    observed [8, 2], nearest people [6, 5]  --own_frame-->  inputs [90]  --PathNetwork-->  20 x offsets [12, 2]
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmcl.types import Distributions, Predictions

__all__ = ["N_FUTURE", "N_HYPOTHESES", "N_INPUTS", "N_NEAR", "N_OBSERVED", "Frame", "PathNetwork", "own_frame"]

N_OBSERVED, N_FUTURE = 8, 12
# How many of the people around somebody are seen, the nearest first.
N_NEAR = 6
N_HYPOTHESES = 20
# Steps over which heading and velocity are averaged: one step is noisy, seven are late in a turn.
_HEADING_STEPS = 3
# Own inputs: 7 steps, 7 distances from constant velocity (two coordinates each), two speeds; 9 for each other person
# and whether there is one.
_N_OWN = 4 * (N_OBSERVED - 1) + 2
_N_OF_OTHER = 9
N_INPUTS = _N_OWN + N_NEAR * (_N_OF_OTHER + 1)
_WIDTH, _N_BLOCKS, _OTHERS_WIDTH = 256, 2, 64
_DROPOUT = 0.1


class Frame(NamedTuple):
    """The position and heading of a person.

    Attributes:
        origin: [..., 2], the last observed position.
        axes: [..., 2, 2], columns are the own x- and y-axis: world @ axes = own.
        velocity: [..., 2], per step, in own axes.
    """

    origin: Tensor
    axes: Tensor
    velocity: Tensor

    def offsets(self, future: Tensor) -> Tensor:
        """Return true positions [..., 12, 2] as offsets from constant velocity, in the person's axes."""
        return (future - self.origin.unsqueeze(-2)) @ self.axes - self._straight_on(future)

    def positions(self, offsets: Tensor) -> Tensor:
        """Return the positions of hypotheses [..., hypotheses, 12, 2] given as offsets."""
        own = offsets + self._straight_on(offsets).unsqueeze(-3)
        return own @ self.axes.mT.unsqueeze(-3) + self.origin[..., None, None, :]

    def _straight_on(self, like: Tensor) -> Tensor:
        steps = torch.arange(1.0, like.shape[-2] + 1, device=like.device)
        return steps.unsqueeze(-1) * self.velocity.unsqueeze(-2)  # [..., 12, 2]


def own_frame(observed: Tensor, near: Tensor) -> tuple[Tensor, Frame]:
    """Return the inputs of the network and the reference frame of its hypotheses.

    Args:
        observed: [..., 8, 2], positions in meters.
        near: [..., 6, 5], of the nearest people: relative position, velocity per step, 1 if there is one.

    Returns:
        Inputs [..., 90], and the frame.
    """
    last = observed[..., -1, :]
    velocity = (last - observed[..., -1 - _HEADING_STEPS, :]) / _HEADING_STEPS
    speed = velocity.norm(dim=-1, keepdim=True)
    ahead = torch.cat([torch.ones_like(speed), torch.zeros_like(speed)], dim=-1)
    x_axis = torch.where(speed > 1e-4, velocity / speed.clamp(min=1e-6), ahead)  # who stands still heads anywhere
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
        scales: also return the standard deviation of each step of each hypothesis, for a mixture density network.
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
        nn.init.normal_(self.paths.bias, std=0.05)  # hypotheses begin apart

    def forward(self, inputs: Tensor) -> Predictions | Distributions:
        """Return hypotheses [batch, 20, 12, 2] as offsets from constant velocity."""
        own, others = inputs.split([_N_OWN, N_NEAR * (_N_OF_OTHER + 1)], dim=-1)
        others = others.unflatten(-1, (N_NEAR, _N_OF_OTHER + 1))
        seen = self.others(others[..., :-1]).relu() * others[..., -1:]  # 0 for a person who is not there
        hidden = torch.cat([own, seen.amax(dim=-2), 0.3 * seen.sum(dim=-2)], dim=-1)
        hidden = self.dropout(nn.functional.gelu(self.first(hidden)))
        for block in self.blocks:
            hidden = hidden + self.dropout(nn.functional.gelu(block(hidden)))
        paths = self.paths(hidden).unflatten(-1, (N_HYPOTHESES, N_FUTURE, 2))
        if self.log_scales is None:
            return Predictions(paths, self.scores(hidden))
        # Between 7 mm and 20 m: a step that is hit exactly must not make a density infinite.
        log_scales = self.log_scales(hidden).clamp(-5, 3).unflatten(-1, (N_HYPOTHESES, N_FUTURE, 1))
        return Distributions(paths, self.scores(hidden), log_scales.exp())


def _linear(n_in: int, n_out: int, gain: float = 1.0) -> nn.Linear:
    """Return a layer whose outputs have the variance of its inputs times gain^2, and a bias of 0."""
    layer = nn.Linear(n_in, n_out)
    bound = gain * math.sqrt(3 / n_in)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer
