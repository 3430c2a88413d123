"""
The tree of hypotheses
======================

As the temperature falls, the hypotheses of an annealed network split: first into the modes of the targets, then
into parts of them. Weights saved during cooling reproduce these splits for any input, as a tree.
"""

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl.annealing import HypothesisTree, WeightHistory, draw_dendrogram, draw_tree
from torchmcl.data.synthetic import conditional_three_gaussians

# %%
# Three Gaussians that start together at x = 0 and separate as x grows. A network with 16 hypotheses is annealed on
# new points, and its weights are saved at intervals.

torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = mcl.MultiHypothesisMLP(1, 2, n_hypotheses=16, hidden=(48, 48), output_activation=torch.tanh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
n_steps = 1000
rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.6, 0.0, n_steps))
history = WeightHistory(model)
for step in range(n_steps):
    batch = conditional_three_gaussians(256, generator)
    loss = mcl.mcl_step(model, batch, rule(step)).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        history.add(rule(step).temperature, model)

# %%
# The tree at x = 0.9 has one root, three modes and the individual hypotheses below them.

(tree,) = HypothesisTree.for_inputs(torch.tensor([[0.9]]), history)
for mode in tree.children(tree.root):
    place = ", ".join(f"{value:+.2f}" for value in mode.position.tolist())
    print(f"mode at ({place}), mass {mode.mass:.2f}, born at T = {mode.birth_temperature:.2f}")

# %%
# The tree over the data, and against the temperature.

inputs, targets, *_ = conditional_three_gaussians(20_000, generator)
near = targets[(inputs[:, 0] - 0.9).abs() < 0.02, 0]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6))
draw_tree(tree, left, near)
left.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", title="the tree of x = 0.9 over its targets")
draw_dendrogram(tree, right)
right.set_title("the same tree against the temperature")
figure.tight_layout()
plt.show()
