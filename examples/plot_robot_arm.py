"""
Postures of a robot arm in the plane and in space
=================================================

A place of the hand can be reached with the elbow up or down, and in space also with the shoulder turned around: two and
four postures. Regression on random postures returns their mean, which misses the place. Hypotheses return the postures
themselves; with annealing, fewer of them are useless. All networks learn from random postures and their forward
kinematics; :doc:`/inverse_problems` measures more methods, and an arm with six joints.
"""

# %%
# Forward kinematics, and all postures that lead to a place, for comparison.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl_fleet import Fleet, FleetData

UPPER, LOWER = 0.6, 0.4  # meters
N_HYPOTHESES = 8
# Smallest and largest angle of the shoulder and the elbow; in space, the arm turns about a vertical axis first.
LIMITS = {"plane": [(-2.8, 2.8), (-2.8, 2.8)], "space": [(-2.8, 2.8), (0.0, 3.1), (-2.8, 2.8)]}


def joints(angles):
    """Return shoulder, elbow and hand [..., 3, 2 or 3] of an arm in the plane or in space."""
    shoulder, both = angles[..., -2], angles[..., -2] + angles[..., -1]
    reach = torch.stack([0 * both, UPPER * shoulder.cos(), UPPER * shoulder.cos() + LOWER * both.cos()], dim=-1)
    height = torch.stack([0 * both, UPPER * shoulder.sin(), UPPER * shoulder.sin() + LOWER * both.sin()], dim=-1)
    if angles.shape[-1] == 2:
        return torch.stack([reach, height], dim=-1)
    turn = angles[..., :1]
    return torch.stack([reach * turn.cos(), reach * turn.sin(), height], dim=-1)


def solutions(place):
    """Return all postures [..., 2 or 4, joints] that reach a place, including those outside of the limits."""
    *flat, height = place.unbind(dim=-1)
    reach = torch.hypot(*flat) if len(flat) == 2 else flat[0]
    found = []
    for side in (1, -1)[: len(flat)]:  # in space, the arm also reaches over its own shoulder
        cosine = (reach**2 + height**2 - UPPER**2 - LOWER**2) / (2 * UPPER * LOWER)
        for elbow in (cosine.clamp(-1, 1).acos(), -cosine.clamp(-1, 1).acos()):
            lower = torch.atan2(LOWER * elbow.sin(), UPPER + LOWER * elbow.cos())
            posture = [torch.atan2(height, side * reach) - lower, elbow]
            turn = [torch.atan2(side * flat[1], side * flat[0])] if len(flat) == 2 else []
            found.append(torch.stack([*turn, *posture], dim=-1))
    return torch.remainder(torch.stack(found, dim=-2) + torch.pi, 2 * torch.pi) - torch.pi


def random_postures(limits, n):
    """Return postures [n, joints] inside the limits."""
    low, high = torch.tensor(limits).unbind(dim=-1)
    return low + (high - low) * torch.rand(n, len(limits))


# %%
# Three networks for each arm: regression, winner-takes-all and annealed winner-takes-all.

COOLING = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(8.0, 0.85, cutoff=0.01))
RULES = {"regression": mcl.WTA(), "winner-takes-all": mcl.WTA(), "annealed": COOLING}


def trained(angles, n_hypotheses, rules, n_epochs=60):
    """Return a fleet, one model for each rule."""
    places = joints(angles)[:, -1]
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(places.shape[-1], angles.shape[-1], n_hypotheses, hidden=(128, 128)),
        n_models=len(rules),
        rule=rules,
        learning_rate=mcl.Cosine(3e-3, 0.0, n_epochs),
        seeds=[0] * len(rules),
    )
    fleet.fit(FleetData.shared(places, angles.unsqueeze(1), len(rules)), n_epochs, batch_size=250, progress=False)
    return fleet


def coverage(postures, places, limits, radius=0.4):
    """Return the share of the solutions inside the limits that have a hypothesis within a radius, in radians."""
    low, high = torch.tensor(limits).unbind(dim=-1)
    true = solutions(places)
    inside = ((true >= low) & (true <= high)).all(dim=-1)
    return mcl.metrics.mode_coverage(mcl.Predictions(postures), true, inside, radius=radius)


torch.manual_seed(0)
answers, goals = {}, {"plane": torch.tensor([[0.4, 0.5]]), "space": torch.tensor([[0.35, 0.35, 0.45]])}
print(f"{'arm':6} {'method':17} miss of the best   of all   solutions found")
for arm, limits in LIMITS.items():
    angles, tests = random_postures(limits, 4000), random_postures(limits, 500)
    places = joints(tests)[:, -1]
    single = trained(angles, 1, [mcl.WTA()])
    several = trained(angles, N_HYPOTHESES, list(RULES.values())[1:])
    for name, model in zip(RULES, [single.models[0], *several.models], strict=True):
        with torch.no_grad():
            postures, answers[arm, name] = model(places).hypotheses, model(goals[arm]).hypotheses[0]
        miss = torch.linalg.vector_norm(joints(postures)[..., -1, :] - places.unsqueeze(1), dim=-1)
        found = coverage(postures, places, limits)
        print(f"{arm:6} {name:17} {miss.amin(dim=-1).mean():11.3f} m {miss.mean():9.3f} m {found:14.0%}")

# %%
# The answers for one place (cross) of each arm. Gray: the true postures.

figure = plt.figure(figsize=(11, 7), layout="constrained")
for row, arm in enumerate(LIMITS):
    for column, name in enumerate(RULES):
        options = {"projection": "3d"} if arm == "space" else {"aspect": "equal"}
        ax = figure.add_subplot(2, 3, 3 * row + column + 1, **options)
        for posture in joints(solutions(goals[arm])[0]):
            ax.plot(*posture.T, color="0.75", lw=7, solid_capstyle="round")
        for posture in joints(answers[arm, name]):
            ax.plot(*posture.T, marker="o", ms=4, color="#0072B2", lw=1.5)
        ax.plot(*goals[arm].T, "x", color="#D55E00", ms=12, mew=3, zorder=5)
        ax.set_title(f"{name}, {arm}")
plt.show()
