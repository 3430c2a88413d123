"""`RuleScheduler` in a plain loop: any rule, the decisions of the policy, and exact resumption."""

import pickle
import warnings
from collections import OrderedDict

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchmcl as mcl
from grids import for_each
from torchmcl.annealing import CostScale, cost_scale
from torchmcl.annealing.model import OptimizerWeights

N_ROWS, BATCH_SIZE, N_EPOCHS = 96, 32, 20


def cooling(n_steps=4):
    return mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, n_steps))


def network():
    torch.manual_seed(0)
    return mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=2, hidden=(16,))


def loader():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(N_ROWS, 1, generator=generator)
    targets = torch.where(torch.rand(N_ROWS, 1, generator=generator) < 0.5, inputs, -inputs)
    return DataLoader(TensorDataset(inputs, targets), batch_size=BATCH_SIZE)


class Training:
    """A plain loop with a scheduler of rules, which notes what every epoch used."""

    def __init__(self, rule=None, groups=None, device="cpu", make_model=network, **options):
        self.model = make_model().to(device)
        groups = self.model.parameters() if groups is None else groups(self.model)
        self.optimizer = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.0)
        rule = mcl.AutoAnnealing() if rule is None else rule
        self.scheduler = mcl.RuleScheduler(
            rule, self.optimizer, **{"n_epochs": N_EPOCHS, "model": self.model} | options
        )
        self.loader, self.device = loader(), device
        self.matchings, self.used = [], []

    def train(self, n_epochs):
        for _ in range(n_epochs):
            for batch in self.loader:
                batch = [part.to(self.device) for part in batch]
                output = mcl.mcl_step(self.model, batch, self.scheduler.rule)
                self.optimizer.zero_grad()
                output.loss.backward()
                self.optimizer.step()
                self.scheduler.observe(output)
                self.matchings.append(output.matching)
            group = self.optimizer.param_groups[0]
            self.used.append((float(self.scheduler.rule.temperature), group["lr"]))
            self.scheduler.step()
        return self

    def state(self):
        parts = (self.model, self.optimizer, self.scheduler)
        return {str(number): part.state_dict() for number, part in enumerate(parts)}

    def load(self, state):
        for number, part in enumerate((self.model, self.optimizer, self.scheduler)):
            part.load_state_dict(state[str(number)])
        return self


# ------------------------------------------------------------------ any rule


def test_a_function_of_the_step_is_followed():
    scheduler = mcl.RuleScheduler(cooling())
    temperatures = []
    for _ in range(6):
        temperatures.append(scheduler.rule.temperature)
        scheduler.step()
    assert temperatures == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


@for_each("rule", [mcl.WTA(), cooling(N_EPOCHS)])
def test_the_same_loop_serves_rules_that_need_no_measurement(rule):
    model, scheduler = network(), mcl.RuleScheduler(rule)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for batch in loader():
        output = mcl.mcl_step(model, batch, scheduler.rule)
        output.loss.backward()
        optimizer.step()
        scheduler.observe(output)
    scheduler.step()
    assert scheduler.n_steps == 1
    assert optimizer.param_groups[0]["lr"] == 0.02


# ------------------------------------------------------------------ AutoAnnealing


def test_a_training_learns_both_answers_and_ends_cold_and_slow():
    training = Training(n_epochs=100).train(100)
    temperatures, rates = zip(*training.used, strict=True)
    assert temperatures[0] > 0.5
    assert temperatures[-1] == 0
    assert rates[0] == 0.02 > rates[-1] > 0
    assert training.optimizer.param_groups[0]["lr"] == 0
    answers = training.model(torch.tensor([[0.9]])).hypotheses.flatten().sort().values
    torch.testing.assert_close(answers, torch.tensor([-0.9, 0.9]), atol=0.15, rtol=0)


