"""The compiled step is the step of autograd and of the plain loop, and says what it does not serve."""

import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchmcl as mcl
from plain_loop import assert_same_bits, assert_same_model, train_alone
from torchmcl import checks
from torchmcl.annealing import AutoAnnealing
from torchmcl.annealing.records import cost_scale
from torchmcl.app import main
from torchmcl.costs import MixtureNLLWithCRPS
from torchmcl_fleet import (
    SGD,
    Checkpointing,
    Fleet,
    FleetData,
    SampledData,
    Validation,
    current_loss,
    hard_distortion,
    native,
)
from torchmcl_fleet.backends import BACKENDS
from torchmcl_fleet.modules import StackedModules
from torchmcl_fleet.native import compiled
from torchmcl_fleet.problem import EpochRows, StepSpec, TrainingProblem

needs_extension = pytest.mark.skipif(not native.available(), reason="the extension was not built")
COST_FNS = [mcl.pairwise_sq_euclidean, mcl.pairwise_l1]
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


def with_backends(train):
    """Return the results of `train(backend)` by autograd and by the compiled code."""
    return train("autograd"), train("compiled")


@pytest.mark.parametrize(("n_rows", "batch_size", "n_epochs", "n_dims"), [(20, None, 30, 1), (23, 6, 18, 2)])
@needs_extension
def test_every_per_target_rule_trains_as_alone(n_rows, batch_size, n_epochs, n_dims):
    inputs, targets = curve(n_rows, n_dims)
    fleet = Fleet(lambda: network(n_dims), len(RULES), rule=RULES, weight_decay=0.01, backend="compiled")
    data = FleetData.shared(inputs, targets, len(RULES))
    history = fleet.fit(data, n_epochs, batch_size=batch_size, progress=False)
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
    "more units than a block of inputs": ({"hidden": (70,)}, {}),
    "no hidden layer": ({"hidden": ()}, {}),
    "SGD": ({}, {"optimizer": SGD(momentum=0.9)}),
    "rates of their own": ({}, {"learning_rate": [0.01, 0.02, 0.0], "weight_decay": [0.0, 0.1, 0.0]}),
    "absolute differences": ({}, {"cost_fn": mcl.pairwise_l1}),
}


@needs_extension
@pytest.mark.parametrize("name", OPTIONS)
def test_networks_and_options_train_as_under_autograd(name):
    network_options, fleet_options = OPTIONS[name]
    data = FleetData.of_sets([curve(130, seed=seed) for seed in (0, 1)], [0, 1, 0])
    rules = [mcl.WTA(), mcl.RelaxedWTA(0.2), mcl.AnnealedWTA(0.5)]

    def train(backend):
        fleet = Fleet(lambda: network(**network_options), 3, rule=rules, backend=backend, **fleet_options)
        history = fleet.fit(data, 8, batch_size=50, progress=False)
        return {**fleet.state_dict(), "losses": history.losses}

    expected, result = with_backends(train)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


@needs_extension
def test_weighted_rows_train_as_under_autograd():
    inputs, targets = curve(30)
    weights = torch.rand(30)
    data = FleetData.shared(inputs, targets, 2, weights=weights / weights.mean())

    def train(backend):
        fleet = Fleet(network, 2, rule=[mcl.WTA(), mcl.AnnealedWTA(0.5)], backend=backend)
        fleet.fit(data, 20, batch_size=8, progress=False)
        return fleet.state_dict()["last"]

    expected, result = with_backends(train)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


