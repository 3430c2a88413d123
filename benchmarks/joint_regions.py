"""Joint regions of two outputs against products of a region for each output, on tables, at the same coverage.

python benchmarks/joint_regions.py [--root ../shared/data] [--splits 10] [--out results/joint-regions.json]

Half of the rows train one network, the rest is split to choose a kind of region on, to calibrate on and to judge on.
The product takes the smallest kind for each output alone. Its levels are calibrated together, so that both outputs are
in their regions for 90 % of the rows: Bonferroni's inequality would make it larger.
"""

import gzip
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import torchmcl as mcl
from _common import parser, report
from torchmcl import postprocess as after
from torchmcl.density import fit_bandwidth
from torchmcl.fleet import Fleet, FleetData

N_HYPOTHESES, ALPHA = 16, 0.1
# File, outputs, columns that give them away, epochs.
TABLES = {
    "naval: decay of compressor and turbine": ("uci/naval-propulsion-plant/data.npz", (16, 17), (), 60),
    "bike: casual and registered riders": ("tables/bike.csv.gz", (15, 16), (17,), 60),
    "sml: temperatures of two rooms": ("tables/sml.csv.gz", (10, 26), (), 100),
    "stock: two indices": ("tables/stock.csv.gz", (10, 11), (), 300),
}


def rows_of_table(name: str, root: Path) -> tuple[Tensor, Tensor]:
    """Return standardised inputs and outputs, at most 6000 rows in random order."""
    path, outputs, dropped, _ = TABLES[name]
    if path.endswith(".npz"):
        numbers = np.load(root / path, allow_pickle=False)["data"]
    else:
        with gzip.open(root / path, "rt") as file:
            numbers = np.loadtxt(file, delimiter=",")
    numbers = numbers[np.random.default_rng(0).permutation(len(numbers))[:6000]]
    deviation = numbers.std(axis=0)
    table = torch.from_numpy((numbers - numbers.mean(axis=0)) / np.where(deviation > 0, deviation, 1)).float()
    inputs = [i for i in range(table.shape[1]) if i not in (*outputs, *dropped)]
    return table[:, inputs], table[:, outputs]


def part(predictions: mcl.Predictions, rows: Tensor) -> mcl.Predictions:
    """Return some rows."""
    return mcl.Predictions(predictions.hypotheses[rows], predictions.score_logits[rows])


def offered(predictions: mcl.Predictions, targets: Tensor) -> list[after.Nonconformity]:
    """Return kinds of regions, with widths that were fitted."""
    shares = mcl.normalized_scores(predictions.score_logits)
    widths = fit_bandwidth(predictions.hypotheses, shares, targets)
    typical = float(widths(predictions.hypotheses, shares).mean())
    return [
        after.DensityLevels(typical),
        after.DensityLevels(2 * typical),
        after.BallScore(),
        after.BallScore(power=0.5),
    ]