def expected_values(training):
    """Return the decisions of the policy, fed as a fleet feeds it: measured before training and after every epoch."""
    policy, n_batches = mcl.AutoAnnealing(), len(training.loader)
    measured = [cost_scale(matching) for matching in training.matchings]
    state = policy.init(measured[0], N_EPOCHS)
    values = []
    for epoch in range(N_EPOCHS):
        values.append(policy.value(state, epoch, N_EPOCHS))
        of_epoch = zip(*measured[epoch * n_batches : (epoch + 1) * n_batches], strict=True)
        *means, has_zero = (torch.stack(parts) for parts in of_epoch)
        policy.update(state, CostScale(*(part.mean() for part in means), has_zero.all()), epoch + 1, N_EPOCHS)
    return [[float(number) for number in value] for value in values]


def test_it_does_what_the_policy_of_a_fleet_does_with_the_same_measurements():
    training = Training().train(N_EPOCHS)
    expected = [(t, 0.02 * rate) for t, rate, _ in expected_values(training)]
    torch.testing.assert_close(torch.tensor(training.used), torch.tensor(expected), rtol=1e-5, atol=1e-8)


def two_groups(model):
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    return [{"params": weights, "weight_decay": 0.05}, {"params": biases, "lr": 0.002}]


def test_groups_keep_the_ratio_of_their_rates_and_their_decay():
    training = Training(rule=mcl.AutoAnnealing(cooling=0.0), groups=two_groups)
    for epoch in range(N_EPOCHS - 1):
        if epoch == 5:  # held-out targets far from the training targets: the network overfits
            output = mcl.mcl_step(training.model, next(iter(training.loader)), mcl.WTA())
            held_out = output._replace(matching=mcl.assign(output.matching.cost + 0.1, mcl.WTA()))
            training.scheduler.observe(held_out, held_out=True)
        training.train(1)
        weights, biases = training.optimizer.param_groups
        assert weights["lr"] == pytest.approx(10 * biases["lr"])
        assert (weights["weight_decay"] > 0.05) == (epoch >= 5)
        assert biases["weight_decay"] == 0
    assert 0 < weights["lr"] < 0.02


def test_without_its_rate_another_scheduler_of_rates_may_be_used():
    training = Training(rule=mcl.AutoAnnealing(rate=False))
    other = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    for _ in range(3):
        training.train(1)
        other.step()
    assert [rate for _, rate in training.used] == [0.02, 0.01, 0.005]


class Normalized(torch.nn.Sequential):
    """Network with buffers."""

    def __init__(self):
        torch.manual_seed(0)
        parts = {"norm": torch.nn.BatchNorm1d(1), "head": mcl.MultiHypothesisHead(1, 1, 2)}
        super().__init__(OrderedDict(parts))


@for_each("make_model", [network, Normalized])
def test_a_probe_that_gains_nothing_is_undone(make_model):
    training = Training(make_model=make_model)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    training.train(1)  # the mean of both answers is 0, and explains nothing
    now = training.model.state_dict()
    for name in before.keys() - {"head.linear.weight", "head.linear.bias"}:
        torch.testing.assert_close(now[name], before[name], rtol=0, atol=0)
    assert torch.equal(now["head.linear.weight"][0], now["head.linear.weight"][1])  # hypotheses differ by constants
    assert now["head.linear.bias"][0] != now["head.linear.bias"][1]
    assert all(not value.any() for state in training.optimizer.state.values() for value in state.values())
    assert training.scheduler.events == ((1, "rewind"), (1, "separation"))
    training.train(1)
    assert not torch.equal(training.model.head.linear.weight, before["head.linear.weight"])


@for_each("kind", [torch.optim.NAdam, torch.optim.Rprop, torch.optim.Adagrad])
def test_a_rewound_model_is_trained_as_with_a_new_optimizer(kind):
    def trained(rewinds):
        model = network()
        optimizer = kind(model.parameters())
        initial = [parameter.detach().clone() for parameter in model.parameters()]
        for step in range(6 if rewinds else 3):
            if step == 3:
                OptimizerWeights(optimizer, model.head, initial).rewind(torch.ones(1, dtype=torch.bool))
            optimizer.zero_grad()
            mcl.mcl_step(model, mcl.Batch(torch.ones(4, 1), torch.ones(4, 1, 1)), mcl.WTA()).loss.backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    torch.testing.assert_close(trained(rewinds=True), trained(rewinds=False), rtol=0, atol=0)


