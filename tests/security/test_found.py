"""Faults that generated inputs found: each was a crash, a stranger's exception, or a number that was wrong."""

import math

import pytest
import torch

import torchmcl as mcl
from forged import forge
from grids import for_each
from torchmcl import metrics
from torchmcl.schedules import JoinedSchedule
from torchmcl_speech.nn import DPRNN
from torchmcl_speech.nn.saving import load_model, save_model

LONG = 10**400


@for_each(
    "make",
    [mcl.AnnealedWTA, mcl.Constant, lambda x: mcl.Linear(x, 0.0, 3), lambda x: mcl.CutoffAt(mcl.Constant(1.0), x)],
)
def test_a_number_that_no_float_can_hold_is_refused(make):
    with pytest.raises(ValueError, match=r"must be a number below 1\.8e308"):
        make(LONG)


@for_each(
    "schedule",
    [
        mcl.Linear(1.0, 0.0, 10),
        mcl.Cosine(1.0, 0.0, 10),
        mcl.Exponential(1.0, 0.9),
        mcl.CutoffAt(mcl.Constant(1.0), 5),
        JoinedSchedule((mcl.Constant(1.0), mcl.Linear(1.0, 0.0, 3)), (4,)),
    ],
)
def test_schedules_refuse_a_step_of_nan_and_reach_their_end_at_endless_steps(schedule):
    with pytest.raises(ValueError, match="schedule: `step` must be a number, got nan"):
        schedule(math.nan)
    assert schedule(LONG) == schedule(math.inf) == 0
    assert schedule(-LONG) == schedule(-1) == 1


@for_each("fn", [mcl.pairwise_sq_euclidean, mcl.pairwise_l1, mcl.pairwise_huber, mcl.pairwise_euclidean])
def test_points_without_coordinates_cost_nothing(fn):
    cost = fn(hypotheses=torch.zeros(2, 3, 0), targets=torch.zeros(2, 4, 0))
    assert torch.equal(cost, torch.zeros(2, 4, 3))


def test_a_huber_cost_with_a_delta_beyond_float32_is_half_the_square():
    cost = mcl.pairwise_huber(hypotheses=torch.tensor([[3.0]]), targets=torch.tensor([[1.0]]), delta=1e300)
    assert cost.item() == 2.0


@for_each("ids", [[-1], [3]])
def test_a_class_id_out_of_range_is_an_error_in_words(ids):
    with pytest.raises(ValueError, match="pairwise_cross_entropy: `targets` must lie between 0 and 2"):
        mcl.pairwise_cross_entropy(hypotheses=torch.zeros(2, 3), targets=torch.tensor(ids))


def test_metrics_of_half_precision_do_not_overflow_and_mixed_precision_mixes():
    answers = mcl.Predictions(torch.full((1, 2, 1), 1000.0, dtype=torch.float16))
    targets = torch.zeros(1, 1, 1, dtype=torch.float16)
    assert metrics.rmse_of_mean(answers, targets).item() == 1000
    mixed = mcl.Predictions(torch.zeros(1, 2, 1, dtype=torch.float64), torch.zeros(1, 2))
    assert metrics.energy_score(mixed, torch.ones(1, 1, 1, dtype=torch.float64)).item() == pytest.approx(1)
    assert mcl.normalized_scores(torch.zeros(3, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("value", [1e308, 10**30, -1, 0, "8", None, [1], 2.5], ids=repr)
def test_a_size_of_a_saved_network_that_no_network_has_is_refused(tmp_path, value):
    pytest.importorskip("safetensors")
    model = DPRNN(2, n_filters=4, kernel_size=4, stride=2, segment_size=4, hidden_size=3, n_blocks=1)
    for name in ("width", "hidden_size", "n_blocks"):
        save_model(tmp_path, model)
        forge(tmp_path, **{f"config__{name}": value})
        with pytest.raises(ValueError, match=rf"as `save` wrote it, got ValueError: {name} is .*, which"):
            load_model(tmp_path)