@dataclass(frozen=True, eq=False)
class Product(after.Nonconformity):
    """The largest rank over the outputs of how badly each fits: regions are products of a region for each output.

    Args:
        kinds: of the region of each output.
        known: for each output values of other rows, in increasing order, that ranks refer to.
    """

    kinds: tuple[after.Nonconformity, ...]
    known: tuple[Tensor, ...]

    def __call__(self, given: after.WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the largest rank, in (0, 1]."""
        ranks = [
            torch.searchsorted(known, kind(of_output(given, i), targets[:, i : i + 1])) / len(known)
            for i, (kind, known) in enumerate(zip(self.kinds, self.known, strict=True))
        ]
        return torch.stack(ranks).amax(dim=0)

    def volume(
        self, given: after.WeightedHypotheses, level: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return the product of the lengths."""
        lengths = []
        for i, (kind, known) in enumerate(zip(self.kinds, self.known, strict=True)):
            place = (level * len(known)).ceil().long().clamp(max=len(known) - 1)
            lengths.append(kind.volume(of_output(given, i), known[place], n_samples, generator))
        return torch.stack(lengths).prod(dim=0)


def of_output(given: after.WeightedHypotheses, output: int) -> after.WeightedHypotheses:
    """Return one output of the hypotheses."""
    return after.WeightedHypotheses(given.hypotheses[..., output : output + 1], given.probabilities)


def fitted_product(predictions: mcl.Predictions, targets: Tensor) -> Product:
    """Return the product of the smallest kind for each output."""
    kinds, known = [], []
    given = after.WeightedHypotheses(predictions.hypotheses, mcl.normalized_scores(predictions.score_logits))
    for i in range(targets.shape[1]):
        one = mcl.Predictions(predictions.hypotheses[..., i : i + 1], predictions.score_logits)
        own = targets[:, i : i + 1]
        kinds.append(after.select_nonconformity(offered(one, own), one, own, coverage=1 - ALPHA / 2))
        known.append(kinds[-1](of_output(given, i), own).sort().values)
    return Product(tuple(kinds), tuple(known))


def measured(kind: after.Nonconformity, parts: list[tuple[mcl.Predictions, Tensor]]) -> tuple[float, float]:
    """Return coverage and mean area."""
    regions = after.conformal(*parts[1], nonconformity=kind, coverage=1 - ALPHA)
    areas = regions.volume(parts[2][0], generator=torch.Generator().manual_seed(0)).double()
    return float(regions.contains(*parts[2]).double().mean()), float(areas.mean())


def both(parts: list[tuple[mcl.Predictions, Tensor]]) -> dict[str, object]:
    """Return coverage and mean area of joint regions, their kind, and the same of products."""
    tune = parts[0]
    kind = after.select_nonconformity(
        offered(*tune), *tune, coverage=1 - ALPHA, generator=torch.Generator().manual_seed(0)
    )
    record: dict[str, object] = {"kind": type(kind).__name__}
    record["coverage"], record["area"] = measured(kind, parts)
    record["product_coverage"], record["product_area"] = measured(fitted_product(*tune), parts)
    return record


def compared(name: str, root: Path, n_splits: int) -> dict[str, object]:
    """Return both on a table, means over random splits of its rows."""
    x, y = rows_of_table(name, root)
    n = len(x)
    orders = [torch.randperm(n, generator=torch.Generator().manual_seed(s)) for s in range(n_splits)]
    bounds = [n // 2, n * 65 // 100, n * 85 // 100]
    train = [order[: bounds[0]] for order in orders]
    fleet = Fleet(
        lambda: mcl.MultiHypothesisMLP(x.shape[1], y.shape[1], N_HYPOTHESES, hidden=(50,)),
        n_splits,
        rule=mcl.AutoAnnealing(),
    )
    data = FleetData.of_sets([(x[rows], y[rows].unsqueeze(1)) for rows in train], range(n_splits))
    fleet.fit(data, TABLES[name][-1], progress=False)
    records: list[dict[str, object]] = []
    for split, order in enumerate(orders):
        with torch.no_grad():
            every = fleet.models[split](x)
        rows = [order[a:b] for a, b in zip(bounds, [*bounds[1:], n], strict=True)]
        parts = [(part(every, chosen), y[chosen]) for chosen in rows]
        records.append(both(parts))
    ratios = [r["area"] / r["product_area"] for r in records]
    numbers = ("coverage", "area", "product_coverage", "product_area")
    return {
        "name": name,
        **{"rows": n, "splits": n_splits, "alpha": ALPHA},
        **{number: statistics.fmean(r[number] for r in records) for number in numbers},
        "area_ratio_geometric_mean": statistics.geometric_mean(ratios),
        "splits_with_smaller_joint_regions": sum(ratio < 1 for ratio in ratios),
        "kinds": sorted(r["kind"] for r in records),
    }


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--root", type=Path, default=Path("../shared/data"))
    arguments.add_argument("--splits", type=int, default=10)
    options = arguments.parse_args()
    report("joint_regions", options.device, [compared(n, options.root, options.splits) for n in TABLES], options.out)


if __name__ == "__main__":
    main()
