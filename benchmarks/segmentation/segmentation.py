"""Several segmentations of one image: the regions that the annotators of BSDS500 drew around a click.

A click in a picture lies in a small region for one annotator (the eye) and in a large one for another (the tiger). All
methods have the same U-Net, windows, steps and optimizer; they are judged by the generalized energy distance, 1 - IoU
as distance, between their answers and the regions of all annotators. The data come from `data.py`.

    python -m benchmarks.segmentation.segmentation --data out/bsds.npz --split val --out out/segmentation.jsonl
"""

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchmcl as mcl
from benchmarks._common import captured
from benchmarks.segmentation._unets import MaskNet, ProbabilisticUNet
from torchmcl.costs import SumOfCosts, pairwise_iou, pairwise_mask_bce

SIDE, N_CHANNELS, N_ANSWERS, N_CLICKS = 64, 5, 16, 10
BCE_AND_DICE = SumOfCosts([(1.0, pairwise_mask_bce), (1.0, mcl.pairwise_dice)])
SCORES = mcl.SoftmaxScores()


class Pictures(NamedTuple):
    """Pictures [n, 4, 96, 96] in [-0.5, 0.5], the last channel 1 inside; label maps [n, annotators, 96, 96]; sizes."""

    pixels: Tensor
    labels: Tensor
    sizes: Tensor  # [n, 2], height and width


def loaded(path: Path, split: str, device: str) -> Pictures:
    """Return a split of the file written by `data.py`, each image on a square canvas."""
    with np.load(path) as arrays:
        pictures, labels, upright = (arrays[f"{split}_{name}"] for name in ("pictures", "labels", "upright"))
    (height, width), n = pictures.shape[1:3], len(pictures)
    pixels = np.zeros((n, 4, width, width), dtype=np.float32)
    maps = np.zeros((n, labels.shape[1], width, width), dtype=np.uint8)
    pixels[:, :3, :height] = pictures.transpose(0, 3, 1, 2) / 255 - 0.5
    pixels[:, 3, :height], maps[:, :, :height] = 1, labels
    for values in (pixels, maps):
        values[upright > 0] = values[upright > 0].swapaxes(-1, -2)
    sizes = np.where(upright[:, None] > 0, (width, height), (height, width))
    return Pictures(*(torch.as_tensor(values).to(device) for values in (pixels, maps, sizes)))


