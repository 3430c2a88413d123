"""After the training of three networks on pedestrians: reduced sets, calibrated scores and tubes, scene by scene.

python benchmarks/after.py [--root ../shared/data/pedestrians] [--scenes hotel zara1 zara2] [--out results/after.json]

Networks are trained on the other scenes. People of the scene are split at random: a third to tune and fit on, a third
to calibrate on, a third to judge on; the numbers are means over the splits. Suppression has its radius chosen, and
networks have their scores calibrated, on the first third.
"""

import argparse
import statistics

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

import torchmcl as mcl
from _common import parser, report
from torchmcl import postprocess as after
from torchmcl_studies.data import pedestrians

N_HYPOTHESES, SCORES = 20, mcl.SoftmaxScores()
Part = tuple[mcl.Predictions, Tensor]
RADII = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)


def inputs_and_targets(windows: pedestrians.Windows) -> tuple[Tensor, Tensor]:
    """Return the observed path relative to its end, [windows, 16], and the future relative to it."""
    here = windows.observed[:, -1:]
    return (windows.observed - here).flatten(1), windows.future - here


def rotated(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the rows turned by random angles: no direction of a recording is special."""
    angle = 2 * torch.pi * torch.rand(len(inputs), generator=generator)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=-1).view(-1, 2, 2)
    return (inputs.view(len(inputs), -1, 2) @ turn).flatten(1), targets @ turn


def trained(inputs: Tensor, targets: Tensor, seed: int, n_steps: int) -> torch.nn.Module:
    """Return a small network after an annealed training."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = mcl.MultiHypothesisMLP(inputs.shape[1], targets[0].numel(), N_HYPOTHESES, hidden=(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    cooling = mcl.Exponential(1.0, 0.01 ** (1 / (0.8 * n_steps)), cutoff=0.01)
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=cooling)
    for step in range(n_steps):
        chosen = torch.randint(len(inputs), (256,), generator=generator)
        x, y = rotated(inputs[chosen], targets[chosen], generator)
        predictions = paths(model, x)
        cost = mcl.pairwise_ade(hypotheses=predictions.hypotheses, targets=y.unsqueeze(1))
        loss = mcl.mcl_loss(mcl.assign(cost, rule_at(step)))
        loss = loss + 0.3 * SCORES.loss(predictions.score_logits, mcl.score_targets(cost))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return model.eval()


def paths(model: torch.nn.Module, inputs: Tensor) -> mcl.Predictions:
    """Return hypotheses as paths of 12 steps."""
    predictions = model(inputs)
    return predictions._replace(hypotheses=predictions.hypotheses.unflatten(-1, (-1, 2)))


def rows_of(predictions: mcl.Predictions, rows: Tensor) -> mcl.Predictions:
    """Return some rows."""
    return mcl.Predictions(predictions.hypotheses[rows], predictions.score_logits[rows])


def suppressed(predictions: mcl.Predictions, k: int, radius: float) -> mcl.Predictions:
    """Return k hypotheses by non-maximum suppression of end points, filled up by score."""
    ends, scores = predictions.hypotheses[..., -1, :], predictions.score_logits.clone()
    near = torch.cdist(ends, ends) < radius
    rows, picks = torch.arange(len(ends)), []
    for _ in range(k):
        best = scores.argmax(dim=-1)
        picks.append(best)
        scores = scores - 1e6 * near[rows, best]  # suppressed ones come after all others, in their order
        scores[rows, best] = -torch.inf
    index = torch.stack(picks, dim=-1)
    return mcl.Predictions(predictions.hypotheses[rows.unsqueeze(-1), index])


def k_means(predictions: mcl.Predictions, k: int, final: bool) -> mcl.Predictions:
    """Return the centres of scikit-learn's KMeans in each row, of paths or of end points."""
    weights = SCORES.probabilities(predictions.score_logits).numpy()
    events = predictions.hypotheses[..., -1:, :] if final else predictions.hypotheses
    centres = [
        KMeans(k, n_init=1, random_state=0).fit(h, sample_weight=w).cluster_centers_
        for h, w in zip(events.flatten(2).numpy(), weights, strict=True)
    ]
    return mcl.Predictions(torch.from_numpy(np.stack(centres)).unflatten(-1, events.shape[2:]).float())


