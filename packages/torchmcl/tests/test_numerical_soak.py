"""Temperatures from 1e-12 to 1e12, costs from 1e-30 to 1e30, one hypothesis and 100 000, no target at all, 3 dtypes.

Everything is finite, and within the error that docs/speed_and_numerics.rst states of a float64 oracle that is given the
same rounded numbers.
"""

import math

import pytest
import torch

import oracles
import torchmcl as mcl
from grids import for_each
from problems import score_labels
from torchmcl import metrics

pytest.importorskip("scipy")

# float16 is computed in float32 as bfloat16 is, which also holds every scale below.
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
TEMPERATURES = [1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e12]
SCALES = [1e-30, 1e-12, 1e-6, 1.0, 1e6, 1e12, 1e30]
MANY = 100_000
# The stated bounds: absolute for weights, relative for losses and metrics. Half precision is computed in float32.
WEIGHT_ERROR = {torch.float64: 1e-14}
RELATIVE_ERROR = {torch.float64: 1e-13}


def weight_error(dtype):
    return WEIGHT_ERROR.get(dtype, 5e-7)


def relative_error(dtype):
    return RELATIVE_ERROR.get(dtype, 2e-6)


def costs(dtype, scale, *shape, signed=False):
    """Return costs of a magnitude, or None if the dtype cannot hold it."""
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    values = ((values if signed else values.abs()) * scale).to(dtype)
    return values if values.isfinite().all() else None


def cases(dtype, *shapes):
    for scale in SCALES:
        for shape in shapes:
            for signed in (False, True):
                if shape[-1] == MANY and (signed or scale not in (1.0, 1e30)):
                    continue
                cost = costs(dtype, scale, *shape, signed=signed)
                if cost is not None:
                    yield cost


def close(actual, expected, error):
    assert actual.isfinite().all()
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=error)


def near(actual, expected, error):
    """Compare relatively; what float32 cannot hold at all may be 0."""
    assert math.isfinite(float(actual))
    assert float(actual) == pytest.approx(expected, rel=error, abs=1e-37)


@for_each("dtype", DTYPES)
@for_each("temperature", [0.0, *TEMPERATURES, math.inf])
def test_softmin_at_every_temperature_and_cost(dtype, temperature):
    for cost in cases(dtype, (2, 1), (3, 7)):
        expected = oracles.apply_rule(oracles.annealed_wta, cost, None, temperature)
        close(mcl.AnnealedWTA(temperature)(cost), expected, weight_error(dtype))
        if 0 < temperature < math.inf:
            as_tensor = torch.tensor([[temperature]], dtype=torch.float64)
            close(mcl.AnnealedWTA(as_tensor)(cost), expected, weight_error(dtype))


@for_each("dtype", DTYPES)
def test_softmin_over_a_hundred_thousand_hypotheses(dtype):
    for scale, temperature in ((1.0, 1e-3), (1.0, 1e12), (1e4, 1e-12), (1e4, 1.0), (1e-6, 1e-6), (1e30, 1e12)):
        cost = costs(dtype, scale, 1, MANY)
        if cost is not None:
            weights = mcl.AnnealedWTA(temperature)(cost)
            close(weights, oracles.apply_rule(oracles.annealed_wta, cost, None, temperature), weight_error(dtype))
            assert weights.double().sum().item() == pytest.approx(1, abs=1e-5)


@for_each("dtype", DTYPES)
def test_hard_and_relaxed_rules_at_every_cost(dtype):
    for cost in cases(dtype, (2, 1), (3, 7), (1, MANY)):
        close(mcl.WTA()(cost), oracles.apply_rule(oracles.wta, cost), 0)
        close(mcl.RelaxedWTA(0.3)(cost), oracles.apply_rule(oracles.relaxed_wta, cost, None, 0.3), 1e-7)
        n = min(3, cost.shape[-1])
        if cost.shape[-1] < MANY or dtype == torch.float64:
            close(mcl.TopK(n)(cost), oracles.apply_rule(oracles.top_k, cost, None, n), 1e-7)


@for_each("dtype", DTYPES)
def test_one_to_one_assignment_is_the_cheapest_at_every_cost(dtype):
    for cost in cases(dtype, (2, 1, 1), (2, 2, 4), (2, 3, 3)):
        for rule, oracle in ((mcl.PIT(), oracles.pit), (mcl.EMD(), oracles.emd if cost.shape[-1] != 4 else None)):
            weights = rule(cost)
            assert weights.isfinite().all()
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
            if oracle is not None:  # equal costs may have several cheapest plans: compare what they cost
                expected = oracles.apply_rule(oracle, cost)
                ours, theirs = ((w.double() * cost.double()).sum((-1, -2)) for w in (weights, expected))
                spread = cost.double().abs().amax().item()
                torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-12 * spread)
    many = mcl.PIT()(costs(dtype, 1.0, 3, MANY))
    assert many.sum().item() == 3
    assert many.amax(dim=0).sum().item() == 3


@for_each("dtype", DTYPES)
@for_each("temperature", [1e-12, 1e-3, 1.0, 1e3, 1e12])
def test_sinkhorn_loses_as_many_digits_as_the_exponents_have(dtype, temperature):
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    for scale in SCALES:
        for shape in ((2, 3), (3, 3), (4, 2), (3, 1), (1, 1)):
            cost = costs(dtype, scale, *shape)
            if cost is None:
                continue
            weights = mcl.Sinkhorn(temperature, n_iters=15)(cost)
            assert weights.isfinite().all()
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-5)
            exponent = (cost.double().amax() - cost.double().amin()).item() / temperature
            if exponent * eps < 1e-2:  # beyond, no digit is left, and the plan is one of the coldest
                expected = oracles.apply_rule(oracles.sinkhorn_in_logarithms, cost, None, temperature, 15)
                close(weights, expected, 10 * eps * max(1, exponent))


