"""The step of class mixtures in closed form against the definition."""

import pytest
import torch

import torchmcl as mcl
from torchmcl.checks import debug_checks
from torchmcl_fleet import Fleet, FleetData, MixtureLogLoss, Validation
from torchmcl_fleet.backends import BACKENDS, choose_backend
from torchmcl_fleet.modules.stacked import StackedModules
from torchmcl_fleet.plan import RulePlan
from torchmcl_fleet.problem import EpochRows, StepSpec, TrainingProblem

COST = mcl.MixtureNLL(mcl.pairwise_cross_entropy)
RULES = [mcl.AnnealedWTA(1.0), mcl.AnnealedWTA(4.0), mcl.WTA(), mcl.RelaxedWTA(0.2), mcl.TopK(2)]


def network(hidden=(7, 5), **how):
    return mcl.MultiHypothesisMLP(4, 3, 5, hidden=hidden, **how)


def data(weighted=False, n_models=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n_models, 30, 4, generator=generator).to(dtype)
    classes = torch.randint(0, 3, (n_models, 30, 1), generator=generator)
    weights = 2 * torch.rand(n_models, 30, generator=generator).to(dtype) if weighted else None
    return FleetData(inputs, classes, torch.full((n_models,), 30), torch.arange(n_models), weights=weights)


def facts(models, rows, held_out=None):
    spec = StepSpec(COST, 0.0, MixtureLogLoss())
    return TrainingProblem.of(models, rows, held_out, spec, device=torch.device("cpu"), per_target_rules=True)


@pytest.mark.parametrize(("hidden", "weighted"), [((), False), ((7,), True), ((7, 5), True)])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_losses_and_gradients_are_those_of_the_definition(rule, hidden, weighted):
    torch.manual_seed(0)
    models = StackedModules.of([network(hidden).double() for _ in range(2)])
    rows = EpochRows(data(weighted, dtype=torch.float64), torch.arange(2), 30)
    rules = RulePlan([rule] * 2, 1, torch.device("cpu"), torch.float64)
    rules.read(torch.zeros(1, dtype=torch.long))
    held_out, found = data(dtype=torch.float64), {}
    for name in ("autograd", "classes"):
        step = BACKENDS[name].step(models, rows, held_out, facts(models, rows.data, held_out))
        losses = step(rules, rows.batches[0])
        found[name] = losses, step.gradient.clone(), step.evaluate(rules, slice(0, 2))
    for expected, value in zip(*found.values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def test_a_training_is_that_of_the_definition():
    kept = []
    for backend in ("autograd", "classes", None):
        cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(5.0, 1.0, 3))
        fleet = Fleet(
            network, 2, rule=cooling, weight_decay=0.1, cost_fn=COST, score_weight=0, seeds=[0, 1], backend=backend
        )
        watch = Validation(data(), monitor=MixtureLogLoss(torch.ones(2, 30), together=True))
        history = fleet.fit(data(True), 5, batch_size=11, validation=watch, progress=False)
        assert history.best_epoch[0] == history.best_epoch[1]
        kept.append((fleet.state_dict(), history.watched))
    for name, value in kept[0][0].items():
        torch.testing.assert_close(kept[1][0][name], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(kept[1][0][name], kept[2][0][name])  # it is the one that is chosen
    torch.testing.assert_close(kept[1][1], kept[0][1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"score_weight": 1.0}, "MixtureNLL.* with score_weight=0"),
        ({"cost_fn": mcl.pairwise_cross_entropy}, "MixtureNLL"),
        ({"module": lambda: network(detach_scores=True)}, "MultiHypothesisMLP with ReLU and scores"),
        ({"module": lambda: network(activation=torch.nn.Tanh)}, "MultiHypothesisMLP with ReLU"),
        ({"rows": data()._replace(n_rows=torch.tensor([30, 20]))}, "sets of equal length"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(change, reason):
    factory = change.pop("module", network)
    rows = change.pop("rows", data())
    fleet = Fleet(factory, 2, **({"cost_fn": COST, "score_weight": 0, "backend": "classes"} | change))
    with pytest.raises(
        ValueError,
        match=rf"Fleet: `backend` must support this training run, got 'classes'. It .*{reason}",
    ):
        fleet.fit(rows, 1, progress=False)


def test_values_are_checked_where_that_is_asked_for():
    models = StackedModules.of([network()])
    assert choose_backend(None, facts(models, data(n_models=1))).name == "classes"
    with debug_checks():
        assert choose_backend(None, facts(models, data(n_models=1))).name == "autograd"


def test_the_log_loss_is_that_of_the_mixture():
    cost = torch.tensor([[[[1.0, 2.0]], [[0.5, 3.0]]], [[[2.0, 2.0]], [[1.0, 1.0]]]])
    each = -torch.logsumexp(-cost, -1).squeeze(-1)
    mask = torch.ones(2, 2, 1, dtype=torch.bool)
    torch.testing.assert_close(MixtureLogLoss().of_costs(cost, mask), each.mean(1))
    weights = torch.tensor([[1.0, 0.0], [1.0, 3.0]])
    torch.testing.assert_close(MixtureLogLoss(weights).of_costs(cost, mask), (each * weights).sum(1) / weights.sum(1))
    together = (each * weights).sum() / weights.sum()
    torch.testing.assert_close(MixtureLogLoss(weights, together=True).of_costs(cost, mask), together.expand(2))