def min_fde(predictions: mcl.Predictions, targets: Tensor) -> float:
    """Return the mean distance of the nearest end point."""
    ends = predictions.hypotheses[..., -1:, :]
    return float(mcl.metrics.min_fde(hypotheses=ends, targets=targets[:, -1:]))


def winners(predictions: mcl.Predictions, targets: Tensor) -> mcl.Matching:
    """Return which hypothesis ends nearest to the truth."""
    cost = mcl.pairwise_fde(hypotheses=predictions.hypotheses, targets=targets.unsqueeze(1))
    return mcl.assign(cost, mcl.WTA())


def score_error(predictions: mcl.Predictions, targets: Tensor) -> float:
    """Return the calibration error of scores as they are."""
    return after.calibrate_scores(predictions, winners(predictions, targets), scores=SCORES).error_before


def calibrated(
    answers: list[mcl.Predictions], targets: Tensor, fit: Tensor, rows: Tensor, method: after.CalibrationMethod
) -> mcl.Predictions:
    """Return one set of all networks for some rows, each network calibrated by itself on others."""
    maps = [
        after.calibrate_scores(of_fit, winners(of_fit, targets[fit]), method=method, scores=SCORES)
        for of_fit in (rows_of(one, fit) for one in answers)
    ]
    return after.concatenate(
        [fitted(rows_of(one, rows)) for fitted, one in zip(maps, answers, strict=True)], scores=SCORES
    )


def reductions(answers: list[mcl.Predictions], targets: Tensor, fit: Tensor, judge: Tensor, k: int) -> dict[str, float]:
    """Return the error of ways to keep k of 60 hypotheses."""
    raw = {"tune": after.concatenate([rows_of(one, fit) for one in answers], scores=SCORES)}
    raw["judge"] = after.concatenate([rows_of(one, judge) for one in answers], scores=SCORES)
    better = {
        n: calibrated(answers, targets, fit, r, after.VectorScaling()) for n, r in (("tune", fit), ("judge", judge))
    }

    def radius(sets: dict[str, mcl.Predictions]) -> float:
        return min(RADII, key=lambda r: min_fde(suppressed(sets["tune"], k, r), targets[fit]))

    ways = {
        "calibrated, reduce": after.reduce(better["judge"], k, cost_fn=mcl.pairwise_fde, scores=SCORES),
        "calibrated, reduce, chosen": after.reduce(
            better["judge"], k, cost_fn=mcl.pairwise_fde, scores=SCORES, moved=False
        ),
        "calibrated, tuned suppression": suppressed(better["judge"], k, radius(better)),
        "calibrated, k-means of end points": k_means(better["judge"], k, final=True),
        "reduce": after.reduce(raw["judge"], k, cost_fn=mcl.pairwise_fde, scores=SCORES),
        "reduce, chosen": after.reduce(raw["judge"], k, cost_fn=mcl.pairwise_fde, scores=SCORES, moved=False),
        "tuned suppression": suppressed(raw["judge"], k, radius(raw)),
        "k-means of paths": k_means(raw["judge"], k, final=False),
        "k-means of end points": k_means(raw["judge"], k, final=True),
    }
    return {name: min_fde(way, targets[judge]) for name, way in ways.items()}


def calibrations(answers: list[mcl.Predictions], targets: Tensor, fit: Tensor, judge: Tensor) -> dict[str, float]:
    """Return the calibration error of rows that were not fitted on, of the first network and of all as one set."""
    errors = {}
    for name, sets in (("one network", answers[:1]), ("60 hypotheses", answers)):
        together = [after.concatenate([rows_of(one, rows) for one in sets], scores=SCORES) for rows in (fit, judge)]
        errors[name] = score_error(together[1], targets[judge])
        for method in (after.TemperatureScaling(), after.VectorScaling(), after.IsotonicScaling()):
            kind = type(method).__name__
            fitted = after.calibrate_scores(
                together[0], winners(together[0], targets[fit]), method=method, scores=SCORES
            )
            errors[f"{name}, {kind}"] = score_error(fitted(together[1]), targets[judge])
            if len(sets) > 1:
                apart = calibrated(sets, targets, fit, judge, method)
                errors[f"{name}, {kind} of each network"] = score_error(apart, targets[judge])
    return errors


