"""Winners by part, factorized hypotheses, quality scores, and revival without annealing."""

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl import costs
from torchmcl.annealing import move_hypotheses
from torchmcl.rules import by_part, factorized
from torchmcl.scoring import QualityScores


def some_paths():
    torch.manual_seed(0)
    return torch.randn(5, 3, 4, 2), torch.randn(5, 2, 4, 2), torch.rand(5, 2, 4) > 0.3


@for_each("axis", [0, 1])
def test_each_part_has_the_winner_of_a_plain_loop(axis):
    paths, targets, mask = some_paths()
    logits = torch.randn(5, 3)
    predictions, batch = by_part(mcl.Predictions(paths, logits), mcl.Batch(paths, targets, mask), axis)
    step = mcl.mcl_step(lambda _: predictions, batch, mcl.WTA(), cost_fn=mcl.pairwise_sq_ade, score_weight=0)
    n_parts = paths.shape[2 + axis]
    weights = step.matching.weights.unflatten(0, (5, n_parts))
    for b in range(5):
        for part in range(n_parts):
            for t in range(2):
                h, y = paths[b].select(1 + axis, part), targets[b, t].select(axis, part)
                if axis == 0:
                    errors, real = (h - y).square().sum(-1), bool(mask[b, t, part])
                else:
                    errors, real = ((h - y).square() * mask[b, t]).sum(-1), bool(mask[b, t].any())
                assert weights[b, part, t].sum() == float(real)
                assert not real or weights[b, part, t].argmax() == errors.argmin()


def test_parts_keep_scales_scores_and_scenes():
    paths, targets, mask = some_paths()
    given = mcl.Distributions(paths, torch.randn(5, 4, 3), torch.rand(5, 3, 4, 1) + 0.5)
    scene = torch.tensor([0, 0, 1, 1, 1])
    predictions, batch = by_part(given, mcl.Batch(paths, targets, mask, scene), axis=0)
    assert predictions.hypotheses.shape == (20, 3, 1, 2)
    assert predictions.score_logits.shape == (20, 3)
    assert predictions.scale.shape == (20, 3, 1, 1)
    assert batch.mask.shape == (20, 2, 1)
    step = mcl.mcl_step(lambda _: predictions, batch, mcl.WTA(), cost_fn=mcl.pairwise_gaussian_nll)
    weights = step.matching.weights.unflatten(0, (5, 4))
    both = mask[0, 0] & mask[1, 0]
    assert torch.equal(weights[0, :, 0][both], weights[1, :, 0][both])


def test_all_sums_of_two_sets_compete_and_the_winner_trains_both():
    torch.manual_seed(0)
    trends, seasons = torch.randn(5, 2, 4, 1, requires_grad=True), torch.randn(5, 3, 4, 1, requires_grad=True)
    both = factorized(mcl.Predictions(trends, torch.randn(5, 2)), mcl.Predictions(seasons, torch.randn(5, 3)))
    target = torch.randn(5, 4, 1)
    step = mcl.mcl_step(
        lambda _: both, mcl.Batch(target, target), mcl.WTA(), cost_fn=mcl.pairwise_sq_ade, scores=mcl.SoftmaxScores()
    )
    step.assignment_loss.backward()
    winner = step.matching.weights.argmax(-1).flatten()
    trained = [(part.grad.abs().sum((-1, -2)) > 0) for part in (trends, seasons)]
    assert torch.equal(trained[0].int().argmax(-1), winner // 3)
    assert torch.equal(trained[1].int().argmax(-1), winner % 3)
    assert torch.allclose(both.score_logits.exp().sum(-1), torch.ones(5))


def test_qualities_of_all_hypotheses_are_learned_and_rank_them():
    torch.manual_seed(0)
    masks, target = torch.randn(6, 3, 4, 5), torch.rand(6, 4, 5).round()
    logits = torch.zeros(6, 3, requires_grad=True)
    iou = costs.pairwise_iou(hypotheses=masks, targets=target[:, None]).squeeze(1)
    for scores in (QualityScores(), QualityScores(cost_fn=costs.pairwise_iou)):
        cost_fn = costs.pairwise_iou if scores.cost_fn is None else mcl.pairwise_dice
        given = mcl.Predictions(masks, logits), mcl.Batch(target, target)
        step = mcl.mcl_step(lambda _: given[0], given[1], mcl.WTA(), cost_fn=cost_fn, scores=scores)  # noqa: B023
        torch.testing.assert_close(step.score_loss, (1 - iou).square().mean())
        (gradient,) = torch.autograd.grad(step.score_loss, logits)
        torch.testing.assert_close(gradient, -2 * (1 - iou) / 18)
    chances = QualityScores(temperature=0.01).probabilities(1 - iou)
    assert torch.equal(chances.argmax(-1), iou.argmin(-1))
    torch.testing.assert_close(chances.sum(-1), torch.ones(6))


def test_padded_targets_do_not_change_a_quality():
    cost, mask = torch.tensor([[[0.2, 0.4], [0.9, 0.9]]]), torch.tensor([[True, False]])
    torch.testing.assert_close(QualityScores().labels(cost, cost, mask), torch.tensor([[0.8, 0.6]]))


def test_dead_hypotheses_are_revived_under_plain_winner_takes_all():
    torch.manual_seed(0)
    y = torch.tensor([-2.0, 0.0, 2.0]).repeat(100).view(300, 1) + 0.05 * torch.randn(300, 1)
    model = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=3, hidden=())
    model.head.linear.weight.data.zero_()
    model.head.linear.bias.data[:3] = torch.tensor([0.0, 40.0, 50.0])  # two never win
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(120):
        output = mcl.mcl_step(model, mcl.Batch(torch.zeros(300, 1), y), mcl.WTA(), score_weight=0)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        if step % 30 == 20:
            move_hypotheses(model, optimizer, output)
    assert mcl.metrics.n_dead_hypotheses(output.matching) == 0
    assert output.loss < 0.02


@for_each(
    "call, words",
    [
        (lambda p, b: by_part(p, b, axis=2), "`axis` must be below the number of axes of an event, 2, got 2"),
        (lambda p, b: by_part(p, mcl.Batch(None, b.targets[..., :1]), 0), "`targets` must have shape"),
        (lambda p, b: factorized(p, mcl.Predictions(p.hypotheses[..., :1])), "`second` must have the batch"),
        (lambda p, b: factorized(p, mcl.Predictions(p.hypotheses, torch.zeros(5, 3))), "be given for both"),
    ],
)
def test_bad_input_is_refused_in_words(call, words):
    paths, targets, _ = some_paths()
    with pytest.raises(ValueError, match=words):
        call(mcl.Predictions(paths), mcl.Batch(paths, targets))
