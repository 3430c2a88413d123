"""Posteriors of three inverse problems of sbibm by annealed mixtures of full normals.

The simulators come from the sbibm tasks "two moons", "SLCP" and "Gaussian mixture"; observations are read from a file
with arrays `TASK_i_observation` and `TASK_i_reference`, made from the files of sbibm. Ensembles that differ in the
space of the parameters, the first temperature (1 is a mixture density network) and the weight decay are trained in one
stack. All choices are made by the likelihood of held-out simulations; the references are only read by `c2st.py`.

    python -m benchmarks.inverse.inverse_problems --data out/sbibm.npz --simulations 10000 --out out/inverse
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import torchmcl as mcl
from benchmarks._common import captured
from torchmcl.costs import FullNormal
from torchmcl.density import mixture_distribution

COST = mcl.MixtureNLL(FullNormal())
HELD_OUT, LARGEST_HELD_OUT = 0.1, 5000


class Task(NamedTuple):
    """A uniform prior on a cube, a simulator, and the sizes (components, hidden units) of the networks to try."""

    dim: int
    bound: float
    simulate: Callable[[Tensor], Tensor]
    sizes: tuple[tuple[int, int], ...]


def two_moons(theta: Tensor) -> Tensor:
    """Return points on a crescent, shifted by a map with two preimages."""
    angle = (torch.rand(len(theta)) - 0.5) * math.pi
    radius = 0.1 + 0.01 * torch.randn(len(theta))
    crescent = torch.stack([radius * angle.cos() + 0.25, radius * angle.sin()], dim=-1)
    total, difference = theta.sum(dim=-1), theta[:, 1] - theta[:, 0]
    return crescent + torch.stack([-total.abs(), difference], dim=-1) / math.sqrt(2)


def slcp(theta: Tensor) -> Tensor:
    """Return four points of a normal distribution whose parameters enter squared or through tanh."""
    s1, s2, rho = theta[:, 2].square(), theta[:, 3].square(), theta[:, 4].tanh()
    covariance = torch.stack([s1 * s1 + 1e-6, rho * s1 * s2, rho * s1 * s2, s2 * s2 + 1e-6], dim=-1).view(-1, 2, 2)
    factor = torch.linalg.cholesky(covariance.double()).float()
    noise = torch.randn(len(theta), 4, 2)
    return (theta[:, None, :2] + noise @ factor.mT).flatten(1)


def gaussian_mixture(theta: Tensor) -> Tensor:
    """Return the parameters with wide or narrow noise."""
    scale = torch.where(torch.rand(len(theta), 1) < 0.5, 1.0, 0.1)
    return theta + scale * torch.randn_like(theta)


TASKS = {
    "two_moons": Task(2, 1.0, two_moons, ((64, 256),)),
    "slcp": Task(5, 3.0, slcp, ((16, 256),)),
    "gaussian_mixture": Task(2, 10.0, gaussian_mixture, ((4, 64), (12, 128))),
}


class Space(NamedTuple):
    """Coordinates of the parameters: the cube divided by its standard deviation, or spread over the whole space."""

    bound: float
    spread: bool

    def forward(self, theta: Tensor) -> Tensor:
        """Return coordinates of parameters."""
        share = (theta / self.bound + 1) / 2
        return torch.special.ndtri(share.clamp(1e-6, 1 - 1e-6)) if self.spread else theta * math.sqrt(3) / self.bound

    def back(self, z: Tensor) -> Tensor:
        """Return parameters of coordinates."""
        return (2 * torch.special.ndtr(z) - 1) * self.bound if self.spread else z * self.bound / math.sqrt(3)

    def log_volume(self, z: Tensor) -> Tensor:
        """Return the log of how much the parameters change with the coordinates."""
        if not self.spread:
            return z.new_full(z.shape[:-1], z.shape[-1] * math.log(self.bound / math.sqrt(3)))
        return (math.log(2 * self.bound) - 0.5 * z.square() - 0.5 * math.log(2 * math.pi)).sum(dim=-1)


class Settings(NamedTuple):
    """Settings of the networks of one ensemble: coordinates, first temperature, weight decay."""

    spread: bool
    start: float
    decay: float


class Simulations(NamedTuple):
    """Network inputs [rows, inputs] and parameters in both spaces [2, rows, dim]; the first rows are held out."""

    inputs: Tensor
    z: Tensor
    n_held: int


class Networks(nn.Module):
    """Networks in a stack, from [networks, rows, inputs] to mixtures of full normals, with a linear path beside."""

    def __init__(self, n_members: int, n_groups: int, n_inputs: int, dim: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.dim, (self.n_components, width) = dim, size
        n_out = self.n_components * (dim + 1 + FullNormal().n_scales(dim))
        sizes = [(n_inputs, width), (width, width), (width, width), (width, n_out), (n_inputs, n_out)]
        biases = [torch.zeros(n_members, 1, b) for _, b in sizes[:4]]
        biases[3][..., : self.n_components * dim].normal_()
        weights = [torch.randn(n_members, a, b) * a**-0.5 for a, b in sizes]
        weights[3:] = [weight / 3 for weight in weights[3:]]
        # All groups have the same first weights.
        self.weights, self.biases = (
            nn.ParameterList(part.repeat(n_groups, 1, 1) for part in parts) for parts in (weights, biases)
        )

    def forward(self, x: Tensor) -> mcl.Distributions:
        """Return a mixture for each network and row."""
        h = x
        for weight, bias in zip(self.weights[:3], self.biases[:3], strict=True):
            h = nn.functional.gelu(torch.baddbmm(bias, h, weight))
        out = torch.baddbmm(self.biases[3], h, self.weights[3]) + x @ self.weights[4]
        k, dim = self.n_components, self.dim
        places, logits, raw = out.split([k * dim, k, k * FullNormal().n_scales(dim)], dim=-1)
        scale = FullNormal().scale(raw.unflatten(-1, (k, -1)), 1e-3)
        return mcl.Distributions(places.unflatten(-1, (k, dim)), logits, scale)


class Training:
    """Training of all networks; all changing values are tensors, so that a step can be captured as a CUDA graph."""

    def __init__(self, networks: Networks, groups: list[Settings], data: Simulations, n_steps: int) -> None:
        device, self.n_networks = data.z.device, len(networks.weights[0])
        self.networks, self.data, self.n_steps = networks, data, n_steps
        each = [group for group in groups for _ in range(self.n_networks // len(groups))]
        self.space = torch.tensor([int(one.spread) for one in each], device=device)
        self.start = torch.tensor([one.start for one in each], device=device).view(-1, 1, 1, 1)
        self.decay = torch.tensor([one.decay for one in each], device=device).view(-1, 1, 1)
        self.done, self.rate = torch.zeros((), device=device), torch.zeros((), device=device)
        self.parameters = list(networks.parameters())
        capturable = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.rate, fused=True, capturable=capturable)

    def step(self) -> None:
        """Train on one batch per network, with temperatures that fall to 1 in the first third."""
        inputs, z, n_held = self.data
        share = self.done / self.n_steps
        self.rate.copy_(2e-3 * (20 * share).clamp(max=1) * (0.5 + 0.5 * torch.cos(math.pi * share)))
        rows = torch.randint(n_held, len(inputs), (self.n_networks, 256), device=z.device)
        batch = mcl.Batch(inputs[rows], z[self.space[:, None], rows].unsqueeze(2))
        rule = mcl.AnnealedWTA(self.start ** (1 - 3 * share).clamp(min=0))
        self.optimizer.zero_grad()
        mcl.mcl_step(self.networks, batch, rule, cost_fn=COST, score_weight=0, stacked=True).loss.sum().backward()
        with torch.no_grad():
            norms = torch.stack([each.grad.square().sum(dim=(1, 2)) for each in self.parameters]).sum(dim=0).sqrt()
            for each in self.parameters:
                each.grad.mul_((5 / norms).clamp(max=1).view(-1, 1, 1))
                each.mul_(1 - self.rate * self.decay)
        self.optimizer.step()
        self.done += 1

    @torch.no_grad()
    def held_out(self) -> Tensor:
        """Return the log density [networks, rows] of the held-out parameters in the coordinates of each network."""
        inputs, z, n_held = self.data
        parts = []
        for rows in torch.arange(n_held, device=z.device).split(1000):
            predictions = self.networks(inputs[rows].expand(self.n_networks, -1, -1))
            targets = z[self.space][:, rows].unsqueeze(2)
            cost = COST(hypotheses=predictions[0], targets=targets, score_logits=predictions[1], scale=predictions[2])
            parts.append((-cost).logsumexp(dim=-1).squeeze(-1))
        return torch.cat(parts, dim=-1)

    def run(self) -> Tensor:
        """Train; each network keeps its weights of the best held-out likelihood. Return the log densities."""
        replay = captured(self.step) if self.data.z.is_cuda else self.step
        kept = [each.detach().clone() for each in self.parameters]
        best = torch.full((self.n_networks, 1, 1), -math.inf, device=self.data.z.device)
        every = max(self.n_steps // 50, 1)
        for step in range(self.n_steps):
            replay()
            if step % every == every - 1:
                now = self.held_out().mean(dim=-1).view(-1, 1, 1).nan_to_num(-math.inf)
                for copy, each in zip(kept, self.parameters, strict=True):
                    copy.copy_(torch.where(now > best, each.detach(), copy))
                best = torch.maximum(now, best)
        with torch.no_grad():
            for copy, each in zip(kept, self.parameters, strict=True):
                each.copy_(copy)
        return self.held_out()


class Ensemble(NamedTuple):
    """Networks of a trained stack, with the log-likelihood of held-out parameters."""

    networks: Networks
    members: slice
    settings: Settings
    space: Space
    likelihood: float

    @property
    def n_members(self) -> int:
        """The number of networks."""
        return int(self.members.stop - self.members.start)

    @torch.no_grad()
    def draw(self, inputs: Tensor, n: int) -> Tensor:
        """Return n draws of each member for each row of inputs, [rows, members * n, dim]."""
        predictions = self.networks(inputs.expand(len(self.networks.weights[0]), *inputs.shape))
        predictions = mcl.Distributions(*(part[self.members] for part in predictions))
        drawn = mixture_distribution(predictions, FullNormal()).sample((n,))  # [n, members, rows, dim]
        return self.space.back(drawn.flatten(0, 1).transpose(0, 1))

    def posterior(self, inputs: Tensor, n: int) -> Tensor:
        """Return n draws inside the prior for one row of inputs."""
        drawn = self.draw(inputs, 50 * n // self.n_members)[0]
        drawn = drawn[(drawn.abs() <= self.space.bound).all(dim=-1)]
        return drawn[torch.randperm(len(drawn), device=drawn.device)[:n]]


def ensemble(training: Training, log_probs: Tensor, members: slice, settings: Settings, bound: float) -> Ensemble:
    """Return an ensemble with the log density of its draws inside the prior."""
    space, (inputs, z, n_held) = Space(bound, settings.spread), training.data
    mixed = log_probs[members].logsumexp(dim=0) - math.log(len(log_probs[members]))
    likelihood = float((mixed - space.log_volume(z[int(settings.spread), :n_held])).mean())
    found = Ensemble(training.networks, members, settings, space, likelihood)
    if settings.spread:
        return found
    inside = (found.draw(inputs[: min(n_held, 500)], 200).abs() <= bound).all(dim=-1).float().mean(dim=-1)
    # Draws outside of the prior are rejected, so that the density inside is larger.
    return found._replace(likelihood=likelihood - float(inside.clamp(min=1e-3).log().mean()))


def fits(task: Task, data: Simulations, options: argparse.Namespace) -> list[Ensemble]:
    """Return the ensembles of all settings and sizes, and the first network of each as a separate ensemble."""
    groups = [Settings(*each) for each in itertools.product((False, True), options.starts, options.decays)]
    found = []
    for size in task.sizes:
        torch.manual_seed(options.seed + 1)
        networks = Networks(options.members, len(groups), data.inputs.shape[-1], task.dim, size).to(data.z.device)
        training = Training(networks, groups, data, options.steps)
        log_probs = training.run()
        for i, group in enumerate(groups):
            first = i * options.members
            for last in {first + 1, first + options.members}:
                found.append(ensemble(training, log_probs, slice(first, last), group, task.bound))
    return found


def run(name: str, data: dict[str, np.ndarray], options: argparse.Namespace) -> None:
    """Write draws of the selected ensembles, and a record of all ensembles."""
    task, started = TASKS[name], time.time()
    torch.manual_seed(options.seed)
    theta = (2 * torch.rand(options.simulations, task.dim) - 1) * task.bound
    x = task.simulate(theta)
    center, unit = x.mean(dim=0), x.std(dim=0)

    def features(x: Tensor) -> Tensor:
        z = (x - center) / unit
        return torch.cat([z, torch.asinh(4 * z)], dim=-1).to(options.device)  # the noise of SLCP has heavy tails

    z = torch.stack([Space(task.bound, spread).forward(theta) for spread in (False, True)])
    n_held = min(int(HELD_OUT * len(x)), LARGEST_HELD_OUT)
    tried = fits(task, Simulations(features(x), z.to(options.device), n_held), options)
    chosen, record = {}, {}
    kinds = {
        "annealed": [one for one in tried if one.settings.start > 1 and one.n_members > 1],
        "mixture density": [one for one in tried if one.settings.start == 1 and one.n_members > 1],
        "one network": [one for one in tried if one.settings.start == 1 and one.n_members == 1],
    }
    for kind, those in kinds.items():
        best = max(those, key=lambda one: one.likelihood)
        rows = [torch.as_tensor(data[f"{name}_{i}_observation"]) for i in range(1, 11)]
        draws = [best.posterior(features(row), options.samples).cpu().numpy() for row in rows]
        chosen |= {f"{kind}_{i}": drawn for i, drawn in enumerate(draws, start=1)}
        everything = [(one.networks.n_components, *one.settings, round(one.likelihood, 4)) for one in those]
        size = (best.networks.n_components, best.networks.weights[0].shape[-1])
        record[kind] = {"size": size, **best.settings._asdict(), "held_out": best.likelihood, "tried": everything}
        print(name, options.simulations, kind, size, best.settings, round(best.likelihood, 3), flush=True)
    record["seconds"] = time.time() - started
    print(name, options.simulations, "seconds", round(record["seconds"]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"{name}-{options.simulations}-{options.seed}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1))
    partial = stem.with_suffix(".part.npz")
    np.savez(partial, **chosen)
    partial.rename(stem.with_suffix(".npz"))  # complete for those who watch the folder


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--simulations", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--starts", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--decays", type=float, nargs="+", default=[0.02, 0.5])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    with np.load(options.data) as file:
        data = dict(file)
    for name in options.tasks:
        run(name, data, options)


if __name__ == "__main__":
    main()
