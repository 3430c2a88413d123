"""What a fleet is held against: one model trained alone by a plain PyTorch loop, and small data to train on."""

import torch
from torch import nn
from torch.nn import functional as F

import torchmcl as mcl
from torchmcl_fleet.problem import shuffled_rows

N_HYPOTHESES = 3


def small_mlp():
    return mcl.MultiHypothesisMLP(2, 2, N_HYPOTHESES, hidden=(8,))


def rows(n_rows, n_targets=2, seed=0):
    """Return inputs [rows, 2] and targets [rows, targets, 2] that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n_rows, 2, generator=generator)
    side = torch.randint(0, 2, (n_rows, n_targets, 1), generator=generator) * 2.0 - 1
    noise = 0.1 * torch.randn(n_rows, n_targets, 2, generator=generator)
    return inputs, side * inputs.unsqueeze(1) + noise


def adamw(parameters, lr, weight_decay):
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)  # the same steps, faster


def value_at(value, epoch):
    """Return a rule, a learning rate or its schedule at an epoch."""
    fixed = isinstance(value, mcl.AssignmentRule) or not callable(value)
    return value if fixed else value(epoch)


def plain_loss(predictions, targets, rule, score_weight=1.0):
    """Return the loss of one model, written out."""
    hypotheses, score_logits = predictions
    cost = (hypotheses.unsqueeze(-3) - targets.unsqueeze(-2)).square().sum(dim=-1)  # [batch, targets, hypotheses]
    loss = (rule(cost.detach()) * cost).sum() / targets[..., 0].numel()
    if score_logits is not None and score_weight:
        labels = F.one_hot(cost.argmin(dim=-1), cost.shape[-1]).to(cost.dtype).mean(dim=-2)
        loss = loss + score_weight * F.binary_cross_entropy_with_logits(score_logits, labels)
    return loss


def train_alone(
    factory,
    seed,
    inputs,
    targets,
    *,
    rule=None,
    n_epochs,
    batch_size=None,
    learning_rate=0.01,
    weight_decay=0.0,
    make_optimizer=adamw,
    score_weight=1.0,
):
    """Return the trained module, the mean loss of each epoch and the number of steps taken."""
    torch.manual_seed(seed)
    module = factory()
    optimizer = make_optimizer(
        [p for p in module.parameters() if p.requires_grad], value_at(learning_rate, 0), weight_decay
    )
    n_rows = len(inputs)
    losses, n_steps = [], 0
    for epoch in range(n_epochs):
        for group in optimizer.param_groups:
            group["lr"] = value_at(learning_rate, epoch)
        order = shuffled_rows(torch.tensor([seed]), epoch, torch.tensor([n_rows]), n_rows)[0]
        total = 0.0
        for batch in order.split(batch_size or n_rows):
            loss = plain_loss(module(inputs[batch]), targets[batch], value_at(rule or mcl.WTA(), epoch), score_weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
            n_steps += 1
        losses.append(total / n_rows)
    return module, torch.tensor(losses), n_steps


def weights_of(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def assert_same_model(left, right, atol=1e-5):
    """Compare two modules by their weights."""
    torch.testing.assert_close(weights_of(left), weights_of(right), atol=atol, rtol=0)


def assert_same_bits(left, right):
    """Compare two histories, the seconds apart, or two state dicts, bit by bit."""
    left, right = (x._asdict() if hasattr(x, "_asdict") else x for x in (left, right))
    assert left.keys() == right.keys()
    for name in left.keys() - {"seconds"}:
        torch.testing.assert_close(
            left[name], right[name], atol=0, rtol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )
