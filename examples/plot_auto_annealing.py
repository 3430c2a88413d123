"""
Annealing that needs no tuning
==============================

When to cool, from where and how fast? :class:`~torchmcl.annealing.AutoAnnealing` uses measurements during training:
it learns a single answer while that keeps improving, and cools at once if a single answer explains little.
Two tables with the same architecture and the same settings get very different schedules.
"""

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet import Fleet, FleetData

# %%
# In both tables the target forks into two branches around a curve. In the first the branches are close together, so
# the curve explains most of the variance; in the second they are far apart, and the curve explains little.

generator = torch.Generator().manual_seed(0)
x = torch.rand(400, 1, generator=generator) * 4 - 2
branch = torch.where(torch.rand(400, 1, generator=generator) < 0.5, 1.0, -1.0)
tables = {distance: (torch.sin(2 * x) + distance * branch).unsqueeze(1) for distance in (0.05, 2.0)}

# %%
# One fleet trains both, each model on its own table.

fleet = Fleet(
    lambda: mcl.MultiHypothesisMLP(1, 1, n_hypotheses=2, hidden=(32,)),
    2,
    rule=AutoAnnealing(),
    learning_rate=0.01,
)
data = FleetData.of_sets([(x, y) for y in tables.values()], [0, 1])
history = fleet.fit(data, n_epochs=600, batch_size="all", progress=False)

# %%
# The selected temperatures, from the end of the hold on; during the hold the weights are uniform. Near branches: the
# hold lasts as long as the single answer keeps improving, and the temperature begins at half of its error. Far
# branches: a single answer explains little, and the hold ends after its first twentieth.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
for model, distance in enumerate(tables):
    temperature = history.temperatures[:, model]
    left.plot(temperature.where((temperature > 0) & (temperature < 1e3), torch.nan), label=f"branches ± {distance:g}")
left.set(yscale="log", xlabel="epoch", ylabel="temperature", title="decided in training")
left.legend()

grid = torch.linspace(-2, 2, 200).unsqueeze(-1)
hypotheses = fleet.predict(grid).hypotheses[0, ..., 0]
right.plot(x, tables[0.05][:, 0], ".", color="0.7", markersize=3)
right.plot(grid, hypotheses)
right.set(xlabel="x", ylabel="y", title="two answers, 0.1 apart")
figure.tight_layout()
plt.show()
