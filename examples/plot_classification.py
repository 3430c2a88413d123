"""
Several guesses for a class
===========================

Multiple choice learning was introduced for classification: a prediction of k guesses is a success if one of them
is right. The hypotheses are vectors of logits, the targets are class ids, and
:func:`~torchmcl.pairwise_cross_entropy` is the cost. The images are small digits of which only the upper half is
visible, so several answers are often possible.
"""

# %%
# The data: 8 x 8 digits, lower half hidden.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import torchmcl as mcl

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32)[:, :32] / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images))
train, test = order[:1200], order[1200:]

# %%
# One, two and four guesses, each network trained from scratch. A class id has no axis, so targets are [batch,
# targets]. The temperature starts at one nat, the scale of a cross-entropy.


def fit(n_guesses):
    """Return a network with `n_guesses` guesses."""
    torch.manual_seed(1)
    model = mcl.MultiHypothesisMLP(in_features=32, out_features=10, n_hypotheses=n_guesses, hidden=(64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 160))
    for step in range(220):
        rows = train[torch.randint(len(train), (128,))]
        batch = mcl.Batch(images[rows], labels[rows].unsqueeze(1))
        output = mcl.mcl_step(model, batch, rule(step), cost_fn=mcl.pairwise_cross_entropy)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    return model


models = {n: fit(n) for n in (1, 2, 4)}

# %%
# Oracle accuracy: the share of images for which any guess is right. A guess is the most likely class of one
# hypothesis, and the scores are their probabilities. The guesses are specialists. If only one answer is needed, a
# mixture weighted by normalized scores is better than the guess with the best score, and training a single guess
# is better still.

oracle, mixed, trusted = [], [], []
for model in models.values():
    with torch.no_grad():
        logits, score_logits = model(images[test])
    right = logits.argmax(dim=-1) == labels[test].unsqueeze(1)  # [batch, hypotheses]
    best = score_logits.argmax(dim=-1, keepdim=True)
    mixture = (mcl.normalized_scores(score_logits).unsqueeze(-1) * logits.softmax(dim=-1)).sum(dim=1)
    oracle.append(right.any(dim=-1).float().mean().item())
    mixed.append((mixture.argmax(dim=-1) == labels[test]).float().mean().item())
    trusted.append(right.gather(1, best).float().mean().item())
for name, values in (("any guess", oracle), ("mixture", mixed), ("best scored guess", trusted)):
    print(f"{name:18}", [f"{value:.1%}" for value in values])

# %%
# The middle panel shows how the four guesses of the last network divide the ten classes. The division emerges from
# the competition between the guesses.

with torch.no_grad():
    cost = mcl.pairwise_cross_entropy(hypotheses=logits, targets=labels[test].unsqueeze(1))
wins = mcl.WTA()(cost).squeeze(1)  # [batch, 4]
share = torch.stack([wins[labels[test] == digit].mean(dim=0) for digit in range(10)])

plt.style.use("tableau-colorblind10")
fig, (left, middle, right_ax) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained", width_ratios=(1, 1.3, 1.2))
left.plot(list(models), oracle, "o-", color="C0", linewidth=2, label="any guess")
left.plot(list(models), mixed, "s--", color="C1", linewidth=2, label="mixture by scores")
left.plot(list(models), trusted, "^:", color="0.3", linewidth=2, label="best scored guess")
left.set(
    xlabel="number of guesses",
    ylabel="share of test images right",
    xticks=list(models),
    title="Accuracy",
    ylim=(0.5, 1),
)
left.legend(loc="lower left")
picture = middle.imshow(share.T.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
middle.set(xlabel="digit", ylabel="guess", xticks=range(10), yticks=range(4), yticklabels=range(1, 5))
middle.set_title("Which guess wins which digit")
fig.colorbar(picture, ax=middle, label="share of wins")
unsure = logits.argmax(dim=-1).sort(dim=-1).values.diff(dim=-1).ne(0).sum(dim=-1).argsort(descending=True)[:6]
tiles = images[test][unsure].view(6, 4, 8)
right_ax.axis("off")
right_ax.set_title("Upper halves and the four guesses")
for i, row in enumerate(unsure.tolist()):
    x, y = (i % 2) * 1.6, -(i // 2) * 1.25
    right_ax.imshow(tiles[i].numpy(), cmap="gray_r", extent=(x, x + 1.1, y, y + 0.55))
    guesses = " ".join(str(g) for g in logits[row].argmax(dim=-1).tolist())
    right_ax.text(x, y - 0.1, f"{guesses}\ntruth {labels[test][row]}", va="top", fontsize=10)
right_ax.set(xlim=(-0.1, 3), ylim=(-3.1, 0.7))
plt.show()
