"""The hypothesis tree, of hand-made coolings and of a network that was annealed."""

import matplotlib as mpl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchmcl as mcl
from grids import for_each
from torchmcl_fleet.demo.gaussians import CENTERS, conditional_three_gaussians
from torchmcl_studies.tree import HypothesisTree, WeightHistory, draw_dendrogram, draw_tree

mpl.use("Agg")

T = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.01])
# Together, then {0, 1} and {2, 3}, then all apart.
PLACES = torch.tensor([[0.0] * 4, [0.0] * 4, [-2.0, -2.0, 2.0, 2.0], [-2.0, -2.0, 2.1, 1.9], [-2.1, -1.9, 2.2, 1.8]])
TREE = HypothesisTree.of(T, PLACES.unsqueeze(-1), torch.tensor([0.1, 0.2, 0.3, 0.4]))


def test_nodes_have_members_births_and_deaths():
    members = {node.members: (node.birth_temperature, node.death_temperature) for node in TREE.nodes}
    assert members == {
        (0, 1, 2, 3): (8.0, 4.0),
        (0, 1): (2.0, 1.0),
        (2, 3): (2.0, 1.0),
        (0,): (pytest.approx(0.01), 0.0),
        (1,): (pytest.approx(0.01), 0.0),
        (2,): (pytest.approx(0.01), 0.0),
        (3,): (pytest.approx(0.01), 0.0),
    }


def test_a_node_stands_where_its_members_were_before_they_parted():
    left, right = TREE.children(TREE.root)
    assert left.position.item() == pytest.approx(-2.0)
    assert right.position.item() == pytest.approx((0.3 * 2.1 + 0.4 * 1.9) / 0.7)
    assert TREE.leaves[0].position.item() == pytest.approx(-2.1)


@for_each("temperature, n", [(100.0, 1), (4.0, 1), (2.0, 2), (1.0, 2), (0.011, 2), (0.005, 4), (0.0, 4)])
def test_a_cut_at_a_temperature_gives_the_groups_there(temperature, n):
    cut = TREE.cut(temperature=temperature)
    assert len(cut) == n
    assert sorted(k for node in cut for k in node.members) == [0, 1, 2, 3]


@for_each("n_clusters, n", [(1, 1), (2, 2), (3, 2), (4, 4)])
def test_a_cut_by_number_is_the_finest_with_at_most_so_many(n_clusters, n):
    assert len(TREE.cut(n_clusters=n_clusters)) == n


def test_groups_on_the_way_are_left_out_unless_asked_for():
    t = torch.tensor([4.0, 2.0, 1.9, 0.01])
    places = torch.tensor([[0.0] * 3, [-2.0, 2.0, 2.0], [-2.0, 1.5, 2.5], [-2.0, 1.5, 2.5]]).unsqueeze(-1)
    assert [node.members for node in HypothesisTree.of(t, places).nodes] == [(0, 1, 2), (0,), (1,), (2,)]
    every = HypothesisTree.of(t, places, persistence=1.0)
    assert (1, 2) in [node.members for node in every.nodes]


def test_a_hypothesis_that_changes_sides_joins_the_sides_until_it_has():
    t = torch.tensor([4.0, 2.0, 1.0])
    places = torch.tensor([[0.0] * 3, [-2.0, -2.0, 2.0], [-2.0, 2.0, 2.0]]).unsqueeze(-1)
    tree = HypothesisTree.of(t, places)
    assert [(node.members, node.birth_temperature) for node in tree.nodes] == [
        ((0, 1, 2), 4.0),
        ((0,), 1.0),
        ((1, 2), 1.0),
    ]


def test_hypotheses_that_are_never_together_have_a_root_all_the_same():
    tree = HypothesisTree.of(torch.tensor([2.0, 1.0]), torch.tensor([[-5.0, 5.0]] * 2).unsqueeze(-1))
    assert [node.members for node in tree.nodes] == [(0, 1), (0,), (1,)]
    assert tree.root.position.item() == pytest.approx(0.0)


@for_each("coldest", [1.0, 0.0])
def test_identical_hypotheses_are_one_leaf(coldest):
    tree = HypothesisTree.of(torch.tensor([2.0, coldest]), torch.rand(2).expand(2, 49, 2))
    assert len(tree.nodes) == 1
    assert tree.leaves == [tree.root]
    assert tree.cut(n_clusters=1) == [tree.root]


