"""What a cost declares about itself, and what a user's own cost gains by it."""

import functools

import pytest
import torch
from torch.testing import assert_close

import torchmcl as mcl
from grids import for_each
from torchmcl import costs
from torchmcl.costs import (
    MEAN,
    MEDIAN,
    CostDeclaration,
    MixtureNLLWithCRPS,
    NormalMixtureFormula,
    NormFormula,
    cost_declaration,
    declare_cost,
)
from torchmcl.costs.declared import axes_of_a_target
from torchmcl.postprocess import BallNonconformity, Conformal, expected_cost, reduce

PUBLIC = [getattr(costs, name) for name in costs.__all__ if name.startswith("pairwise_")]
CLOSED_FORMS = [cost_fn for cost_fn in PUBLIC if cost_declaration(cost_fn).formula is not None]


@declare_cost(event_dims=1, center=MEAN, formula=NormFormula(order=2, power=2))
def own_squares(*, hypotheses, targets):
    return (hypotheses.unsqueeze(-3) - targets.unsqueeze(-2)).square().sum(dim=-1)


@declare_cost(event_dims=1, center=MEDIAN, formula=NormFormula(order=2))
def own_distance(*, hypotheses, targets):
    return own_squares(hypotheses=hypotheses, targets=targets).sqrt()


def undeclared(*, hypotheses, targets, mask=None, **others):
    return mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)


@for_each("cost_fn", PUBLIC)
def test_every_cost_of_the_package_declares_its_axes(cost_fn):
    assert cost_declaration(cost_fn).event_dims is not None


@for_each("cost_fn", CLOSED_FORMS)
def test_a_closed_form_has_the_values_of_its_cost(cost_fn):
    known = cost_declaration(cost_fn)
    event = (4, 3)[2 - known.event_dims :]
    hypotheses, targets = torch.randn(5, *event), torch.randn(2, *event)
    differences = (hypotheses.unsqueeze(0) - targets.unsqueeze(1)).flatten(2)
    expected = torch.linalg.vector_norm(differences, known.formula.order, dim=-1) ** known.formula.power
    expected = expected / event[0] if known.formula.mean_over_steps else expected
    assert_close(cost_fn(hypotheses=hypotheses, targets=targets), expected)


@for_each("cost_fn", [c for c in PUBLIC if cost_declaration(c).center is not None])
def test_no_point_near_the_declared_centre_is_cheaper(cost_fn):
    event = (4, 3)[2 - cost_declaration(cost_fn).event_dims :]
    events, shares = torch.randn(1, 6, *event, dtype=torch.float64), torch.rand(1, 1, 6, dtype=torch.float64)
    means = (shares.view(1, 6, *[1] * len(event)) * events).sum(1, keepdim=True) / shares.sum()
    refine = cost_declaration(cost_fn).center.from_means
    center = means
    for _ in range(20):
        center = means if refine is None else refine(events, shares, center)

    def loss(point):
        return (shares.squeeze(1) * cost_fn(hypotheses=point, targets=events).squeeze(-1)).sum()

    near = [center + 1e-3 * torch.randn_like(center) for _ in range(50)]
    assert all(loss(center) <= loss(point) for point in near)


def test_the_facts_of_costs_that_are_objects():
    assert cost_declaration(mcl.Pairwise(torch.dist, 2, 1)) == CostDeclaration(2, 1, needs=("mask",))
    mixture = cost_declaration(mcl.MixtureNLL(mcl.pairwise_cross_entropy))
    assert (mixture.event_dims, mixture.target_dims) == (1, 0)
    assert "score_logits" in mixture.needs
    assert cost_declaration(MixtureNLLWithCRPS(2.0)).formula == NormalMixtureFormula(2.0)


def test_arguments_of_a_partial_leave_the_axes_alone():
    given = functools.partial(mcl.pairwise_gaussian_nll, scale=torch.ones(1), event_dims=2)
    assert cost_declaration(given).event_dims is ...
    assert cost_declaration(given).needs == ("mask",)
    assert cost_declaration(functools.partial(mcl.pairwise_sq_euclidean)) == CostDeclaration(event_dims=1)


def test_a_wrapper_does_not_inherit_the_formula():
    @functools.wraps(mcl.pairwise_sq_euclidean)
    def doubled(**given):
        return 2 * mcl.pairwise_sq_euclidean(**given)

    assert cost_declaration(doubled) == CostDeclaration(event_dims=1)
    predictions, targets = mcl.Predictions(torch.randn(6, 4, 3)), torch.randn(6, 3)
    once, twice = (
        mcl.mcl_step(lambda _: predictions, mcl.Batch(targets, targets), mcl.WTA(), cost_fn=cost_fn).loss
        for cost_fn in (mcl.pairwise_sq_euclidean, doubled)
    )
    assert_close(twice, 2 * once)


