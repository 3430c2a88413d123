"""
Schedules: how the temperature falls
====================================

A schedule is a small frozen value that maps a step to a number. It can be printed, compared and pickled, and
:func:`~torchmcl.annealed` attaches it to any field of any rule. This example shows the four schedules of the
annealed MCL paper, with time in epochs, and two combinations.
"""

# %%
# Each of the paper's schedules is one expression. The first two are those of its study on tables, the chunked ones
# those of the study on speech: they end before training does, and afterwards the temperature is 0, which is hard
# winner-takes-all.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl.schedules import JoinedSchedule

paper = {
    "linear over 1000 epochs": mcl.Linear(0.5, 0.0, 1000),
    "exponential, cut off at 5e-4": mcl.Exponential(0.5, 0.95, cutoff=5e-4),
    "chunked linear, Eq. (43)": mcl.CutoffAt(mcl.Linear(0.1, 0.0, 100), 100),
    "chunked exponential, Eq. (44)": mcl.CutoffAt(mcl.Exponential(0.1, 0.9), 100),
}
for name, schedule in paper.items():
    print(f"{name:30} {schedule}")

# %%
# Schedules can be combined. ``JoinedSchedule`` adds a plateau before cooling; half a cosine is flat at both ends.

others = {
    "hold, then linear": JoinedSchedule((mcl.Constant(0.5), mcl.Linear(0.5, 0.0, 100)), boundaries=(50,)),
    "cosine": mcl.Cosine(0.5, 0.0, 150),
}

# %%
# On a logarithmic axis the exponential is a straight line: it spends equal time on every scale of the data. The
# linear schedule spends nearly all its time at high temperatures.

epochs = torch.arange(0, 201, 0.5)
plt.style.use("tableau-colorblind10")
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
lines = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
colors = ("C0", "C1", "black", "C5", "C4", "C3")
for (name, schedule), line, color in zip((paper | others).items(), lines, colors, strict=True):
    values = torch.tensor([schedule(epoch) for epoch in epochs.tolist()])
    left.plot(epochs, values, linestyle=line, color=color, linewidth=2, label=name)
    right.plot(epochs, values.masked_fill(values == 0, torch.nan), linestyle=line, color=color, linewidth=2)
left.set(xlabel="epoch", ylabel="temperature", title="Six schedules", ylim=(-0.01, 0.83))
right.set(xlabel="epoch", yscale="log", title="The same on a logarithmic axis, zero left out")
left.legend(loc="upper left", fontsize=8, ncols=2)
plt.show()
