"""After the training of three networks on pedestrians: reduced sets, calibrated scores and tubes, on one scene.

python benchmarks/after.py [--root ../shared/data/pedestrians] [--scene zara1] [--steps 600] [--out results/after.json]

Networks are trained on the other scenes. People of the scene are split at random: a third to tune and fit on, a third
to calibrate on, a third to judge on; the numbers are means over the splits. k-means runs on some of the judged rows,
and on those all methods are compared.
"""

import statistics

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

import torchmcl as mcl
from _common import parser, report
from torchmcl import after
from torchmcl.data import pedestrians

N_HYPOTHESES, SCORES = 20, mcl.SoftmaxScores()
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 5.0, 100.0)
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
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, 0.01, int(0.8 * n_steps)))
    for step in range(n_steps):
        chosen = torch.randint(len(inputs), (256,), generator=generator)
        x, y = rotated(inputs[chosen], targets[chosen], generator)
        predictions = paths(model, x)
        cost = mcl.pairwise_ade(hypotheses=predictions.hypotheses, targets=y.unsqueeze(1))
        loss = mcl.mcl_loss(mcl.match(cost, rule_at(step)))
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


def tempered(predictions: mcl.Predictions, k: int, temperature: float) -> mcl.Predictions:
    """Return k hypotheses for scores that are less sure: a free number, as suppression has its radius."""
    softer = predictions._replace(score_logits=predictions.score_logits / temperature)
    return after.reduce(softer, k, cost_fn=mcl.pairwise_fde, scores=SCORES, moved=False)


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


def reductions(
    tune: tuple[mcl.Predictions, Tensor], judge: tuple[mcl.Predictions, Tensor], n_rows: int
) -> list[dict[str, object]]:
    """Compare ways to keep k of 60 hypotheses."""
    rows, part = [], torch.arange(min(n_rows, len(judge[1])))
    few, targets = rows_of(judge[0], part), judge[1][part]
    for k in (20, 6):
        radius = min(RADII, key=lambda r: min_fde(suppressed(tune[0], k, r), tune[1]))
        some = (rows_of(tune[0], torch.arange(0, len(tune[1]), 4)), tune[1][::4])
        temperature = min(TEMPERATURES, key=lambda t: min_fde(tempered(some[0], k, t), some[1]))
        ways = {
            "reduce, chosen, tuned temperature": tempered(few, k, temperature),
            "reduce": after.reduce(few, k, cost_fn=mcl.pairwise_fde, scores=SCORES),
            "reduce, chosen": after.reduce(few, k, cost_fn=mcl.pairwise_fde, scores=SCORES, moved=False),
            "tuned suppression": suppressed(few, k, radius),
            "k-means of paths": k_means(few, k, final=False),
            "k-means of end points": k_means(few, k, final=True),
        }
        errors = {name: min_fde(way, targets) for name, way in ways.items()}
        rows.append(
            {"name": f"min FDE, 60 to {k}", "rows": len(part), "radius": radius, "temperature": temperature, **errors}
        )
    return rows


def calibration(
    tune: tuple[mcl.Predictions, Tensor], judge: tuple[mcl.Predictions, Tensor], method: after.CalibrationMethod
) -> dict[str, float]:
    """Return the calibration error of rows that were not fitted on, before and after."""

    def matching(predictions: mcl.Predictions, targets: Tensor) -> mcl.Matching:
        cost = mcl.pairwise_ade(hypotheses=predictions.hypotheses, targets=targets.unsqueeze(1))
        return mcl.match(cost, mcl.WTA())

    def error(predictions: mcl.Predictions) -> float:
        return after.calibrate_scores(predictions, matching(*judge), scores=SCORES).error_before

    fitted = after.calibrate_scores(tune[0], matching(*tune), method=method, scores=SCORES)
    return {"before": error(judge[0]), "after": error(fitted(judge[0]))}


def tubes(parts: list[tuple[mcl.Predictions, Tensor]], alpha: float = 0.1) -> dict[str, float]:
    """Return joint coverage and area of tubes, and of discs for each step by Bonferroni's inequality."""
    tune, calibrate, judge = parts
    regions = after.conformal(*calibrate, nonconformity=after.Tubes.fit(*tune), alpha=alpha, scores=SCORES)
    n_steps, areas, inside = judge[1].shape[1], [], torch.ones(len(judge[1]), dtype=torch.bool)
    for step in range(n_steps):
        at = slice(step, step + 1)
        here = [(mcl.Predictions(p.hypotheses[:, :, at]), y[:, at]) for p, y in (calibrate, judge)]
        one = after.conformal(*here[0], nonconformity=after.Tubes(), alpha=alpha / n_steps)
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


def mean_of(records: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each number."""
    return {name: statistics.fmean(record[name] for record in records) for name in records[0]}


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--root", default="../shared/data/pedestrians")
    arguments.add_argument("--scene", default="zara1")
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--splits", type=int, default=10)
    arguments.add_argument("--k-means-rows", type=int, default=500)
    options = arguments.parse_args()
    split = pedestrians.load(options.scene, options.root, progress=False)
    models = [trained(*inputs_and_targets(split.train), seed, options.steps) for seed in range(3)]
    inputs, targets = inputs_and_targets(split.test)
    with torch.no_grad():
        answers = [paths(model, inputs) for model in models]
    ensemble = after.concatenate(answers, scores=SCORES)
    person = split.test.recording * 1_000_000 + split.test.person

    def parts(predictions: mcl.Predictions, seed: int) -> list[tuple[mcl.Predictions, Tensor]]:
        return [(rows_of(predictions, rows), targets[rows]) for rows in thirds(person, seed)]

    tune, _, judge = parts(ensemble, 0)
    mixed = torch.randperm(len(judge[1]), generator=torch.Generator().manual_seed(0))
    records = reductions(tune, (rows_of(judge[0], mixed), judge[1][mixed]), options.k_means_rows)
    for name, predictions in (("one network", answers[0]), ("60 hypotheses", ensemble)):
        for method in (after.TemperatureScaling(), after.VectorScaling(), after.IsotonicScaling()):
            of_splits = [calibration(p[0], p[2], method) for p in (parts(predictions, s) for s in range(3))]
            records.append({"name": f"calibration error, {name}, {type(method).__name__}", **mean_of(of_splits)})
    few = after.reduce(ensemble, 6, cost_fn=mcl.pairwise_ade, scores=SCORES)
    of_splits = [tubes(parts(few, seed)) for seed in range(options.splits)]
    records.append({"name": "tubes, 6 hypotheses, alpha 0.1", "splits": options.splits, **mean_of(of_splits)})
    report("after", options.device, records, options.out)


if __name__ == "__main__":
    main()
