"""
A table with several right answers
==================================

Inferring a cause from its effect often has several solutions. Here the effect is a wavy function of the cause, and
the table contains (effect, cause) pairs. :class:`~torchmcl_tables.DensityRegressor` predicts a few causes for each
effect with their probabilities, a density, and calibrated intervals.
"""

# %%
# The forward problem has one answer, its inverse up to three.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.neural_network import MLPRegressor

from torchmcl_tables import DensityRegressor

rng = np.random.default_rng(0)


def draw(n):
    """Return effects [n, 1] and their causes [n]."""
    cause = rng.uniform(0, 1, size=n)
    effect = cause + 0.3 * np.sin(2 * np.pi * cause) + 0.02 * rng.normal(size=n)
    return effect[:, None], cause


X, y = draw(1500)
X_test, y_test = draw(1000)

# %%
# Networks of two kinds and a forest are fitted, and held-out rows determine their weights; the answers are the six
# most representative points of the joint density. The other method predicts the mean.

model = DensityRegressor(n_hypotheses=6, n_epochs=100, random_state=0).fit(X, y)
single = MLPRegressor(hidden_layer_sizes=(64, 64), learning_rate_init=0.01, early_stopping=True, random_state=0)
single.fit(X, y)
print(
    f"mean squared distance of the truth to the only answer:    {np.mean((single.predict(X_test) - y_test) ** 2):.5f}"
)
print(f"mean squared distance of the truth to the nearest of six: {model.distortion(X_test, y_test):.5f}")
print({name: round(weight, 2) for name, weight in model.member_weights_.items()})

# %%
# The intervals are unions: for three possible causes there may be three pieces, if held-out rows support the gaps
# between them. They are calibrated on 150 separate rows. On average over such tables 90 % means 90 %; for one
# table the coverage varies by about three points.

intervals = model.predict_interval(X_test, coverage=0.9)
print(f"covered: {intervals.contains(y_test).mean():.1%}, mean total length {intervals.width.mean():.2f}")
print(f"in pieces: {(intervals.n_pieces > 1).mean():.1%}")
print(f"mean log density of the truth: {model.log_prob(X_test, y_test).mean():.2f}")

# %%
# Left: the answers, larger for higher probabilities, over the table. Right: the density for one effect, and the
# pieces of its interval.

grid = np.linspace(0.0, 1.0, 60)[:, None]
values, probabilities = model.predict_hypotheses(grid)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", width_ratios=(1.3, 1))
left.plot(X[:, 0], y, ".", color="0.8", markersize=3, label="the table")
left.plot(grid, single.predict(grid), color="#D55E00", lw=2, label="one answer")
for k in range(values.shape[1]):
    label = "six answers" if k == 0 else None
    left.scatter(grid[:, 0], values[:, k, 0], s=60 * probabilities[:, k], color="#0072B2", label=label, zorder=3)
left.set(xlabel="effect", ylabel="cause", title="Causes of an effect", xlim=(-0.05, 1.05))
left.legend(loc="upper left")
at = np.array([[0.57]])
line = np.linspace(0, 1, 400)
density = np.exp(model.log_prob(np.repeat(at, len(line), axis=0), line))
right.plot(line, density, color="#0072B2", lw=2, label="density")
pieces = model.predict_interval(at, coverage=0.9)
for number, (low, high) in enumerate(zip(pieces.lower[0], pieces.upper[0], strict=True)):
    label = "90 % interval" if number == 0 else None
    right.axvspan(low, high, color="#0072B2", alpha=0.15, label=label)
right.axvline(single.predict(at)[0], color="#D55E00", lw=2, label="one answer")
right.set(xlabel="cause", ylabel="density", title="What may have caused an effect of 0.57", ylim=(0, None))
right.legend()
plt.show()
