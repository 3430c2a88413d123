"""Whole epochs in one kernel train as the definition does: in Triton's interpreter, or on a GPU if there is one."""

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("triton", reason="triton is not installed")

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet import Fleet, FleetData, Validation, current_loss
from torchmcl_fleet.backends.fused import FusedTraining

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter computes padded entries too, with NumPy, which warns of infinity - infinity.
pytestmark = pytest.mark.gpu if DEVICE == "cuda" else pytest.mark.filterwarnings("ignore::RuntimeWarning")
COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 3))


def curve(n_rows, n_dims=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n_rows, 3, generator=generator)
    side = torch.randint(0, 2, (n_rows, 1, 1), generator=generator) * 2.0 - 1
    return inputs, side * inputs[:, None, :n_dims] + 0.1 * torch.randn(n_rows, 1, n_dims, generator=generator)


def network(n_dims=1, n_hypotheses=3, **options):
    return mcl.MultiHypothesisMLP(3, n_dims, n_hypotheses, **({"hidden": (9,)} | options))


def dropping_all():
    module = network(dropout=0.5)
    module.trunk[2].p = 1.0
    return module


SHARED, HELD = FleetData.shared(*curve(30), 2), FleetData.shared(*curve(9, seed=5), 2)
RAGGED = FleetData.of_sets([curve(30), curve(17, seed=1)], [0, 1])
WEIGHTED = FleetData.shared(*curve(30), 2, weights=torch.linspace(0.5, 1.5, 30))
# Data, options of `fit`, of the network and of the fleet.
CASES = {
    "minibatches of sets of different length": (RAGGED, {"batch_size": 12}, {}, {}),
    "weighted rows and decay": (WEIGHTED, {"batch_size": 16}, {}, {"weight_decay": [0.0, 0.1]}),
    "held-out rows now and then": (SHARED, {"validation": Validation(RAGGED, every=[1, 2])}, {}, {}),
    "the loss as monitor": (SHARED, {"validation": Validation(HELD, monitor=current_loss)}, {}, {}),
    "early stopping": (
        SHARED,
        {"validation": Validation(HELD, patience=1), "n_epochs": 12},
        {},
        {"learning_rate": 0.3},
    ),
    "no scores": (SHARED, {}, {"scores": False}, {}),
    "scores that stop at the head": (SHARED, {}, {"detach_scores": True}, {"score_weight": 0.5}),
    "many units": (SHARED, {}, {"hidden": (100,)}, {}),
    "one hypothesis": (SHARED, {}, {"n_hypotheses": 1}, {}),
    "other moments": (SHARED, {}, {}, {"optimizer": mcl.fleet.Adam(0.8, 0.99, 1e-6)}),
    "several chunks": (RAGGED, {"models_at_once": 1, "validation": HELD}, {}, {}),
}


def trained(backend, data, fit, build, options):
    fleet = Fleet(lambda: network(**build), data.n_models, device=DEVICE, backend=backend, **options)
    history = fleet.fit(data, fit.pop("n_epochs", 4), progress=False, **fit)
    return fleet.state_dict(), history._replace(seconds=0.0)


def assert_trains_alike(data, fit=(), build=(), options=(), tolerance=2e-5):
    both = [trained(name, data, dict(fit), dict(build), dict(options)) for name in ("autograd", "fused")]
    (expected, history), (state, own) = both
    assert_close(state, expected, atol=tolerance, rtol=tolerance)
    for name in history._fields[:-1]:
        values, right = getattr(own, name), getattr(history, name)
        assert (values is None) == (right is None)
        if right is not None:
            assert_close(
                values, right, atol=tolerance, rtol=tolerance, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )
    return own


@pytest.mark.parametrize("case", CASES)
def test_networks_and_options_train_as_under_autograd(case):
    data, fit, build, options = CASES[case]
    history = assert_trains_alike(data, fit, build, {"rule": [mcl.RelaxedWTA(0.1), COOLING]} | options)
    if case == "early stopping":
        assert (history.stopped_epoch >= 0).any()


@pytest.mark.parametrize(("cost_fn", "n_dims"), [(mcl.pairwise_sq_euclidean, 3), (mcl.pairwise_l1, 2)])
def test_several_coordinates_and_absolute_differences(cost_fn, n_dims):
    data = FleetData.shared(*curve(20, n_dims), 2)
    # One step: the sign of a difference near 0 is a matter of rounding, and Adam makes a step of it.
    n_epochs = 4 if cost_fn is mcl.pairwise_sq_euclidean else 1
    options = {"rule": [mcl.WTA(), COOLING], "cost_fn": cost_fn}
    assert_trains_alike(data, {"n_epochs": n_epochs}, {"n_dims": n_dims}, options)


