"""
RelaxedWTA: a small weight for all
==================================

:class:`~torchmcl.RelaxedWTA` gives the winner the weight 1 - ε and divides ε among the others. Every hypothesis
has a gradient, so none stays at its initial position. The price is a bias towards the mean of the data: hypotheses that
rarely win gather there, and with a large ε even the winners are drawn towards it.
"""

# %%
# The rule on one target: with epsilon 0 it is :class:`~torchmcl.WTA`.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

cost = torch.tensor([[0.3, 0.1, 0.2]])
for epsilon in (0.0, 0.1, 0.5):
    print(epsilon, mcl.RelaxedWTA(epsilon)(cost))

# %%
# Twenty free points on three Gaussians, with the same poor initialization as in the example of
# :class:`~torchmcl.WTA`. The last run anneals epsilon from one half to zero: :func:`~torchmcl.annealed` schedules
# any field of any rule.

CENTRES = torch.tensor([[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]])
N_STEPS = 600


def draw(n_points):
    """Return points of the three Gaussians, [points, 2]."""
    return CENTRES[torch.randint(3, (n_points,))] + 0.1 * torch.randn(n_points, 2)


def fit(rule):
    """Return the hypotheses after training."""
    torch.manual_seed(0)
    hypotheses = torch.nn.Parameter(torch.tensor([0.9, 0.0]) + 0.15 * torch.randn(20, 2))
    optimizer = torch.optim.SGD([hypotheses], lr=0.9)
    for step in range(N_STEPS):
        cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=draw(500))
        loss = mcl.mcl_loss(mcl.assign(cost, rule(step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return hypotheses.detach()


runs = {
    r"$\varepsilon = 0.1$": lambda step: mcl.RelaxedWTA(0.1),
    r"$\varepsilon = 0.5$": lambda step: mcl.RelaxedWTA(0.5),
    r"$\varepsilon$ from 0.5 to 0": mcl.annealed(mcl.RelaxedWTA, epsilon=mcl.Linear(0.5, 0.0, N_STEPS - 100)),
}

# %%
# Hollow marks are hypotheses that win fewer than one point in a thousand; most of them coincide at the mean.
# Compare the winners on the left, in the middle of their groups, with those in the center panel.

points = draw(3000)
plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(1, 3, figsize=(11, 4.6), sharex=True, sharey=True, layout="compressed")
for ax, (name, rule) in zip(axes, runs.items(), strict=True):
    hypotheses = fit(rule)
    matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=points), mcl.WTA())
    rare = mcl.metrics.hypothesis_usage(matching) < 1e-3
    ax.scatter(*points[:1200].T, s=4, color="0.8", zorder=0)
    ax.scatter(*hypotheses[~rare].T, s=40, color="C1", edgecolor="white", label="wins")
    ax.scatter(*hypotheses[rare].T, s=34, facecolor="none", edgecolor="C0", linewidth=1.4, label="hardly ever wins")
    ax.plot(*points.mean(0), "+", color="black", markersize=12, label="mean of the data")
    ax.set(aspect="equal", xlim=(-0.95, 0.95), ylim=(-0.95, 1.05), xlabel="$y_1$")
    ax.set_title(f"{name}\ndistortion {mcl.metrics.distortion(matching):.4f}\n{int(rare.sum())} of 20 hardly ever win")
axes[0].set_ylabel("$y_2$")
axes[0].legend(loc="upper left", fontsize=9)
plt.show()
