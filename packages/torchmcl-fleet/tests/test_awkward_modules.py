"""Model i of a fleet is the model trained alone, whatever module it is; what cannot be is refused by name."""

import copy
import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchmcl as mcl
from plain_loop import rows, small_mlp, train_alone
from torchmcl_fleet import Fleet, FleetData

N_EPOCHS = 2


class Net(nn.Module):
    """A body between a layer of one's own and three answers with scores."""

    def __init__(self, *body, width=8):
        super().__init__()
        self.first = nn.Linear(2, 8, bias=False)  # a bias before BatchNorm would follow the rounding errors
        self.body = nn.Sequential(*body)
        self.head = mcl.MultiHypothesisHead(width, 2, 3)

    def forward(self, inputs):
        return self.head(self.body(self.first(inputs)))


def with_hook(register):
    def make():
        module = small_mlp()
        register(module)
        return module

    return make


def tied_mlp(*, rectified_both):
    """Two hidden layers that share a weight; with `rectified_both=False` one of them goes into no ReLU."""

    def make():
        module = mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8, 8, 8))
        module.trunk[4].weight = module.trunk[2].weight
        if not rectified_both:
            module.trunk[5] = nn.Tanh()
        return module

    return make


def layer_twice():
    module = mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8, 8, 8))
    module.trunk[4] = module.trunk[2]
    return module


class TwoNames(nn.Module):
    """One submodule, with statistics, under two names."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh())
        self.right = self.left
        self.head = mcl.MultiHypothesisHead(16, 2, 3)

    def forward(self, inputs):
        return self.head(torch.cat([self.left(inputs), self.right(inputs.flip(-1))], dim=-1))


class RunningScale(nn.Module):
    """A buffer that is replaced in training, and one that counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("n_steps", torch.tensor(0))
        self.mlp = small_mlp()

    def forward(self, inputs):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * inputs.detach().abs().mean(dim=0)
            self.n_steps += 1
        return self.mlp(inputs / self.scale)


class Fixed(nn.Module):
    """A buffer that differs between models and never changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, 4), persistent=False)
        self.mlp = mcl.MultiHypothesisMLP(4, 2, 3, hidden=(8,))

    def forward(self, inputs):
        return self.mlp((inputs @ self.frequencies).sin())


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(1, 4), nn.Linear(1, 4)
        self.head = mcl.MultiHypothesisHead(4, 2, 3)

    def forward(self, inputs):
        one, other = inputs.split(1, dim=-1)
        return self.head(torch.tanh(self.one(one)) * self.other(other))


class Attention(nn.Module):
    """Axes by their numbers, and what was computed left in an attribute to look at."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 4)
        self.attend = nn.MultiheadAttention(4, 2, bias=False, batch_first=True)  # keys' biases have no gradient
        self.head = mcl.MultiHypothesisHead(8, 2, 3)

    def forward(self, inputs):
        tokens = self.embed(inputs.unsqueeze(2))
        attended, self.shares = self.attend(tokens, tokens, tokens)
        return self.head(attended.flatten(1))


def parametrized(parametrization, name="weight"):
    def make():
        module = small_mlp()
        parametrization(module.trunk[0], name)
        return module

    return make


def without_biases():
    module = mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8, 8))
    module.trunk[2] = nn.Linear(8, 8, bias=False)
    module.head.linear = nn.Linear(8, 9, bias=False)
    return module


class Unused(nn.Module):
    """Has a layer that no forward pass uses; torch.optim leaves its weights alone, decay or not."""

    def __init__(self):
        super().__init__()
        self.body, self.unused = nn.Linear(2, 8), nn.Linear(8, 8)
        self.head = mcl.MultiHypothesisHead(8, 2, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu())


def frozen():
    module = Net(nn.BatchNorm1d(8), nn.Tanh())
    module.first.requires_grad_(False)
    return module


def own_forward():
    module = small_mlp()
    layer = module.trunk[0]
    layer.forward = types.MethodType(lambda self, inputs: 2 * F.linear(inputs, self.weight, self.bias), layer)
    return module


