"""The contract of the rules under bad values, and at any shape, mask and magnitude."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from families import ALL_RULE_CASES, ALL_RULES
from grids import for_each
from problems import make_cost

for_all_rules = for_each("rule", ALL_RULES)

# ------------------------------------------------------------------ bad values inside the cost

BAD_ROWS = {
    "nan": [math.nan, 1.0, 2.0, 3.0],
    "nan_last": [1.0, 2.0, 3.0, math.nan],
    "inf_at_a_loser": [1.0, math.inf, 2.0, 3.0],
    "inf_everywhere": [math.inf] * 4,
    "minus_inf_at_the_winner": [1.0, 2.0, 3.0, -math.inf],
}


@for_all_rules
@for_each("row", BAD_ROWS.values())
@for_each("reduction", ["mean", "sample_mean"])
def test_a_cost_that_is_not_finite_gives_a_loss_that_is_not_finite(rule, row, reduction):
    cost = make_cost(5)
    cost[2, 1] = torch.tensor(row)
    assert not mcl.mcl_loss(mcl.assign(cost, rule), reduction).isfinite()
    mask = torch.ones(5, 3, dtype=torch.bool)
    mask[0, 0] = mask[2, 2] = False
    assert not mcl.mcl_loss(mcl.assign(cost, rule, mask), reduction).isfinite()


@for_all_rules
@for_each("row", BAD_ROWS.values())
def test_a_cost_that_is_not_finite_spoils_its_own_target_and_no_other_sample(rule, row):
    cost = make_cost(5)
    cost[2, 1] = torch.tensor(row)
    losses = mcl.mcl_loss(mcl.assign(cost, rule), reduction="none")
    assert not losses[2, 1].isfinite()
    assert losses[[0, 1, 3, 4]].isfinite().all()


@for_all_rules
@for_each("name", ["nan", "nan_last", "inf_everywhere", "minus_inf_at_the_winner"])
def test_a_matched_cost_that_is_not_finite_gives_a_nan_loss_of_a_trained_cost_that_is(rule, name):
    cost, trained = make_cost(5), make_cost(5)
    cost[2, 1] = torch.tensor(BAD_ROWS[name])
    losses = mcl.mcl_loss(mcl.assign(cost, rule), "none", trained_cost=trained)
    assert losses[2, 1].isnan()
    assert losses[[0, 1, 3, 4]].isfinite().all()
    padded = torch.ones(5, 3, dtype=torch.bool)
    padded[2, 1] = False
    assert mcl.mcl_loss(mcl.assign(cost, rule, padded), trained_cost=trained).isfinite()


@for_all_rules
def test_an_infinite_cost_of_a_lonely_hypothesis_gives_a_loss_that_is_not_finite(rule):
    if isinstance(rule, mcl.TopK):
        rule = mcl.TopK(1)
    assert not mcl.mcl_loss(mcl.assign(torch.tensor([[math.inf]]), rule)).isfinite()


# ------------------------------------------------------------------ properties


@st.composite
def costs_and_masks(draw, dtype=torch.float64):
    leading = draw(st.lists(st.integers(1, 3), max_size=2))
    n_targets = draw(st.integers(1, 3))
    n_hypotheses = draw(st.integers(3, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = 10.0 ** draw(st.integers(-20, 20))
    offset = draw(st.sampled_from([0.0, -1.0, 1.0]))
    cost = torch.rand(*leading, n_targets, n_hypotheses, generator=generator, dtype=dtype)
    if draw(st.booleans()):
        cost = cost.round(decimals=1)  # brings ties
    mask = torch.rand(*leading, n_targets, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return (cost + offset) * scale, mask


# EMD is slow and has a test of its own; long Sinkhorn loops add nothing here.
PROPERTY_RULES = [rule for rule in ALL_RULES if not isinstance(rule, mcl.EMD) and getattr(rule, "n_iters", 0) < 50]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
def test_contract_holds_for_any_shape_mask_and_magnitude(dtype, data):
    cost, mask = data.draw(costs_and_masks(dtype))
    spoiled = cost.masked_fill(~mask.unsqueeze(-1), math.nan)
    for rule in PROPERTY_RULES:
        weights = rule(cost, mask)
        assert weights.shape == cost.shape, rule
        assert (weights >= 0).all(), rule
        torch.testing.assert_close(weights.sum(-1), mask.to(dtype), rtol=0, atol=1e-5, msg=repr(rule))
        assert torch.equal(rule(spoiled, mask), weights), rule


@given(costs_and_masks())
def test_emd_keeps_the_contract_for_any_shape_mask_and_magnitude(case):
    cost, mask = case
    weights = mcl.EMD()(cost, mask)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), mask.double(), rtol=0, atol=1e-6)


@given(costs_and_masks())
def test_rules_without_ties_agree_with_their_oracles_at_any_magnitude(case):
    cost, mask = case
    ranked = cost.sort(-1).values
    gaps = ranked.diff(dim=-1).amin() if ranked.shape[-1] > 1 else torch.ones(())
    if gaps <= 1e-12 * cost.abs().amax():
        return  # who wins among equals is free for rules that couple targets
    for rule_case in ALL_RULE_CASES:
        if not isinstance(rule_case.rule, (mcl.EMD, mcl.Sinkhorn)):
            torch.testing.assert_close(
                rule_case.rule(cost, mask),
                rule_case.expected(cost, mask),
                rtol=1e-6,
                atol=1e-7,
                msg=repr(rule_case.rule),
            )


@given(costs_and_masks(), st.floats(-20, 20))
def test_annealed_weights_agree_with_the_oracle_at_any_temperature(case, exponent):
    cost, mask = case
    temperature = 10.0**exponent
    expected = oracles.apply_rule(oracles.annealed_wta, cost, mask, temperature)
    torch.testing.assert_close(mcl.AnnealedWTA(temperature)(cost, mask), expected, rtol=1e-6, atol=1e-9)
    per_model = mcl.AnnealedWTA(torch.tensor(temperature, dtype=torch.float64))(cost, mask)
    torch.testing.assert_close(per_model, expected, rtol=1e-6, atol=1e-9)