def test_hypotheses_that_are_equal_are_parted_after_a_hold():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(256, 1, generator=generator)
    targets = 5 * inputs + torch.where(torch.rand(256, 1, generator=generator) < 0.5, 0.3, -0.3)
    training = Training(n_epochs=60)
    training.loader = DataLoader(TensorDataset(inputs, targets), batch_size=64)
    with torch.no_grad():
        for part in (training.model.head.linear.weight, training.model.head.linear.bias):
            part[1] = part[0]  # winner-takes-all would never part them
    answers = training.train(60).model(torch.tensor([[0.5]])).hypotheses.flatten().sort().values
    torch.testing.assert_close(answers, torch.tensor([2.2, 2.8]), atol=0.2, rtol=0)


def test_a_hypothesis_that_wins_nothing_is_moved():
    training = Training(model=None)  # without the model nothing can be moved
    training.train(2)
    with torch.no_grad():
        training.model.head.linear.bias[1] = 1e3
    with_model = Training()
    with_model.load(training.state())
    for run in (training, with_model):
        run.train(N_EPOCHS - 2)
    far = [float(run.model(torch.tensor([[0.9]])).hypotheses.detach().abs().max()) for run in (training, with_model)]
    assert far[0] > 900
    assert far[1] < 2
    assert {change for _, change in with_model.scheduler.events} == {"move"}


def test_a_cost_without_a_zero_is_cooled_from_the_first_batch():
    training = Training()
    cost = torch.randn(8, 1, 2) - 5
    output = mcl.mcl_step(training.model, next(iter(training.loader)), mcl.WTA())
    training.scheduler.observe(output._replace(matching=mcl.assign(cost, mcl.WTA())))
    first = float(training.scheduler.rule.temperature)
    training.scheduler.step()
    assert float(training.scheduler.rule.temperature) < first < 10


def test_padded_steps_move_no_hypothesis():
    torch.manual_seed(0)
    mask = torch.ones(64, 1, 4, dtype=torch.bool)
    mask[:32, :, 1:] = False
    model = mcl.MultiHypothesisMLP(1, (4, 2), 3, hidden=(8,))
    batch = mcl.Batch(torch.rand(64, 1), torch.randn(64, 1, 4, 2), mask)
    assert mcl.mcl_step(model, batch, mcl.WTA(), cost_fn=mcl.pairwise_sq_ade).batch.mask.ndim == 3
    whole = mcl.mcl_step(model, batch._replace(mask=None), mcl.WTA(), cost_fn=mcl.pairwise_sq_ade)
    assert torch.equal(whole.batch.targets, batch.targets)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = mcl.RuleScheduler(mcl.AutoAnnealing(), optimizer, model=model, n_epochs=8)
    for _ in range(8):
        output = mcl.mcl_step(model, batch, scheduler.rule, cost_fn=mcl.pairwise_sq_ade)
        scheduler.observe(output)  # without a step of the optimizer: only a move would change the weights
        before = model.head.linear.weight.detach().clone()
        scheduler.step()
        assert torch.equal(model.head.linear.weight, before)


def test_a_forgotten_observe_is_an_error():
    with pytest.raises(RuntimeError, match=r"AutoAnnealing has no data\. Call `observe\(output\)`"):
        Training().scheduler.step()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_nothing_waits_for_the_device_within_an_epoch():
    training = Training(device="cuda").train(1)
    batch = [part.cuda() for part in next(iter(training.loader))]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            output = mcl.mcl_step(training.model, batch, training.scheduler.rule)
            training.scheduler.observe(output)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    training.load(training.state()).train(1)
    assert training.scheduler.rule.temperature.is_cuda


# ------------------------------------------------------------------ states