@needs_extension
@pytest.mark.parametrize(("cost_fn", "monitor"), [*zip(COST_FNS, [current_loss, hard_distortion], strict=True)])
def test_several_targets_train_as_under_autograd(cost_fn, monitor):
    inputs, targets = curve(130, 2)
    rows = [
        (inputs[part], torch.cat([targets, -targets, targets + 1], dim=1)[part])
        for part in (slice(100), slice(100, 130))
    ]
    data, held_out = (FleetData.shared(*part, 4) for part in rows)
    rules = [mcl.WTA(), mcl.RelaxedWTA(0.2), COOLING, AutoAnnealing()]

    def train(backend):
        fleet = Fleet(lambda: network(2), 4, rule=rules, score_weight=0.5, cost_fn=cost_fn, backend=backend)
        history = fleet.fit(data, 8, batch_size=40, validation=Validation(held_out, monitor=monitor), progress=False)
        return {**fleet.state_dict(), "losses": history.losses, "watched": history.watched}

    expected, result = with_backends(train)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def mean_score(output):
    return output.predictions.score_logits.mean(dim=(1, 2))


@needs_extension
@pytest.mark.parametrize(
    ("monitor", "patience", "cost_fn"),
    [
        (current_loss, None, mcl.pairwise_sq_euclidean),
        (current_loss, 3, mcl.pairwise_l1),
        (hard_distortion, 3, mcl.pairwise_sq_euclidean),
        (hard_distortion, None, mcl.pairwise_l1),
        (mean_score, 3, mcl.pairwise_sq_euclidean),
    ],
)
def test_evaluations_give_what_they_give_under_autograd(monitor, patience, cost_fn):
    held_out = FleetData.of_sets([curve(17, seed=3), curve(17, seed=4)], [0, 1, 1])
    validation = Validation(held_out, monitor=monitor, every=[1, 3, 2], patience=patience)
    rules = [mcl.WTA(), COOLING, mcl.RelaxedWTA(0.2)]

    def train(backend):
        fleet = Fleet(network, 3, rule=rules, learning_rate=0.02, cost_fn=cost_fn, backend=backend)
        history = fleet.fit(FleetData.shared(*curve(40), 3), 15, progress=False, validation=validation)
        return {**fleet.state_dict(), **history._replace(seconds=0)._asdict()}

    expected, result = with_backends(train)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4, equal_nan=True)


@needs_extension
def test_chunks_are_the_whole_and_a_resumed_training_has_the_same_bits(tmp_path):
    rules = [mcl.WTA(), mcl.AnnealedWTA(0.3), COOLING, mcl.RelaxedWTA(0.1), mcl.WTA()]
    data = FleetData.of_sets([curve(41, seed=0), curve(41, seed=1)], [0, 1, 1, 0, 1])

    def trained(n_epochs=12, **options):
        fleet = Fleet(network, 5, rule=rules, seeds=[0, 1, 2, 0, 1], backend="compiled")
        return fleet, fleet.fit(data, n_epochs, batch_size=16, progress=False, **options)

    whole, history = trained(models_at_once=5)
    cut, cut_history = trained(models_at_once=2)
    torch.testing.assert_close(cut.state_dict()["last"], whole.state_dict()["last"], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cut_history.losses, history.losses, atol=1e-6, rtol=1e-6)

    def stop(end):
        if end.epoch == 7:
            raise KeyboardInterrupt

    saving = {"checkpoint": Checkpointing(tmp_path / "state", every=4), "models_at_once": 5}
    with pytest.raises(KeyboardInterrupt):
        trained(after_epoch=stop, **saving)
    resumed, resumed_history = trained(**saving)
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    assert_same_bits(history, resumed_history)


@needs_extension
def test_a_training_on_several_threads_has_the_bits_of_one():
    inputs, targets = curve(700)
    data, held_out = FleetData.shared(inputs, targets, 5), FleetData.shared(*curve(50, seed=1), 5)
    before, states = torch.get_num_threads(), []
    for n_threads in (1, 3):
        torch.set_num_threads(n_threads)
        try:
            fleet = Fleet(lambda: network(hidden=(64, 64)), 5, backend="compiled")
            fleet.fit(data, 6, batch_size=64, validation=Validation(held_out, patience=2), progress=False)
        finally:
            torch.set_num_threads(before)
        states.append(fleet.state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=0)


