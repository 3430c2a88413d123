"""
Many networks at once
=====================

A comparison of rules needs many seeds. A fleet trains all seeds of all rules together, in one loop of batched
operations.
"""

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl_fleet import Fleet, FleetData

# %%
# The truth forks into three branches. Ten seeds of three rules make thirty networks.

generator = torch.Generator().manual_seed(0)
x = torch.rand(400, 1, generator=generator)
branch = torch.randint(-1, 2, (400, 1), generator=generator)
y = (branch * x + 0.03 * torch.randn(400, 1, generator=generator)).unsqueeze(1)

n_seeds = 10
cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(0.5, 0.97, cutoff=1e-3))
rules = {"WTA": mcl.WTA(), "Relaxed-WTA (0.1)": mcl.RelaxedWTA(0.1), "annealed": cooling}
n_models = n_seeds * len(rules)
data = FleetData.shared(x, y, n_models)
fleet = Fleet(
    lambda: mcl.MultiHypothesisMLP(1, 1, n_hypotheses=8, hidden=(32,)),
    n_models,
    rule=[rule for rule in rules.values() for _ in range(n_seeds)],
    learning_rate=0.01,
    seeds=list(range(n_seeds)) * len(rules),
)
fleet.fit(data, n_epochs=300, batch_size="all", progress=False)

# %%
# Every point is one network: the distortion of its eight answers.

distortion = fleet.evaluate(data)["distortion"].view(len(rules), n_seeds)
figure, axis = plt.subplots(figsize=(6.4, 4.2))
for position, (name, values) in enumerate(zip(rules, distortion, strict=True)):
    jitter = torch.linspace(-0.15, 0.15, n_seeds)
    axis.plot(position + jitter, values, "o", color=["#D55E00", "#CC79A7", "#0072B2"][position], alpha=0.8, label=name)
    axis.plot([position - 0.25, position + 0.25], [values.median()] * 2, color="#222", lw=1.5)
axis.set(yscale="log", xticks=range(len(rules)), xticklabels=list(rules), ylabel="distortion (lower is better)")
axis.set_title("Ten seeds of each rule, trained as one fleet")
figure.tight_layout()
plt.show()
