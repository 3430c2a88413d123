"""
PIT: one hypothesis for each target
===================================

For inputs with several targets without an order, :class:`~torchmcl.PIT` finds the cheapest one-to-one assignment.
:class:`~torchmcl.WTA` would assign two close targets to one hypothesis; under PIT each target has its own. There may be
more hypotheses than targets, and the number of real targets may vary.
"""

# %%
# Two targets whose cheapest hypothesis is the same. PIT minimizes the total cost of the assignment.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

cost = torch.tensor([[0.0, 1.0, 5.0], [0.1, 3.0, 5.0]])
print(mcl.WTA()(cost))
print(mcl.PIT()(cost))

# %%
# The data: two curves that cross, and a third that exists only on the right. The targets of a sample are in random
# order, and a mask marks the real ones among the three.

torch.manual_seed(0)


def curves(inputs):
    """Return the three curves, [samples, 3]."""
    return torch.stack([torch.sin(2 * inputs), -torch.sin(2 * inputs), 1.8 + 0.3 * inputs], dim=-1)


def draw(n_samples):
    """Return a batch with the targets of each sample in random order."""
    inputs = 2 * torch.rand(n_samples) - 1
    targets = curves(inputs) + 0.03 * torch.randn(n_samples, 3)
    real = torch.ones(n_samples, 3, dtype=torch.bool)
    real[:, 2] = inputs > 0.2
    order = torch.rand(n_samples, 3).argsort(dim=-1)
    return mcl.Batch(inputs.unsqueeze(1), targets.gather(1, order).unsqueeze(-1), real.gather(1, order))


# %%
# The loop is explicit, because the scores should follow the one-to-one rule as well: ``SigmoidScores(PIT())``. A
# hypothesis without a real target has label 0.

model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=3, hidden=(64, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
rule, scores = mcl.PIT(), mcl.SigmoidScores(mcl.PIT())
for _ in range(300):
    inputs, targets, mask, _ = draw(64)
    hypotheses, score_logits = model(inputs)
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
    matching = mcl.assign(cost, rule, mask)
    loss = mcl.mcl_loss(matching, reduction="sample_mean")
    loss = loss + scores.loss(score_logits, scores.labels(cost, matching.weights, mask), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# A score is the share of the sample's targets assigned to a hypothesis: one half each on the left, where there are
# two targets, one third each on the right.

batch = draw(400)
grid = torch.linspace(-1, 1, 120).unsqueeze(1)
with torch.no_grad():
    hypotheses, score_logits = model(grid)
    scores = score_logits.sigmoid()

plt.style.use("tableau-colorblind10")
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.scatter(
    batch.inputs.expand(-1, 3)[batch.mask], batch.targets[..., 0][batch.mask], s=5, color="0.75", label="real targets"
)
styles = (("C0", "-"), ("C1", "--"), ("black", ":"))
for k, (color, line) in enumerate(styles):
    sure = scores[:, k] > 0.1
    where = grid[:, 0].masked_fill(~sure, torch.nan)
    left.plot(where, hypotheses[:, k, 0], color=color, linestyle=line, linewidth=2.5, label=f"hypothesis {k + 1}")
    right.plot(grid, scores[:, k], color=color, linestyle=line, linewidth=2.5, label=f"hypothesis {k + 1}")
left.set(xlabel="input x", ylabel="y", ylim=(-1.2, 2.75), title="Hypotheses with a score above 0.1")
left.legend(loc="upper left", ncols=2, fontsize=9)
right.set(xlabel="input x", ylabel="score", ylim=(-0.03, 0.75), title="Share of the targets each answers for")
right.legend(loc="upper left", fontsize=9)
plt.show()
