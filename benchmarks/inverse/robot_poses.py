"""Postures of robot arms in the plane and in space: several hypotheses against regression, ensembles and dropout.

Joint angles are drawn at random, forward kinematics give the pose of the hand, and networks learn the way back. All
methods have the same number of predictions, hidden layers and steps. A prediction is evaluated by its hand pose.

    python -m benchmarks.inverse.robot_poses --out out/robots.json
"""

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import torchmcl as mcl
from torchmcl.costs import FullNormal, pairwise_geodesic, pairwise_sq_angle, wrap_angle
from torchmcl.density import mixture_distribution
from torchmcl_fleet import Fleet, FleetData

LENGTHS = (0.6, 0.4, 0.25)
# Rows of the table of Denavit and Hartenberg (shift along z, shift along x, turn about x) of an arm with six joints and
# a wrist whose axes meet: eight postures for most poses.
ARM = ((0.4, 0.0, math.pi / 2), (0.0, 0.5, 0.0), (0.0, 0.0, math.pi / 2), (0.4, 0.0, -math.pi / 2))
ARM += ((0.0, 0.0, math.pi / 2), (0.1, 0.0, 0.0))


def plane_hand(angles: Tensor) -> Tensor:
    """Return the hand position [..., 2] of an arm with three joints in the plane."""
    total = angles.cumsum(dim=-1)
    lengths = torch.tensor(LENGTHS, device=angles.device, dtype=angles.dtype)
    return torch.stack([(lengths * total.cos()).sum(dim=-1), (lengths * total.sin()).sum(dim=-1)], dim=-1)


def space_hand(angles: Tensor) -> Tensor:
    """Return hand position and first two columns of the hand rotation [..., 9] of an arm with six joints."""
    pose = torch.eye(4, device=angles.device, dtype=angles.dtype).expand(*angles.shape[:-1], 4, 4)
    for angle, (along_z, along_x, turn) in zip(angles.unbind(dim=-1), ARM, strict=True):
        c, s, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
        ca, sa = math.cos(turn), math.sin(turn)
        rows = [c, -s * ca, s * sa, along_x * c, s, c * ca, -c * sa, along_x * s]
        rows += [zero, sa * one, ca * one, along_z * one, zero, zero, zero, one]
        pose = pose @ torch.stack(rows, dim=-1).unflatten(-1, (4, 4))
    return torch.cat([pose[..., :3, 3], pose[..., :3, 0], pose[..., :3, 1]], dim=-1)


ARMS = {"plane": (3, plane_hand), "space": (6, space_hand)}
N_ANSWERS, BATCH = 16, 512
LIMIT = 0.8 * math.pi
# An answer finds a solution if its joints are within this angle, as a root mean square.
NEAR = math.radians(20)
N_SOLVED = 200


def falling(start: float, end: float, n_steps: float) -> mcl.Exponential:
    """Return a schedule from `start` to `end` in some steps, and 0 afterwards."""
    return mcl.Exponential(start, (end / start) ** (1 / n_steps), cutoff=0.999 * end)


def solutions(
    poses: Tensor, n_joints: int, hand: Callable[[Tensor], Tensor], n_starts: int = 128
) -> tuple[Tensor, Tensor]:
    """Return postures [rows, starts, joints] that reach poses, and weights that count each solution once.

    Newton's method from random starts; the weight of those that did not arrive inside the limits is 0.
    """
    poses = poses.double()
    angles = (2 * torch.rand(len(poses), n_starts, n_joints, device=poses.device).double() - 1) * LIMIT
    one = torch.eye(n_joints, device=poses.device, dtype=poses.dtype)
    for _ in range(60):
        ahead, behind = (hand(angles.unsqueeze(-2) + side * one) for side in (1e-6, -1e-6))
        slope, miss = (ahead - behind).mT / 2e-6, poses.unsqueeze(1) - hand(angles)  # [rows, starts, numbers, joints]
        square = slope.mT @ slope + 1e-4 * one
        angles = angles + torch.linalg.solve(square, (slope.mT @ miss.unsqueeze(-1)).squeeze(-1)).clamp(-0.5, 0.5)
    angles = wrap_angle(angles)
    arrived = (poses.unsqueeze(1) - hand(angles)).abs().amax(dim=-1) < 1e-3
    arrived &= (angles.abs() <= LIMIT).all(dim=-1)
    apart = wrap_angle(angles.unsqueeze(1) - angles.unsqueeze(2)).square().mean(dim=-1).sqrt()
    alike = ((apart < 0.1) & arrived.unsqueeze(1)).sum(dim=-1)
    return angles.float(), arrived / alike.clamp(min=1)


