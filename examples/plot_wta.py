"""
WTA: the winner takes all
=========================

:class:`~torchmcl.WTA` gives the whole weight of a target to its cheapest hypothesis. It is the basic form of
multiple choice learning and minimizes the distance to the nearest hypothesis. Its weakness appears after a poor
initialization: hypotheses that never win get no gradient and never move.
"""

# %%
# The rule on one target with three hypotheses: all the weight is on the cheapest.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

print(mcl.WTA()(torch.tensor([[0.3, 0.1, 0.2]])))

# %%
# To show the rule without a network, the hypotheses are free points in the plane. The data are three Gaussians.
# All twenty hypotheses start at the right end of the picture.

torch.manual_seed(0)
CENTRES = torch.tensor([[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]])


def draw(n_points):
    """Return points of the three Gaussians, [points, 2]."""
    return CENTRES[torch.randint(3, (n_points,))] + 0.1 * torch.randn(n_points, 2)


start = torch.tensor([0.9, 0.0]) + 0.15 * torch.randn(20, 2)
hypotheses = torch.nn.Parameter(start.clone())
optimizer = torch.optim.SGD([hypotheses], lr=0.9)
for _ in range(800):
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=draw(500))  # [targets, hypotheses]
    loss = mcl.mcl_loss(mcl.assign(cost, mcl.WTA()))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Count the winners on new points. A hypothesis that is nearest to no point is unused.

points = draw(3000)
with torch.no_grad():
    matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=points), mcl.WTA())
wins = mcl.metrics.hypothesis_usage(matching)
starved = wins == 0
print(f"distortion {mcl.metrics.distortion(matching):.4f}, starved {mcl.metrics.n_dead_hypotheses(matching)} of 20")

plt.style.use("tableau-colorblind10")
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), sharex=True, sharey=True, layout="compressed")
end = hypotheses.detach()
for ax in (left, right):
    ax.scatter(*points[:1200].T, s=4, color="0.8", label="data", zorder=0)
    ax.set(aspect="equal", xlim=(-1, 1.35), ylim=(-0.95, 0.95), xlabel="$y_1$")
left.set(title="Before training", ylabel="$y_2$")
left.scatter(*start.T, s=40, color="C1", edgecolor="white", label="hypotheses")
right.set_title("After training: the winners shared the data,\nthe others never moved")
for a, b in zip(start[~starved], end[~starved], strict=True):
    right.plot(*torch.stack([a, b]).T, color="C1", linewidth=0.8, alpha=0.5, zorder=1)
right.scatter(*end[~starved].T, s=40, color="C1", edgecolor="white", label="hypotheses that win")
right.scatter(*end[starved].T, s=34, facecolor="none", edgecolor="C0", linewidth=1.4, label="starved hypotheses")
left.legend(loc="upper left")
right.legend(loc="upper right")
plt.show()