def forward_of_the_original():
    """A copy of it would use the weights of the module that it is a copy of."""
    module = small_mlp()
    plain = module.trunk[0].forward
    module.trunk[0].forward = lambda inputs: 2 * plain(inputs)
    return module


def lazy_but_called():
    module = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), mcl.MultiHypothesisHead(8, 2, 3))
    module(torch.zeros(1, 2))
    return module


def activated(output_activation):
    return lambda: mcl.MultiHypothesisMLP(2, 2, 3, hidden=(8,), output_activation=output_activation)


def softmax_over_hypotheses(hypotheses):
    return hypotheses.softmax(1)


EXACT = {
    "softmax over axis 1, a function": activated(softmax_over_hypotheses),
    "softmax over axis 1, a lambda": activated(lambda x: torch.softmax(x, dim=1)),
    "softmax over axis 1, a module": activated(nn.Softmax(dim=1)),
    "cumulative sum over axis 1": activated(lambda x: x.cumsum(1)),
    "softmax over the last axis": activated(nn.Softmax(dim=-1)),
    "tanh": activated(torch.tanh),
    "softplus": activated(F.softplus),
    "a softmax between layers": lambda: mcl.MultiHypothesisMLP(
        2, 2, 3, hidden=(8,), activation=lambda: nn.Softmax(dim=1)
    ),
    "in-place activations": lambda: mcl.MultiHypothesisMLP(
        2, 2, 3, hidden=(8, 8), activation=lambda: nn.ReLU(inplace=True)
    ),
    "forward hook on a layer": with_hook(
        lambda module: module.trunk[0].register_forward_hook(lambda _, __, output: 3 * output)
    ),
    "forward hook on the module": with_hook(
        lambda module: module.register_forward_hook(
            lambda _, __, out: out._replace(hypotheses=out.hypotheses.cumsum(1))
        )
    ),
    "forward pre-hook": with_hook(lambda module: module.head.register_forward_pre_hook(lambda _, args: (args[0] + 1,))),
    "a forward of its own": own_forward,
    "tied weights": tied_mlp(rectified_both=True),
    "tied weights, one rectified": tied_mlp(rectified_both=False),
    "a layer twice": layer_twice,
    "a submodule under two names": TwoNames,
    "BatchNorm": lambda: Net(nn.BatchNorm1d(8), nn.Tanh()),
    "BatchNorm that does not track": lambda: Net(nn.BatchNorm1d(8, track_running_stats=False), nn.Tanh()),
    "BatchNorm without weights": lambda: Net(nn.BatchNorm1d(8, affine=False), nn.Tanh()),
    "LayerNorm": lambda: Net(nn.LayerNorm(8), nn.Tanh()),
    "GroupNorm": lambda: Net(nn.GroupNorm(2, 8), nn.Tanh()),
    "RMSNorm": lambda: Net(nn.RMSNorm(8), nn.Tanh()),
    "convolution": lambda: Net(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 3, padding=1), nn.Flatten(), width=12),
    "PReLU": lambda: Net(nn.PReLU()),
    "a buffer that is replaced": RunningScale,
    "a buffer for each model": Fixed,
    "several inputs in one": TwoInputs,
    "attention": Attention,
    "weight norm": parametrized(nn.utils.parametrizations.weight_norm),
    "orthogonal": parametrized(nn.utils.parametrizations.orthogonal),
    "layers without bias": without_biases,
    "frozen parameters and BatchNorm": frozen,
    "unused parameters": Unused,
    "lazy layers that were called": lazy_but_called,
}


