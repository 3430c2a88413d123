"""
Theory: prediction and observation
==================================

Before training, :mod:`torchmcl.theory` predicts the temperatures at which hypotheses split, and the minimum
distortion of n hypotheses. Here free points are cooled on three Gaussians, and the predictions are compared with
the result. Then they are heated again, and stay separate for longer than they stayed merged.
"""

# %%
# The samples, and the first prediction: merged hypotheses separate below twice the largest variance. The first critical
# temperature, above which nothing is better than one position, is higher. Both are computed from the samples.

import math

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl import theory

generator = torch.Generator().manual_seed(0)
centers = torch.tensor([[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]], dtype=torch.float64)
samples = centers[torch.randint(3, (600,), generator=generator)]
samples = samples + 0.1 * torch.randn(600, 2, generator=generator, dtype=torch.float64)
local = theory.local_critical_temperature(samples).item()
first = theory.critical_temperature(samples)
print(f"merged hypotheses should separate at T = {local:.3f}, and each group again near {2 * 0.1**2:.2f}")
print(f"first critical temperature: between {first.lower:.4f} and {first.upper:.4f}")

# %%
# Deterministic annealing of twelve points: at each temperature they move to the means of the samples, weighted by the
# Boltzmann weights, until they stop. Then the temperature falls by 5 %. The transitions follow from the records.

temperatures = 1.2 * local * 0.95 ** torch.arange(108)
points, records = samples.mean(dim=0).expand(12, 2), []
for temperature in temperatures.tolist():
    scale = 1e-3 * math.sqrt(temperature)
    points = points + scale * torch.randn(12, 2, generator=generator)  # separates equal points
    for update in range(100):
        cost = mcl.pairwise_sq_euclidean(hypotheses=points, targets=samples)
        before, points = points, theory.soft_barycenters(samples, theory.boltzmann_weights(cost, temperature))
        if update > 20 and (points - before).norm(dim=-1).max() < scale:
            break
    records.append(points)
records = torch.stack(records)

for transition in theory.observed_transitions(theory.Trajectory(temperatures, records))[:4]:
    print(
        f"between T = {transition.temperature_before:.4f} and {transition.temperature:.4f}:"
        f" {transition.n_before} -> {transition.n_after} places"
    )

# %%
# Each record has a distortion and a rate. They move up along the rate-distortion curve of the samples, computed by
# the Blahut-Arimoto algorithm. As long as the points form equally used groups they are on the curve; at the end
# the rate approaches log2 n. Shannon's bound is that of the distribution: on the left it exceeds the curve of a
# finite set of samples, whose rate is at most log2 of their number.

costs = [mcl.pairwise_sq_euclidean(hypotheses=points, targets=samples) for points in records]
weights = [theory.boltzmann_weights(c, t) for c, t in zip(costs, temperatures.tolist(), strict=True)]
distortions = torch.stack([theory.soft_distortion(c, w) for c, w in zip(costs, weights, strict=True)])
rates = torch.stack([theory.mutual_information(w) for w in weights])
slopes = torch.logspace(math.log10(0.004), math.log10(0.46), 12, dtype=torch.float64)
curve = theory.rate_of_samples(samples[:300], slopes, n_iters=300)
entropy = theory.differential_entropy(samples)
bound = theory.shannon_lower_bound(curve.distortion, entropy=entropy, dim=2)

plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
axes[0].plot(temperatures, records[..., 0], color="C0", linewidth=1)
for value, name in ((local, "$2 \\lambda_{max}$"), (0.02, "$2 \\sigma^2$")):
    axes[0].axvline(value, color="C1", linestyle="--")
    axes[0].text(value, 0.72, f" {name}", color="C1", ha="left", va="top")
axes[0].set(
    xscale="log", xlabel="temperature", ylabel="$y_1$ of the hypotheses", title="Where they part", ylim=(-0.8, 0.8)
)
axes[0].invert_xaxis()

axes[1].plot(temperatures, theory.n_distinct(records, theory.thermal_tolerance(temperatures)), color="C0", marker=".")
axes[1].axvline(local, color="C1", linestyle="--")
axes[1].axvline(0.02, color="C1", linestyle="--")
axes[1].set(xscale="log", yscale="log", xlabel="temperature", ylabel="distinct hypotheses", title="How many there are")
axes[1].set_yticks([1, 2, 3, 6, 12], labels=["1", "2", "3", "6", "12"])
axes[1].minorticks_off()
axes[1].invert_xaxis()

axes[2].plot(curve.distortion, curve.rate, color="0.4", linewidth=2, label="R(D) of the samples")
axes[2].plot(curve.distortion, bound, color="C3", linestyle=":", linewidth=2, label="Shannon's lower bound")
axes[2].plot(distortions, rates, color="C0", marker=".", label="while cooling")
axes[2].axhline(math.log2(12), color="C1", linestyle="--", label="$\\log_2 n$")
axes[2].set(xlabel="soft distortion", ylabel="rate (bits)", title="Up along the curve", ylim=(-0.2, 5), xscale="log")
axes[2].legend(loc="lower left")
plt.show()

# %%
# Hysteresis: 24 points are cooled from above the first critical temperature and heated again, at equilibrium at each
# step. They stay merged down to the local critical temperature, although split states have a lower free energy before.
# On the way back they stay separate almost up to the first critical temperature. A Gaussian has no such range: its two
# temperatures are equal.

path = torch.linspace(1.08 * local, 0.9 * local, 16).tolist()
points, distortions = samples.mean(dim=0).expand(24, 2), []
for temperature in path + path[::-1]:
    points = points + 1e-3 * torch.randn(24, 2, generator=generator, dtype=torch.float64)
    for _ in range(300):
        cost = mcl.pairwise_sq_euclidean(hypotheses=points, targets=samples)
        weights = theory.boltzmann_weights(cost, temperature)
        points = theory.soft_barycenters(samples, weights)
    distortions.append(theory.soft_distortion(cost, weights))

fig, axis = plt.subplots(figsize=(7, 4), layout="constrained")
axis.plot(path, distortions[:16], color="C0", marker="v", label="cooling")
axis.plot(path[::-1], distortions[16:], color="C3", marker="^", label="heating")
axis.axvline(local, color="C1", linestyle="--", label="$2 \\lambda_{max}$")
axis.axvline(first.temperature, color="C1", linestyle=":", label="$T_0^c$")
axis.set(xlabel="temperature", ylabel="soft distortion", title="The state depends on the past")
axis.legend()
plt.show()
