"""Automatic annealing on the three Gaussians: 49 answers without an input, against the best of 50 k-means.

python benchmarks/auto_gaussians.py [--parts fleet] [--device cuda] [--out results/auto-gaussians-cpu.json]

Fleet: `AutoAnnealing()` as it comes, in the network of the quick figures, beside the figure's own schedule. k-means is
fitted to fresh points, and all are measured on 25 000 others. Estimator: `MCLRegressor()` on 10 000 points, and on the
same times 1e-3 and 1e3; a fleet takes targets as they are, and its learning rate is for targets of the size of 1.
"""

from dataclasses import replace

import numpy as np
import torch
from sklearn.cluster import KMeans

import torchmcl as mcl
from _common import parser, report
from torchmcl.annealing import AutoAnnealing
from torchmcl.data import three_gaussians
from torchmcl.sklearn import MCLRegressor
from torchmcl_studies.figures.settings import held_out_points, train_without_input, unconditional

N_HELD_OUT = 25_000
N_ESTIMATORS = 4  # with each scale of the targets; which rows are held out depends on their values


def main(parts: list[str], n_seeds: int, device: str) -> list[dict[str, object]]:
    """Return distortion of every seed relative to k-means."""
    settings = replace(unconditional("quick", device), n_seeds=n_seeds, n_held_out=N_HELD_OUT)
    fresh = three_gaussians(10_000, torch.Generator().manual_seed(2)).numpy()
    centres = torch.from_numpy(KMeans(settings.n_hypotheses, n_init=50, random_state=0).fit(fresh).cluster_centers_)
    held_out = held_out_points(settings, three_gaussians)
    best = float(torch.cdist(held_out.double(), centres.double()).square().amin(dim=-1).mean())
    by_hand = mcl.annealed(mcl.AnnealedWTA, temperature=settings.exponential())
    rows: list[dict[str, object]] = []
    fleets = (("auto", AutoAnnealing()), ("the figure's schedule", by_hand)) if "fleet" in parts else ()
    for what, rule in fleets:
        (records,) = train_without_input(settings, [rule], three_gaussians, progress=False, what=what)
        above = [float(one.distortion[-1]) / best - 1 for one in records]
        rows.append({"what": what, "seeds": n_seeds, "k_means": best, "above_k_means": above})
        rows[-1] |= {"mean": sum(above) / n_seeds, "within_2_percent": sum(value <= 0.02 for value in above)}
        print(rows[-1], flush=True)
    for scale in (1.0, 1e-3, 1e3) if "estimator" in parts else ():
        seeds = range(N_ESTIMATORS)
        above = [distortion_of_estimator(fresh, held_out.numpy(), scale, seed) / best - 1 for seed in seeds]
        rows.append({"what": "estimator", "targets_times": scale, "k_means": best, "above_k_means": above})
        rows[-1] |= {"mean": float(np.mean(above)), "standard_error": float(np.std(above, ddof=1) / len(above) ** 0.5)}
        print(rows[-1], flush=True)
    return rows


def distortion_of_estimator(points: np.ndarray, held_out: np.ndarray, scale: float, seed: int) -> float:
    """Return the distortion of `MCLRegressor` on points times `scale`, in units of the points."""
    model = MCLRegressor(n_hypotheses=49, n_restarts=1, random_state=seed)
    model.fit(np.ones((len(points), 1)), scale * points)
    return model.distortion(np.ones((len(held_out), 1)), scale * held_out) / scale**2


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--parts", nargs="*", default=["fleet", "estimator"])
    arguments.add_argument("--seeds", type=int, default=10)
    options = arguments.parse_args()
    must = {"must_show": "auto within 2 % of the best of 50 k-means in 10 of 10 seeds; the same at every scale"}
    report("auto_gaussians", options.device, [*main(options.parts, options.seeds, options.device), must], options.out)