@pytest.mark.parametrize("name", EXACT)
def test_an_awkward_module_trains_as_alone(name):
    factory = EXACT[name]
    inputs, targets = rows(20)
    data = FleetData.shared(inputs, targets, 2)
    options = {"learning_rate": 0.003, "weight_decay": 0.01}
    fleet = Fleet(factory, 2, **options)
    history = fleet.fit(data, N_EPOCHS, batch_size=6, validation=data, progress=False)
    answers, best = fleet.predict(inputs).hypotheses, fleet.predict(inputs, best=True).hypotheses
    for i in range(2):
        alone, losses, _ = train_alone(factory, i, inputs, targets, n_epochs=N_EPOCHS, batch_size=6, **options)
        torch.testing.assert_close(history.losses[:, i], losses, atol=2e-5, rtol=1e-4)
        model = fleet.models[i]
        for left, right in zip(
            (*model.parameters(), *model.buffers()), (*alone.parameters(), *alone.buffers()), strict=True
        ):
            torch.testing.assert_close(left, right, atol=5e-5, rtol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(answers[i], alone.eval()(inputs).hypotheses, atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(best[i], fleet.best_models[i].eval()(inputs).hypotheses, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fleet.evaluate(data, best=True)["distortion"], history.best_value, atol=1e-5, rtol=1e-5)


def test_integer_inputs_are_embedded_as_alone():
    def factory():
        body = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 8), nn.Tanh())
        return nn.Sequential(body, mcl.MultiHypothesisHead(8, 2, 3))

    _, targets = rows(20)
    inputs = torch.randint(0, 5, (20, 2), generator=torch.Generator().manual_seed(0))
    sets = [(inputs, targets), (inputs[:9], targets[:9])]
    fleet = Fleet(factory, 2)
    fleet.fit(FleetData.of_sets(sets, [0, 1]), N_EPOCHS, batch_size=6, progress=False)
    for i in range(2):
        alone, _, _ = train_alone(factory, i, *sets[i], n_epochs=N_EPOCHS, batch_size=6)
        for left, right in zip(fleet.models[i].parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_global_hooks_have_their_effect_as_alone(kind):
    """They see every module, of the fleet and alone, in training and in prediction."""
    hook = {
        "forward": lambda module, _, output: 2 * output if isinstance(module, nn.Linear) else None,
        "forward_pre": lambda module, args: (args[0] + 1,) if isinstance(module, nn.Linear) else None,
    }[kind]
    inputs, targets = rows(20)
    fleet = Fleet(small_mlp, 2)
    handle = getattr(nn.modules.module, f"register_module_{kind}_hook")(hook)
    try:
        fleet.fit(FleetData.shared(inputs, targets, 2), N_EPOCHS, progress=False)
        answers = fleet.predict(inputs).hypotheses
        for i in range(2):
            alone, _, _ = train_alone(small_mlp, i, inputs, targets, n_epochs=N_EPOCHS)
            with torch.no_grad():
                torch.testing.assert_close(answers[i], alone(inputs).hypotheses, atol=1e-4, rtol=1e-4)
    finally:
        handle.remove()


def test_global_backward_hooks_are_refused():
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        with pytest.raises(TypeError, match=r"Fleet.fit: global backward hooks"):
            Fleet(small_mlp, 2).fit(FleetData.shared(*rows(5), 2), 1, progress=False)
    finally:
        handle.remove()


class Dropped(nn.Module):
    """Answers that are the inputs themselves, some of them dropped."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.25)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return mcl.Predictions(self.dropout(self.scale * inputs).unsqueeze(1))


@pytest.mark.parametrize("factory", [Dropped, lambda: nn.Sequential(nn.Identity(), Dropped())], ids=["own", "nested"])
def test_dropout_keeps_the_share_it_should_and_differs_between_models_and_calls(factory):
    """Dropout is exact in law, not in its draws: the numbers that models draw side by side are others than alone."""
    fleet = Fleet(factory, 3)
    torch.manual_seed(0)
    inputs = torch.ones(4000, 2)
    kept = torch.stack([fleet.predict(inputs, stochastic=True).hypotheses.flatten(1) > 0 for _ in range(2)])
    assert (kept.float().mean(dim=-1) - 0.75).abs().max() < 0.03
    first = kept.flatten(0, 1)
    for i in range(6):
        for j in range(i):
            assert abs(float((first[i] == first[j]).float().mean()) - (0.75**2 + 0.25**2)) < 0.03
    assert torch.equal(fleet.predict(inputs).hypotheses.squeeze(-2), torch.ones(3, 4000, 2))


@pytest.mark.parametrize("body", [nn.Tanh(), nn.LayerNorm(8)])  # batched layers, and torch.vmap
def test_threads_predict_together_and_leave_dropout_on(body):
    fleet, inputs = Fleet(lambda: Net(copy.deepcopy(body), nn.Dropout(0.5)), 2), rows(20)[0]
    expected = fleet.predict(inputs).hypotheses
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            for predictions in threads.map(lambda _: fleet.predict(inputs), range(100)):
                assert torch.equal(predictions.hypotheses, expected)
    finally:
        sys.setswitchinterval(before)
    assert not torch.equal(fleet.predict(inputs, stochastic=True).hypotheses, expected)


def test_a_stochastic_prediction_uses_the_statistics_of_the_training():
    fleet = Fleet(lambda: Net(nn.BatchNorm1d(8), nn.Dropout(0.0)), 2)
    inputs, targets = rows(20)
    fleet.fit(FleetData.shared(inputs, targets, 2), 3, progress=False)
    torch.testing.assert_close(fleet.predict(inputs, stochastic=True).hypotheses, fleet.predict(inputs).hypotheses)


class ReadsValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = small_mlp()

    def forward(self, inputs):
        return self.mlp(inputs if inputs.sum().item() > 0 else -inputs)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp, self.n_calls = small_mlp(), 0

    def forward(self, inputs):
        self.n_calls += 1
        return self.mlp(inputs / self.n_calls)


class MakesABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)
        self.mlp = small_mlp()

    def forward(self, inputs):
        if self.mean is None:
            self.mean = inputs.mean(dim=0)
        return self.mlp(inputs - self.mean)


class RemembersTheLast(nn.Module):
    """A state in an attribute, which is no buffer."""

    def __init__(self):
        super().__init__()
        self.mlp = small_mlp()
        self.last = torch.zeros(2)

    def forward(self, inputs):
        answer = self.mlp(inputs + self.last)
        self.last = inputs.detach().mean(dim=0)
        return answer


def mixed_types():
    module = small_mlp()
    module.trunk[0].double()
    return module


def all_frozen():
    return small_mlp().requires_grad_(False)


def random_slope():
    module = small_mlp()
    module.trunk[1] = nn.LeakyReLU(float(torch.rand(())))
    return module


def embedded(**options):
    """Integer columns: their embedding's gradient at `padding_idx` is 0 alone, and not under torch.vmap."""
    return nn.Sequential(nn.Embedding(5, 4, **options), nn.Flatten(), mcl.MultiHypothesisHead(8, 2, 3))


class WholeNumbers(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, inputs):
        return self.body(inputs.round().abs().clamp(max=4).long())


REFUSED = {
    "reads values": ReadsValues,
    "padding of an embedding": lambda: WholeNumbers(embedded(padding_idx=0)),
    "a function that closes over a layer": forward_of_the_original,
    "a hook that closes over a layer": with_hook(
        lambda module: module.register_forward_hook(lambda *_: module.head(torch.zeros(1, 8)))
    ),
    "cumulative BatchNorm": lambda: Net(nn.BatchNorm1d(8, momentum=None)),
    "counts in an attribute": Counts,
    "makes a buffer": MakesABuffer,
    "state in an attribute": RemembersTheLast,
    "spectral norm": parametrized(nn.utils.parametrizations.spectral_norm),
    "old weight norm": lambda: old_norm(nn.utils.weight_norm),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(8), small_mlp()),
    "types": mixed_types,
    "nothing to train": all_frozen,
    "no parameters": nn.Identity,
    "another slope for each": random_slope,
    "backward hook": with_hook(lambda module: module.trunk[0].register_full_backward_hook(lambda *_: None)),
    "backward pre-hook": with_hook(lambda module: module.register_full_backward_pre_hook(lambda *_: None)),
    "gradient hook": with_hook(lambda module: module.trunk[0].weight.register_hook(lambda gradient: 2 * gradient)),
    "hook after the gradient": with_hook(
        lambda module: module.head.linear.bias.register_post_accumulate_grad_hook(lambda _: None)
    ),
}


