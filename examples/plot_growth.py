"""
How a fleet grows
=================

A fleet of twice as many models takes less than twice as long, until the processor is fully used. A line through a few
measured points predicts the time of a larger fleet.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
import torch

import torchmcl as mcl
from torchmcl_fleet import Fleet, FleetData

# %%
# The same few epochs for fleets of 1 to 300 networks, on one core.

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
x = torch.rand(200, 1, generator=generator)
y = torch.where(torch.rand(200, 1, generator=generator) < 0.5, x, -x).unsqueeze(1)


def seconds_of(n_models):
    """Return the CPU seconds of an epoch."""
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(1, 1, 2, hidden=(32,)), n_models)
    data = FleetData.shared(x, y, n_models)
    fleet.fit(data, n_epochs=2, batch_size="all", progress=False)  # warm-up
    start = time.process_time()
    fleet.fit(data, n_epochs=10, batch_size="all", progress=False)
    return (time.process_time() - start) / 10


sizes = np.array([1, 10, 30, 100, 300])
measured = np.array([seconds_of(int(n)) for n in sizes])

# %%
# The line ``fixed + each * n`` is fitted to all but the largest fleet, by relative error, and predicts the time of
# the largest.

known = slice(0, -1)
system = np.stack([1 / measured[known], sizes[known] / measured[known]], axis=1)
fixed, each = np.linalg.lstsq(system, np.ones(len(sizes) - 1), rcond=None)[0]
print(f"an epoch takes {1e3 * fixed:.2f} ms and {1e6 * each:.0f} µs for each model")
print(f"300 models: {1e3 * (fixed + 300 * each):.1f} ms foreseen, {1e3 * measured[-1]:.1f} ms measured")

figure, axis = plt.subplots(figsize=(6.4, 4.2))
axis.loglog(sizes, 1e3 * (fixed + each * sizes), color="#0072B2", label="line through the first four")
axis.loglog(sizes, 1e3 * measured, "o", color="#D55E00", label="measured")
axis.set(xlabel="models in the fleet", ylabel="milliseconds of an epoch")
axis.legend()
axis.set_title("Time of an epoch against the number of models")
figure.tight_layout()
plt.show()

# %%
# A fleet splits its models across devices. Here the same processor is used twice; with GPUs the list would be
# ``["cuda:0", "cuda:1"]``, or ``"cuda"`` for all of them. The models are the same as on one device.

one, two = (
    Fleet(lambda: mcl.MultiHypothesisMLP(1, 1, 2, hidden=(32,)), 40, device=device)
    for device in ("cpu", ["cpu", "cpu"])
)
for fleet in (one, two):
    fleet.fit(FleetData.shared(x, y, 40), n_epochs=10, batch_size="all", models_at_once=20, progress=False)
print("the same weights:", torch.equal(one.state_dict()["last"], two.state_dict()["last"]))
