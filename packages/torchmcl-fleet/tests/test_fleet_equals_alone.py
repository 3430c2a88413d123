"""Model i of a fleet is the model that a plain PyTorch loop trains alone."""

import pytest
import torch
from torch import nn

import torchmcl as mcl
from plain_loop import assert_same_model, rows, small_mlp, train_alone
from torchmcl_fleet import SGD, Adam, Fleet, FleetData

SEEDS = [3, 11]
COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Exponential(1.0, 0.8, cutoff=0.01))
RULES = {
    "WTA": [mcl.WTA(), mcl.WTA()],
    "RelaxedWTA": [mcl.RelaxedWTA(0.1), mcl.RelaxedWTA(0.5)],
    "RelaxedWTA annealed": [mcl.annealed(mcl.RelaxedWTA(0.5), epsilon=mcl.Linear(0.5, 0.0, 15)), mcl.RelaxedWTA(0.2)],
    "AnnealedWTA": [mcl.AnnealedWTA(0.3), mcl.AnnealedWTA(2.0)],
    "AnnealedWTA annealed": [COOLING, mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 20))],
    "AnnealedWTA, one cold": [mcl.AnnealedWTA(0.0), mcl.AnnealedWTA(0.5)],
    "TopK": [mcl.TopK(2), mcl.TopK(3)],
    "TopK annealed": [mcl.annealed(mcl.TopK(3), k=mcl.Linear(3, 1, 20)), mcl.TopK(1)],
    "Sinkhorn": [mcl.Sinkhorn(0.5, n_iters=5), mcl.Sinkhorn(0.2, n_iters=5)],
    "Sinkhorn annealed": [
        mcl.annealed(mcl.Sinkhorn(1.0, n_iters=5), temperature=mcl.Exponential(1.0, 0.8, cutoff=0.05)),
        mcl.Sinkhorn(0.0, n_iters=5),
    ],
    "Sinkhorn, different iterations": [mcl.Sinkhorn(0.5, n_iters=5), mcl.Sinkhorn(0.5, n_iters=3)],
    "PIT": [mcl.PIT(), mcl.PIT()],
    "EMD": [mcl.EMD(), mcl.EMD()],
}
# Rows, rows in a batch, epochs: 24 steps each. EMD solves a linear program for each row, so it gets fewer.
BATCHES = {"full batch": (20, None, 24), "minibatches with a short last one": (23, 6, 6)}
EMD_BATCHES = {"minibatches with a short last one": (3, 2, 12)}

# Each rule the harder way, and one of each backend both ways.
FULL_BATCH = ["AnnealedWTA annealed", "TopK"]
EVERY_RULE = [(name, way) for name in RULES for way in BATCHES if name in FULL_BATCH or way != "full batch"]


@pytest.mark.parametrize(("name", "batches"), EVERY_RULE)
def test_every_rule_trains_as_alone(name, batches):
    n_rows, batch_size, n_epochs = (EMD_BATCHES if name == "EMD" else BATCHES)[batches]
    inputs, targets = rows(n_rows)
    fleet = Fleet(small_mlp, 2, rule=RULES[name], seeds=SEEDS)
    data = FleetData.shared(inputs, targets, 2)
    history = fleet.fit(data, n_epochs, batch_size=batch_size, progress=False)
    for i, seed in enumerate(SEEDS):
        alone, losses, n_steps = train_alone(
            small_mlp, seed, inputs, targets, rule=RULES[name][i], n_epochs=n_epochs, batch_size=batch_size
        )
        assert n_steps == 24
        assert_same_model(fleet.models[i], alone)
        torch.testing.assert_close(history.losses[:, i], losses, atol=1e-5, rtol=1e-5)


