"""Predictions of the theory against numbers: optimal quantisers, R(D), critical temperatures, annealing.

python benchmarks/theory.py [--device cuda] [--quick] [--out results/theory.json]
"""

import math
import time

import torch

import torchmcl as mcl
from _common import milliseconds, parser, report
from torchmcl import theory
from torchmcl.data import three_gaussians
from torchmcl.theory.quantizers import DeterministicAnnealing, lloyd_max, scalar_distortion

NORMAL = {
    **{2: 0.3633802, 3: 0.1901740, 4: 0.1174818, 5: 0.0799411, 8: 0.0345478},
    **{16: 0.0095010, 32: 0.0025047, 49: 0.0010893, 64: 0.0006442},
}
# Points of equal probability in the place of N(0, 1): fewer would cut off the tails that 32 points still resolve.
_N_QUANTILES = 6001
COVARIANCES = {
    "N(0, 0.3)": [[0.3]],
    "N(0, I)": [[1.0, 0.0], [0.0, 1.0]],
    "diag(4, 1)": [[4.0, 0.0], [0.0, 1.0]],
    "correlation 0.8": [[1.0, 0.8], [0.8, 1.0]],
    "diag(1, 0.5, 0.1)": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.1]],
}


def optimal_quantizers() -> list[dict[str, object]]:
    """Lloyd-Max distortions of N(0, 1), and how n^2 D_n approaches its limit."""
    rows: list[dict[str, object]] = []
    for n, known in NORMAL.items():
        found = lloyd_max(n).distortion
        rows.append({"name": f"lloyd-max n={n}", "distortion": found, "error": abs(found - known), "must_show": 1e-7})
    for n in (64, 256, 1000):
        value = n**2 * lloyd_max(n).distortion
        rows.append({"name": f"n^2 D_n n={n}", "value": value, "limit": math.sqrt(3) * math.pi / 2})
    return rows


def rate_distortion(device: str, quick: bool) -> list[dict[str, object]]:
    """Blahut-Arimoto on grids of Gaussians against reverse water-filling, with its bound and its time."""
    rows: list[dict[str, object]] = []
    sides = {(1.0,): 201, (1.0, 1.0): 23 if quick else 31, (1.0, 0.25): 23 if quick else 31}
    for variances, n_side in sides.items():
        width = 5.0 if len(variances) == 1 else 3.6
        axes = [torch.linspace(-width, width, n_side, dtype=torch.float64) * math.sqrt(v) for v in variances]
        grid = torch.cartesian_prod(*axes).view(-1, len(variances)).to(device)
        covariance = torch.diag(torch.tensor(variances, dtype=torch.float64, device=device))
        masses = (-0.5 * grid.square() / covariance.diagonal()).sum(dim=-1).exp()
        cost = mcl.pairwise_sq_euclidean(hypotheses=grid, targets=grid)
        temperatures = torch.tensor([0.4, 0.8, 1.2], dtype=torch.float64, device=device)
        start = time.perf_counter()
        points = theory.blahut_arimoto(cost, temperatures, masses=masses / masses.sum(), tolerance=2e-3)
        seconds = time.perf_counter() - start
        exact = theory.gaussian_rate(points.distortion, covariance)
        for index, temperature in enumerate(temperatures.tolist()):
            rows.append(
                {
                    "name": f"blahut-arimoto variances={variances} T={temperature}",
                    "distortion": points.distortion[index].item(),
                    "rate_bits": points.rate[index].item(),
                    "relative_error": (points.rate[index] / exact[index] - 1).abs().item(),
                    "gap_bits": points.gap[index].item(),
                    "curve_s": seconds,
                    "must_show": "relative_error <= 0.01",
                }
            )
    return rows


def first_splits(device: str, quick: bool) -> list[dict[str, object]]:
    """Where points that are cooled part, against 2 lambda_max."""
    generator = torch.Generator().manual_seed(0)
    sets = {
        name: torch.randn(1000, len(c), dtype=torch.float64, generator=generator)
        @ torch.linalg.cholesky(torch.tensor(c, dtype=torch.float64)).mT
        for name, c in COVARIANCES.items()
    }
    sets["three Gaussians"] = three_gaussians(1000, generator).double()
    rows: list[dict[str, object]] = []
    for name, samples in sets.items():
        samples = samples.to(device)
        n_updates = 600 if quick else 2000
        annealing = DeterministicAnnealing(
            4, hottest=1.1, coldest=0.95, decay=0.995, n_updates=n_updates, tolerance=1e-5, random_state=0
        ).fit(samples)
        transition = theory.observed_transitions(annealing.trajectory_)[0]
        predicted = theory.first_critical_temperature(samples).item()
        rows.append(
            {
                "name": f"first split {name}",
                "predicted": predicted,
                "observed": transition.temperature,
                "relative_error": abs(transition.temperature / predicted - 1),
                "must_show": "relative_error <= 0.03",
            }
        )
    return rows


def annealing_of_points(device: str, quick: bool) -> list[dict[str, object]]:
    """Points annealed on N(0, 1), and winner-takes-all from a corner, against the optimum."""
    rows: list[dict[str, object]] = []
    for n in (2, 4, 8, 16, 32) if quick else range(2, 33):
        u = (torch.arange(_N_QUANTILES, dtype=torch.float64) + 0.5) / _N_QUANTILES
        samples, best = torch.special.ndtri(u).unsqueeze(-1).to(device), lloyd_max(n).distortion
        start = time.perf_counter()
        annealing = DeterministicAnnealing(n, decay=0.8, n_updates=40, random_state=0).fit(samples)
        seconds = time.perf_counter() - start
        points = 10 + 0.01 * torch.arange(n, dtype=torch.float64, device=device).unsqueeze(-1)
        for _ in range(200):
            weights = mcl.WTA()(mcl.pairwise_sq_euclidean(hypotheses=points, targets=samples))
            points = theory.soft_barycentres(samples, weights, otherwise=points)
        rows.append(
            {
                "name": f"annealing n={n}",
                "annealed_over_optimum": scalar_distortion(torch.from_numpy(annealing.cluster_centers_)[:, 0]).item()
                / best,
                "wta_from_a_corner_over_optimum": scalar_distortion(points[:, 0]).item() / best,
                "seconds": seconds,
                "must_show": "annealed <= 1.005",
            }
        )
    return rows


def speed(device: str) -> list[dict[str, object]]:
    """Time of what a recorder would call at every record."""
    hypotheses = torch.randn(64, 49, 2, device=device)
    cost = torch.rand(1024, 1, 49, device=device)
    weights = theory.boltzmann_weights(cost, 0.1)
    calls = {
        "n_distinct [64, 49, 2]": lambda: theory.n_distinct(hypotheses, 0.05),
        "free_energy [1024, 1, 49]": lambda: theory.free_energy(cost, 0.1, mean_axes=2),
        "mutual_information [1024, 49]": lambda: theory.mutual_information(weights[:, 0]),
    }
    return [{"name": name, "ms": milliseconds(call, device)} for name, call in calls.items()]


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--quick", action="store_true", help="smaller grids and fewer updates")
    options = arguments.parse_args()
    rows = [
        *optimal_quantizers(),
        *rate_distortion(options.device, options.quick),
        *first_splits(options.device, options.quick),
        *annealing_of_points(options.device, options.quick),
        *speed(options.device),
    ]
    report("theory", options.device, rows, options.out)
