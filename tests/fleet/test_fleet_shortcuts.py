"""Steps without autograd, written out or compiled, are the steps of the plain loop and of autograd."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_loop import assert_same_bits, assert_same_model, train_alone

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl.fleet import SGD, Fleet, FleetData, current_loss, hard_distortion, shortcuts
from torchmcl.fleet import loop as fleet_loop
from torchmcl.fleet.shuffles import shuffled_rows
from torchmcl.fleet.stacked import StackedModules
from torchmcl.kernels import native

WAYS = ("compiled", "written out", "autograd")
COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 15))
RULES = [
    mcl.WTA(),
    mcl.RelaxedWTA(0.1),
    mcl.annealed(mcl.RelaxedWTA(0.5), epsilon=mcl.Linear(0.5, 0.0, 15)),
    COOLING,
    mcl.AnnealedWTA(0.0),
    mcl.AnnealedWTA(float("inf")),
    mcl.AnnealedWTA(0.3),
]


def curve(n_rows, n_dims=1, seed=0):
    """Return inputs [rows, 3] and one target each, [rows, 1, dims]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n_rows, 3, generator=generator)
    side = torch.randint(0, 2, (n_rows, 1, 1), generator=generator) * 2.0 - 1
    noise = 0.1 * torch.randn(n_rows, 1, n_dims, generator=generator)
    return inputs, side * inputs[:, None, :n_dims] + noise


def network(n_dims=1, **options):
    return mcl.MultiHypothesisMLP(3, n_dims, 4, **({"hidden": (9,)} | options))


@pytest.fixture(params=WAYS[:2])
def way(request, monkeypatch):
    go(request.param, monkeypatch)
    return request.param


def go(way, monkeypatch):
    """Let fleets take one of the ways, however short their training."""
    if way == "compiled" and not native.available():
        pytest.skip("needs a C compiler")
    monkeypatch.setattr(shortcuts, "_SECONDS_SAVED", 0.0 if way == "compiled" else float("inf"))
    if way == "autograd":
        monkeypatch.setattr(fleet_loop, "needs_no_graph", lambda *_: False)


def ways_taken(monkeypatch):
    """Return a list that fills with the ways that chunks take."""
    seen = []
    run = fleet_loop.ChunkTraining.run

    def noted(self, *arguments):
        seen.append("compiled" if self.compiled else "written out" if self.written_out else "autograd")
        return run(self, *arguments)

    monkeypatch.setattr(fleet_loop.ChunkTraining, "run", noted)
    return seen


@pytest.mark.parametrize(("n_rows", "batch_size", "n_epochs", "n_dims"), [(20, None, 100, 1), (23, 6, 25, 2)])
def test_every_per_target_rule_trains_as_alone(way, n_rows, batch_size, n_epochs, n_dims, monkeypatch):
    seen = ways_taken(monkeypatch)
    inputs, targets = curve(n_rows, n_dims)
    fleet = Fleet(lambda: network(n_dims), len(RULES), rules=RULES, weight_decay=0.01)
    data = FleetData.shared(inputs, targets, len(RULES))
    history = fleet.fit(data, n_epochs, batch_size=batch_size, progress=False)
    assert set(seen) == {way}
    for i, rule in enumerate(RULES):
        options = {"rule": rule, "n_epochs": n_epochs, "batch_size": batch_size, "weight_decay": 0.01}
        alone, losses, _ = train_alone(lambda: network(n_dims), i, inputs, targets, **options)
        assert_same_model(fleet.models[i], alone)
        torch.testing.assert_close(history.losses[:, i], losses, atol=1e-5, rtol=1e-5)