def old_norm(norm):
    module = small_mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        norm(module.trunk[0])
    return module


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused(name):
    with pytest.raises(ValueError, match="Fleet: `module_factory` must "):
        Fleet(REFUSED[name], 2).fit(FleetData.shared(*rows(9), 2), 1, progress=False)


# ------------------------------------------------------------- rows that depend on one another


def batch_norm():
    return Net(nn.BatchNorm1d(8), nn.Tanh())


RAGGED = FleetData.of_sets([rows(12), rows(9, seed=1)], [0, 1])


def test_ragged_rows_that_depend_on_one_another_are_refused():
    words = r"must have sets of equal length .*, got lengths \[9, 12\]. Train a fleet for each length, or normalize"
    even = FleetData.shared(*rows(12), 2)
    with pytest.raises(ValueError, match=f"Fleet.fit: `data` {words}"):
        Fleet(batch_norm, 2).fit(RAGGED, 1, progress=False)
    untracked = Fleet(lambda: Net(nn.BatchNorm1d(8, track_running_stats=False)), 2)
    with pytest.raises(ValueError, match=f"Fleet.fit: `validation` {words}"):
        untracked.fit(even, 1, validation=RAGGED, progress=False)
    with pytest.raises(ValueError, match=f"Fleet.evaluate: `data` {words}"):
        untracked.evaluate(RAGGED)