def windows(data: Pictures, which: Tensor, clicks: Tensor, maps: Tensor) -> mcl.Batch:
    """Return windows around clicks, with the region of each annotator that contains the click.

    Args:
        data: Images and label maps.
        which: Indices of the images, [batch].
        clicks: Row and column of the clicks, [batch, 2].
        maps: Matrices from offsets in the window to offsets in the image, [batch, 2, 2].

    Returns:
        Inputs [batch, 5, side, side]: color, inside, and a spot at the click; targets [batch, annotators, side, side].
    """
    line = torch.arange(SIDE, device=clicks.device, dtype=torch.float32) - SIDE // 2
    offsets = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1)  # [side, side, 2]
    places = clicks[:, None, None] + torch.einsum("bij,rcj->brci", maps, offsets)
    last = data.pixels.shape[-1] - 1
    grid = (2 * places.flip(-1) + 1) / (last + 1) - 1  # x before y, as grid_sample reads it
    seen = F.grid_sample(data.pixels[which], grid, align_corners=False)
    nearest = places.round().long()
    row, column = nearest.clamp(0, last).unbind(dim=-1)
    labels = data.labels[which[:, None, None], :, row, column].permute(0, 3, 1, 2)
    labels = labels.masked_fill(((nearest < 0) | (nearest > last)).any(dim=-1).unsqueeze(1), 0)
    middle = labels[..., SIDE // 2, SIDE // 2]
    spot = (-offsets.square().sum(dim=-1) / 8).exp().expand(len(which), 1, -1, -1)
    return mcl.Batch(torch.cat([seen, spot], dim=1), (labels == middle[..., None, None]).float(), middle > 0)


def training_batch(data: Pictures, n: int) -> mcl.Batch:
    """Return windows at random places of random pictures, flipped, turned, zoomed, with changed light."""
    device = data.pixels.device
    which = torch.randint(len(data.pixels), (n,), device=device)
    clicks = (torch.rand(n, 2, device=device) * data.sizes[which]).floor()
    zoom = torch.empty(n, device=device).uniform_(math.log(0.7), math.log(1.4)).exp()
    turn = torch.empty(n, device=device).normal_(0, 0.15)
    flip = torch.randint(2, (n,), device=device) * 2.0 - 1
    rows = [turn.cos(), -turn.sin() * flip, turn.sin(), turn.cos() * flip]
    batch = windows(data, which, clicks, zoom[:, None, None] * torch.stack(rows, dim=-1).unflatten(-1, (2, 2)))
    light = torch.empty(2, n, 3, 1, 1, device=device).normal_(0, 0.1)
    color = (batch.inputs[:, :3] * (1 + light[0]) + light[1]) * batch.inputs[:, 3:4]
    return batch._replace(inputs=torch.cat([color, batch.inputs[:, 3:]], dim=1))


def clicked(data: Pictures, picture: int, n_clicks: int = N_CLICKS) -> mcl.Batch:
    """Return windows at fixed random clicks of one picture."""
    clicks = np.random.default_rng(picture).random((n_clicks, 2))
    placed = torch.as_tensor(clicks, device=data.sizes.device) * data.sizes[picture]
    same = torch.full((n_clicks,), picture, device=data.sizes.device)
    return windows(data, same, placed.floor().float(), torch.eye(2, device=same.device).expand(n_clicks, 2, 2))


class Options(NamedTuple):
    """Options of all training runs."""

    steps: int = 2000
    batch: int = 32
    rate: float = 2e-3
    widths: tuple[int, ...] = (16, 32, 48, 64)
    graphs: bool = True  # replay each step on a GPU: the layers are too small to launch them one by one


Answers = Callable[[Tensor, int], mcl.Predictions]  # from inputs and the number of answers
Loss = Callable[[Tensor, mcl.Batch], Tensor]  # from the share of the training that has passed, and a batch


class Method(Protocol):
    """Base class of methods, which train on images and predict masks."""

    @property
    def one_pass(self) -> bool:
        """Whether all answers come from one pass of the network."""

    def train(self, data: Pictures, options: Options) -> Answers:
        """Return the function that answers."""


def half(model: Callable[..., Any], *inputs: Any) -> Any:
    """Return the output of a model in bfloat16 on a GPU; costs are computed in full precision."""
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=inputs[0].is_cuda, cache_enabled=False):
        return model(*inputs)


