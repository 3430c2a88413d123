"""
Several segmentations of one picture
====================================

A click on a picture selects a spot, the patch around it, or the body that has both: annotators disagree, and each is
right. One network with four masks and their probabilities predicts all of these in one pass. :doc:`/segmentation` has
the same on photographs, with other methods.
"""

# %%
# Pictures of nested shapes, brighter towards the spot. Five annotators outline the spot, the patch or the body, with
# probabilities 0.3, 0.3 and 0.4, and not quite at the border.

import matplotlib.pyplot as plt
import torch

import torchmcl as mcl
from torchmcl.costs import SumOfCosts, pairwise_mask_bce

torch.manual_seed(0)
torch.set_num_threads(1)  # the layers are small
SIDE, N_ANNOTATORS = 16, 5


def clicked_pictures(n):
    """Return pictures [n, side * side], centered at the click, and masks [n, annotators, side, side]."""
    line = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(line, line, indexing="ij")
    turn = 2 * torch.pi * torch.rand(n, 1, 1, 1)
    center = 0.05 * torch.randn(2, n, 3, 1, 1).cumsum(2)  # of the spot, the patch and the body
    along = (x - center[0]) * turn.cos() + (y - center[1]) * turn.sin()
    across = (y - center[1]) * turn.cos() - (x - center[0]) * turn.sin()
    sizes = torch.tensor([0.25, 0.5, 0.9]).view(1, 3, 1, 1) * (0.9 + 0.2 * torch.rand(n, 3, 1, 1))
    distances = (along.square() + (1.6 * across).square()).sqrt() / sizes  # [n, shapes, side, side]
    steps = 0.2 + 0.1 * torch.rand(n, 3, 1, 1)  # of brightness
    pictures = (steps * (distances < 1)).sum(1) + 0.03 * torch.randn(n, SIDE, SIDE)
    drawn = torch.multinomial(torch.tensor([0.3, 0.3, 0.4]), n * N_ANNOTATORS, replacement=True).view(n, N_ANNOTATORS)
    outlines = distances.gather(1, drawn[..., None, None].expand(-1, -1, SIDE, SIDE))
    masks = outlines < 1 + 0.03 * torch.randn(n, N_ANNOTATORS, 1, 1)
    return pictures.flatten(1), masks.float()


# %%
# The annotators of a picture are several targets. The temperature falls until each annotator trains one mask, and the
# scores learn how many annotators each mask wins. Pictures this small need no convolutions; of a U-Net, the channels
# are the masks. One mask, trained with the same loss, is for comparison.

COST = SumOfCosts([(1.0, pairwise_mask_bce), (1.0, mcl.pairwise_dice)])
SCORES = mcl.SoftmaxScores()  # probabilities that sum to 1


def train(n_masks, n_steps=300):
    """Return a trained network."""
    model = mcl.MultiHypothesisMLP(SIDE**2, (SIDE, SIDE), n_masks, hidden=(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(0.3, decay=0.98, cutoff=5e-3))
    for step in range(n_steps):
        batch = mcl.Batch(*clicked_pictures(32))
        output = mcl.mcl_step(model, batch, rule(step), cost_fn=COST, scores=SCORES)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    return model


several, one = train(4), train(1)
pictures, masks = clicked_pictures(200)
with torch.no_grad():
    found, single = several(pictures), one(pictures)
for name, predictions in (("one mask", single), ("four masks", found)):
    distance = mcl.metrics.generalized_energy_distance(predictions, masks, scores=SCORES)
    print(f"generalized energy distance of {name}: {distance:.3f}")

# %%
# The picture with the click, the outlines of the annotators, the one mask, and the four masks with their
# probabilities.

shares = SCORES.probabilities(found.score_logits)
figure, axes = plt.subplots(4, 7, figsize=(12, 7), layout="constrained")
for row, line in enumerate(axes):
    for axis in line[:2]:
        axis.imshow(pictures[row].view(SIDE, SIDE).numpy(), cmap="gray")
    line[0].plot(SIDE / 2, SIDE / 2, "r+", ms=10, mew=2)
    for mask in masks[row]:
        line[1].contour(mask.numpy(), levels=[0.5], colors="r", linewidths=1)
    line[2].imshow(single.hypotheses[row, 0].numpy() > 0, cmap="gray", vmin=0, vmax=1)
    for axis, mask, share in zip(line[3:], found.hypotheses[row], shares[row], strict=True):
        axis.imshow(mask.numpy() > 0, cmap="gray", vmin=0, vmax=1)
        axis.set_title(f"{float(share):.0%}", fontsize=10)
    for axis, title in zip(line[:3], ("click", "annotators", "one mask"), strict=True):
        axis.set_title(title if row == 0 else "", fontsize=10)
    for axis in line:
        axis.set_axis_off()
plt.show()
