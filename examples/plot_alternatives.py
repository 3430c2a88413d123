"""
Ensembles, quantiles, mixtures and hypotheses on a fork
=======================================================

The target lies on an upper or on a lower branch, independently of the input. A deep ensemble, quantile regression, a
mixture density network and multiple choice learning predict five values each. All members of the ensemble lie between
the branches; the other three methods have values on both.
"""

# %%
# The data, and one training loop for all methods.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl

torch.manual_seed(0)
x = torch.rand(500, 1)
y = torch.where(torch.rand(500, 1) < 0.5, x, -x) + 0.02 * torch.randn(500, 1)
batch = mcl.Batch(x, y)


def train(model, loss_of, n_steps=250):
    """Train `model` and return its predictions."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(n_steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    with torch.no_grad():
        return model(x)


def mlp(n_outputs):
    """Return a small network."""
    return torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), torch.nn.Linear(32, n_outputs))


# %%
# A deep ensemble: five networks with different initial weights.

ensemble = [train(mlp(1), lambda model, step: ((model(x) - y) ** 2).mean()) for _ in range(5)]
answers = {"deep ensemble": torch.cat(ensemble, dim=-1)}

# %%
# Quantile regression: five levels by the pinball loss.

levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])


def pinball(model, step):
    """Return the pinball loss of all levels."""
    error = y - model(x)
    return torch.maximum(levels * error, (levels - 1) * error).mean()


answers["quantile regression"] = train(mlp(5), pinball)

# %%
# A mixture density network: the likelihood of five normal components.

mixture = mcl.MixtureNLL(mcl.pairwise_gaussian_nll)


def mixture_step(model, step):
    """Return the loss of a mixture density network."""
    return mcl.mcl_step(model, batch, mcl.AnnealedWTA(1.0), cost_fn=mixture, score_weight=0).loss


answers["mixture density network"] = train(
    mcl.MultiHypothesisMLP(1, 1, 5, hidden=(32,), scales=True), mixture_step
).hypotheses.squeeze(-1)

# %%
# Multiple choice learning, annealed.

rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, decay=0.97, cutoff=1e-3))
answers["multiple choice learning"] = train(
    mcl.MultiHypothesisMLP(1, 1, 5, hidden=(32,)), lambda model, step: mcl.mcl_step(model, batch, rule(step)).loss
).hypotheses.squeeze(-1)

# %%
# The mean squared distance of the target to the nearest of the five values.

nearest = {name: ((values - y) ** 2).amin(dim=-1).mean() for name, values in answers.items()}
for name, value in nearest.items():
    print(f"{name:<26} nearest of five: {value:.5f}")
assert nearest["multiple choice learning"] < 0.2 * nearest["deep ensemble"]

# %%
# The five values of each method for all inputs.

figure, panels = plt.subplots(1, 4, figsize=(12, 3), sharey=True, layout="constrained")
order = x.squeeze(-1).argsort()
for panel, (name, values) in zip(panels, answers.items(), strict=True):
    panel.plot(x, y, ".", color="0.8", markersize=2)
    panel.plot(x[order], values[order], color="C0", linewidth=1)
    panel.set(title=name, xlabel="x")
panels[0].set_ylabel("y")
plt.show()