@given(
    n_inputs=st.sampled_from([1, 3, 48, 49, 80, 81, 170]),  # around the parts that are read at once
    hidden=st.lists(st.integers(1, 13) | st.sampled_from([16, 17, 33, 64, 65, 130]), max_size=3),
    n_hypotheses=st.integers(1, 7),
    n_dims=st.integers(1, 3),
    n_targets=st.integers(1, 4),
    n_rows=st.integers(1, 230),
    temperature=st.sampled_from([0.0, 1e-30, 0.1, 1.0, float("inf")]),
    epsilon=st.sampled_from([0.0, 0.3, 1.0]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    cost_fn=st.sampled_from(COST_FNS),
)
@needs_extension
def test_the_compiled_gradient_is_that_of_autograd_in_double(
    n_inputs, hidden, n_hypotheses, n_dims, n_targets, n_rows, temperature, epsilon, scale, cost_fn
):
    module = mcl.MultiHypothesisMLP(n_inputs, n_dims, n_hypotheses, hidden=hidden)
    inputs, targets = torch.randn(n_rows, n_inputs), scale * torch.randn(n_rows, n_targets, n_dims)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().unsqueeze(0)
    layers = [part for part in module.modules() if isinstance(part, torch.nn.Linear)]
    shape = compiled.Network(
        (n_inputs, *(layer.out_features for layer in layers)), n_hypotheses, n_dims, False, cost_fn is mcl.pairwise_l1
    )
    step = compiled.NetworkStep(
        shape, flat, inputs=inputs[None], targets=targets[None], row_weights=None, set_of_model=torch.tensor([0])
    )
    loss = step(torch.tensor([[temperature], [epsilon]]), 1.0, start=0, stop=n_rows)
    rule = mcl.AnnealedWTA(temperature) if temperature > 0 else mcl.RelaxedWTA(epsilon)
    single = loss_and_gradient(module, inputs, targets, rule, cost_fn)[1]
    exact, gradient = loss_and_gradient(module.double(), inputs.double(), targets.double(), rule, cost_fn)
    torch.testing.assert_close(loss[0].double(), exact, rtol=1e-5, atol=1e-6)
    # Near a tie between large costs the weights of a cold rule lose digits in single precision, by the definition too.
    rounding = float((single.double() - gradient).abs().max())
    tolerance = 1e-5 * float(gradient.abs().max()) + 4 * rounding
    torch.testing.assert_close(step.gradient[0].double(), gradient, rtol=1e-4, atol=tolerance)


def loss_and_gradient(module, inputs, targets, rule, cost_fn):
    """Return the loss of the definition and the gradient of all parameters, in the precision of the module."""
    module.zero_grad()
    loss = mcl.mcl_step(module, mcl.Batch(inputs, targets), rule, cost_fn=cost_fn).loss
    loss.backward()
    return loss.detach(), torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


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
@needs_extension
def test_inputs_that_climb_have_the_gradient_of_a_plain_product(n_given, lengths, hidden, n_rows, seed):
    random = torch.Generator().manual_seed(seed)
    inputs, targets = ladders(n_rows, n_given, lengths, random), torch.randn(n_rows, 1, 1, generator=random)
    found = compiled.Ladders.of(inputs[None])
    assert found.given.shape[-1] == n_given
    assert int(found.lengths.sum()) == sum(lengths)
    assert len(found.lengths) <= len(lengths)  # runs of few rows may look like one
    module = mcl.MultiHypothesisMLP(inputs.shape[1], 1, 3, hidden=hidden)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().unsqueeze(0)
    sizes = [part.out_features for part in module.modules() if isinstance(part, torch.nn.Linear)]
    shape = compiled.Network((inputs.shape[1], *sizes), 3, 1, False)
    # The second half comes first, so that rows are found by their order and not by their place.
    order = (torch.arange(n_rows).roll(n_rows // 2)[None], torch.tensor([0]))
    step = compiled.NetworkStep(
        shape, flat, inputs=inputs[None], targets=targets[None], row_weights=None, set_of_model=torch.tensor([0])
    )
    loss = step(torch.tensor([[0.3], [0.0]]), 1.0, start=0, stop=n_rows, order=order)
    exact = mcl.mcl_step(module.double(), mcl.Batch(inputs.double(), targets.double()), mcl.AnnealedWTA(0.3)).loss
    exact.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    torch.testing.assert_close(loss[0].double(), exact.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(step.gradient[0].double(), gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


@needs_extension
def test_mixtures_that_anneal_by_themselves_decide_alike():
    inputs, targets = curve(60)
    data = FleetData.shared(inputs, 0.05 * targets, 2)  # narrow: minus their log-likelihood is negative

    def train(backend):
        options = {"cost_fn": MixtureNLLWithCRPS(), "score_weight": 0, "learning_rate": 0.02, "backend": backend}
        history = Fleet(lambda: network(scales=True), 2, rule=AutoAnnealing(), **options).fit(data, 30, progress=False)
        return {"temperatures": history.temperatures, "rates": history.learning_rates}

    expected, result = with_backends(train)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-6)


@needs_extension
@pytest.mark.parametrize("cost_fn", COST_FNS)
def test_the_compiled_scale_of_the_costs_is_that_of_the_drawn_rows(cost_fn):
    data = FleetData.of_sets([curve(30, 2, seed=seed) for seed in (0, 1)], [1, 0])
    models = StackedModules.of([network(2), network(2)])
    drawn = torch.tensor([3, 3, 0, 29, 3])
    inputs, targets = data.rows()[0][:2]
    cost = cost_fn(hypotheses=models(inputs[:, drawn]).hypotheses, targets=targets[:, drawn])
    expected = cost_scale(mcl.assign(cost, mcl.WTA()), stacked=True)

    def scale(backend):
        rows, spec = EpochRows(data, torch.tensor([0, 1]), 30), StepSpec(cost_fn, 1.0, hard_distortion)
        problem = TrainingProblem.of(models, data, None, spec, device=torch.device("cpu"), per_target_rules=True)
        return BACKENDS[backend].step(models, rows, None, problem).cost_scale_on(data, drawn.expand(2, -1))().scale

    for found in with_backends(scale):
        torch.testing.assert_close(found, expected.scale.detach())
    data.inputs[1, 29] = torch.nan
    by_autograd, result = with_backends(scale)
    assert result[1].isfinite()
    assert torch.equal(result.isnan(), by_autograd.isnan())


# ------------------------------------------------------------- what each backend serves


def frozen():
    module = network()
    module.head.linear.bias.requires_grad_(False)
    return module


def with_a_hook():
    module = network()
    module.head.register_forward_hook(lambda *_: None)
    return module


def on_other_rows(change):
    inputs, targets = curve(20)
    return FleetData.shared(*change(inputs, targets), 2)


def draw(n_rows, generator):
    return mcl.Batch(*curve(n_rows))


NOT_SERVED = {
    "a rule that sorts": ({"rule": mcl.TopK(2)}, None, "the rules WTA, RelaxedWTA and AnnealedWTA"),
    "fresh rows": ({}, SampledData(draw, 20, 2), "the same rows in all epochs"),
    "another cost": (
        {"cost_fn": mcl.pairwise_huber},
        None,
        "pairwise_sq_euclidean, pairwise_l1 and MixtureNLLWithCRPS",
    ),
    "no targets": ({}, on_other_rows(lambda x, y: (x, y[:, :0])), "inputs and targets that are vectors"),
    "float64": (
        {"module_factory": lambda: network().double()},
        on_other_rows(lambda x, y: (x.double(), y.double())),
        "float32",
    ),
    "sets of different length": ({}, FleetData.of_sets([curve(20), curve(9)], [0, 1]), "sets of equal length"),
    "another activation": ({"module_factory": lambda: network(activation=torch.nn.Tanh)}, None, "with ReLU"),
    "an output activation": (
        {"module_factory": lambda: network(output_activation=torch.tanh)},
        None,
        "without an output activation",
    ),
    "another module": ({"module_factory": lambda: torch.nn.Sequential(network())}, None, "supports MultiHypothesisMLP"),
    "a frozen parameter": ({"module_factory": frozen}, None, "frozen parameters"),
    "a hook": ({"module_factory": with_a_hook}, None, "supports MultiHypothesisMLP"),
    "many hypotheses": (
        {"module_factory": lambda: mcl.MultiHypothesisMLP(3, 1, 101, hidden=(4,))},
        None,
        "up to 100 hypotheses and 15 layers",
    ),
    "many layers": (
        {"module_factory": lambda: network(hidden=(2,) * 15)},
        None,
        "up to 100 hypotheses and 15 layers",
    ),
    "many coordinates": (
        {"module_factory": lambda: mcl.MultiHypothesisMLP(3, 33, 2, hidden=(4,))},
        on_other_rows(lambda x, y: (x, y.repeat(1, 1, 33))),
        "up to 32 coordinates",
    ),
}


@needs_extension
@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_the_compiled_step_does_not_serve_is_named_and_left_to_autograd(name):
    options, data, reason = NOT_SERVED[name]
    options = {"module_factory": network} | options
    factory, data = options.pop("module_factory"), data or FleetData.shared(*curve(20), 2)
    with pytest.raises(
        ValueError, match=f"Fleet: `backend` must support this training run, got 'compiled'. .*{reason}"
    ):
        Fleet(factory, 2, backend="compiled", **options).fit(data, 2, progress=False)
    chosen, asked = (Fleet(factory, 2, backend=backend, **options) for backend in (None, "autograd"))
    assert_same_bits(chosen.fit(data, 2, progress=False), asked.fit(data, 2, progress=False))


@needs_extension
def test_the_instruction_set_is_named_by_the_verbose_version(capsys):
    name = native.instruction_set()
    assert name in ("AVX-512", "AVX2", "NEON", "plain C")
    with pytest.raises(SystemExit):
        main(["--version", "--verbose"])
    assert re.search(rf"^kernels +{name}$", capsys.readouterr().out, flags=re.MULTILINE)


WITHOUT_EXTENSION = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "torchmcl_fleet.native._native":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import torch
import torchmcl as mcl
from torchmcl_fleet import native
from torchmcl_fleet import Fleet, FleetData

assert not native.available() and native.instruction_set() is None
data = FleetData.shared(torch.rand(20, 2), torch.rand(20, 1, 1), 2)
module = lambda: mcl.MultiHypothesisMLP(2, 1, 3, hidden=(4,))
assert Fleet(module, 2).fit(data, 2, progress=False).losses.isfinite().all()
try:
    Fleet(module, 2, backend="compiled").fit(data, 2, progress=False)
except ValueError as error:
    print(error)
from torchmcl.app import main
sys.exit(main(["--version", "--verbose"]))
"""


@pytest.mark.slow
def test_without_the_extension_everything_is_left_to_autograd():
    run = subprocess.run([sys.executable, "-c", WITHOUT_EXTENSION], capture_output=True, text=True, timeout=300)
    assert "got 'compiled'. The extension was not built when torchmcl was installed." in run.stdout, run.stderr
    assert re.search("kernels .*not available", run.stdout), run.stdout


@needs_extension
def test_debug_checks_are_left_to_autograd():
    data = FleetData.shared(*curve(20), 2)
    with checks.debug_checks(), pytest.raises(ValueError, match=r"got 'compiled'. .*`debug_checks`"):
        Fleet(network, 2, backend="compiled").fit(data, 1, progress=False)