def test_sinkhorn_over_a_hundred_thousand_hypotheses():
    weights = mcl.Sinkhorn(0.1, n_iters=10)(costs(torch.float32, 1.0, 2, MANY))
    assert weights.isfinite().all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2), rtol=0, atol=1e-4)
    assert weights.sum(0).max().item() < 3 * 2 / MANY  # every hypothesis is used


@for_each("dtype", DTYPES)
@for_each("rule", [mcl.WTA(), mcl.RelaxedWTA(0.1), mcl.AnnealedWTA(1e-3), mcl.AnnealedWTA(1e12)])
def test_losses_and_gradients_at_every_cost(dtype, rule):
    for cost in cases(dtype, (3, 2, 1), (3, 2, 5), (1, 1, MANY)):
        cost = cost.abs().requires_grad_()
        matching = mcl.assign(cost, rule)
        loss = mcl.mcl_loss(matching)
        expected = (matching.weights.double() * cost.detach().double()).sum(-1).mean().item()
        near(loss.detach(), expected, relative_error(dtype))
        (gradient,) = torch.autograd.grad(loss, cost)
        assert gradient.isfinite().all()
        close(gradient, matching.weights.double() / matching.mask.sum(), 2e-3 if dtype.itemsize == 2 else 1e-6)


@for_each("dtype", DTYPES)
def test_score_loss_and_scores_at_every_logit(dtype):
    for logits in cases(dtype, (2, 1), (2, 6), (1, MANY)):
        labels = score_labels(torch.rand(len(logits), 1, logits.shape[-1]))
        rows = logits.double().tolist()
        if logits.shape[-1] == MANY:
            values = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double()).item()
        else:
            values = oracles.score_loss([[min(max(x, -700), 700) for x in row] for row in rows], labels.tolist())
            if max(abs(x) for row in rows for x in row) > 700:
                values = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double()).item()
        near(mcl.SigmoidScores().loss(logits, labels), values, relative_error(dtype))
        scores = mcl.normalized_scores(logits)
        assert scores.isfinite().all()
        assert scores.dtype == torch.promote_types(dtype, torch.float32)
        if logits.abs().max() <= 700:
            expected = torch.tensor([oracles.normalized_scores(row) for row in rows], dtype=torch.float64)
            close(scores, expected, weight_error(dtype))


@for_each("dtype", DTYPES)
@for_each("scale", [1e-15, 1e-7, 1e-3, 1.0, 1e3, 1e7, 1e15])
@for_each("dim", [2, 64])
def test_metrics_of_points_of_every_size(dtype, scale, dim):
    generator = torch.Generator().manual_seed(1)
    for n_hypotheses in (1, 5):
        hypotheses, targets = (
            (torch.randn(3, n, dim, generator=generator, dtype=torch.float64) * scale).to(dtype)
            for n in (n_hypotheses, 2)
        )
        if not (hypotheses.isfinite().all() and targets.isfinite().all()):
            continue
        hypotheses[:, 0] = targets[:, 0] + hypotheses[:, 0] / 64  # a near pair among far ones keeps its digits too
        logits = torch.randn(3, n_hypotheses, generator=generator).to(dtype)
        answers = mcl.Predictions(hypotheses, logits)
        mask = torch.tensor([[True, True], [True, False], [False, False]])
        matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets), mcl.WTA(), mask)
        h, t, m = hypotheses.double().tolist(), targets.double().tolist(), mask.tolist()
        p = [oracles.normalized_scores(row) for row in logits.double().tolist()]
        cost = oracles.pairwise(oracles.sq_euclidean, hypotheses.double(), targets.double()).tolist()
        error = 2e-5 if dtype != torch.float64 else 1e-12
        near(metrics.distortion(matching), oracles.distortion(cost, m), error)
        near(metrics.oracle_rmse(answers, targets, mask), oracles.oracle_rmse(h, t, m), error)
        near(metrics.rmse_of_mean(answers, targets, mask), oracles.rmse_of_mean(h, p, t, m), error)
        near(metrics.energy_score(answers, targets, mask), oracles.energy_score(h, p, t, m), error)
        usage = torch.tensor(oracles.hypothesis_usage(matching.weights.tolist(), m), dtype=torch.float64)
        close(metrics.hypothesis_usage(matching), usage, 1e-6)


@for_each("dtype", DTYPES)
@for_each("n_hypotheses", [1, 4, MANY])
def test_no_target_at_all_costs_nothing(dtype, n_hypotheses):
    cost = torch.zeros(2, 0, n_hypotheses, dtype=dtype)
    for rule in (
        mcl.WTA(),
        mcl.RelaxedWTA(0.1),
        mcl.AnnealedWTA(1e-12),
        mcl.TopK(1),
        mcl.Sinkhorn(1.0),
        mcl.PIT(),
        mcl.EMD(),
    ):
        matching = mcl.assign(cost, rule)
        assert matching.weights.shape == cost.shape
        for reduction in ("mean", "sample_mean"):
            assert mcl.mcl_loss(matching, reduction).item() == 0
    labels = score_labels(cost)
    assert labels.isfinite().all()
    no_targets = torch.zeros(2, 0, dtype=torch.bool)
    assert mcl.SigmoidScores().loss(torch.zeros(2, n_hypotheses, dtype=dtype), labels, no_targets).item() == 0
