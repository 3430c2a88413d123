"""
EMD: equal parts
================

:class:`~torchmcl.EMD` assigns the same amount of target mass to each hypothesis, at the lowest total cost. Each of
the resulting hypotheses represents the same number of points, so no scores are needed. :class:`~torchmcl.WTA`
minimizes distances instead, and a hypothesis may then represent two points or thirty.
"""

# %%
# With equal numbers of targets and hypotheses the plan is a permutation, the same as :class:`~torchmcl.PIT`. With
# more targets, rows may be split to balance the loads.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

print(mcl.EMD()(torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 4.0]])))

# %%
# Ninety targets: a dense group and a sparse one. Six free hypotheses are fitted to them by each rule. EMD solves a
# linear program on the CPU in every step, so it is meant for sets of moderate size.

torch.manual_seed(0)
crowded = torch.tensor([-0.6, 0.0]) + 0.15 * torch.randn(75, 2)
sparse = torch.tensor([0.8, 0.0]) + 0.3 * torch.randn(15, 2)
targets = torch.cat([crowded, sparse])
start = targets[torch.randperm(90)[:6]]


def fit(rule):
    """Return the fitted hypotheses and their matching."""
    hypotheses = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([hypotheses], lr=1.5)
    for _ in range(80):
        matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets), rule)
        optimizer.zero_grad()
        mcl.mcl_loss(matching).backward()
        optimizer.step()
    return hypotheses.detach(), matching


# %%
# A line connects each target to the hypothesis with most of its mass; the number is the count of targets that a
# hypothesis represents.

plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(1, 2, figsize=(11, 4), sharex=True, sharey=True, layout="constrained")
for ax, rule in zip(axes, (mcl.WTA(), mcl.EMD()), strict=True):
    hypotheses, matching = fit(rule)
    carrier = hypotheses[matching.weights.argmax(dim=-1)]
    ax.plot(*torch.stack([targets, carrier]).permute(2, 0, 1), color="C0", linewidth=0.7, alpha=0.6, zorder=1)
    ax.scatter(*targets.T, s=14, color="0.6", label="targets", zorder=2)
    ax.scatter(*hypotheses.T, s=330, color="C1", edgecolor="white", label="hypotheses", zorder=3)
    for h, n in zip(hypotheses, matching.weights.sum(dim=0).tolist(), strict=True):
        ax.annotate(f"{n:.0f}", h, ha="center", va="center", weight="bold", fontsize=9, zorder=4)
    ax.set(title=f"{rule!r}, distortion {mcl.metrics.distortion(matching):.3f}", xlabel="$y_1$")
axes[0].set_ylabel("$y_2$")
axes[0].legend(loc="upper left", markerscale=0.6)
plt.show()