@given(seed=st.integers(0, 10**6), n_hypotheses=st.integers(1, 7), persistence=st.sampled_from([1.0, 1.2, 3.0]))
def test_every_cut_of_every_cooling_is_a_partition_of_mass_one(seed, n_hypotheses, persistence):
    generator = torch.Generator().manual_seed(seed)
    temperatures = torch.rand(6, generator=generator).sort(descending=True).values
    places = 0.3 * torch.randn(6, n_hypotheses, 2, generator=generator)
    masses = torch.rand(n_hypotheses, generator=generator).softmax(dim=0)
    tree = HypothesisTree.of(temperatures, places, masses, persistence=persistence)
    before = 0
    for temperature in (2.0, *temperatures.tolist(), 0.0):
        cut = tree.cut(temperature=temperature)
        assert sorted(k for node in cut for k in node.members) == list(range(n_hypotheses))
        assert sum(node.mass for node in cut) == pytest.approx(1.0, abs=1e-5)
        assert len(cut) >= before
        before = len(cut)
    assert before == len(tree.leaves)
    for node in tree.nodes:
        children = tree.children(node)
        assert not children or sorted(k for child in children for k in child.members) == list(node.members)
        assert all(child.birth_temperature <= node.birth_temperature for child in children)


# ------------------------------------------------------------------ history


def network(**options):
    return mcl.MultiHypothesisMLP(1, 2, 3, hidden=(4,), **options)


def test_predictions_of_a_history_are_those_of_the_models():
    history, models, x = WeightHistory(network()), [network(), network()], torch.rand(5, 1)
    for temperature, model in zip((1.0, 0.5), models, strict=True):
        history.add(temperature, model)
    assert history.temperatures == [1.0, 0.5]
    for i, model in enumerate(models):
        expected = model(x)
        torch.testing.assert_close(history.predict(x).hypotheses[i], expected.hypotheses.detach())
        torch.testing.assert_close(history.predict(x).score_logits[i], expected.score_logits.detach())
    (tree,) = HypothesisTree.for_inputs(x[:1], history)
    masses = mcl.normalized_scores(models[1](x[:1]).score_logits)[0].tolist()
    for leaf in tree.leaves:
        assert leaf.mass == pytest.approx(sum(masses[i] for i in leaf.members))


def test_a_snapshot_does_not_follow_the_model():
    model, x = network(), torch.rand(5, 1)
    history = WeightHistory(model)
    history.add(1.0, model)
    before = model(x).hypotheses.detach().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    history.add(0.5, model)
    torch.testing.assert_close(history.predict(x).hypotheses[0], before)


def test_without_scores_all_hypotheses_weigh_the_same():
    model = network(scores=False)
    history = WeightHistory(model)
    history.add(1.0, model)
    history.add(0.5, model)
    assert history.predict(torch.rand(5, 1)).score_logits is None
    (tree,) = HypothesisTree.for_inputs(torch.rand(1, 1), history)
    assert all(leaf.mass == pytest.approx(len(leaf.members) / 3) for leaf in tree.leaves)


# ------------------------------------------------------------------ a network that was annealed


@pytest.mark.slow
def test_the_tree_of_an_annealed_network_has_one_root_three_modes_and_leaves_below_them():
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(1, 2, 25, hidden=(32, 32), output_activation=torch.tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    n_steps = 1000
    # The learning rate falls: the positions of the modes must be accurate to a few hundredths.
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps, eta_min=1e-3)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.7, 0.0, n_steps))
    generator = torch.Generator().manual_seed(0)
    history = WeightHistory(model)
    for step in range(n_steps):
        loss = mcl.mcl_step(model, conditional_three_gaussians(200, generator), rule(step)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
        if step % 10 == 9:
            history.add(rule(step).temperature, model)
    (tree,) = HypothesisTree.for_inputs(torch.tensor([[0.9]]), history)
    assert len(tree.root.members) == 25
    modes = tree.children(tree.root)
    assert len(modes) == 3
    means = 0.9 * torch.tensor(CENTERS)
    distance = torch.cdist(torch.stack([mode.position for mode in modes]), means)
    assert sorted(distance.argmin(dim=1).tolist()) == [0, 1, 2]
    assert distance.amin(dim=1).max() < 0.05
    for mode in modes:
        assert mode.mass == pytest.approx(1 / 3, abs=0.08)
        assert len(mode.children) >= 2
        assert 0.02 / 2 < mode.death_temperature < mode.birth_temperature < 0.38
    assert len(tree.cut(n_clusters=3)) == 3
    assert len(tree.cut(temperature=0.1)) == 3


# ------------------------------------------------------------------ pictures


def test_a_tree_is_drawn_over_data_in_the_plane_and_on_a_line():
    plane = HypothesisTree.of(T, torch.stack([PLACES, -PLACES], dim=-1))
    axis = draw_tree(plane, data=torch.randn(50, 2))
    assert len(axis.lines) == 6  # one to each child
    axis = draw_tree(TREE, data=torch.randn(50, 1))
    assert axis.get_yscale() == "log"
    assert len(axis.lines) == 6
    mpl.pyplot.close("all")


def test_a_dendrogram_has_a_branch_for_each_node():
    axis = draw_dendrogram(TREE)
    assert len(axis.lines) == 7 + 6
    mpl.pyplot.close("all")
