"""
Sinkhorn: equal loads
=====================

:class:`~torchmcl.Sinkhorn` is :class:`~torchmcl.AnnealedWTA` with an additional constraint: over the targets of a
sample, every hypothesis has the same total weight. Rows and columns of the weights are rescaled in turn until both
constraints hold. A hypothesis far from all targets, which a softmin would ignore, gets its share of the weight and is
drawn to the targets.
"""

# %%
# Forty targets in two groups, and four hypotheses. Three are well placed, the fourth is far away.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

torch.manual_seed(0)
targets = torch.cat([torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.0])]).view(2, 1, 2) + 0.25 * torch.randn(2, 20, 2)
targets = targets.flatten(0, 1)
hypotheses = torch.tensor([[-1.1, 0.15], [0.9, 0.2], [1.1, -0.2], [0.0, 1.6]])
cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)

# %%
# The weights of both rules at the same temperature, and the total weight of each hypothesis.

rules = {"AnnealedWTA(0.1)": mcl.AnnealedWTA(0.1), "Sinkhorn(0.1)": mcl.Sinkhorn(0.1, n_iters=200)}
matchings = {name: mcl.assign(cost, rule) for name, rule in rules.items()}
for name, matching in matchings.items():
    print(name, [round(share, 3) for share in mcl.metrics.hypothesis_usage(matching).tolist()])

# %%
# The temperature, in the units of the cost, controls the sharpness of the division: a high temperature gives an
# even mixture, a low one approaches the exact plan of :class:`~torchmcl.EMD` and needs more iterations. The
# entropy of a row measures the number of hypotheses that share a target.

temperatures = torch.logspace(-2, 1, 25)
shared_by = {
    name: [torch.special.entr(rule(t)(cost)).sum(-1).mean().exp().item() for t in temperatures.tolist()]
    for name, rule in {"AnnealedWTA": mcl.AnnealedWTA, "Sinkhorn": lambda t: mcl.Sinkhorn(t, n_iters=500)}.items()
}

plt.style.use("tableau-colorblind10")
PLATE = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
fig, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained", width_ratios=(1.2, 1.2, 1))
for ax, (name, matching) in zip(axes, matchings.items(), strict=False):
    for t, row in zip(targets, matching.weights, strict=True):
        for h, weight in zip(hypotheses, row.tolist(), strict=True):
            ax.plot(*torch.stack([t, h]).T, color="C0", alpha=0.6 * weight, linewidth=1)
    ax.scatter(*targets.T, s=14, color="0.6", label="targets")
    ax.scatter(*hypotheses.T, s=110, color="C1", edgecolor="white", label="hypotheses", zorder=3)
    for h, share in zip(hypotheses, mcl.metrics.hypothesis_usage(matching).tolist(), strict=True):
        ax.annotate(f"{share:.0%}", h + torch.tensor([0.0, 0.14]), ha="center", va="bottom", weight="bold", bbox=PLATE)
    ax.set(title=f"{name}: share of the weight", xlabel="$y_1$", xlim=(-1.7, 1.9), ylim=(-0.75, 2.1))
axes[0].set_ylabel("$y_2$")
axes[0].legend(loc="upper left")
for (name, values), line in zip(shared_by.items(), ("-", "--"), strict=True):
    axes[2].plot(temperatures, values, linestyle=line, linewidth=2, label=name)
axes[2].set(xscale="log", xlabel="temperature", ylabel="hypotheses sharing a target", title="Sharper when colder")
axes[2].legend(loc="upper left")
plt.show()