def test_mixed_rules_rates_and_decays_in_one_fleet_train_as_alone():
    rules = [
        mcl.WTA(),
        mcl.AnnealedWTA(0.4),
        COOLING,
        mcl.PIT(),
        mcl.WTA(),
        mcl.RelaxedWTA(0.2),
        mcl.TopK(2),
        mcl.Sinkhorn(0.5, n_iters=5),
    ]
    rates = [0.001, 0.02, mcl.Linear(0.02, 0.001, 6), 0.005, mcl.Cosine(0.01, 0.0, 6), 0.01, 0.003, 0.01]
    decays = [0.0, 0.1, 0.01, 0.0, 0.5, 0.0, 1.0, 0.01]
    seeds = [5, 1, 4, 1, 5, 9, 2, 6]
    inputs, targets = rows(23)
    fleet = Fleet(small_mlp, 8, rule=rules, learning_rate=rates, weight_decay=decays, seeds=seeds)
    fleet.fit(FleetData.shared(inputs, targets, 8), 6, batch_size=6, progress=False)
    for i in range(8):
        options = {"rule": rules[i], "learning_rate": rates[i], "weight_decay": decays[i]}
        alone, _, _ = train_alone(small_mlp, seeds[i], inputs, targets, n_epochs=6, batch_size=6, **options)
        assert_same_model(fleet.models[i], alone)


def _decoupled(optimizer, parameters, lr, weight_decay, **options):
    """torch.optim.SGD with the decay of AdamW in front of each step: its own is added to the gradient."""
    made = optimizer(parameters, lr=lr, **options)

    def decay(made, *_):
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(1 - made.param_groups[0]["lr"] * weight_decay)

    made.register_step_pre_hook(decay)
    return made