def test_an_undeclared_cost_names_what_it_needs_and_nothing_else_is_known():
    assert cost_declaration(undeclared) == CostDeclaration(needs=("mask",))
    assert axes_of_a_target(undeclared, 1) is None
    assert cost_declaration(max) == CostDeclaration()


def test_a_loss_of_one_pair_is_pointed_to_pairwise():
    def angle(h, t):
        return 1 - torch.cos(h - t).mean()

    model, x = mcl.MultiHypothesisMLP(1, 1, 2, hidden=()), torch.rand(4, 1)
    with pytest.raises(TypeError, match=r"by keyword, got angle\. Wrap a loss of one pair in torchmcl\.Pairwise"):
        mcl.mcl_step(model, (x, x), mcl.WTA(), cost_fn=angle)
    assert mcl.mcl_step(model, (x, x), mcl.WTA(), cost_fn=mcl.Pairwise(angle)).loss.isfinite()


@for_each("event", [(2,), (4, 2)])
@for_each("place", ["cost_fn", "loss_fn"])
def test_a_cost_that_broadcasts_events_is_refused(event, place):
    def own_mean(*, hypotheses, targets):
        n = len(event)
        return (hypotheses.unsqueeze(-n - 2) - targets.unsqueeze(-n - 1)).square().flatten(-n).mean(-1)

    lifted = mcl.Pairwise(lambda h, t: (h - t).square().mean(), len(event), len(event))
    model, x = mcl.MultiHypothesisMLP(1, event, 2), torch.rand(6, 1)
    for cost_fn in (lifted, declare_cost(event_dims=len(event))(own_mean)):
        costs = {"cost_fn": own_mean, place: cost_fn}
        mcl.mcl_step(model, (x, torch.rand(6, 3, *event)), mcl.WTA(), **costs)
        for one in range(len(event)):
            narrow = [1 if axis == one else size for axis, size in enumerate(event)]
            with pytest.raises(ValueError, match="`targets` must end with the shape of one hypothesis"):
                mcl.mcl_step(model, (x, torch.rand(6, 3, *narrow)), mcl.WTA(), **costs)
    scaled = mcl.Pairwise(lambda h, t: (h[0] - t).square() / h[1].exp() + h[1], target_dims=0)
    if event == (2,):
        assert mcl.mcl_step(model, (x, torch.rand(6, 3)), mcl.WTA(), cost_fn=scaled).loss.isfinite()


def test_a_declared_cost_gets_the_axis_of_a_single_target():
    model = mcl.MultiHypothesisMLP(2, 3, 4)
    inputs, targets = torch.randn(6, 2), torch.randn(6, 3)
    with_axis, without = (
        mcl.mcl_step(model, mcl.Batch(inputs, given), mcl.WTA(), cost_fn=own_squares).loss
        for given in (targets.unsqueeze(1), targets)
    )
    assert torch.equal(with_axis, without)
    with pytest.raises(ValueError, match="`targets`"):
        mcl.mcl_step(model, mcl.Batch(inputs, targets[:, :2]), mcl.WTA(), cost_fn=own_squares)
    with pytest.raises(ValueError, match=r"`cost_fn`|`targets`"):
        mcl.mcl_step(model, mcl.Batch(inputs, targets[:, :2]), mcl.WTA(), cost_fn=undeclared)


def test_a_declared_cost_gets_centres_radii_and_flat_events():
    given = mcl.Predictions(torch.randn(30, 12, 2, 3))
    few = reduce(given, 3, cost_fn=own_squares)
    assert_close(few.hypotheses, reduce(given, 3, cost_fn=mcl.pairwise_sq_euclidean).hypotheses)
    kinds = (own_distance, mcl.pairwise_euclidean)  # of two points every one between them is a median
    costs = [expected_cost(reduce(given, 3, cost_fn=kind), given, cost_fn=kinds[1]) for kind in kinds]
    assert_close(*costs)
    points, targets = mcl.Predictions(torch.randn(30, 12, 2)), torch.randn(30, 2)
    own, known = (
        Conformal.calibrate(BallNonconformity(cost_fn), points, targets).volume(
            points, generator=torch.Generator().manual_seed(0)
        )
        for cost_fn in (own_distance, mcl.pairwise_euclidean)
    )
    assert_close(own, known)


@for_each("fields, message", [({"event_dims": -1}, "`event_dims`"), ({"needs": ("x",)}, "`needs`")])
def test_declarations_are_checked(fields, message):
    with pytest.raises(ValueError, match=f"CostDeclaration: {message}"):
        CostDeclaration(**fields)