@for_each("n_epochs, make_model", [(1, Normalized), (12, network)])
def test_an_interrupted_training_resumes_to_the_same_bits(n_epochs, make_model, tmp_path):
    options = {"groups": two_groups, "make_model": make_model}
    whole = Training(**options).train(N_EPOCHS)
    torch.save(Training(**options).train(n_epochs).state(), tmp_path / "state.pt")
    resumed = Training(**options).load(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed.train(N_EPOCHS - n_epochs)
    assert resumed.used == whole.used[n_epochs:]
    for part in (lambda run: run.model.state_dict(), lambda run: run.scheduler.state_dict()["annealing"]):
        torch.testing.assert_close(part(resumed), part(whole), rtol=0, atol=0)


def test_a_scheduler_resumes_and_can_be_pickled():
    scheduler = mcl.RuleScheduler(cooling())
    for _ in range(3):
        scheduler.step()
    other = mcl.RuleScheduler(cooling())
    other.load_state_dict(scheduler.state_dict())
    assert other.rule == pickle.loads(pickle.dumps(scheduler)).rule == mcl.AnnealedWTA(0.25)
    other.step()
    assert other.rule == mcl.AnnealedWTA(0.0)


def test_functions_are_compared_by_the_rule_they_give():
    scheduler = mcl.RuleScheduler(lambda step: mcl.AnnealedWTA(1.0 / (1 + step)))
    scheduler.step()
    other = mcl.RuleScheduler(lambda step: mcl.AnnealedWTA(1.0 / (1 + step)))
    other.load_state_dict(scheduler.state_dict())
    assert other.rule == mcl.AnnealedWTA(0.5)
    with pytest.raises(ValueError, match="RuleScheduler: `state`"):
        mcl.RuleScheduler(lambda step: mcl.AnnealedWTA(0.9**step)).load_state_dict(scheduler.state_dict())


# ------------------------------------------------------------------ bad input


@for_each(
    "arguments, error, words",
    [
        (("auto",), TypeError, "`rule`"),
        ((mcl.AnnealedWTA,), TypeError, "`rule`"),
        ((mcl.AutoAnnealing(),), ValueError, ".*`optimizer`"),
        ((mcl.WTA(), None, 0), ValueError, "`n_epochs`"),
    ],
)
def test_bad_arguments_are_refused_in_words(arguments, error, words):
    options = dict(zip(("rule", "optimizer", "n_epochs"), arguments, strict=False))
    with pytest.raises(error, match=f"RuleScheduler: {words}"):
        mcl.RuleScheduler(**options)


def test_wrong_uses_of_the_learning_rate_are_refused():
    with pytest.raises(ValueError, match="`n_epochs` must be the length of the run, got 2"):
        Training(n_epochs=2).train(3)
    training = Training()
    second = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    training.optimizer.step()
    second.step()
    with pytest.raises(ValueError, match=r"only AutoAnnealing changes, got 0\.01 instead of 0\.02"):
        training.train(1)
    with pytest.raises(ValueError, match="RuleScheduler: `optimizer` must train parameters of `model`"):
        Training(model=network())


def test_parameters_that_are_added_before_a_rewind_are_refused():
    training = Training()
    training.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ValueError, match=r"`optimizer` must have the same parameters during the hold"):
        training.train(1)


def test_a_model_without_a_head_is_said_once_unless_its_cost_has_no_zero():
    def headless():
        return torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Unflatten(-1, (2, 1)), Hypotheses())

    with pytest.warns(UserWarning, match="AutoAnnealing: `model` must end in one trained") as caught:
        training = Training(make_model=headless).train(3)
    assert len(caught) == 1
    assert training.scheduler.events == ()
    training = Training(make_model=headless)
    output = mcl.mcl_step(training.model, next(iter(training.loader)), mcl.WTA())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.scheduler.observe(output._replace(matching=mcl.assign(torch.randn(8, 1, 2) - 5, mcl.WTA())))
        training.scheduler.step()


class Hypotheses(torch.nn.Module):
    def forward(self, values):
        return mcl.Predictions(values)


def test_the_length_of_an_automatic_training_must_be_known():
    optimizer = torch.optim.Adam(network().parameters())
    with pytest.raises(ValueError, match="`n_epochs`"):
        mcl.RuleScheduler(mcl.AutoAnnealing(), optimizer)