OPTIMIZERS = {
    "Adam": (Adam(), 0.0, lambda p, lr, decay: torch.optim.Adam(p, lr=lr)),
    "Adam, other betas": (
        Adam(beta1=0.5, beta2=0.9, epsilon=1e-4),
        0.0,
        lambda p, lr, decay: torch.optim.Adam(p, lr=lr, betas=(0.5, 0.9), eps=1e-4),
    ),
    "AdamW": (Adam(), 0.2, lambda p, lr, decay: torch.optim.AdamW(p, lr=lr, weight_decay=decay)),
    "SGD": (SGD(), 0.0, lambda p, lr, decay: torch.optim.SGD(p, lr=lr)),
    "SGD, momentum": (SGD(momentum=0.9), 0.0, lambda p, lr, decay: torch.optim.SGD(p, lr=lr, momentum=0.9)),
    "SGD, decoupled decay": (
        SGD(momentum=0.5),
        0.2,
        lambda p, lr, decay: _decoupled(torch.optim.SGD, p, lr, decay, momentum=0.5),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_as_that_of_torch(name):
    optimizer, decay, make_optimizer = OPTIMIZERS[name]
    inputs, targets = rows(23)
    rates = [0.01, mcl.Linear(0.02, 0.0, 6)]
    fleet = Fleet(small_mlp, 2, optimizer=optimizer, learning_rate=rates, weight_decay=decay, seeds=SEEDS)
    fleet.fit(FleetData.shared(inputs, targets, 2), 6, batch_size=6, progress=False)
    for i, seed in enumerate(SEEDS):
        options = {"learning_rate": rates[i], "weight_decay": decay, "make_optimizer": make_optimizer}
        alone, _, _ = train_alone(small_mlp, seed, inputs, targets, n_epochs=6, batch_size=6, **options)
        assert_same_model(fleet.models[i], alone)


@pytest.mark.parametrize("score_weight", [0.0, 0.3])
def test_the_score_weight_counts_as_alone(score_weight):
    inputs, targets = rows(20)
    fleet = Fleet(small_mlp, 2, score_weight=score_weight)
    history = fleet.fit(FleetData.shared(inputs, targets, 2), 24, progress=False)
    for i in range(2):
        alone, losses, _ = train_alone(small_mlp, i, inputs, targets, n_epochs=24, score_weight=score_weight)
        assert_same_model(fleet.models[i], alone)
        torch.testing.assert_close(history.losses[:, i], losses, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 6])
def test_sets_of_different_length_train_as_alone(batch_size):
    sets = [rows(23, seed=0), rows(9, seed=1), rows(16, seed=2)]
    set_of_model = [1, 0, 2, 1, 1, 2, 1]
    rules = [
        mcl.WTA(),
        *RULES["AnnealedWTA annealed"],
        mcl.RelaxedWTA(0.1),
        mcl.TopK(2),
        mcl.PIT(),
        RULES["Sinkhorn"][0],
    ]
    n_epochs = 24 if batch_size is None else 12  # the shortest set takes two steps an epoch
    fleet = Fleet(small_mlp, 7, rule=rules, weight_decay=0.01, learning_rate=0.003)
    history = fleet.fit(FleetData.of_sets(sets, set_of_model), n_epochs, batch_size=batch_size, progress=False)
    for i, number in enumerate(set_of_model):
        options = {
            "rule": rules[i],
            "weight_decay": 0.01,
            "learning_rate": 0.003,
            "n_epochs": n_epochs,
            "batch_size": batch_size,
        }
        alone, losses, n_steps = train_alone(small_mlp, i, *sets[number], **options)
        assert n_steps >= 24
        assert_same_model(fleet.models[i], alone)
        torch.testing.assert_close(history.losses[:, i], losses, atol=1e-5, rtol=1e-5)


def test_a_model_of_double_precision_trains_as_alone_to_nine_digits():
    def factory():
        return small_mlp().double()

    inputs, targets = (part.double() for part in rows(23))
    # Powers of two, as rates and parameters of the rules are kept in single precision.
    rules = [mcl.AnnealedWTA(0.5), mcl.RelaxedWTA(0.25)]
    fleet = Fleet(factory, 2, rule=rules, learning_rate=2.0**-7)
    fleet.fit(FleetData.shared(inputs, targets, 2), 6, batch_size=6, progress=False)
    for i in range(2):
        options = {"rule": rules[i], "learning_rate": 2.0**-7, "n_epochs": 6, "batch_size": 6}
        alone, _, _ = train_alone(factory, i, inputs, targets, **options)
        assert_same_model(fleet.models[i], alone, atol=1e-9)


def test_class_targets_of_another_cost_train_as_alone():
    inputs, _ = rows(20)
    targets = (inputs.sum(dim=-1, keepdim=True) > 0).long()  # [rows, targets]
    fleet = Fleet(small_mlp, 2, cost_fn=mcl.pairwise_cross_entropy, score_weight=0.0)
    fleet.fit(FleetData.of_sets([(inputs, targets), (inputs[:9], targets[:9])], [0, 1]), 24, progress=False)
    for i, n_rows in enumerate((20, 9)):
        torch.manual_seed(i)
        alone = small_mlp()
        optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
        for _ in range(24):
            log_shares = alone(inputs[:n_rows]).hypotheses.log_softmax(dim=-1)  # [rows, hypotheses, classes]
            cost = -torch.stack([answer[:, label[0]] for answer, label in zip(log_shares, targets, strict=False)])
            optimizer.zero_grad()
            cost.min(dim=-1).values.mean().backward()
            optimizer.step()
        assert_same_model(fleet.models[i], alone)


class NormalizedNet(nn.Module):
    """A module that is not ours: two hidden layers and a layer norm."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 6), nn.GELU())
        self.answers = nn.Linear(6, 6)
        self.scores = nn.Linear(6, 3, bias=False)

    def forward(self, inputs):
        features = self.body(inputs)
        return mcl.Predictions(self.answers(features).unflatten(-1, (3, 2)), self.scores(features))


def test_frozen_parameters_stay_as_they_are():
    def factory():
        module = NormalizedNet()
        module.body[0].requires_grad_(False)
        return module

    inputs, targets = rows(12)
    fleet = Fleet(factory, 2, weight_decay=0.01)
    fleet.fit(FleetData.shared(inputs, targets, 2), 20, progress=False)
    for i in range(2):
        torch.manual_seed(i)
        assert torch.equal(fleet.models[i].body[0].weight, factory().body[0].weight)
        alone, _, _ = train_alone(factory, i, inputs, targets, weight_decay=0.01, n_epochs=20)
        assert_same_model(fleet.models[i], alone)
