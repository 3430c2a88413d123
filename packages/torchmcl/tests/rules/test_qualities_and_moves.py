"""Quality scores, and moves of unused hypotheses without annealing."""

import torch

import torchmcl as mcl
from torchmcl import costs
from torchmcl.annealing import move_hypotheses
from torchmcl.scoring import QualityScores


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
