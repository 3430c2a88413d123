"""
AnnealedWTA: from one answer to many
====================================

:class:`~torchmcl.AnnealedWTA` turns the costs of a target into weights by a softmin at a temperature T. At a high
temperature every hypothesis is trained on every target, and all of them are at the mean. As the temperature falls
they split, first into coarse groups, then into finer ones, and at T = 0 the rule is :class:`~torchmcl.WTA`. Merged
hypotheses first split at the local critical temperature, which can be computed from the data.
"""

# %%
# The rule on one target, at a high and at a low temperature.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

cost = torch.tensor([[0.3, 0.1, 0.2]])
for temperature in (10.0, 0.1, 0.01, 0.0):
    print(temperature, mcl.AnnealedWTA(temperature)(cost))

# %%
# Three narrow groups of points on a line, and sixteen hypotheses. For the squared error the first split occurs at
# 2 λ_max(Cov): twice the variance here. A single group of variance σ² splits near 2 σ².

torch.manual_seed(0)
SIGMA = 0.06
targets = torch.cat([center + SIGMA * torch.randn(100) for center in (-1.0, 0.2, 1.0)]).unsqueeze(1)
critical = 2 * targets.var(correction=0).item()
print(f"local critical temperature {critical:.3f}")

# %%
# Cool slowly, and record the positions. Merged hypotheses of a network separate because of the noise of training;
# free points need a small amount of noise instead.

hypotheses = torch.nn.Parameter(torch.linspace(-1, 1, 16).unsqueeze(1))
optimizer = torch.optim.SGD([hypotheses], lr=3.0)
cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(4.0, decay=0.9969, cutoff=1e-3))
temperatures, positions, distortions = [], [], []
for step in range(2650):
    with torch.no_grad():
        hypotheses += 1e-3 * torch.randn_like(hypotheses)
    rule = cooling(step)
    matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets), rule)
    optimizer.zero_grad()
    mcl.mcl_loss(matching).backward()
    optimizer.step()
    temperatures.append(rule.temperature)
    positions.append(hypotheses.detach().flatten().clone())
    distortions.append(mcl.metrics.distortion(matching).item())

# %%
# The temperature falls from left to right. The hypotheses start spread out and merge at once: the result does not
# depend on their initial positions. Then one line becomes two, three and many, and each split lowers the
# distortion. The first split appears slightly after its dashed line, because the separating force is weak at a
# critical temperature.

plt.style.use("tableau-colorblind10")
fig, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6.4), sharex=True, height_ratios=(2, 1), layout="constrained")
top.plot(temperatures, torch.stack(positions), color="C0", linewidth=1)
top.set(ylabel="position of the hypotheses", title="Sixteen hypotheses while the temperature falls")
bottom.plot(temperatures, distortions, color="C1", linewidth=2)
bottom.set(xscale="log", yscale="log", xlabel="temperature (cooling to the right)", ylabel="distortion")
bottom.set_xlim(max(temperatures), 1.2e-3)
for ax in (top, bottom):
    ax.axvline(critical, color="black", linestyle="--", linewidth=1, label=r"$2\,\lambda_{\max}(\mathrm{Cov})$")
    ax.axvline(2 * SIGMA**2, color="black", linestyle=":", linewidth=1.4, label=r"$2\,\sigma^2$ of one group")
scatter = top.scatter(torch.full((100,), 1.3e-3), targets[::3, 0], s=8, color="0.6", label="data", zorder=3)
scatter.set_clip_on(False)
top.legend(loc="upper left", framealpha=1)
plt.show()
