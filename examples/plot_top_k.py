"""
TopK: the k cheapest share, and k shrinks
=========================================

:class:`~torchmcl.TopK` divides the weight of a target equally among its k cheapest hypotheses. With k = 1 it is
:class:`~torchmcl.WTA`. If k falls from all hypotheses to one during training, which is known as evolving
winner-takes-all, every hypothesis reaches the data before the competition becomes strict.
"""

# %%
# The rule on one target with four hypotheses.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

cost = torch.tensor([[0.3, 0.1, 0.2, 0.9]])
for k in (4, 2, 1):
    print(k, mcl.TopK(k)(cost))

# %%
# Twenty free points on three Gaussians from a poor initialization, with k fixed and with k falling. A schedule may
# return fractions: the rule rounds them.

CENTRES = torch.tensor([[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]])
N_STEPS = 700


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


falling = mcl.annealed(mcl.TopK, k=mcl.Linear(20, 1, 500))
runs = {"k = 1": lambda step: mcl.TopK(1), "k = 5": lambda step: mcl.TopK(5), "k from 20 to 1": falling}

# %%
# With k = 1 most hypotheses stay unused. With k = 5 they move in groups of five that coincide. When k falls, the
# groups dissolve one by one.

points = draw(3000)
plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(1, 3, figsize=(11, 4.2), sharex=True, sharey=True, layout="compressed")
for ax, (name, rule) in zip(axes, runs.items(), strict=True):
    hypotheses = fit(rule)
    matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=points), mcl.WTA())
    wins = mcl.metrics.hypothesis_usage(matching) > 0
    ax.scatter(*points[:1200].T, s=4, color="0.8", zorder=0)
    ax.scatter(*hypotheses[wins].T, s=40, color="C1", edgecolor="white", label="wins")
    ax.scatter(*hypotheses[~wins].T, s=34, facecolor="none", edgecolor="C0", linewidth=1.4, label="starved")
    ax.set(aspect="equal", xlim=(-0.95, 1.35), ylim=(-0.95, 0.95), xlabel="$y_1$")
    ax.set_title(f"{name}\ndistortion {mcl.metrics.distortion(matching):.4f}, starved {int((~wins).sum())} of 20")
axes[0].set_ylabel("$y_2$")
axes[0].legend(loc="upper left", fontsize=9)
plt.show()
