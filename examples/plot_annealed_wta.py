"""
AnnealedWTA: from one answer to many
====================================

:class:`~torchmcl.AnnealedWTA` turns the costs of a target into weights by a softmin at a temperature
T. While it is hot every hypothesis hears of every target and all of them sit together at the mean.
As it cools they part, first into coarse groups, then into finer ones, and at T = 0 the rule is
:class:`~torchmcl.WTA`. The partings come at definite temperatures, and the first one can be computed
from the data.
"""

# %%
# The rule on one target, hot and cold.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

cost = torch.tensor([[0.3, 0.1, 0.2]])
for temperature in (10.0, 0.1, 0.01, 0.0):
    print(temperature, mcl.AnnealedWTA(temperature)(cost))

# %%
# Three narrow groups of points on a line, and sixteen hypotheses. For the squared error the first
# parting comes at 2 λ_max(Cov): twice the variance here. A single
# group of variance σ² parts near 2 σ².

torch.manual_seed(0)
SIGMA = 0.06
targets = torch.cat([centre + SIGMA * torch.randn(100) for centre in (-1.0, 0.2, 1.0)]).unsqueeze(1)
first_critical = 2 * targets.var(correction=0).item()
print(f"first critical temperature {first_critical:.3f}")

# %%
# Cool slowly, and keep the positions. A network is never still, which is what lets merged
# hypotheses part; free points need a touch of noise instead.

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
# Read the figure from left to right, hot to cold. The hypotheses start spread out and the heat brings
# them together at once: where they begin is forgotten. Then one line becomes two, three and many, and
# each parting lets the distortion fall. The first parting shows a little after its dashed line, because
# right at a critical temperature the pull apart is still weak.

plt.style.use("tableau-colorblind10")
fig, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6.4), sharex=True, height_ratios=(2, 1), layout="constrained")
top.plot(temperatures, torch.stack(positions), color="C0", linewidth=1)
top.set(ylabel="position of the hypotheses", title="Sixteen hypotheses while the temperature falls")
bottom.plot(temperatures, distortions, color="C1", linewidth=2)
bottom.set(xscale="log", yscale="log", xlabel="temperature (cooling to the right)", ylabel="distortion")
bottom.set_xlim(max(temperatures), 1.2e-3)
for ax in (top, bottom):
    ax.axvline(first_critical, color="black", linestyle="--", linewidth=1, label=r"$2\,\lambda_{\max}(\mathrm{Cov})$")
    ax.axvline(2 * SIGMA**2, color="black", linestyle=":", linewidth=1.4, label=r"$2\,\sigma^2$ of one group")
scatter = top.scatter(torch.full((100,), 1.3e-3), targets[::3, 0], s=8, color="0.6", label="data", zorder=3)
scatter.set_clip_on(False)
top.legend(loc="upper left", framealpha=1)
plt.show()