@pytest.mark.parametrize("rule", [mcl.AnnealedWTA(0.0), mcl.AnnealedWTA(1e-40), mcl.AnnealedWTA(float("inf"))], ids=str)
def test_extreme_temperatures(rule):
    assert_trains_alike(SHARED, {"n_epochs": 2}, {}, {"rule": rule})


@pytest.mark.parametrize(("held_out", "batch_size"), [(None, 30), (HELD, 16)])
def test_models_decide_on_their_own_annealing(held_out, batch_size):
    # Twelve epochs have a hold, a cooling and a tail.
    rules = [AutoAnnealing(), AutoAnnealing(hold_gain=5.0, noise_decay=0.0)]
    fit = {"n_epochs": 12, "validation": held_out, "batch_size": batch_size}
    history = assert_trains_alike(SHARED, fit, {}, {"rule": rules}, tolerance=2e-4)
    assert (history.temperatures[0] > 0).all()
    assert (history.temperatures[-1] == 0).all()


def test_a_nan_in_one_model_harms_no_other():
    bad = curve(30)
    bad[0][20] = torch.nan
    data = FleetData.of_sets([curve(30), bad], [0, 1])
    with pytest.warns(RuntimeWarning, match="1 of 2 models is not finite; model 1"):
        history = assert_trains_alike(data, {"batch_size": 12})
    assert history.failed_epoch.tolist() == [-1, 0]


@pytest.mark.parametrize("n_dims", [1, 2])
def test_held_out_rows_that_are_not_finite_make_no_best_model(n_dims):
    inputs, targets = curve(9, n_dims, seed=5)
    targets[4] = torch.nan
    held_out = FleetData.shared(inputs, targets, 2)
    data = FleetData.shared(*curve(30, n_dims), 2)
    history = assert_trains_alike(data, {"validation": held_out, "n_epochs": 2}, {"n_dims": n_dims})
    assert (history.best_epoch == -1).all()


def test_the_same_bits_twice_in_any_chunk_and_resumed(tmp_path):
    options = {"rule": COOLING}
    fit = {"batch_size": 16, "validation": HELD, "n_epochs": 2}
    whole, history = trained("fused", RAGGED, dict(fit), {}, dict(options))
    chunks, _ = trained("fused", RAGGED, fit | {"models_at_once": 1}, {}, dict(options))
    saves = fit | {"checkpoint": mcl.fleet.Checkpointing(tmp_path, every=1, keep=2)}
    trained("fused", RAGGED, dict(saves), {}, dict(options))
    (tmp_path / "chunk-0000-epoch-00000002.safetensors").unlink()  # as if killed after the first epoch
    resumed, again = trained("fused", RAGGED, dict(saves), {}, dict(options))
    for state in (chunks, resumed):
        assert all(torch.equal(state[name], whole[name]) for name in whole)
    assert torch.equal(history.losses, again.losses)


def test_after_each_epoch_its_rule_is_seen():
    seen = []
    fleet = Fleet(network, 2, rule=[COOLING, AutoAnnealing()], device=DEVICE, backend="fused")
    look = lambda end: seen.append((end.epoch, end.temperatures.tolist(), end.rule.values[0].tolist()))  # noqa: E731
    history = fleet.fit(SHARED, 4, after_epoch=look, progress=False)
    assert [epoch for epoch, *_ in seen] == [0, 1, 2, 3]
    for epoch, temperatures, of_rule in seen:
        assert temperatures == pytest.approx([max(0, 1 - epoch / 3), float(history.temperatures[epoch, 1])])
        assert of_rule == pytest.approx(temperatures)


def test_dropout_has_the_law_of_torch_and_numbers_of_its_own():
    # Without a learning rate the losses of all epochs are draws of the loss under dropout.
    n_models = 8 if DEVICE == "cpu" else 100
    inputs, targets = curve(64)
    data = FleetData.shared(inputs, targets, n_models)

    def losses(backend, first_seed=0):
        torch.manual_seed(0)
        seeds = range(first_seed, first_seed + n_models)
        build = lambda: network(hidden=(40,), dropout=0.3)  # noqa: E731
        fleet = Fleet(build, n_models, learning_rate=0.0, seeds=seeds, device=DEVICE, backend=backend)
        fleet.load_state_dict({"last": fleet.state_dict()["last"][:1].repeat(n_models, 1)})
        return fleet.fit(data, 3, progress=False).losses.flatten()

    expected, drawn = losses("autograd"), losses("fused")
    assert drawn.unique().numel() == drawn.numel()
    assert torch.equal(drawn, losses("fused"))
    error = (expected.var() / len(expected) + drawn.var() / len(drawn)).sqrt()
    assert abs(expected.mean() - drawn.mean()) < 4 * error
    assert 0.5 < drawn.std() / expected.std() < 2


