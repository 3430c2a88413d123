"""Posteriors of three inverse problems of sbibm by annealed mixtures of full normals, judged by C2ST.

The simulators are those of the tasks "two moons", "SLCP" and "Gaussian mixture"; observations and reference samples are
read from a file with arrays `TASK_i_observation` and `TASK_i_reference`, made of the files of sbibm. Networks of an
ensemble are trained at once. All choices (space of the parameters, epoch) are made by the likelihood of held-out
simulations, never by the references.

    python benchmarks/inverse_problems.py --data out/sbibm.npz --simulations 10000 --out out/inverse.json
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

import torchmcl as mcl
from torchmcl.costs import FullNormal
from torchmcl.density import mixture_distribution

#: Mean C2ST of the published neural posterior estimation, over the ten observations.
PUBLISHED = {
    10_000: {"two_moons": 0.606, "slcp": 0.901, "gaussian_mixture": 0.661},
    100_000: {"two_moons": 0.542, "slcp": 0.831, "gaussian_mixture": 0.555},
}
HELD_OUT = 0.1


class Task(NamedTuple):
    """A uniform prior on a cube, and a simulator."""

    dim: int
    bound: float
    simulate: Callable[[Tensor], Tensor]
    n_components: int


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
    "two_moons": Task(2, 1.0, two_moons, 48),
    "slcp": Task(5, 3.0, slcp, 32),
    "gaussian_mixture": Task(2, 10.0, gaussian_mixture, 8),
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


class Networks(nn.Module):
    """Networks in a stack, from [networks, rows, inputs] to mixtures of full normals, with a linear path beside."""

    def __init__(self, n_networks: int, n_inputs: int, dim: int, n_components: int, width: int) -> None:
        super().__init__()
        self.dim, self.n_components, self.family = dim, n_components, FullNormal()
        n_out = n_components * (dim + 1 + self.family.n_scales(dim))
        sizes = [(n_inputs, width), (width, width), (width, width), (width, n_out), (n_inputs, n_out)]
        self.weights = nn.ParameterList(torch.randn(n_networks, a, b) * a**-0.5 for a, b in sizes)
        self.biases = nn.ParameterList(torch.zeros(n_networks, 1, b) for _, b in sizes[:4])
        self.biases[3].data[..., : n_components * dim] = torch.randn(n_networks, 1, n_components * dim)

    def forward(self, x: Tensor) -> mcl.Distributions:
        """Return a mixture for each network and row."""
        h = x
        for weight, bias in zip(self.weights[:3], self.biases[:3], strict=True):
            h = nn.functional.gelu(torch.baddbmm(bias, h, weight))
        out = torch.baddbmm(self.biases[3], h, self.weights[3]) + x @ self.weights[4]
        k, dim = self.n_components, self.dim
        places, logits, raw = out.split([k * dim, k, k * self.family.n_scales(dim)], dim=-1)
        scale = self.family.scale(raw.unflatten(-1, (k, -1)), 1e-3)
        return mcl.Distributions(places.unflatten(-1, (k, dim)), logits, scale)


class Fit(NamedTuple):
    """Trained networks, and the log-likelihood of held-out parameters."""

    networks: Networks
    space: Space
    centre: Tensor
    unit: Tensor
    likelihood: float


def fit(task: Task, theta: Tensor, x: Tensor, *, spread: bool, annealed: bool, n_steps: int, n_networks: int) -> Fit:
    """Train an ensemble; each network keeps its weights of the best held-out likelihood."""
    space = Space(task.bound, spread)
    centre, unit = x.mean(dim=0), x.std(dim=0)
    # The noise of SLCP has heavy tails.
    inputs, z = torch.asinh((x - centre) / unit), space.forward(theta)
    n_held = int(HELD_OUT * len(x))
    networks = Networks(n_networks, x.shape[-1], task.dim, task.n_components, 128).to(x.device)
    optimizer = torch.optim.AdamW(networks.parameters(), lr=1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=n_steps, pct_start=0.05)
    cooling = mcl.Exponential(10.0, 1.0, n_steps // 3)
    cost_fn, best = mcl.MixtureNLL(networks.family), torch.full((n_networks,), -math.inf)
    kept = {name: value.clone() for name, value in networks.state_dict().items()}
    for step in range(n_steps):
        rows = n_held + torch.randint(len(x) - n_held, (n_networks, 256), device=x.device)
        batch = mcl.Batch(inputs[rows], z[rows].unsqueeze(2))
        rule = mcl.AnnealedWTA(cooling(step) if annealed else 1.0)
        loss = mcl.mcl_step(networks, batch, rule, cost_fn=cost_fn, score_weight=0, stacked=True).loss.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(networks.parameters(), 5.0 * n_networks)
        optimizer.step()
        schedule.step()
        if step % 100 == 99 or step == n_steps - 1:
            now = _log_probs(networks, inputs[:n_held], z[:n_held]).mean(dim=-1).cpu()
            better = now > best
            best = torch.where(better, now, best)
            for name, value in networks.state_dict().items():
                kept[name][better] = value[better]
    networks.load_state_dict(kept)
    mixed = _log_probs(networks, inputs[:n_held], z[:n_held]).logsumexp(dim=0) - math.log(n_networks)
    return Fit(networks, space, centre, unit, float((mixed - space.log_volume(z[:n_held])).mean()))


@torch.no_grad()
def _log_probs(networks: Networks, inputs: Tensor, z: Tensor) -> Tensor:
    """Return the log density of each network at each row, in pieces."""
    parts = []
    for some, there in zip(inputs.split(2000), z.split(2000), strict=True):
        predictions = networks(some.expand(len(networks.weights[0]), *some.shape))
        parts.append(mixture_distribution(predictions, networks.family).log_prob(there))
    return torch.cat(parts, dim=-1)


@torch.no_grad()
def posterior_samples(fitted: Fit, observation: Tensor, n: int) -> Tensor:
    """Return draws of the ensemble inside the prior."""
    inputs = torch.asinh((observation - fitted.centre) / fitted.unit)
    n_networks = len(fitted.networks.weights[0])
    mixture = mixture_distribution(fitted.networks(inputs.expand(n_networks, 1, -1)), fitted.networks.family)
    drawn = fitted.space.back(mixture.sample((4 * n // n_networks,)).flatten(0, -2))
    drawn = drawn[(drawn.abs() <= fitted.space.bound).all(dim=-1)]
    return drawn[torch.randperm(len(drawn), device=drawn.device)[:n]]


def c2st(samples: np.ndarray, reference: np.ndarray) -> float:
    """Return the accuracy of a classifier that tells both apart, as in sbibm: 0.5 is perfect."""
    mean, deviation = reference.mean(axis=0), reference.std(axis=0, ddof=1)
    data = np.concatenate([(reference - mean) / deviation, (samples - mean) / deviation])
    labels = np.repeat([0, 1], [len(reference), len(samples)])
    size = 10 * reference.shape[1]
    classifier = MLPClassifier((size, size), max_iter=10_000, solver="adam", random_state=1)
    folds = KFold(n_splits=5, shuffle=True, random_state=1)
    return float(cross_val_score(classifier, data, labels, cv=folds, scoring="accuracy").mean())


def run(name: str, data: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, object]:
    """Return the C2ST of both ways of training on one task."""
    task, started = TASKS[name], time.time()
    torch.manual_seed(options.seed)
    theta = (2 * torch.rand(options.simulations, task.dim) - 1) * task.bound
    x = task.simulate(theta).to(options.device)
    theta = theta.to(options.device)
    found: dict[str, object] = {"published_npe": PUBLISHED.get(options.simulations, {}).get(name)}
    for annealed in (True, False):
        torch.manual_seed(options.seed + 1)
        settings = {"annealed": annealed, "n_steps": options.steps, "n_networks": options.networks}
        fits = [fit(task, theta, x, spread=spread, **settings) for spread in (False, True)]
        chosen = max(fits, key=lambda each: each.likelihood)
        jobs = []
        for i in range(1, options.observations + 1):
            reference = data[f"{name}_{i}_reference"][: options.samples]
            observation = torch.as_tensor(data[f"{name}_{i}_observation"]).to(options.device)
            jobs.append((posterior_samples(chosen, observation, len(reference)).cpu().numpy(), reference))
        values = Parallel(n_jobs=options.jobs)(delayed(c2st)(*job) for job in jobs)
        found["annealed" if annealed else "mixture_likelihood"] = {
            "c2st": float(np.mean(values)),
            "each": values,
            "held_out": [each.likelihood for each in fits],
        }
        print(
            name, annealed, round(float(np.mean(values)), 3), [round(each.likelihood, 3) for each in fits], flush=True
        )
    found["seconds"] = time.time() - started
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--simulations", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--networks", type=int, default=8)
    parser.add_argument("--observations", type=int, default=10)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    with np.load(options.data) as file:
        data = dict(file)
    results: dict[str, object] = {"simulations": options.simulations, "steps": options.steps, "seed": options.seed}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.tasks:
        results[name] = run(name, data, options)
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
