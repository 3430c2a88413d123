"""The policy of `AutoAnnealing`: when it holds, cools, decays and moves, from measured costs alone."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchmcl as mcl
from grids import for_each
from torchmcl.annealing import AutoAnnealing, CostScale, cost_scale
from torchmcl.annealing.auto import UNIFORM


def sizes(mean, best=None, has_zero=True):
    """Return the sizes of the costs of a model."""
    best = mean if best is None else best
    return CostScale(*torch.tensor([[mean], [best], [mean - best]]), torch.tensor([has_zero]))


def run_policy(policy, scales, n_epochs, n_rows=100, gap=1.0):
    """Return temperature, rate and decay of each epoch for a distortion that goes through `scales`."""
    state = policy.init(sizes(scales[0]), n_epochs, n_rows=n_rows)
    values = []
    for epoch in range(n_epochs):
        values.append([float(part) for part in policy.value(state, epoch, n_epochs)])
        now = scales[min(epoch + 1, len(scales) - 1)]
        policy.update(state, sizes(now), epoch + 1, n_epochs, trained=sizes(now / gap))
    return state, values


def test_a_probe_that_gains_nothing_is_undone_and_cooling_begins():
    policy = AutoAnnealing()
    state = policy.init(sizes(1.0), 100)
    rewound = [bool(policy.update(state, sizes(0.9), epoch, 100).rewinds) for epoch in range(1, 9)]
    assert rewound == [False] * 4 + [True] + [False] * 3
    assert state["begun"] == 5
    _, values = run_policy(policy, [1.0, 0.9], 100)
    assert values[4][0] == pytest.approx(UNIFORM)
    assert values[5][0] == pytest.approx(0.45)  # half of the mean cost
    assert values[5][1] == 1.0
    assert values[34][0] == 0.0


def test_an_answer_that_keeps_improving_is_waited_for_and_then_parted():
    policy = AutoAnnealing()
    state, fans = policy.init(sizes(1.0), 200), {}
    falling = [(1 + epoch) ** -1.0 for epoch in range(201)]  # a doubling always halves it
    for epoch in range(1, 201):
        decision = policy.update(state, sizes(falling[epoch]), epoch, 200)
        assert not decision.rewinds
        if decision.separations > 0:
            fans[epoch] = float(decision.separations)
    assert fans == {150: pytest.approx(math.sqrt(falling[150]), rel=1e-3)}  # the longest hold
    flat, _ = run_policy(policy, [1.0] + [0.1] * 200, 200)
    assert 20 <= float(flat["begun"]) < 50


def test_a_doubling_of_the_time_is_measured_as_it_is():
    exponent = 0.3  # the distortion falls as t^-p: a doubling gains p log(2)
    scales = [1.0] + [0.2 * epoch**-exponent for epoch in range(1, 301)]
    for gain, waits in ((0.8 * exponent * math.log(2), True), (1.25 * exponent * math.log(2), False)):
        state, _ = run_policy(AutoAnnealing(hold_gain=gain), scales, 300)
        assert (float(state["begun"]) == 225) == waits


@for_each("scale", [1e-30, 1e3, 1e30])
@for_each("shares", [(1.0, 0.5, 0.4), (1.0, 0.2, 0.1)])
def test_temperatures_follow_the_scale_of_the_costs(shares, scale):
    values_at = [run_policy(AutoAnnealing(), [s * share for share in shares], 30, gap=2.0) for s in (1.0, scale)]
    for mine, theirs in zip(values_at[0][1], values_at[1][1], strict=True):
        assert theirs[0] / (1 if mine[0] > 1e35 else scale) == pytest.approx(mine[0], rel=1e-3, abs=1e-12)
        assert theirs[1:] == pytest.approx(mine[1:], rel=1e-3)


@given(
    scales=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30),
    hold_gain=st.floats(0.01, 100),
    cooling=st.floats(0.05, 0.95),
)
def test_whatever_is_measured_every_training_ends_cold_and_slow(scales, hold_gain, cooling):
    policy = AutoAnnealing(hold_gain, cooling)
    state, values = run_policy(policy, scales, 60, gap=3.0)
    temperatures, rates, decays = (torch.tensor(column) for column in zip(*values, strict=True))
    assert temperatures.isfinite().all()
    assert (temperatures >= 0).all()
    assert temperatures[-1] == 0
    assert ((rates >= 0) & (rates <= 1)).all()
    assert ((decays >= 0) & (decays <= 3)).all()
    begun = int(state["begun"])
    assert (temperatures[begun:].diff() <= 0).all()
    assert (rates[begun:].diff() <= 1e-6).all()


def test_cooling_begins_from_the_distortion_of_a_coordinate():
    policy = AutoAnnealing()
    state = policy.init(sizes(24.0), 8, n_coordinates=24)  # too short for a hold
    assert float(policy.value(state, 0, 8).temperature) == pytest.approx(0.5)
    assert AutoAnnealing(hold=False).init(sizes(1.0), 100)["begun"] == 0


def test_there_is_no_decay_before_something_is_learned():
    policy = AutoAnnealing(noise_decay=50.0)
    for share, expected in ((0.3, 0.105), (0.1, 0.045), (1e-9, 0.0)):
        _, values = run_policy(policy, [1.0, share], 100, n_rows=100, gap=10.0)
        assert values[9][2] == 0.0
        assert values[-1][2] == pytest.approx(expected, abs=1e-6)


@for_each("gap, share", [(0.9, 0.0), (1.0, 0.0), (math.exp(0.3), 0.25), (math.exp(0.7), 1.0)])
def test_weight_decay_grows_with_overfitting_up_to_a_limit(gap, share):
    _, values = run_policy(AutoAnnealing(noise_decay=50.0), [1.0, 0.1], 100, n_rows=100, gap=gap)
    assert values[-1][2] == pytest.approx(0.045 * share, abs=1e-5)


@for_each("holds, full", [(True, 1.0), (False, 0.0)])
def test_overfitting_is_measured_until_the_rate_falls_however_long_the_hold(holds, full):
    policy = AutoAnnealing(hold=holds)
    state = policy.init(sizes(1.0), 200, n_rows=100)
    for epoch in range(1, 141):  # the network overfits after 60 % of the training
        cost = 1.0 / (1 + epoch)  # a doubling always halves it
        policy.update(state, sizes(cost), epoch, 200, trained=sizes(cost / (9.0 if epoch > 120 else 1.0)))
    assert float(state["begun"]) == (-1 if holds else 0)
    assert float(state["overfit"]) == full


def test_the_distance_between_modes_is_not_taken_for_noise():
    policy, state = AutoAnnealing(noise_decay=50.0), {}
    for best, noise in ((1e-4, 1e-4 * 4), (0.5, 1.0 - 1e-7)):  # two hypotheses divide noise by about 4 at most
        state = policy.init(sizes(1.0), 10, n_rows=1, n_hypotheses=2)
        policy.update(state, sizes(1.0, best), 5, 10, trained=sizes(0.1, 0.1 * best))
        decay = policy.value(state, 9, 10).weight_decay
        assert float(decay) == pytest.approx(min(3.0, 50 * noise * (1 - noise)), rel=1e-2, abs=1e-4)


def test_an_answer_that_gets_worse_again_is_not_decayed_more():
    policy = AutoAnnealing(noise_decay=100.0)
    _, values = run_policy(policy, [1.0, 0.1, 0.2], 100, n_rows=100, gap=10.0)
    assert values[10][2] == pytest.approx(0.09)
    _, values = run_policy(AutoAnnealing(noise_decay=1e6), [1.0, 0.3], 100, n_rows=100, gap=10.0)
    assert values[10][2] == 3.0  # at most


@for_each("n_epochs, cooling", [(3, 0.3), *itertools.product([5, 10, 20, 30, 99], [0.3, 0.6])])
def test_a_short_training_ends_hard_too(n_epochs, cooling):
    falling = [math.exp(-epoch) for epoch in range(n_epochs + 1)]
    _, values = run_policy(AutoAnnealing(cooling=cooling), falling, n_epochs)
    assert values[0][0] > 0
    assert values[-1][0] == 0


def test_hypotheses_are_moved_between_the_cooling_and_the_fall_of_the_rate():
    policy = AutoAnnealing()
    state = policy.init(sizes(1.0), 8)
    assert [bool(policy.may_move(state, epoch, 8)) for epoch in range(1, 8)] == [False] * 2 + [True] * 2 + [False] * 3
    state = policy.init(sizes(1.0), 200)
    moved = [epoch for epoch in range(1, 201) if policy.update(state, sizes(1.0), epoch, 200).moves]
    assert moved == list(range(68, 105, 4))  # a fiftieth of the training apart


def test_each_part_can_be_switched_off():
    falling = [1.0 / (1 + epoch) for epoch in range(101)]
    _, values = run_policy(AutoAnnealing(hold=False, cooling=0.0, rate=False, noise_decay=0.0), falling, 100, gap=9.0)
    assert set(map(tuple, values)) == {(0.0, 1.0, 0.0)}  # plain winner-takes-all
    held, values = run_policy(AutoAnnealing(cooling=0.0), falling, 100)
    assert values[int(held["begun"])][0] == 0.0
    policies = [AutoAnnealing(moves=False), AutoAnnealing()]
    stacked = AutoAnnealing.stacked(policies)
    state = stacked.init(CostScale(*torch.ones(3, 2), torch.ones(2, dtype=torch.bool)), 8)
    assert stacked.may_move(state, 3, 8).tolist() == [False, True]


def test_the_phase_says_what_happens():
    state, _ = run_policy(AutoAnnealing(), [1.0] + [1 / epoch for epoch in range(1, 20)], 100)
    expected = {
        0: "holding: its gain",
        50: "cooling: the temperature is 0.0",
        75: "winner-takes-all: the learning rate",
    }
    for epoch, words in expected.items():
        assert (
            AutoAnnealing().phase({**state, "begun": torch.tensor([30.0 if epoch else -1.0])}, epoch, 100)[: len(words)]
            == words
        )
    state["begun"].fill_(-1)
    state["gain"].fill_(math.log(2))
    assert AutoAnnealing().phase(state, 50, 100) == "holding: a doubling of the time would gain 50 %"


def test_costs_that_are_not_finite_have_no_scale():
    cost = torch.tensor([[[1.0, 1.0]], [[torch.nan, 1.0]], [[3.0, 3.0]], [[torch.inf, 0.0]]])
    assert float(cost_scale(mcl.assign(cost, mcl.WTA())).scale) == 2.0
    assert cost_scale(mcl.assign(torch.full_like(cost, torch.nan), mcl.WTA())).scale.isnan()


def test_more_steps_mean_a_lower_rate():
    policy = AutoAnnealing(full_rate_steps=1000.0)
    states = [policy.init(sizes(1.0), 10, n_steps=n_steps) for n_steps in (0, 100, 1000, 4000)]
    assert [float(policy.value(state, 0, 10).rate) for state in states] == pytest.approx([1.0, 1.0, 1.0, 0.5])


@for_each(
    "options, message",
    [
        ({"hold_gain": 0.0}, "`hold_gain`"),
        ({"end": -1.0}, "`end`"),
        ({"cooling": 1.0}, "`cooling`"),
        ({"noise_decay": -1.0}, "`noise_decay`"),
        ({"rate": 0.5}, "`rate`"),
        ({"full_rate_steps": 0}, "`full_rate_steps`"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AutoAnnealing(**options)


def test_the_scale_of_a_squared_error_is_the_variance():
    samples = torch.randn(20_000, 1, 1, generator=torch.Generator().manual_seed(0))
    together = torch.zeros(20_000, 3, 1)
    cost = mcl.pairwise_sq_euclidean(hypotheses=together, targets=samples)
    squared = cost_scale(mcl.assign(cost, mcl.WTA()))
    assert float(squared.scale) == pytest.approx(1.0, abs=0.03)
    assert squared.has_zero
    assert not cost_scale(mcl.assign(cost - 100, mcl.WTA())).has_zero


def test_one_negative_cost_is_enough_and_a_rounding_error_is_not():
    cost = torch.tensor([[[-3.0, 5.0]], [[-1.0, 4.0]]])
    found = cost_scale(mcl.assign(cost, mcl.WTA()))
    assert not found.has_zero
    assert float(found.scale) == pytest.approx((8 + 5) / 4)
    nearly = cost_scale(mcl.assign(torch.tensor([[[-1e-7, 5.0]], [[1.0, 4.0]]]), mcl.WTA()))
    assert nearly.has_zero
    assert float(nearly.scale) == pytest.approx(2.5)


def test_the_scale_of_decibels_is_how_far_hypotheses_are_above_the_best_of_their_sample():
    cost = torch.tensor([[[1.0, 4.0, 1.0]], [[-20.0, -20.0, -14.0]], [[7.0, 8.0, 9.0]]])
    mask = torch.tensor([[True], [True], [False]])
    found = cost_scale(mcl.assign(cost, mcl.WTA(), mask))
    assert float(found.scale) == pytest.approx((3 / 3 + 6 / 3) / 2)
    assert not found.has_zero
    each = cost_scale(mcl.assign(torch.stack([cost, cost + 30, 2 * cost]), mcl.WTA()), stacked=True)
    assert each.has_zero.tolist() == [False, True, False]
    assert each.scale.tolist() == pytest.approx([4 / 3, float(cost.mean()) + 30, 8 / 3])


def test_a_cost_without_a_zero_is_not_held_for():
    policy = AutoAnnealing(begin=2.1)
    state = policy.init(sizes(3.0), 100)
    policy.update(state, sizes(2.0, 1.0, has_zero=False), 2.0, 100)
    assert state["begun"] == 2
    assert float(policy.value(state, 2, 100).temperature) == pytest.approx(2.1)  # from the spread
    policy.update(state, sizes(9.0, 1.0, has_zero=False), 3.0, 100)
    assert float(policy.value(state, 2, 100).temperature) == pytest.approx(2.1)
    assert not policy.may_move(state, 60, 100)


def test_padded_targets_do_not_count():
    cost = torch.tensor([[[2.0, 2.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, False]])
    assert cost_scale(mcl.assign(cost, mcl.WTA(), mask)).scale == 2.0


@for_each("noise_decay, stiff", [(50.0, 0.1), (0.0, 0.0)])
def test_a_network_that_has_learned_little_is_decayed_while_the_temperature_falls(noise_decay, stiff):
    policy = AutoAnnealing(noise_decay=noise_decay)
    state = policy.init(sizes(1.0), 100)
    policy.update(state, sizes(1.0), 5, 100)  # no gain: rewind and cool
    decays = [float(policy.value(state, epoch, 100).weight_decay) for epoch in (5, 33, 34)]
    assert decays == pytest.approx([stiff, stiff, 0.0])