def trained(
    options: argparse.Namespace,
    model: nn.Module,
    poses: Tensor,
    angles: Tensor,
    rule: Callable[[int], mcl.AssignmentRule],
    **step_options: object,
) -> nn.Module:
    """Return a model after training with a falling learning rate."""
    model = model.to(poses.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(options.steps):
        rows = torch.randint(len(poses), (BATCH,), device=poses.device)
        output = mcl.mcl_step(model, mcl.Batch(poses[rows], angles[rows]), rule(step), **step_options)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def regressions(options: argparse.Namespace, model: Callable[[], nn.Module], poses: Tensor, angles: Tensor) -> Fleet:
    """Return trained networks with a single prediction, for an ensemble."""
    n_epochs = max(1, options.steps * BATCH // len(poses))
    rate = mcl.Cosine(2e-3, 0.0, n_epochs)
    fleet = Fleet(model, N_ANSWERS, learning_rate=rate, cost_fn=pairwise_sq_angle, device=options.device)
    data = FleetData.shared(poses, angles.unsqueeze(1), N_ANSWERS)
    fleet.fit(data, n_epochs, batch_size=BATCH, progress=False)
    return fleet


def answers_of(options: argparse.Namespace, poses: Tensor, angles: Tensor, tests: Tensor) -> dict[str, Tensor]:
    """Return the predictions [rows, predictions, joints] of each method."""
    n_in, n_joints = poses.shape[-1], angles.shape[-1]
    mlp = functools.partial(mcl.MultiHypothesisMLP, n_in, n_joints, hidden=(256, 256, 256))
    spread = float(n_joints) * math.pi**2 / 3
    hard, cool = lambda step: mcl.WTA(), falling(spread, 1e-3 * spread, 0.7 * options.steps)
    train = functools.partial(trained, options, poses=poses, angles=angles)
    angular = {"cost_fn": pairwise_sq_angle}
    found = {}
    single = regressions(options, lambda: mlp(1, scores=False), poses, angles).predict(tests.cpu()).hypotheses.to(tests)
    found["regression"] = single[0].expand(-1, N_ANSWERS, -1)
    found["ensemble"] = single.squeeze(2).transpose(0, 1)
    dropped = train(mlp(1, scores=False, dropout=0.1), rule=hard, **angular).train()
    found["dropout"] = torch.cat([dropped(tests).hypotheses for _ in range(N_ANSWERS)], dim=1)
    found["winner takes all"] = train(mlp(N_ANSWERS), rule=hard, **angular)(tests).hypotheses
    annealed = train(mlp(N_ANSWERS), rule=lambda step: mcl.AnnealedWTA(cool(step)), **angular)
    found["annealed"] = annealed(tests).hypotheses
    mixture = {"cost_fn": mcl.MixtureNLL(FullNormal()), "score_weight": 0}
    for name, start in (("mixture likelihood", 1.0), ("annealed mixture", 3.0)):
        warm = falling(start, 1.0, options.steps / 2)
        rule = lambda step, warm=warm: mcl.AnnealedWTA(max(warm(step), 1.0))  # noqa: E731
        model = train(mlp(N_ANSWERS, scales=FullNormal()), rule=rule, **mixture)
        predictions = model(tests)
        found[f"{name}, draws"] = mixture_distribution(predictions, FullNormal()).sample((N_ANSWERS,)).transpose(0, 1)
        found[f"{name}, means"] = predictions.hypotheses
    return {name: value.detach() for name, value in found.items()}


def judged(
    answers: Tensor, angles: Tensor, poses: Tensor, hand: Callable[[Tensor], Tensor], solved: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Return errors of the predicted poses and postures, and the fraction of solutions that were found."""
    reached = hand(answers)
    n = 2 if poses.shape[-1] == 2 else 3
    place = torch.linalg.vector_norm(reached[..., :n] - poses[:, None, :n], dim=-1)  # [rows, answers]
    nearest = place.argmin(dim=-1)
    turn = wrap_angle(answers - angles[:, None]).square().mean(dim=-1).sqrt()
    values = {"place of the best": place.amin(dim=-1).mean(), "place of all": place.mean()}
    values["posture of the best"] = turn.amin(dim=-1).mean()
    if n == 3:
        rotation = pairwise_geodesic(hypotheses=reached[..., 3:], targets=poses[:, None, 3:]).squeeze(1)
        values["rotation of the best place"] = rotation.gather(-1, nearest[:, None]).mean()
    values["diversity"] = mcl.metrics.average_pairwise_distance(mcl.Predictions(reached[..., :n].clone()))
    ways, weight = solved
    near = wrap_angle(ways.unsqueeze(2) - answers[: len(ways)].unsqueeze(1)).square().mean(dim=-1).sqrt().amin(dim=-1)
    values["solutions found"] = (weight * (near < NEAR)).sum() / weight.sum()
    values["solutions"] = weight.sum() / len(ways)
    return {name: float(value) for name, value in values.items()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    results: dict[str, object] = {"steps": options.steps, "rows": options.rows, "seed": options.seed}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.arms:
        started = time.time()
        torch.manual_seed(options.seed)
        n_joints, hand = ARMS[name]
        angles = ((2 * torch.rand(options.rows + 1000, n_joints) - 1) * LIMIT).to(options.device)
        poses = hand(angles)
        answers = answers_of(options, poses[1000:], angles[1000:], poses[:1000])
        solved = solutions(poses[:N_SOLVED], n_joints, hand)
        results[name] = {
            way: judged(values, angles[:1000], poses[:1000], hand, solved) for way, values in answers.items()
        }
        for way, values in results[name].items():
            print(name, f"{way:20}", {key: round(value, 3) for key, value in values.items()}, flush=True)
        results[f"{name} seconds"] = time.time() - started
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
