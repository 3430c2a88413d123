"""
A fork in the road: your first multi-hypothesis network
=======================================================

Some inputs have two right answers. Here the input is a number x, and the target is +√x in seven of ten cases and
-√x otherwise. A network with one output predicts a value in between, which is never right. A network with several
outputs and scores predicts both branches with their probabilities.
"""

# %%
# The data: the answer forks as x grows, and the upper branch is more frequent.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

torch.manual_seed(0)


def draw(n_points):
    """Return inputs and targets, [points, 1] each."""
    inputs = torch.rand(n_points, 1)
    sign = torch.where(torch.rand(n_points, 1) < 0.7, 1.0, -1.0)
    targets = sign * inputs.sqrt() + 0.05 * torch.randn(n_points, 1)
    return inputs, targets


# %%
# The ordinary network, trained with the squared error, learns the conditional mean.

single = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(single.parameters(), lr=5e-3)
for _ in range(500):
    inputs, targets = draw(256)
    loss = torch.nn.functional.mse_loss(single(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# The same loop with four hypotheses. Three things change: the model ends in a head with several hypotheses, the
# targets get an axis (with one target per input here), and :func:`~torchmcl.mcl_step` computes the loss. The
# temperature starts slightly above twice the variance of the targets, at which all hypotheses are still equal, and
# falls to zero.

model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=4, hidden=(64,))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(2.0, decay=0.9885, cutoff=1e-3))
for step in range(1000):
    inputs, targets = draw(256)
    output = mcl.mcl_step(model, mcl.Batch(inputs, targets.unsqueeze(1)), rule(step))
    optimizer.zero_grad()
    output.loss.backward()
    optimizer.step()

# %%
# The output: ``hypotheses`` [batch, 4, 1] and ``score_logits`` [batch, 4]. After
# :func:`~torchmcl.normalized_scores` the scores of an input sum to one; each is the probability that its
# hypothesis is the nearest to the truth.

grid = torch.linspace(0, 1, 60).unsqueeze(1)
with torch.no_grad():
    hypotheses, score_logits = model(grid)
    scores = mcl.normalized_scores(score_logits)
    one_answer = single(grid)
print("at x = 1:", [f"{h:+.2f} with score {s:.2f}" for h, s in zip(hypotheses[-1, :, 0], scores[-1], strict=True)])

plt.style.use("tableau-colorblind10")
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
inputs, targets = draw(600)
for ax in (left, right):
    ax.scatter(inputs, targets, s=6, color="0.8", label="data", zorder=0)
    ax.set_xlabel("input x")
left.plot(grid, one_answer, color="C0", linewidth=3, label="the only answer")
left.set_title("One answer: right on average, wrong every time")
left.set_ylabel("target y")
points = right.scatter(
    grid.expand(-1, 4), hypotheses[..., 0], c=scores, s=26, cmap="viridis_r", vmin=0, vmax=0.5, label="hypotheses"
)
fig.colorbar(points, ax=right, label="score of the hypothesis")
right.set_title("Four answers, each with a score")
for ax in (left, right):
    ax.legend(loc="upper left")
plt.show()