def tubes(parts: list[Part], alpha: float = 0.1) -> dict[str, float]:
    """Return joint coverage and area of tubes, and of discs for each step by Bonferroni's inequality.

    Windows of one person are not independent, and some people have many: a split may cover more or less than asked for.
    """
    tune, calibrate, judge = parts
    regions = after.conformal(*calibrate, nonconformity=after.TubeScore.fit(*tune), coverage=1 - alpha, scores=SCORES)
    n_steps, areas, inside = judge[1].shape[1], [], torch.ones(len(judge[1]), dtype=torch.bool)
    for step in range(n_steps):
        at = slice(step, step + 1)
        here = [(mcl.Predictions(p.hypotheses[:, :, at]), y[:, at]) for p, y in (calibrate, judge)]
        one = after.conformal(*here[0], nonconformity=after.TubeScore(), coverage=1 - alpha / n_steps)
        areas.append(float(one.volume(here[1][0]).mean()))
        inside &= one.contains(*here[1])
    return {
        "coverage": float(regions.contains(*judge).double().mean()),
        "area": float(regions.volume(judge[0]).mean()),
        "bonferroni_coverage": float(inside.double().mean()),
        "bonferroni_area": statistics.fmean(areas),
    }


def thirds(person: Tensor, seed: int) -> list[Tensor]:
    """Return the rows of three random thirds of the people."""
    people, place = person.unique(return_inverse=True)
    order = torch.randperm(len(people), generator=torch.Generator().manual_seed(seed))
    return [(order[place] % 3 == i).nonzero().flatten() for i in range(3)]


def few_of(rows: Tensor, n: int) -> Tensor:
    """Return at most n of the rows, at random."""
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:n]]


def summary(name: str, scene: str, records: list[dict[str, float]], **others: object) -> dict[str, object]:
    """Return the mean of each number over the splits, and its standard deviation."""
    row: dict[str, object] = {"name": name, "scene": scene, "splits": len(records), **others}
    for key in records[0]:
        values = [record[key] for record in records]
        row[key] = statistics.fmean(values)
        row[f"{key}, deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return row


def of_scene(scene: str, options: argparse.Namespace) -> list[dict[str, object]]:
    """Return all numbers of a scene."""
    split = pedestrians.load(scene, options.root)
    models = [trained(*inputs_and_targets(split.train), seed, options.steps) for seed in range(3)]
    inputs, targets = inputs_and_targets(split.test)
    with torch.no_grad():
        answers = [paths(model, inputs) for model in models]
    person = split.test.recording * 1_000_000 + split.test.person
    splits = [thirds(person, seed) for seed in range(options.splits)]
    small = [[few_of(rows, options.rows) for rows in of_split] for of_split in splits]
    records = []
    for k in (20, 6):
        errors = [reductions(answers, targets, fit, judge, k) for fit, _, judge in small]
        records.append(summary(f"min FDE, 60 to {k}", scene, errors, rows=options.rows))
    errors = [calibrations(answers, targets, fit, judge) for fit, _, judge in splits]
    records.append(summary("calibration error", scene, errors))
    every = torch.arange(len(targets))
    covered = []
    for of_split in splits:
        pooled = calibrated(answers, targets, of_split[0], every, after.VectorScaling())
        few = after.reduce(pooled, 6, cost_fn=mcl.pairwise_sq_ade, scores=SCORES)
        parts = [(rows_of(few, rows), targets[rows]) for rows in of_split]
        covered.append(tubes(parts))
    records.append(summary("tubes, 6 hypotheses, alpha 0.1", scene, covered))
    return records


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--root", default="../shared/data/pedestrians")
    arguments.add_argument("--scenes", nargs="+", default=["hotel", "zara1", "zara2"])
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--splits", type=int, default=10)
    arguments.add_argument("--rows", type=int, default=300, help="of a split, at most, that are reduced")
    options = arguments.parse_args()
    records: list[dict[str, object]] = []
    for scene in options.scenes:
        records += of_scene(scene, options)
        report("after", options.device, records, options.out)  # what there is, should the next scene fail


if __name__ == "__main__":
    main()