OPTIONS = {
    "no scores": ({"scores": False}, {}),
    "scores that stop at the head": ({"detach_scores": True}, {}),
    "scores that count half": ({}, {"score_weight": 0.5}),
    "scores that do not count": ({}, {"score_weight": 0.0}),
    "three hidden layers": ({"hidden": (5, 8, 6)}, {}),
    "no hidden layer": ({"hidden": ()}, {}),
    "SGD": ({}, {"optimizer": SGD(momentum=0.9)}),
    "rates of their own": ({}, {"lr": [0.01, 0.02, 0.0], "weight_decay": [0.0, 0.1, 0.0]}),
    "double precision": ({}, {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_networks_and_options_train_as_under_autograd(name, monkeypatch):
    network_options, fleet_options = OPTIONS[name]
    dtype = torch.float64 if name == "double precision" else torch.float32
    data = FleetData.of_sets([tuple(x.to(dtype) for x in curve(130, seed=seed)) for seed in (0, 1)], [0, 1, 0])
    rules = [mcl.WTA(), mcl.RelaxedWTA(0.2), mcl.AnnealedWTA(0.5)]
    states = {}
    for way in WAYS:
        with monkeypatch.context() as patch:
            go(way, patch)
            fleet = Fleet(lambda: network(**network_options).to(dtype), 3, rules=rules, **fleet_options)
            history = fleet.fit(data, 8, batch_size=50, progress=False)
            states[way] = {**fleet.state_dict(), "losses": history.losses}
    for way in WAYS[:2]:
        torch.testing.assert_close(states[way], states["autograd"], atol=1e-5, rtol=1e-5)


def test_weighted_rows_train_as_under_autograd(monkeypatch):
    inputs, targets = curve(30)
    weights = torch.rand(30)
    data = FleetData.shared(inputs, targets, 2, weights=weights / weights.mean())
    results = []
    for way in WAYS:
        with monkeypatch.context() as patch:
            go(way, patch)
            fleet = Fleet(network, 2, rules=[mcl.WTA(), mcl.AnnealedWTA(0.5)])
            fleet.fit(data, 20, batch_size=8, progress=False)
            results.append(fleet.state_dict()["last"])
    torch.testing.assert_close(results[0], results[2], atol=1e-5, rtol=0)
    torch.testing.assert_close(results[1], results[2], atol=1e-5, rtol=0)


@pytest.mark.parametrize("monitor", [current_loss, hard_distortion])
@pytest.mark.parametrize("patience", [None, 3])
def test_looks_see_what_they_see_under_autograd(monitor, patience, monkeypatch):
    watched = FleetData.of_sets([curve(17, seed=3), curve(17, seed=4)], [0, 1, 1])
    options = {"validation": watched, "validate_every": [1, 3, 2], "monitor": monitor, "patience": patience}
    results = {}
    for way in WAYS:
        with monkeypatch.context() as patch:
            go(way, patch)
            fleet = Fleet(network, 3, rules=[mcl.WTA(), COOLING, mcl.RelaxedWTA(0.2)], lr=0.1)
            history = fleet.fit(FleetData.shared(*curve(40), 3), 15, progress=False, **options)
            results[way] = {**fleet.state_dict(), **history._replace(seconds=0)._asdict()}
    for way in WAYS[:2]:
        torch.testing.assert_close(results[way], results["autograd"], atol=1e-4, rtol=1e-4, equal_nan=True)


def test_chunks_are_the_whole_and_a_resumed_training_has_the_same_bits(way, tmp_path):
    rules = [mcl.WTA(), mcl.AnnealedWTA(0.3), COOLING, mcl.RelaxedWTA(0.1), mcl.WTA()]
    data = FleetData.of_sets([curve(41, seed=0), curve(41, seed=1)], [0, 1, 1, 0, 1])

    def trained(n_epochs=12, **options):
        fleet = Fleet(network, 5, rules=rules, seeds=[0, 1, 2, 0, 1])
        return fleet, fleet.fit(data, n_epochs, batch_size=16, progress=False, **options)

    whole, history = trained(max_models_at_once=5)
    cut, cut_history = trained(max_models_at_once=2)
    torch.testing.assert_close(cut.state_dict()["last"], whole.state_dict()["last"], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cut_history.losses, history.losses, atol=1e-6, rtol=1e-6)

    def stop(epoch, *_):
        if epoch == 7:
            raise KeyboardInterrupt

    saving = {"checkpoint": tmp_path / "state", "checkpoint_every": 4, "max_models_at_once": 5}
    with pytest.raises(KeyboardInterrupt):
        trained(after_epoch=stop, **saving)
    resumed, resumed_history = trained(**saving)
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    assert_same_bits(history, resumed_history)


@pytest.mark.parametrize("rule", [mcl.WTA(), mcl.AnnealedWTA(0.5), mcl.RelaxedWTA(0.1)], ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_of_one_model_harms_no_other(way, rule, bad):
    good, spoilt = curve(30), curve(30, seed=1)
    spoilt[1][4] = bad

    def trained(sets):
        fleet = Fleet(network, 3, rules=rule)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return fleet, fleet.fit(FleetData.of_sets(sets, [0, 1, 0]), 5, progress=False)

    clean, _ = trained([good, curve(30, seed=1)])
    fleet, history = trained([good, spoilt])
    assert history.failed_epoch.tolist() == [-1, 0, -1]
    assert history.failed_batch.tolist() == [-1, 0, -1]
    assert torch.equal(fleet.state_dict()["last"][[0, 2]], clean.state_dict()["last"][[0, 2]])


@pytest.mark.parametrize("way", WAYS)
def test_the_batch_of_a_bad_number_is_named_on_every_way(way, monkeypatch):
    go(way, monkeypatch)
    seen = ways_taken(monkeypatch)
    inputs, targets = curve(30)
    targets[4] = torch.nan
    with pytest.warns(RuntimeWarning, match=r"model 0 was the first of them, from batch \d of epoch 0 on"):
        history = Fleet(network, 2, seeds=[3, 8]).fit(
            FleetData.shared(inputs, targets, 2), 3, batch_size=7, progress=False
        )
    orders = shuffled_rows(torch.tensor([3, 8]), 0, torch.tensor([30, 30]), 30).tolist()
    assert history.failed_batch.tolist() == [order.index(4) // 7 for order in orders]
    assert set(seen) == {way}


def test_value_checks_see_every_step(way):
    inputs, targets = curve(20)
    targets[3] = torch.nan
    fleet = Fleet(network, 2)
    with mcl.value_checks(), pytest.raises(ValueError, match="match: `cost` must be finite"):
        fleet.fit(FleetData.shared(inputs, targets, 2), 2, progress=False)


@given(
    hidden=st.lists(st.integers(1, 13), max_size=3),
    n_hypotheses=st.integers(1, 7),
    n_dims=st.integers(1, 3),
    n_rows=st.integers(1, 230),
    temperature=st.sampled_from([0.0, 1e-30, 0.1, 1.0, float("inf")]),
    epsilon=st.sampled_from([0.0, 0.3, 1.0]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
@pytest.mark.skipif(not native.available(), reason="needs a C compiler")
def test_the_compiled_gradient_is_that_of_autograd_in_double(
    hidden, n_hypotheses, n_dims, n_rows, temperature, epsilon, scale
):
    module = mcl.MultiHypothesisMLP(3, n_dims, n_hypotheses, hidden=hidden)
    inputs, targets = torch.randn(n_rows, 3), scale * torch.randn(n_rows, 1, n_dims)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().unsqueeze(0)
    layers = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
    shape = native.Network((3, *(layer.out_features for layer in layers)), n_hypotheses, n_dims, False)
    step = native.NetworkStep(
        shape, flat, inputs=inputs[None], targets=targets[None], row_weights=None, set_of_model=torch.tensor([0])
    )
    loss = step(torch.tensor([[temperature], [epsilon]]), 1.0, start=0, stop=n_rows)
    rule = mcl.AnnealedWTA(temperature) if temperature > 0 else mcl.RelaxedWTA(epsilon)
    exact = mcl.mcl_step(module.double(), mcl.Batch(inputs.double(), targets.double()), rule).loss
    exact.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    torch.testing.assert_close(loss[0].double(), exact.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(step.gradient[0].double(), gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def ladders(n_rows, n_given, lengths, generator):
    """Return columns that are given, then runs: in each row 1 up to some place, one value between, then 0."""
    runs = []
    for length in lengths:
        place = (length + 2) * torch.rand(n_rows, 1, generator=generator) - 1  # some before and some behind the run
        runs.append((place - torch.arange(length)).clamp(0, 1))
    return torch.cat([2 + torch.randn(n_rows, n_given, generator=generator).abs(), *runs], dim=1)


@given(
    n_given=st.integers(0, 5),
    lengths=st.lists(st.integers(4, 40), min_size=1, max_size=6),
    hidden=st.lists(st.integers(1, 40), max_size=2),
    n_rows=st.integers(1, 230),
    seed=st.integers(0, 1000),
)
@pytest.mark.skipif(not native.available(), reason="needs a C compiler")
def test_inputs_that_climb_have_the_gradient_of_a_plain_product(n_given, lengths, hidden, n_rows, seed):
    random = torch.Generator().manual_seed(seed)
    inputs, targets = ladders(n_rows, n_given, lengths, random), torch.randn(n_rows, 1, 1, generator=random)
    found = native.Ladders.of(inputs[None])
    assert found.given.shape[-1] == n_given
    assert int(found.lengths.sum()) == sum(lengths)
    assert len(found.lengths) <= len(lengths)  # runs of few rows may look like one
    module = mcl.MultiHypothesisMLP(inputs.shape[1], 1, 3, hidden=hidden)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().unsqueeze(0)
    sizes = [part.out_features for part in module.modules() if isinstance(part, torch.nn.Linear)]
    shape = native.Network((inputs.shape[1], *sizes), 3, 1, False)
    # The second half comes first, so that rows are found by their order and not by their place.
    order = (torch.arange(n_rows).roll(n_rows // 2)[None], torch.tensor([0]))
    step = native.NetworkStep(
        shape, flat, inputs=inputs[None], targets=targets[None], row_weights=None, set_of_model=torch.tensor([0])
    )
    loss = step(torch.tensor([[0.3], [0.0]]), 1.0, start=0, stop=n_rows, order=order)
    exact = mcl.mcl_step(module.double(), mcl.Batch(inputs.double(), targets.double()), mcl.AnnealedWTA(0.3)).loss
    exact.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    torch.testing.assert_close(loss[0].double(), exact.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(step.gradient[0].double(), gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize("where", ["a nan", "a step down", "too short"])
def test_inputs_that_do_not_climb_are_left_alone(where):
    inputs = ladders(50, 2, [8, 8], torch.Generator().manual_seed(0))
    if where == "a nan":
        inputs[3, -1] = torch.nan
    elif where == "a step down":
        inputs[3, -4:] = torch.tensor([0.0, 0.5, 0.0, 0.5])  # two more runs: shorter, still worth it
    else:
        inputs = torch.rand(50, 6, generator=torch.Generator().manual_seed(0))
    found = native.Ladders.of(inputs[None])
    expected = {"a nan": [], "a step down": [8, 5, 2, 1], "too short": []}[where]
    assert found.lengths.tolist() == expected
    assert found.given.shape[-1] == inputs.shape[1] - sum(expected)


@pytest.mark.parametrize("held_out", [None, 40, 400])
@pytest.mark.parametrize("n_epochs", [30, 230])
def test_models_that_anneal_by_themselves_decide_alike_in_all_ways(held_out, n_epochs, monkeypatch):
    data = FleetData.of_sets([curve(60, seed=seed) for seed in (0, 1)], [0, 1, 0])
    watched = (
        None if held_out is None else FleetData.of_sets([curve(held_out, seed=seed) for seed in (2, 3)], [0, 1, 0])
    )
    rules = [AutoAnnealing(), AutoAnnealing(hold_gain=2.0), mcl.WTA()]
    temperatures = {}
    for way in WAYS:
        with monkeypatch.context() as patch:
            go(way, patch)
            fleet = Fleet(network, 3, rules=rules, lr=1e-3)
            temperatures[way] = fleet.fit(data, n_epochs, validation=watched, progress=False).temperatures
    assert (temperatures["autograd"][-1, :2] == 0).all()
    for way in WAYS[:2]:
        torch.testing.assert_close(temperatures[way], temperatures["autograd"], rtol=1e-3, atol=1e-6, equal_nan=True)


def sets_with_something_to_learn():
    """Return rows of two models to train on and others to watch: beside the noise there is a mean to be learnt."""
    sets = [(inputs, targets + 2) for inputs, targets in (curve(60, seed=seed) for seed in range(4))]
    return FleetData.of_sets(sets[:2], [0, 1]), FleetData.of_sets(sets[2:], [0, 1])


def patient_and_not():
    return Fleet(network, 2, rules=[AutoAnnealing(0.02, cooling=0.6), AutoAnnealing(hold_gain=2.0)], lr=1e-2)


@pytest.mark.parametrize("patience", [None, 30])
def test_only_the_tail_of_models_that_anneal_by_themselves_can_be_best_in_all_ways(patience, monkeypatch):
    data, watched = sets_with_something_to_learn()
    watched.targets.zero_()  # which get worse with every epoch: any that counts too early would be the best
    histories = {}
    for way in WAYS:
        with monkeypatch.context() as patch:
            go(way, patch)
            histories[way] = patient_and_not().fit(data, 110, validation=watched, patience=patience, progress=False)
    expected = histories["autograd"]
    hard = (expected.temperatures > 0).sum(dim=0)
    assert hard[0] != hard[1]  # for a while one of them counts and the other does not
    assert (expected.best_epoch >= hard).all()
    for way in WAYS[:2]:
        assert histories[way].best_epoch.tolist() == expected.best_epoch.tolist()
        assert histories[way].stopped_epoch.tolist() == expected.stopped_epoch.tolist()
        torch.testing.assert_close(histories[way].watched, expected.watched, rtol=1e-3, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("n_epochs", [1, 2])
def test_the_last_epoch_of_a_training_without_a_tail_can_be_best(n_epochs, way):
    data, watched = sets_with_something_to_learn()
    history = patient_and_not().fit(data, n_epochs, validation=watched, progress=False)
    assert (history.temperatures[-1] > 0).all()
    assert history.best_epoch.tolist() == [n_epochs - 1] * 2


@pytest.mark.parametrize("cut", [3, 41, 117, 220])
def test_compiled_models_that_anneal_by_themselves_go_on_to_the_same_bits(cut, tmp_path, monkeypatch):
    class PowerCutError(Exception):
        pass

    def stop(epoch, *_):
        if epoch == cut:
            raise PowerCutError

    go("compiled", monkeypatch)
    data, watched = sets_with_something_to_learn()
    whole, first, second = patient_and_not(), patient_and_not(), patient_and_not()
    expected = whole.fit(data, 230, validation=watched, progress=False)
    saved = {"validation": watched, "checkpoint": tmp_path, "checkpoint_every": 1, "progress": False}
    with pytest.raises(PowerCutError):
        first.fit(data, 230, after_epoch=stop, **saved)
    history = second.fit(data, 230, **saved)
    assert_same_bits(whole.state_dict(), second.state_dict())
    assert_same_bits(
        {"t": expected.temperatures, "w": expected.watched}, {"t": history.temperatures, "w": history.watched}
    )


def test_the_compiled_mean_cost_is_that_of_the_drawn_rows():
    if not native.available():
        pytest.skip("needs a C compiler")
    data = FleetData.of_sets([curve(30, 2, seed=seed) for seed in (0, 1)], [1, 0])
    models = StackedModules.of([network(2), network(2)])
    drawn = torch.tensor([3, 3, 0, 29, 3])
    cost = mcl.pairwise_sq_euclidean(hypotheses=models(data.all_rows()[0]).hypotheses, targets=data.all_rows()[1])
    found = shortcuts.MeanCost.of(models, data, drawn, mcl.pairwise_sq_euclidean)()
    torch.testing.assert_close(found, cost[:, drawn].mean(dim=(1, 2, 3)))
    data.inputs[1, 29] = torch.nan
    assert shortcuts.MeanCost.of(models, data, drawn, mcl.pairwise_sq_euclidean) is None


@pytest.mark.parametrize("setting", [("TORCHMCL_NATIVE", "0"), ("CC", "/no/such/compiler"), ("CC", "false")])
def test_without_a_compiler_the_plain_way_is_taken(setting, monkeypatch):
    monkeypatch.setenv(*setting)
    monkeypatch.setattr(native, "_library", None)
    monkeypatch.setattr(native, "_tried", False)
    monkeypatch.setattr(shortcuts, "_SECONDS_SAVED", 0.0)
    seen = ways_taken(monkeypatch)
    fleet = Fleet(network, 2)
    history = fleet.fit(FleetData.shared(*curve(20), 2), 3, progress=False)
    assert seen == ["written out"]
    assert history.losses.isfinite().all()


def test_only_a_long_training_waits_for_the_compiler(monkeypatch):
    asked = []
    monkeypatch.setattr(native, "available", lambda: asked.append(True) or True)
    assert not shortcuts.is_worth_compiling(n_models=2, n_rows=100, n_epochs=10, batch_size=100)
    assert asked == []
    assert shortcuts.is_worth_compiling(n_models=120, n_rows=277, n_epochs=1000, batch_size=1024)
    assert shortcuts.is_worth_compiling(n_models=1, n_rows=4000, n_epochs=1000, batch_size=100)