def optimize(model: nn.Module, data: Pictures, options: Options, phases: Sequence[tuple[float, Loss]]) -> nn.Module:
    """Train a model with a falling learning rate; each phase is the share of the training when it ends, and a loss."""
    device = data.pixels.device
    on_gpu = device.type == "cuda"
    model.to(device)
    share, rate = torch.zeros((), device=device), torch.tensor(options.rate, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2, capturable=on_gpu, fused=on_gpu)
    first = 0
    for end, loss in phases:
        last = round(end * options.steps)
        if last == first:
            continue

        def update(loss: Loss = loss) -> None:
            optimizer.zero_grad(set_to_none=False)
            loss(share, training_batch(data, options.batch)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        rate.fill_(options.rate / 20)
        if on_gpu:
            torch.cuda.synchronize()  # a capture warms up on a stream of its own
        run = captured(update) if on_gpu and options.graphs else update
        for step in range(first, last):
            passed = step / options.steps
            share.fill_(passed)
            rate.fill_(options.rate * min(1.0, 20 * passed + 0.05) * (1 + math.cos(math.pi * passed)) / 2)
            run()
        first = last
    if on_gpu:
        torch.cuda.synchronize()
    return model.eval()


def energy_distance(predictions: mcl.Predictions, targets: Tensor, mask: Tensor) -> Tensor:
    """Return 2 E d(S, Y) - E d(S, S') of soft masks: the part of the generalized energy distance that can be trained.

    The distance 2 |a - b| / (|a| + |b| + |a - b|) is 1 - IoU of hard masks, and a metric on soft ones.
    """
    masks, truth = predictions.hypotheses.sigmoid().flatten(-2), targets.flatten(-2)
    chances, shares = SCORES.probabilities(predictions.score_logits), mask / mask.sum(dim=-1, keepdim=True)
    sizes = masks.sum(dim=-1)
    total = truth.sum(dim=-1).unsqueeze(-1) + sizes.unsqueeze(-2)
    apart = total - 2 * truth @ masks.mT  # [batch, annotators, hypotheses], as targets are 0 or 1
    near = torch.einsum("bt,btk,bk->b", shares, 2 * apart / (total + apart + 1e-3), chances)
    i, j = torch.triu_indices(masks.shape[1], masks.shape[1], 1, device=masks.device)
    apart = (masks[:, i] - masks[:, j]).abs().sum(dim=-1)
    among = chances[:, i] * chances[:, j] * 2 * apart / (sizes[:, i] + sizes[:, j] + apart + 1e-3)
    return 2 * (near - among.sum(dim=-1)).mean()


@dataclass(frozen=True)
class Hypotheses:
    """One U-Net with a mask and a score for each hypothesis; one pass gives all answers.

    Args:
        rule: Function that maps the completed fraction of the training to a rule.
        energy_from: Fraction of the training after which the loss is the energy distance of soft masks.
        score_weight: Weight of the score loss before that.
        n_hypotheses: Number of hypotheses of the network.
    """

    rule: Callable[[Tensor], mcl.AssignmentRule]
    energy_from: float = 1.0
    score_weight: float = 0.3
    n_hypotheses: int = N_ANSWERS
    one_pass: ClassVar[bool] = True

    def train(self, data: Pictures, options: Options) -> Answers:
        """Return the function that answers."""
        model = MaskNet(N_CHANNELS, self.n_hypotheses, options.widths)

        def winners(share: Tensor, batch: mcl.Batch) -> Tensor:
            given = {"cost_fn": BCE_AND_DICE, "scores": SCORES, "score_weight": self.score_weight}
            return mcl.mcl_step(functools.partial(half, model), batch, self.rule(share), **given).loss

        def energy(share: Tensor, batch: mcl.Batch) -> Tensor:
            return energy_distance(half(model, batch.inputs), batch.targets, batch.mask)

        optimize(model, data, options, [(self.energy_from, winners), (1.0, energy)])
        return lambda inputs, n: half(model, inputs)


@dataclass(frozen=True)
class Plain:
    """U-Nets with one mask: one, an ensemble, with dropout that stays on, or the level sets of one.

    Args:
        cost_fn: Loss, averaged over annotators.
        n_members: Number of U-Nets, which are trained one after the other, each as long as the other methods.
        dropout: Dropout rate in the deep layers.
        levels: Whether the predictions are level sets of the probability of a pixel.
    """

    cost_fn: Callable[..., Tensor] = BCE_AND_DICE
    n_members: int = 1
    dropout: float = 0.0
    levels: bool = False

    @property
    def one_pass(self) -> bool:
        """Whether all answers come from one pass."""
        return self.levels

    def train(self, data: Pictures, options: Options) -> Answers:
        """Return the function that answers."""
        models = [MaskNet(N_CHANNELS, 1, options.widths, self.dropout) for _ in range(self.n_members)]
        for model in models:

            def loss(share: Tensor, batch: mcl.Batch, model: nn.Module = model) -> Tensor:
                given = {"cost_fn": self.cost_fn, "score_weight": 0}
                return mcl.mcl_step(functools.partial(half, model), batch, mcl.WTA(), **given).loss

            optimize(model, data, options, [(1.0, loss)]).train(self.dropout > 0)

        def answers(inputs: Tensor, n: int) -> mcl.Predictions:
            if self.levels:
                levels = ((torch.arange(n, device=inputs.device) + 0.5) / n).logit().view(-1, 1, 1)
                return mcl.Predictions(half(models[0], inputs).hypotheses - levels)
            n_passes = n if self.dropout else min(n, len(models))
            found = [half(models[k % len(models)], inputs).hypotheses for k in range(n_passes)]
            return mcl.Predictions(torch.cat(found, dim=1))

        return answers


@dataclass(frozen=True)
class Probabilistic:
    """The probabilistic U-Net: cross-entropy of a random annotator, summed over pixels, plus beta times the divergence.

    Args:
        beta: Weight of the divergence.
        dice: Weight of the dice distance, in pixels.
    """

    beta: float = 10.0
    dice: float = 0.0
    one_pass: ClassVar[bool] = False

    def train(self, data: Pictures, options: Options) -> Answers:
        """Return the function that answers."""
        model = ProbabilisticUNet(N_CHANNELS, widths=options.widths)

        def loss(share: Tensor, batch: mcl.Batch) -> Tensor:
            chosen = (batch.mask * torch.rand_like(batch.targets[..., 0, 0])).argmax(dim=-1)
            target = batch.targets.gather(1, chosen.view(-1, 1, 1, 1).expand(-1, 1, SIDE, SIDE))
            logits, divergence = half(model, batch.inputs, target.squeeze(1))
            fit = SIDE**2 * pairwise_mask_bce(hypotheses=logits, targets=target)
            if self.dice:
                fit = fit + self.dice * mcl.pairwise_dice(hypotheses=logits, targets=target)
            return (fit.mean() + self.beta * divergence.mean()) / SIDE**2

        optimize(model, data, options, [(1.0, loss)])
        return lambda inputs, n: mcl.Predictions(half(model.drawn, inputs, n))


@dataclass(frozen=True)
class Cooling:
    """A temperature that falls exponentially, and winner-takes-all after that."""

    start: float = 0.1
    end: float = 0.005
    until: float = 0.6

    def __call__(self, share: Tensor) -> mcl.AssignmentRule:
        """Return the rule at a share of the training, which stays on the device."""
        temperature = self.start * (self.end / self.start) ** (share / self.until)
        return mcl.AnnealedWTA(temperature.masked_fill(share >= self.until, 0))


def hard(share: Tensor) -> mcl.AssignmentRule:
    """Return winner-takes-all."""
    return mcl.WTA()


# Settings with the lowest distance on the validation images. Each prediction of the ensemble comes from one U-Net.
METHODS: dict[str, Method] = {
    "ensemble of five": Plain(n_members=5),
    "dropout": Plain(dropout=0.5),
    "level sets of one U-Net": Plain(pairwise_mask_bce, levels=True),
    "probabilistic U-Net": Probabilistic(beta=1.0, dice=SIDE**2),
    "winner takes all": Hypotheses(hard),
    "annealed": Hypotheses(Cooling()),
    "annealed, then energy distance": Hypotheses(Cooling(0.5, 0.01, 0.2), energy_from=0.2),
}


@torch.no_grad()
def judged(answers: Answers, data: Pictures, n: int) -> dict[str, list[float]]:
    """Return the measures of each image, averaged over its clicks."""
    found: dict[str, list[float]] = {"energy distance": [], "best": [], "matched dice": []}
    for pictures in torch.arange(len(data.pixels)).split(10):
        batches = [clicked(data, int(picture)) for picture in pictures]
        predictions = answers(torch.cat([batch.inputs for batch in batches]), n)
        parts = zip(*(part.cpu().split(N_CLICKS) for part in predictions if part is not None), strict=True)
        for batch, part in zip(batches, parts, strict=True):
            for name, value in _measures(mcl.Predictions(*part), batch.targets.cpu(), batch.mask.cpu()).items():
                found[name].append(round(float(value), 5))
    return {name: values for name, values in found.items() if values}


def _measures(predictions: mcl.Predictions, targets: Tensor, mask: Tensor) -> dict[str, Tensor]:
    given = (predictions, targets, mask)
    overlap = 1 - pairwise_iou(hypotheses=predictions.hypotheses, targets=targets, hard=True, smooth=1e-6)
    values = {"energy distance": mcl.metrics.generalized_energy_distance(*given, scores=SCORES)}
    values["best"] = overlap.amax(dim=-1)[mask].mean()
    if predictions.hypotheses.shape[1] >= targets.shape[1]:
        values["matched dice"] = mcl.metrics.matched_dice(*given)
    return values


def measured(name: str, method: Method, data: dict[str, Pictures], seed: int, options: Options) -> dict[str, object]:
    """Return the record of one method and seed: time, and the measures with 16 answers and, for baselines, with one."""
    torch.manual_seed(seed)
    started = time.time()
    answers = method.train(data["train"], options)
    record: dict[str, object] = {"method": name, "seed": seed, "seconds": round(time.time() - started, 1)}
    for n in (N_ANSWERS,) if method.one_pass else (1, N_ANSWERS):
        torch.manual_seed(seed)
        record[str(n)] = judged(answers, data["held-out"], n)
    return record


def main() -> None:
    """Train, evaluate, and append a line for each method and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), default="val")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=Options().steps)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    data = {"train": loaded(options.data, "train", options.device)}
    data["held-out"] = loaded(options.data, options.split, options.device)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.methods:
            record = measured(name, METHODS[name], data, seed, Options(steps=options.steps))
            with options.out.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
            shown = {
                n: {key: round(float(np.mean(v)), 4) for key, v in record[n].items()}
                for n in ("1", "16")
                if n in record
            }
            print(name, seed, record["seconds"], "s", shown, flush=True)


if __name__ == "__main__":
    main()