# ------------------------------------------------------------- buffers are part of the training


def buffers_of(fleet):
    return {name: value for name, value in fleet.state_dict().items() if name.startswith("last.")}


def test_best_models_have_the_statistics_of_their_epoch():
    held_out = FleetData.shared(*rows(9, seed=5), 2)
    fleet = Fleet(batch_norm, 2, learning_rate=0.05)
    course = {}

    def note(end):
        course[end.epoch] = [buffer.clone() for buffer in end.stacked.buffers.values()]

    data = FleetData.shared(*rows(12), 2)
    history = fleet.fit(data, 30, validation=held_out, after_epoch=note, progress=False)
    assert (history.best_epoch < 29).any()
    for i, epoch in enumerate(history.best_epoch.tolist()):
        for kept, then in zip(fleet.best_models[i].buffers(), course[epoch], strict=True):
            assert torch.equal(kept, then[i])
    torch.testing.assert_close(fleet.evaluate(held_out, best=True)["distortion"], history.best_value)
    with torch.no_grad():
        answers = fleet.best_models[1].eval()(held_out.inputs[0]).hypotheses
    torch.testing.assert_close(fleet.predict(held_out.inputs[0], best=True).hypotheses[1], answers)


def test_a_state_dict_holds_the_statistics():
    data = FleetData.shared(*rows(12), 2)
    fleet, other = Fleet(batch_norm, 2), Fleet(batch_norm, 2, seeds=[7, 8])
    fleet.fit(data, 5, validation=data, progress=False)
    state = copy.deepcopy(fleet.state_dict())
    assert "best.buffer.body.0.running_mean" in state
    other.load_state_dict(state)
    for best in (False, True):
        assert torch.equal(
            other.predict(data.inputs[0], best=best).hypotheses, fleet.predict(data.inputs[0], best=best).hypotheses
        )
    del state["last.buffer.body.0.running_var"]
    with pytest.raises(ValueError, match="Fleet: `state` must"):
        other.load_state_dict(state)


def test_a_batch_that_is_not_finite_leaves_no_trace_in_the_statistics():
    good, broken = rows(12), tuple(part.clone() for part in rows(12))
    broken[0][3] = torch.nan
    fleet = Fleet(batch_norm, 2)
    with pytest.warns(RuntimeWarning, match="1 of 2 models is not finite"):
        fleet.fit(FleetData.of_sets([good, broken], [0, 1]), 4, batch_size=4, progress=False)
    assert all(value.isfinite().all() for value in buffers_of(fleet).values())
    n_steps = fleet.state_dict()["last.buffer.body.0.num_batches_tracked"]
    assert n_steps.tolist() == [12, 8]


def test_a_seed_repeats_a_stochastic_prediction_and_leaves_the_generator():
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(3, 1, 2, hidden=(8,), dropout=0.5), 2)
    inputs, before = torch.randn(20, 3), torch.get_rng_state()
    drawn = [fleet.predict(inputs, stochastic=True, seed=seed).hypotheses for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(fleet.predict(inputs, seed=0).hypotheses, fleet.predict(inputs).hypotheses)
