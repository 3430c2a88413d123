"""Under autocast nothing of the library is rounded to half precision: results are those without it."""

import torch

import torchmcl as mcl
from grids import for_each
from torchmcl import metrics, theory
from torchmcl.costs import MixtureNLLWithCRPS
from torchmcl.density import Mixture, best_points
from torchmcl.postprocess import BallNonconformity, Conformal, TubeNonconformity, expected_cost, reduce


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3 + 10


SAMPLES, HYPOTHESES = draw(64, 2), draw(5, 2, seed=1)
WEIGHTS = draw(64, 5, seed=2).softmax(dim=-1)
MANY = mcl.Predictions(draw(8, 30, 2), draw(8, 30, seed=1))
TARGETS = draw(8, 1, 2, seed=2)
SHARES = draw(8, 30, seed=1).softmax(dim=-1)
LINE, PLANE = (kind(draw(8, 30, dim), SHARES, 0.7) for kind, dim in ((Mixture, 1), (Mixture, 2)))

FUNCTIONS = {
    "MixtureNLLWithCRPS": lambda: MixtureNLLWithCRPS(3.0)(
        hypotheses=MANY.hypotheses, targets=TARGETS, scale=torch.tensor(0.7), score_logits=MANY.score_logits
    ),
    "energy_score": lambda: metrics.energy_score(MANY, TARGETS),
    **{
        name: lambda name=name: getattr(metrics, name)(mcl.Predictions(draw(8, 4, 5, 3)), draw(8, 2, 5, 3, seed=1))
        for name in ("crps", "generalized_energy_distance", "mpjpe", "pa_mpjpe", "variogram_score")
    },
    "oracle_rmse": lambda: metrics.oracle_rmse(MANY, TARGETS),
    "rmse_of_mean": lambda: metrics.rmse_of_mean(MANY, TARGETS),
    "covariance": lambda: theory.covariance(SAMPLES),
    "local_critical_temperature": lambda: theory.local_critical_temperature(SAMPLES),
    "critical_temperature_of_residuals": lambda: theory.critical_temperature_of_residuals(SAMPLES),
    "next_critical_temperatures": lambda: theory.next_critical_temperatures(SAMPLES, HYPOTHESES, 2.0),
    "soft_barycenters": lambda: theory.soft_barycenters(SAMPLES, WEIGHTS),
    "covariance_blocks": lambda: theory.covariance_blocks(SAMPLES, HYPOTHESES, WEIGHTS),
    "free_energy_hessian": lambda: theory.free_energy_hessian(SAMPLES, HYPOTHESES, 2.0),
    "blahut_arimoto": lambda: theory.blahut_arimoto(
        mcl.pairwise_sq_euclidean(hypotheses=HYPOTHESES, targets=SAMPLES), 2.0
    ),
    "reduce to means": lambda: reduce(MANY, 4),
    "reduce of float64": lambda: reduce(mcl.Predictions(MANY.hypotheses.double()), 4),
    "reduce to medians": lambda: reduce(MANY, 4, cost_fn=mcl.pairwise_euclidean),
    "reduce to some": lambda: reduce(MANY, 4, moved=False),
    "expected_cost": lambda: expected_cost(mcl.Predictions(MANY.hypotheses[:, :3]), MANY),
    "balls": lambda: Conformal.calibrate(BallNonconformity(), MANY, TARGETS[:, 0], coverage=0.5).level,
    "tubes": lambda: Conformal.calibrate(TubeNonconformity(), MANY, TARGETS[:, 0], coverage=0.5).level,
    "best_points on the line": lambda: best_points(LINE, 4),
    "best_points in the plane": lambda: best_points(PLANE, 4),
    "density": lambda: PLANE.log_prob(TARGETS[:, 0]),
}


@for_each("name", FUNCTIONS)
def test_autocast_changes_no_digit(name):
    expected = FUNCTIONS[name]()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = FUNCTIONS[name]()
        inside = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    assert inside == torch.bfloat16, "autocast is still on for the caller"
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
