"""Properties of the public edges, whatever comes in: a result that keeps its promises, or a sentence of ours."""

import contextlib
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import torchmcl as mcl
from torchmcl.checks import debug_checks

LARGE = 2.0**99
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 5))
RULES = st.one_of(
    st.just(mcl.WTA()),
    st.builds(mcl.RelaxedWTA, st.floats(0, 1)),
    st.builds(mcl.AnnealedWTA, st.floats(0, allow_infinity=True)),
    st.just(mcl.TopK(1)),
    st.builds(mcl.Sinkhorn, st.floats(0, allow_infinity=True), st.integers(1, 5)),
)


@st.composite
def costs_and_masks(draw):
    shape = draw(SHAPES)
    width = draw(st.sampled_from([32, 64]))
    dtype = {32: np.float32, 64: np.float64}[width]
    values = st.floats(-LARGE, LARGE, width=width)
    cost = torch.from_numpy(draw(arrays.arrays(dtype, shape, elements=values)))
    mask = torch.from_numpy(draw(arrays.arrays(np.bool_, shape[:-1])))
    return cost, draw(st.sampled_from([None, mask]))


@given(costs_and_masks(), RULES)
def test_weights_of_finite_costs_are_finite_and_sum_to_one(given_costs, rule):
    cost, mask = given_costs
    weights = rule(cost, mask)
    real = torch.ones(cost.shape[:-1], dtype=torch.bool) if mask is None else mask
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), real.to(weights.dtype), rtol=0, atol=1e-5)
    assert mcl.mcl_loss(mcl.assign(cost, rule, mask)).isfinite()


@given(costs_and_masks(), st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 10**6))
def test_one_cost_that_is_not_finite_makes_the_loss_nan(given_costs, value, place):
    cost, _ = given_costs
    if cost.numel():
        cost.view(-1)[place % cost.numel()] = value
        assert mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(1.0))).isnan()
        with debug_checks(), pytest.raises(ValueError, match="`cost` must be finite"):
            mcl.assign(cost, mcl.WTA())


POINT_SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3))
POINTS = arrays.arrays(np.float32, POINT_SHAPES, elements=st.floats(-(2.0**20), 2.0**20, width=32))


@given(POINTS, st.integers(0, 3))
def test_costs_of_points_to_themselves_are_zero_and_never_negative(points, shift):
    points = torch.from_numpy(points)
    for fn in (mcl.pairwise_sq_euclidean, mcl.pairwise_euclidean, mcl.pairwise_l1, mcl.pairwise_huber):
        cost = fn(hypotheses=points, targets=points.roll(shift, 0))
        assert cost.isfinite().all()
        assert (cost >= 0).all()
        assert fn(hypotheses=points, targets=points).diagonal().abs().max() == 0


@given(ANY_FLOAT, ANY_FLOAT, st.integers(-2, 10**20), ANY_FLOAT)
def test_a_ramp_that_can_be_made_stays_between_its_ends(start, end, n_steps, step):
    for kind in (mcl.Linear, mcl.Cosine):
        try:
            schedule = kind(start, end, n_steps)
            value = schedule(step)
        except ValueError as error:
            assert "must" in str(error)  # noqa: PT017
            continue
        low, high = min(start, end), max(start, end)
        assert low <= value * (1 + 1e-12 * math.copysign(1, value)) or math.isclose(value, low)
        assert value <= high or math.isclose(value, high)


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 6)), elements=st.floats(-1e30, 1e30)))
def test_normalised_scores_are_probabilities(logits):
    scores = mcl.normalized_scores(torch.from_numpy(logits))
    assert (scores >= 0).all()
    torch.testing.assert_close(scores.sum(-1), torch.ones(len(scores), dtype=torch.float64))


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_refused(tmp_path_factory, text):
    pytest.importorskip("yaml")
    from torchmcl_speech.config import yaml_value

    with contextlib.suppress(ValueError):
        found = yaml_value("test", "any", text)
        assert isinstance(found, str | int | float | list | dict | None)


@pytest.mark.slow
@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_end_the_command_with_a_sentence(words):
    from torchmcl.app import main

    out = io.TextIOWrapper(io.BytesIO(), errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    assert code in (0, 2)
