"""The contract of every schedule: a frozen, pure, printable value; exact on both sides of every boundary."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchmcl as mcl
from grids import for_each
from torchmcl import schedules
from torchmcl.schedules import JoinedSchedule

SCHEDULES = [
    mcl.Constant(0.3),
    mcl.Linear(1.0, 0.0, 4),
    mcl.Linear(0.0, 2.0, 3),
    mcl.Cosine(1.0, 0.0, 4),
    mcl.Exponential(0.5, 0.95),
    mcl.Exponential(0.5, 0.95, cutoff=5e-4),
    mcl.CutoffAt(mcl.Linear(1.0, 0.0, 4), 2),
    JoinedSchedule((mcl.Constant(1.0), mcl.Linear(1.0, 0.0, 2)), (10,)),
]
for_all_schedules = for_each("schedule", SCHEDULES)
STEPS = [0, 0.5, 1, 2, 3, 3.999, 4, 5, 9, 10, 11, 12, 134, 135, 10**6]


# ------------------------------------------------------------------ the contract


@for_all_schedules
def test_schedules_are_frozen(schedule):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, dataclasses.fields(schedule)[0].name, 7.0)


@for_all_schedules
def test_copies_are_equal_hash_alike_and_do_the_same(schedule):
    for twin in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
        assert twin == schedule
        assert hash(twin) == hash(schedule)
        assert [twin(step) for step in STEPS] == [schedule(step) for step in STEPS]


def test_different_schedules_are_not_equal():
    for i, left in enumerate(SCHEDULES):
        for j, right in enumerate(SCHEDULES):
            assert (left == right) == (i == j)


@for_all_schedules
def test_repr_can_be_read_back(schedule):
    assert eval(repr(schedule), vars(schedules)) == schedule


@for_all_schedules
def test_schedules_are_pure_functions_with_finite_values(schedule):
    forwards = [schedule(step) for step in STEPS]
    backwards = [schedule(step) for step in reversed(STEPS)]
    assert forwards == backwards[::-1]
    assert all(isinstance(value, float) and math.isfinite(value) for value in forwards)
    assert schedule(-1) == schedule(0)  # steps before the first count as the first


# ------------------------------------------------------------------ both sides of every boundary


def test_constant_never_changes():
    assert [mcl.Constant(0.3)(step) for step in STEPS] == [0.3] * len(STEPS)


def test_linear_starts_and_ends_exactly():
    schedule = mcl.Linear(0.7, 0.1, 3)
    assert schedule(0) == 0.7
    assert schedule(1) == pytest.approx(0.5)
    assert schedule(2.5) == pytest.approx(0.2)
    assert 0.1 < schedule(2.999) < 0.11
    assert schedule(3) == 0.1
    assert schedule(4) == 0.1


def test_cosine_starts_and_ends_exactly_and_is_halfway_in_the_middle():
    schedule = mcl.Cosine(0.7, 0.1, 10)
    assert schedule(0) == 0.7
    assert schedule(5) == pytest.approx(0.4)
    assert schedule(2) == pytest.approx(0.1 + 0.6 * (1 + math.cos(math.pi * 0.2)) / 2)
    assert schedule(10) == pytest.approx(0.1, abs=1e-15)
    assert schedule(11) == schedule(10)
    assert schedule(0) - schedule(0.01) < 1e-5
    assert schedule(9.99) - schedule(10) < 1e-5


def test_exponential_is_cut_to_zero_just_below_its_cutoff():
    schedule = mcl.Exponential(1.0, 0.5, cutoff=0.25)
    assert [schedule(step) for step in (0, 1, 2)] == [1.0, 0.5, 0.25]
    assert schedule(2.0001) == 0.0
    assert schedule(3) == 0.0
    with pytest.raises(TypeError, match="positional"):
        mcl.Exponential(1.0, 0.01, 0.5)  # easily taken for a number of steps
    assert mcl.Exponential(1.0, 0.5, cutoff=1.0)(0) == 1.0
    assert mcl.Exponential(0.0, 0.5, cutoff=1.0)(0) == 0.0


def test_exponential_without_a_cutoff_never_reaches_zero_too_early():
    schedule = mcl.Exponential(0.5, 0.9)
    assert schedule(1000) == pytest.approx(0.5 * 0.9**1000)
    assert schedule(1000) > 0


def test_until_is_zero_from_its_step_on():
    schedule = mcl.CutoffAt(mcl.Constant(2.0), step=3)
    assert [schedule(step) for step in (0, 2, 2.999, 3, 4)] == [2.0, 2.0, 2.0, 0.0, 0.0]
    assert mcl.CutoffAt(mcl.Constant(2.0), step=0)(0) == 0.0


def test_joined_begins_the_next_schedule_at_each_boundary_and_counts_from_there():
    schedule = JoinedSchedule([mcl.Linear(0.0, 1.0, 10), mcl.Constant(5.0), mcl.Linear(3.0, 0.0, 3)], [10, 20])
    assert schedule(5) == pytest.approx(0.5)
    assert schedule(9.999) == pytest.approx(0.9999)
    assert [schedule(step) for step in (10, 19.999, 20, 21, 23, 24)] == [5.0, 5.0, 3.0, 2.0, 0.0, 0.0]


def test_joined_accepts_lists_and_stays_hashable():
    from_lists = JoinedSchedule([mcl.Constant(1.0), mcl.Constant(0.0)], [3])
    from_tuples = JoinedSchedule((mcl.Constant(1.0), mcl.Constant(0.0)), (3,))
    assert from_lists == from_tuples
    assert hash(from_lists) == hash(from_tuples)


def test_a_function_of_the_step_may_stand_for_a_schedule():
    assert mcl.CutoffAt(lambda step: 2.0 * step, step=3)(2) == 4.0
    assert mcl.annealed(mcl.AnnealedWTA, temperature=lambda step: 1.0 + step)(2) == mcl.AnnealedWTA(3.0)


@for_each("schedule_of", [mcl.Linear, mcl.Cosine])
def test_a_ramp_never_gives_nan(schedule_of):
    schedule = schedule_of(math.inf, 0.0, 5)
    assert schedule(0) == math.inf
    assert schedule(5) == 0.0


# ------------------------------------------------------------------ the paper's schedules


@for_each(
    "schedule, formula",
    [
        (mcl.Linear(0.5, 0.0, 1000), lambda t: 0.5 * (1 - t / 1000)),
        (mcl.Exponential(0.5, 0.95, cutoff=5e-4), lambda t: 0.5 * 0.95**t if t < 135 else 0.0),
        (mcl.CutoffAt(mcl.Linear(0.1, 0.0, 100), 100), lambda t: 0.1 * (1 - t / 100) * (t < 100)),
        (mcl.CutoffAt(mcl.Exponential(5.0, 0.9), 100), lambda t: 5.0 * 0.9**t * (t < 100)),
    ],
)
def test_the_schedules_of_the_paper(schedule, formula):
    for t in (0, 1, 50, 99, 100, 101, 134, 135, 200, 999, 1000):
        assert schedule(t) == pytest.approx(max(formula(t), 0))


@for_each(
    "schedule",
    [
        mcl.Linear(0.5, 0.0, 10),
        mcl.Exponential(0.5, 0.95, cutoff=5e-4),
        mcl.CutoffAt(mcl.Linear(0.1, 0.0, 10), 10),
        mcl.CutoffAt(mcl.Exponential(5.0, 0.9), 10),
    ],
)
def test_annealing_ends_in_winner_takes_all(schedule):
    cost = torch.rand(5, 2, 4)
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=schedule)
    assert not torch.equal(rule_at(0)(cost), mcl.WTA()(cost))
    assert torch.equal(rule_at(200)(cost), mcl.WTA()(cost))


# ------------------------------------------------------------------ annealed


@for_each(
    "rule, field, start, end",
    [
        (mcl.AnnealedWTA(1.0), "temperature", 0.5, 0.0),
        (mcl.RelaxedWTA(0.5), "epsilon", 0.5, 0.0),
        (mcl.TopK(8), "k", 8, 1),
        (mcl.Sinkhorn(1.0), "temperature", 1.0, 0.0),
        (mcl.Sinkhorn(1.0), "n_iters", 10, 50),
    ],
)
def test_any_field_of_any_rule_can_be_annealed(rule, field, start, end):
    rule_at = mcl.annealed(rule, **{field: mcl.Linear(start, end, 7)})
    cost = torch.rand(3, 2, 8)
    for step in range(9):
        now = rule_at(step)
        assert type(now) is type(rule)
        expected = start + min(step / 7, 1) * (end - start)
        assert getattr(now, field) == pytest.approx(expected, abs=0.5 if field == "n_iters" else 1e-12)
        torch.testing.assert_close(now(cost).sum(-1), torch.ones(3, 2))


def test_two_fields_can_be_annealed_and_the_others_stay():
    rule_at = mcl.annealed(mcl.Sinkhorn(1.0, n_iters=7), temperature=mcl.Constant(0.2), n_iters=mcl.Constant(9))
    assert rule_at(3) == mcl.Sinkhorn(0.2, n_iters=9)
    assert mcl.annealed(mcl.Sinkhorn(1.0, n_iters=7), temperature=mcl.Constant(0.2))(0).n_iters == 7


def test_fields_that_do_not_change_are_given_as_values():
    cooling = mcl.Linear(1.0, 0.0, 4)
    rule = mcl.annealed(mcl.Sinkhorn, temperature=cooling, n_iters=7)
    assert rule(2) == mcl.Sinkhorn(0.5, n_iters=7)
    assert mcl.annealed(mcl.Sinkhorn(9.0), temperature=cooling, n_iters=7) == rule  # an instance or the class
    assert rule.values(1) == {"temperature": 0.75}


def test_an_annealed_rule_is_a_value():
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 4))
    twin = pickle.loads(pickle.dumps(rule_at))
    assert twin == rule_at
    assert hash(twin) == hash(rule_at)
    assert copy.deepcopy(rule_at) == rule_at
    assert "Linear(start=1.0, end=0.0, n_steps=4)" in repr(rule_at)
    assert rule_at.values(1) == {"temperature": 0.75}
    assert rule_at.rule == mcl.AnnealedWTA(1.0)


def test_a_schedule_that_leaves_the_allowed_range_is_an_error():
    rule_at = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, -1.0, 2))
    assert rule_at(1) == mcl.AnnealedWTA(0.0)
    with pytest.raises(ValueError, match="AnnealedWTA: `temperature`"):
        rule_at(2)


# ------------------------------------------------------------------ properties

values = st.floats(-1e6, 1e6)


@given(values, values, st.integers(1, 10**6), st.floats(-10, 2e6))
def test_ramps_stay_between_their_ends_and_never_turn_back(start, end, n_steps, step):
    low, high = min(start, end), max(start, end)
    slack = 1e-9 * (abs(start) + abs(end))
    for schedule in (mcl.Linear(start, end, n_steps), mcl.Cosine(start, end, n_steps)):
        assert schedule(0) == start
        assert schedule(n_steps) == end
        assert low - slack <= schedule(step) <= high + slack
        ahead = schedule(step + n_steps / 3) - schedule(step)
        assert ahead * (end - start) >= -slack * max(abs(end - start), 1)


@given(st.floats(0, 1e6), st.floats(0.01, 1.0), st.floats(0, 1.0), st.floats(0, 1e4))
def test_exponential_is_the_formula_or_zero_below_the_cutoff(start, decay, share, step):
    formula, cutoff = start * decay**step, share * start
    assert mcl.Exponential(start, decay, cutoff=cutoff)(step) == (formula if formula >= cutoff else 0.0)


@given(st.floats(0, 100), st.floats(-5, 200))
def test_until_equals_the_schedule_before_and_zero_after(end, step):
    schedule = mcl.Exponential(2.0, 0.9)
    assert mcl.CutoffAt(schedule, end)(step) == (schedule(step) if step < end else 0.0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True), st.integers(0, 60))
def test_joined_equals_the_schedule_in_charge(boundaries, step):
    boundaries = tuple(sorted(boundaries))
    schedules = tuple(mcl.Linear(10.0 * i, 10.0 * i + 1.0, 7) for i in range(len(boundaries) + 1))
    in_charge = sum(step >= boundary for boundary in boundaries)
    began = boundaries[in_charge - 1] if in_charge else 0
    assert JoinedSchedule(schedules, boundaries)(step) == schedules[in_charge](step - began)
