"""Fewer hypotheses: against brute force where that is possible, against scikit-learn where it is not."""

import itertools

import numpy as np
import pytest
import torch

import torchmcl as mcl
from families import SCORE_OBJECTIVES
from grids import for_each
from torchmcl.costs import pairwise_geodesic, pairwise_iou
from torchmcl.postprocess import BallNonconformity, Conformal, expected_cost, greedy_medoids, reduce

COSTS = [mcl.pairwise_sq_euclidean, mcl.pairwise_euclidean, mcl.pairwise_l1]
SEQUENCE_COSTS = [mcl.pairwise_ade, mcl.pairwise_fde, mcl.pairwise_sq_ade]


def problem(rows, n, *event, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    hypotheses = torch.randn(rows, n, *event, generator=generator, dtype=dtype)
    return mcl.Predictions(hypotheses, torch.randn(rows, n, generator=generator, dtype=dtype))


def best_medoid_loss(cost, weights, k):
    """Return the lowest expected cost over all subsets; cost [n, n] of numpy."""
    subsets = itertools.combinations(range(len(cost)), k)
    return min((weights * cost[:, list(subset)].min(axis=1)).sum() for subset in subsets)


def test_swaps_come_close_to_the_best_medoids_of_many_subsets():
    given = problem(6, 14, 2)
    weights = mcl.normalized_scores(given.score_logits).numpy()
    costs = mcl.pairwise_euclidean(hypotheses=given.hypotheses, targets=given.hypotheses).numpy()
    best = np.array([best_medoid_loss(c, w, 4) for c, w in zip(costs, weights, strict=True)])
    few = reduce(given, 4, cost_fn=mcl.pairwise_euclidean, moved=False)
    losses = expected_cost(few, given, cost_fn=mcl.pairwise_euclidean).numpy()
    assert (losses >= best - 1e-12).all()
    assert losses.mean() < 1.03 * best.mean()


def test_no_exchange_of_a_chosen_hypothesis_helps():
    given = problem(3, 30, 2)
    few = reduce(given, 5, moved=False)
    losses = expected_cost(few, given)
    for place, other in itertools.product(range(5), range(30)):
        swapped = few.hypotheses.clone()
        swapped[:, place] = given.hypotheses[:, other]
        assert (expected_cost(mcl.Predictions(swapped), given) >= losses - 1e-9).all()


@for_each("cost_fn", SEQUENCE_COSTS)
@for_each("n", [20])
def test_moved_sequences_are_at_least_as_good_as_chosen_ones(cost_fn, n):
    given = problem(8, n, 4, 2)
    losses = [
        expected_cost(reduce(given, 3, cost_fn=cost_fn, moved=moved), given, cost_fn=cost_fn).mean()
        for moved in (True, False)
    ]
    assert losses[0] <= losses[1] * (1 + 1e-9)


@for_each("cost_fn, event", [(pairwise_geodesic, (5, 6)), (pairwise_iou, (2, 3, 3)), (mcl.pairwise_cosine, (5, 3))])
def test_events_with_more_axes_are_compared_as_in_training(cost_fn, event):
    given = problem(4, 9, *event)
    few = reduce(given, 3, cost_fn=cost_fn, moved=False)
    targets = mcl.Batch(given.hypotheses, given.hypotheses)
    if cost_fn is mcl.pairwise_cosine:  # a cost of vectors: events are flattened
        targets, few = mcl.Batch(targets.inputs, targets.targets.flatten(2)), mcl.Predictions(few.hypotheses.flatten(2))
    cost = mcl.mcl_step(lambda _: few, targets, mcl.WTA(), cost_fn=cost_fn, score_weight=0).matching.cost
    expected = (cost.amin(dim=-1) * mcl.normalized_scores(given.score_logits)).sum(dim=-1)
    few = mcl.Predictions(few.hypotheses.view(4, 3, *event))
    torch.testing.assert_close(expected_cost(few, given, cost_fn=cost_fn), expected)
    level = Conformal.calibrate(BallNonconformity(cost_fn), given, given.hypotheses[:, 0], coverage=0.5).level
    assert level < 1e-6


def test_a_single_median_has_no_descent_direction():
    given = problem(3, 40, 2)
    few = reduce(given, 1, cost_fn=mcl.pairwise_euclidean)
    center = few.hypotheses.requires_grad_()
    cost = mcl.pairwise_euclidean(hypotheses=center, targets=given.hypotheses).squeeze(-1)
    (cost * mcl.normalized_scores(given.score_logits)).sum().backward()
    assert center.grad.abs().max() < 0.02


def test_the_expected_distortion_is_not_above_that_of_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    given = problem(12, 60, 6, dtype=torch.float32)
    ours = expected_cost(reduce(given, 10), given).mean()
    weights = mcl.normalized_scores(given.score_logits).numpy()
    theirs = [
        cluster.KMeans(10, n_init=1, random_state=0).fit(h, sample_weight=w).inertia_
        for h, w in zip(given.hypotheses.numpy(), weights, strict=True)
    ]
    assert ours <= np.mean(theirs)


def test_each_center_is_the_mean_of_its_cell_and_scores_are_the_masses():
    given = problem(6, 50, 3)
    few = reduce(given, 5)
    weights = mcl.normalized_scores(given.score_logits)
    owner = mcl.pairwise_sq_euclidean(hypotheses=few.hypotheses, targets=given.hypotheses).argmin(dim=-1)
    shares = torch.nn.functional.one_hot(owner, 5).double() * weights.unsqueeze(-1)
    torch.testing.assert_close(few.score_logits.sigmoid(), shares.sum(dim=1))
    means = shares.mT @ given.hypotheses / shares.sum(dim=1).unsqueeze(-1)
    torch.testing.assert_close(few.hypotheses, means)
    assert (few.score_logits.diff(dim=-1) <= 0).all()


def test_rows_do_not_depend_on_each_other_nor_on_an_offset():
    given = problem(70, 40, 2)
    few = reduce(given, 6)
    alone = reduce(mcl.Predictions(given.hypotheses[13:14], given.score_logits[13:14]), 6)
    torch.testing.assert_close(few.hypotheses[13:14], alone.hypotheses)
    far = reduce(mcl.Predictions(given.hypotheses + 1e4, given.score_logits), 6)
    torch.testing.assert_close(far.hypotheses - 1e4, few.hypotheses, atol=1e-6, rtol=1e-6)


@for_each("moved", [True, False])
@for_each("dtype", [torch.float32, torch.float64])
def test_no_cluster_is_left_out_for_near_duplicates(dtype, moved):
    generator = torch.Generator().manual_seed(0)
    places = torch.tensor([-3.0, -1.0, 1.0, 3.0])[torch.randint(0, 4, (50, 100), generator=generator)]
    hypotheses = (places + 0.1 * torch.randn(50, 100, generator=generator)).unsqueeze(-1).to(dtype)
    given = mcl.Predictions(hypotheses)
    assert expected_cost(reduce(given, 4, moved=moved), given).max() < 0.03


@for_each("cost_fn", [*COSTS, mcl.pairwise_cosine])
@for_each("dtype", [torch.float32, torch.float64])
def test_hypotheses_that_are_kept_are_those_given_bit_by_bit(cost_fn, dtype):
    hypotheses = problem(30, 20, 2, dtype=dtype).hypotheses
    hypotheses[:, 0] = 1e6
    few = reduce(mcl.Predictions(hypotheses), 5, cost_fn=cost_fn, moved=False).hypotheses
    assert (few.unsqueeze(2) == hypotheses.unsqueeze(1)).all(dim=-1).any(dim=-1).all()


@for_each("moved", [True, False])
def test_one_far_hypothesis_does_not_blur_the_others(moved):
    near = problem(50, 40, 2, dtype=torch.float32).hypotheses
    near[:, -1] = 1e4
    losses = []
    for dtype in (torch.float32, torch.float64):
        few = reduce(mcl.Predictions(near.to(dtype)), 4, moved=moved).hypotheses
        losses.append(expected_cost(mcl.Predictions(few.double()), mcl.Predictions(near.double())).mean().item())
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


@for_each("cost_fn", [mcl.pairwise_euclidean, *SEQUENCE_COSTS])
@for_each("dtype", [torch.float32, torch.float64])
def test_rows_of_other_sizes_beside_it_do_not_change_a_row(cost_fn, dtype):
    event = (2,) if cost_fn is mcl.pairwise_euclidean else (3, 2)
    rows = problem(2, 30, *event, dtype=dtype).hypotheses * torch.tensor([1e-3, 1e6]).view(2, 1, *[1] * len(event))
    together, alone = (reduce(mcl.Predictions(part), 3, cost_fn=cost_fn).hypotheses for part in (rows, rows[:1]))
    torch.testing.assert_close(together[:1], alone, rtol=1e-6, atol=0)


def test_all_hypotheses_are_kept_where_k_is_their_number():
    given = problem(3, 12, 2)
    for moved in (True, False):
        assert expected_cost(reduce(given, 12, moved=moved), given).max() < 1e-12


def test_equal_hypotheses_and_hypotheses_without_weight_are_no_obstacle():
    hypotheses = torch.zeros(2, 20, 2)
    hypotheses[:, 10:] = 1.0
    probabilities = torch.cat([torch.full((2, 1), 0.25), torch.zeros(2, 18), torch.full((2, 1), 0.75)], dim=1)
    for moved in (True, False):
        few = reduce(mcl.Predictions(hypotheses), 3, scores=probabilities, moved=moved)
        assert expected_cost(few, mcl.Predictions(hypotheses), scores=probabilities).max() < 1e-12
        torch.testing.assert_close(few.score_logits.sigmoid()[:, :2], torch.tensor([[0.75, 0.25]] * 2))


@for_each("scores", SCORE_OBJECTIVES)
def test_reduced_scores_are_read_by_the_same_objective(scores):
    given = problem(4, 9, 2)
    few = reduce(given, 9, scores=scores)
    expected = scores.probabilities(given.score_logits).sort(dim=-1, descending=True).values
    torch.testing.assert_close(scores.probabilities(few.score_logits), expected)


def test_predictions_may_be_arrays():
    given = problem(4, 9, 2)
    arrays = mcl.Predictions(given.hypotheses.numpy(), None)
    assert reduce(arrays, 2).hypotheses.shape == (4, 2, 2)


@for_each(
    "change, error, message",
    [
        ({"k": 9}, ValueError, "reduce: `k`"),
        ({"k": 0}, ValueError, "`k`"),
        ({"scores": "softmax"}, TypeError, "`scores`"),
        ({"score_logits": torch.full((2, 8), -torch.inf)}, ValueError, "have a finite logit in every row"),
        ({"scores": torch.full((2, 8), 0.2)}, ValueError, "summing to 1 .* a sum of 1.6"),
        ({"scores": torch.ones(2, 3)}, ValueError, "`scores`"),
        ({"cost_fn": mcl.pairwise_ade}, ValueError, "`cost_fn`"),
        ({"cost_fn": lambda *, hypotheses, targets: hypotheses}, ValueError, "`cost_fn`"),
        ({"hypotheses": torch.full((2, 8, 2), torch.nan)}, ValueError, "must be finite, got nan at index"),
        ({"hypotheses": torch.zeros(2, 8)}, ValueError, "have shape .rows, hypotheses, ...."),
        ({"hypotheses": torch.zeros(2, 8, 1).long()}, TypeError, "be a floating tensor"),
        ({"score_logits": torch.zeros(2, 7)}, ValueError, "`predictions.score_logits`"),
        ({"score_logits": torch.full((2, 8), torch.nan)}, ValueError, "nan at index"),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {"k": 3, "scores": None, "cost_fn": mcl.pairwise_sq_euclidean, **change}
    given = mcl.Predictions(arguments.pop("hypotheses", torch.zeros(2, 8, 2)), arguments.pop("score_logits", None))
    with pytest.raises(error, match=message):
        reduce(given, arguments.pop("k"), **arguments)


def test_greedy_choices_take_one_of_each_branch_first_and_each_candidate_once():
    values = torch.tensor([0.0, 0.1, 0.2, 9.0, 9.2], dtype=torch.float64)
    loss = (values[:, None] - values).square().unsqueeze(0)
    order = greedy_medoids(loss, torch.tensor([[0.3, 0.3, 0.2, 0.1, 0.1]], dtype=torch.float64), 5)[0].tolist()
    assert sorted(order) == list(range(5))
    assert {order[0] < 3, order[1] < 3} == {True, False}


@for_each("hypotheses", [torch.zeros(3, 2, 2), torch.zeros(2, 0, 2), torch.zeros(2, 2, 3)])
def test_reductions_of_other_rows_or_events_are_refused(hypotheses):
    with pytest.raises(ValueError, match=r"expected_cost: `few\.hypotheses`"):
        expected_cost(mcl.Predictions(hypotheses), problem(2, 8, 2))
