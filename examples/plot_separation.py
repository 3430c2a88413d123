"""
Separation: more outputs than sources
=====================================

A separator is usually trained with :class:`~torchmcl.PIT`, which needs one output for each source. With
winner-takes-all and annealing there may be more outputs than sources, and the number of sources may vary. Here a
tiny :class:`~torchmcl_speech.nn.DPRNN` with three outputs is trained on mixtures of two or three sounds, and its
scores select the outputs.
"""

# %%
# The sounds: a low one with many harmonics, a gliding one, and pulses of a high one. A mixture has two or three of
# them, in random order; the mask marks the real sources.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl_speech.nn import DPRNN

torch.manual_seed(0)
RATE, LENGTH = 8000, 2000
time = torch.arange(LENGTH) / RATE


def sounds(n_samples):
    """Return three sounds for each sample, [samples, 3, LENGTH]."""
    phase = 2 * torch.pi * torch.rand(n_samples, 3, 1)
    low = sum(torch.sin(h * (2 * torch.pi * 140 * time) + phase[:, 0]) / h for h in range(1, 5))
    glide = torch.sin(2 * torch.pi * (700 * time + 1200 * time.square()) + phase[:, 1])
    pulses = torch.sin(2 * torch.pi * 2300 * time) * (torch.sin(2 * torch.pi * 12 * time + phase[:, 2]) > 0)
    return 0.3 * torch.stack([low, glide, pulses], dim=1)


def draw(n_samples):
    """Return mixtures of two or three sounds."""
    mask = torch.ones(n_samples, 3, dtype=torch.bool)
    mask[:, 2] = torch.rand(n_samples) < 0.5
    order = torch.rand(n_samples, 3).argsort(dim=-1)
    sources = sounds(n_samples).gather(1, order.unsqueeze(-1).expand(-1, -1, LENGTH))
    sources = sources.masked_fill(~mask.unsqueeze(-1), 0)
    return mcl.Batch(sources.sum(1), sources, mask)


# %%
# The cost is the negative SI-SDR in decibels, and the rule cools from 5 dB to winner-takes-all. The rest of the
# loop is unchanged.

model = DPRNN(
    n_outputs=3, n_filters=32, kernel_size=40, stride=20, segment_size=20, hidden_size=24, n_blocks=1, scores=True
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
n_steps = 80
rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(5.0, 0.0, n_steps // 2))
curve = []
for step in range(n_steps):
    output = mcl.mcl_step(model, draw(4), rule(step), cost_fn=mcl.pairwise_neg_si_sdr)
    optimizer.zero_grad()
    output.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    curve.append(-mcl.metrics.distortion(output.matching).item())

# %%
# One mixture of two sources: the outputs by decreasing score, beside the true sources.

batch = draw(16)
two = int((batch.mask.sum(-1) == 2).nonzero()[0])
with torch.no_grad():
    hypotheses, score_logits = model(batch.inputs[two : two + 1])
scores = mcl.normalized_scores(score_logits)[0]
cost = mcl.pairwise_neg_si_sdr(hypotheses=hypotheses, targets=batch.targets[two : two + 1])
print("SI-SDR of the best output of each source:", [f"{v:.1f} dB" for v in -cost[0, :2].min(-1).values])

plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(2, 3, figsize=(11, 4.5), layout="constrained", sharex=True)
shown = slice(400, 1000)
for k in range(2):
    axes[0, k].plot(1000 * time[shown], batch.targets[two, k, shown], linewidth=0.8)
    axes[0, k].set_title(f"source {k + 1}")
for place, k in enumerate(scores.argsort(descending=True).tolist()):
    waveform = hypotheses[0, k, shown]
    axes[1, place].plot(1000 * time[shown], waveform / waveform.abs().max(), linewidth=0.8, color="C1")
    axes[1, place].set_title(f"output {k + 1}, score {scores[k]:.2f}")
    axes[1, place].set_xlabel("ms")
axes[0, 2].plot(1000 * time[shown], batch.inputs[two, shown], linewidth=0.8, color="0.4")
axes[0, 2].set_title("their mixture")
plt.show()

# %%
# The training curve: SI-SDR of the best output of each source, higher is better.

fig, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(curve)
axis.set(xlabel="step", ylabel="MCL SI-SDR (dB)", title="Learning to separate")
plt.show()
