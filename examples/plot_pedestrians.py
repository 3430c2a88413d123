"""
Pedestrian trajectories
=======================

From a file of positions to several possible futures: windows of pedestrians, a network with ten hypotheses of
twelve steps, annealed winner-takes-all on the average displacement, and a picture. :doc:`../pedestrians` is a
study of these recordings.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import torchmcl as mcl
from torchmcl_studies.data import pedestrians

# %%
# A recording has a line for each person and frame: frame, person, x, y. If TORCHMCL_DATA names a folder with the
# recordings of ETH/UCY, the first half of one is used for training. Otherwise the walkers are synthetic: they come
# from the left, and at a crossing each turns left, turns right or continues straight.

file = Path(os.environ.get("TORCHMCL_DATA", "absent")) / "pedestrians" / "all" / "crowds_zara01.txt.gz"
if file.is_file():
    recording = pedestrians.read(file)
else:
    print("The recordings are absent: these walkers are made up.")
    draw = np.random.default_rng(0)
    turns = draw.integers(-1, 2, (120, 1)) * np.where((np.arange(20) > 8) & (np.arange(20) < 13), 0.35, 0.0)
    angles = (turns + draw.normal(0, 0.03, turns.shape)).cumsum(axis=1)
    steps = draw.normal(0.5, 0.05, (120, 1, 1)) * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    paths = draw.normal(0, 0.5, (120, 1, 2)) + steps.cumsum(axis=1)
    rows = [(i + 5 * person, person, *paths[person, i]) for person in range(120) for i in range(20)]
    recording = pedestrians.Recording.from_rows(np.array(rows))
samples = pedestrians.windows(recording)

# %%
# The input of the network is the last steps, and its hypotheses are offsets from the last position. All hypotheses
# start close together, where plain winner-takes-all would leave some unused, so the rule is annealed.

half = len(samples) // 2
last = samples.observed[:, -1:]
inputs, targets = samples.observed.diff(dim=1).flatten(1), samples.future - last
torch.manual_seed(0)
model = mcl.MultiHypothesisMLP(14, (12, 2), n_hypotheses=10, hidden=(64, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, 0.97, cutoff=1e-3))  # in meters
for step in range(400):
    rows = torch.randint(half, (64,))
    batch = mcl.Batch(inputs[rows], targets[rows].unsqueeze(1))
    output = mcl.mcl_step(model, batch, rule(step), cost_fn=mcl.pairwise_ade, scores=mcl.SoftmaxScores())
    optimizer.zero_grad()
    output.loss.backward()
    optimizer.step()

# %%
# People outside the training data: observed path (black), true future (green), hypotheses (blue, darker for higher
# scores).

with torch.no_grad():
    answers = model(inputs[half:])
scores = answers.score_logits.softmax(dim=-1)
print("minADE of ten:", float(mcl.metrics.min_ade(hypotheses=answers.hypotheses, targets=targets[half:])))
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.4))
for axis, row in zip(axes, np.linspace(0, len(scores) - 1, 3).astype(int), strict=True):
    here = samples.observed[half + row, -1:]
    for path, score in zip(answers.hypotheses[row] + here, scores[row], strict=True):
        axis.plot(*torch.cat([here, path]).T, color="#0072B2", alpha=0.15 + 0.85 * float(score / scores[row].max()))
    axis.plot(*torch.cat([here, samples.future[half + row]]).T, color="#009E73", lw=2)
    axis.plot(*samples.observed[half + row].T, color="#222222", lw=2)
    axis.set(aspect="equal", xlabel="metres")
figure.tight_layout()
plt.show()