def test_early_stopping_waits_for_the_tail_of_the_annealing():
    fit = {"n_epochs": 16, "validation": Validation(HELD, patience=1)}
    options = {"rule": AutoAnnealing(), "learning_rate": 0.3}
    history = assert_trains_alike(SHARED, fit, {}, options, tolerance=2e-3)
    stopped = int(history.stopped_epoch.max())
    assert stopped > 0
    assert history.temperatures[stopped, int(history.stopped_epoch.argmax())] == 0
    assert history.temperatures[stopped + 1 :, int(history.stopped_epoch.argmax())].isnan().all()


def test_a_training_continues_with_the_moments_of_the_last():
    def twice(backend):
        fleet = Fleet(network, 2, device=DEVICE, backend=backend)
        for _ in range(2):
            fleet.fit(SHARED, 2, continued=True, progress=False)
        return fleet.state_dict()["last"]

    assert_close(twice("fused"), twice("autograd"), atol=2e-5, rtol=2e-5)


def test_blocks_shrink_where_a_device_has_little_room(monkeypatch):
    from triton.runtime.errors import OutOfResources

    run, tried = FusedTraining._run_kernel, []

    def on_a_small_device(self, low, high):
        tried.append(self._constants["ROWS"])
        if tried[-1] > 16:
            raise OutOfResources(200_000, 100_000, "shared memory")
        run(self, low, high)

    expected = trained("fused", SHARED, {}, {}, {})[0]
    monkeypatch.setattr(FusedTraining, "_run_kernel", on_a_small_device)
    assert_close(trained("fused", SHARED, {}, {}, {})[0], expected, atol=2e-5, rtol=2e-5)
    assert tried == [64, 32, 16]


def test_it_says_what_it_does_not_serve():
    refused = {
        "one hidden layer": lambda: Fleet(lambda: network(hidden=(4, 4)), 2, device=DEVICE, backend="fused"),
        "Adam": lambda: Fleet(network, 2, optimizer=mcl.fleet.SGD(), device=DEVICE, backend="fused"),
        "WTA, RelaxedWTA": lambda: Fleet(network, 2, rule=mcl.Sinkhorn(0.5), device=DEVICE, backend="fused"),
        "127 hidden": lambda: Fleet(lambda: network(hidden=(128,)), 2, device=DEVICE, backend="fused"),
        "SigmoidScores": lambda: Fleet(network, 2, scores=mcl.SoftmaxScores(), device=DEVICE, backend="fused"),
        "pairwise_l1": lambda: Fleet(network, 2, cost_fn=mcl.pairwise_huber, device=DEVICE, backend="fused"),
    }
    refused |= {
        "without scales": lambda: Fleet(lambda: network(scales=True), 2, device=DEVICE, backend="fused"),
        "matched and trained": lambda: Fleet(network, 2, loss_fn=mcl.pairwise_l1, device=DEVICE, backend="fused"),
        "a dropout below 1": lambda: Fleet(dropping_all, 2, device=DEVICE, backend="fused"),
    }
    for reason, fleet in refused.items():
        with pytest.raises(ValueError, match=reason):
            fleet().fit(SHARED, 1, progress=False)
    masked = FleetData.of_sets([(*curve(5), torch.ones(5, 1, dtype=torch.bool))], [0, 0])
    with pytest.raises(ValueError, match="one vector as the target"):
        Fleet(network, 2, device=DEVICE, backend="fused").fit(masked, 1, progress=False)
    two_targets = FleetData.shared(curve(5)[0], torch.zeros(5, 2, 1), 2)
    with pytest.raises(ValueError, match="one vector as the target"):
        Fleet(network, 2, device=DEVICE, backend="fused").fit(two_targets, 1, progress=False)
    double = FleetData.shared(*(part.double() for part in curve(5)), 2)
    with pytest.raises(ValueError, match="float32"):
        Fleet(lambda: network().double(), 2, device=DEVICE, backend="fused").fit(double, 1, progress=False)
    with mcl.debug_checks(), pytest.raises(ValueError, match="does not read values"):
        Fleet(network, 2, device=DEVICE, backend="fused").fit(SHARED, 1, progress=False)
    held = Validation(HELD, monitor=lambda output: output.loss)
    with pytest.raises(ValueError, match="monitors"):
        Fleet(network, 2, device=DEVICE, backend="fused").fit(SHARED, 1, validation=held, progress=False)
