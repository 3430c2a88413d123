"""
A custom cost
=============

A cost function measures the error of a hypothesis for a target. Write it for one pair, and
:class:`~torchmcl.Pairwise` applies it to all pairs of all samples. Here the answer is an angle, and angles are
periodic: 179 degrees and -179 degrees are close, but their squared difference is large.
"""

# %%
# The cost of one hypothesis for one target, both of shape [1], as a scalar. It is called under :func:`torch.vmap`,
# so it must not branch on values.

import math

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl


def turning_cost(hypothesis, target):
    """Return 0 for the same direction, 2 for the opposite one."""
    return (1 - torch.cos(hypothesis - target)).sum()


pairwise_turning = mcl.Pairwise(turning_cost)
angles = torch.tensor([[3.1], [0.0]])
print(pairwise_turning(hypotheses=angles, targets=torch.tensor([[-3.1]])))

# %%
# The data: a heading that turns with x, forwards or backwards with equal probability. The two answers differ by
# half a turn, and both cross the discontinuity of angles.

torch.manual_seed(0)


def wrapped(angle):
    """Return the angle, wrapped to [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def draw(n_samples):
    """Return inputs and headings, [samples, 1] each."""
    inputs = torch.rand(n_samples, 1)
    backwards = torch.randint(2, (n_samples, 1)) * math.pi
    return inputs, wrapped(5 * inputs + backwards + 0.08 * torch.randn(n_samples, 1))


def fit(cost_fn):
    """Return a network trained with a cost."""
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=2, hidden=(64, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 200))
    for step in range(400):
        inputs, targets = draw(128)
        output = mcl.mcl_step(model, mcl.Batch(inputs, targets.unsqueeze(1)), rule(step), cost_fn=cost_fn)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    return model


# %%
# Two hypotheses each. With the squared difference they must jump from top to bottom where the data do, and smooth
# the jump; with the periodic cost they are continuous, and only the drawing wraps them.

inputs, targets = draw(800)
grid = torch.linspace(0, 1, 400).unsqueeze(1)
plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
costs = {"squared difference": mcl.pairwise_sq_euclidean, "turning cost": pairwise_turning}
for ax, (name, cost_fn) in zip(axes, costs.items(), strict=True):
    model = fit(cost_fn)
    with torch.no_grad():
        hypotheses = wrapped(model(grid).hypotheses[..., 0])
        wrong = pairwise_turning(hypotheses=model(inputs).hypotheses, targets=targets.unsqueeze(1)).amin(-1)
    degrees = wrong.neg().add(1).clamp(-1, 1).acos().rad2deg().mean()
    ax.scatter(inputs, targets.rad2deg(), s=5, color="0.8", label="data")
    for k, (color, marker) in enumerate((("C0", "o"), ("C1", "s"))):
        ax.scatter(grid, hypotheses[:, k].rad2deg(), s=5, color=color, marker=marker, label=f"hypothesis {k + 1}")
    ax.set(xlabel="input x", yticks=(-180, -90, 0, 90, 180), title=f"{name}: mean error {degrees:.0f}°")
axes[0].set(ylabel="angle in degrees", ylim=(-190, 190))
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, markerscale=2.5)
plt.show()
