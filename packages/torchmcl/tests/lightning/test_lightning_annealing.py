"""`AutoAnnealing` under Lightning: decided in training, kept in the checkpoint."""

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import torchmcl as mcl
from grids import for_each
from torchmcl.annealing import AutoAnnealing
from torchmcl.annealing.model import ModelAnnealing
from torchmcl.types import StepOutput

pytest.importorskip("lightning.pytorch")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

    from lightning_program import PLATEAU, QUIET, network, samples
    from torchmcl.lightning import MCLModule

pytestmark = pytest.mark.filterwarnings("ignore")


AT_EPOCH_END, BEFORE_EPOCH_END = {"save_on_train_epoch_end": True}, {"every_n_train_steps": 4}


def loader():
    return DataLoader(samples(), batch_size=6)


def fitted(n_epochs, folder=None, until=None, limits=None, saves=AT_EPOCH_END, **options):
    """Train for `n_epochs`; `until` ends the run early, and a run with a folder resumes from its checkpoint."""

    class Stop(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            trainer.should_stop = until is not None and trainer.current_epoch + 1 >= until

    module = MCLModule(network(), AutoAnnealing(), learning_rate=0.05, **options)
    callbacks = [Stop()]
    if folder is not None:
        callbacks.append(pl.callbacks.ModelCheckpoint(folder, filename="last", **saves))
    limits = {"max_epochs": n_epochs} if limits is None else limits
    trainer = pl.Trainer(**limits, callbacks=callbacks, enable_checkpointing=folder is not None, **QUIET)
    last = None if folder is None else folder / "last.ckpt"
    trainer.fit(module, loader(), ckpt_path=str(last) if last is not None and last.exists() else None)
    return module


def test_a_training_ends_cold_and_slow():
    module = fitted(12)
    begun = int(module.annealing.state["begun"])
    assert begun >= 1  # after a probe
    temperatures = [float(module.annealing.rule(epoch, 12).temperature) for epoch in range(begun, 12)]
    assert temperatures == sorted(temperatures, reverse=True)
    assert temperatures[-1] == 0
    rate = module.trainer.optimizers[0].param_groups[0]["lr"]
    assert 0 < rate < 0.01


def test_validation_batches_are_measured_if_there_are_any(tmp_path):
    far = DataLoader([batch._replace(targets=batch.targets + 9) for batch in samples()], batch_size=6)
    module = MCLModule(network(), AutoAnnealing(), learning_rate=1e-3)
    trainer = pl.Trainer(max_epochs=12, enable_checkpointing=False, **QUIET)
    trainer.fit(module, loader(), far)
    assert float(module.annealing.state["best"]) > 10
    assert module.phase.startswith("winner-takes-all")
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = MCLModule.load_from_checkpoint(tmp_path / "last.ckpt", model=network(), rule=AutoAnnealing())
    assert loaded.phase == "not in training: 12 epochs have ended"


class Watch(pl.Callback):
    """Keep the temperature and the learning rate of every batch."""

    def __init__(self):
        self.values = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        epoch = trainer.current_epoch + batch_idx / trainer.num_training_batches
        self.values.append((float(module.rule_at(epoch).temperature), trainer.optimizers[0].param_groups[0]["lr"]))


def watched(loader_=None, **limits):
    watch = Watch()
    module = MCLModule(network(), AutoAnnealing(), learning_rate=0.05)
    trainer = pl.Trainer(callbacks=[watch], enable_checkpointing=False, **limits, **QUIET)
    trainer.fit(module, loader() if loader_ is None else loader_)
    return watch.values, {name: value.clone() for name, value in module.model.state_dict().items()}


@pytest.fixture(scope="module")
def twelve_epochs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return watched(max_epochs=12)


LIMITS = [  # all of them 12 epochs of 4 batches
    {"max_steps": 48},
    {"max_epochs": 12, "max_steps": 1000},
    {"max_epochs": -1, "max_steps": 48, "max_time": {"hours": 1}},
]


@for_each("limits", LIMITS)
def test_however_its_length_is_said_a_training_is_the_same(limits, twelve_epochs):
    values, weights = watched(**limits)
    expected_values, expected_weights = twelve_epochs
    assert values == expected_values
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=0)
    temperatures, rates = zip(*values, strict=True)
    assert temperatures[4] > 0.1  # warm in the second epoch
    assert temperatures[-1] == 0
    assert 0 < rates[-1] < rates[4] == 0.05


def test_steps_that_end_within_an_epoch_end_cold_too():
    values, _ = watched(max_steps=46)
    assert len(values) == 46
    assert values[4][0] > 0.1
    assert values[-1][0] == 0


def test_accumulated_batches_and_limited_epochs_count_as_the_steps_they_make():
    values, weights = watched(max_steps=24, accumulate_grad_batches=2)
    expected = watched(max_epochs=12, accumulate_grad_batches=2)
    assert values == expected[0]
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=0)
    values, weights = watched(max_steps=36, limit_train_batches=3)
    expected = watched(max_epochs=12, limit_train_batches=3)
    assert values == expected[0]
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=0)


@for_each("limits", [{"max_epochs": -1}, {"max_time": {"seconds": 30}}])
def test_a_training_without_an_end_is_refused(limits):
    with pytest.raises(ValueError, match="`max_epochs`"):
        watched(**limits)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield from samples()


def test_a_loader_without_an_end_needs_the_length_of_an_epoch(twelve_epochs):
    endless = DataLoader(Endless(), batch_size=6)
    with pytest.raises(ValueError, match="`limit_train_batches`"):
        watched(endless, max_steps=48)
    assert watched(endless, max_steps=48, limit_train_batches=4)[0] == twelve_epochs[0]


def output_of(cost, mask=None):
    matching = mcl.assign(cost, mcl.WTA(), mask)
    predictions = mcl.Predictions(torch.zeros(len(cost), cost.shape[-1], 1))
    batch = mcl.Batch(None, torch.zeros(*cost.shape[:2], 1))
    return StepOutput(cost.sum(), cost.sum(), None, matching, predictions, batch)


def test_batches_without_a_known_cost_are_passed_over():
    annealing, optimizer = ModelAnnealing(AutoAnnealing()), torch.optim.SGD([torch.zeros(1)])
    cost = torch.full((3, 2, 4), 2.0)
    known, empty = output_of(cost), output_of(cost, torch.zeros(3, 2, dtype=torch.bool))
    annealing.observe(empty, 0.0, 10)
    assert annealing.state["first"].isnan()
    assert annealing.rule(0, 10).temperature > 1e30  # infinitely warm
    annealing.observe(known, 0.1, 10)
    annealing.observe(empty, 0.2, 10)
    annealing.end_epoch(optimizer, 1, 10)
    assert [float(annealing.state[name]) for name in ("first", "lowest")] == [2.0, 2.0]


def test_costs_without_a_zero_are_measured_by_their_differences_even_if_some_batches_are_above_it():
    """The mean of a batch that happens to have no negative decibel has no meaning."""
    annealing, optimizer = ModelAnnealing(AutoAnnealing()), torch.optim.SGD([torch.zeros(1)])
    differences = 0.02 * torch.rand(50, 2, 4, generator=torch.Generator().manual_seed(0))
    excess = float((differences - differences.amin(dim=-1, keepdim=True)).mean())
    for middle in (10.0, 10.0, -1.0, torch.nan):
        annealing.observe(output_of(differences + middle), 0.5, 10)
    annealing.end_epoch(optimizer, 1, 10)
    assert float(annealing.state["begun"]) == 0
    assert float(annealing.state["unit"]) == pytest.approx(excess, rel=1e-3)


def test_an_interrupted_training_of_steps_resumes_as_warm_as_it_was_and_ends_cold(tmp_path):
    # Where steps end a training, Lightning resumes with one more batch of the epoch that it had ended.
    limits = {"max_steps": 32}
    stopped = fitted(8, tmp_path, until=2, limits=limits)
    warm = float(stopped.rule_at(2).temperature)
    resumed = fitted(8, tmp_path, limits=limits)
    assert resumed.trainer.global_step == 32
    assert float(resumed.rule_at(2).temperature) == warm > 0
    assert float(resumed.rule_at(7.5).temperature) == 0
    assert 0 < resumed.trainer.optimizers[0].param_groups[0]["lr"] < 0.05


@pytest.mark.parametrize(("n_epochs", "until"), [(8, 3), (12, 1)])  # within the cooling, and before the rewind
@pytest.mark.parametrize("saves", [AT_EPOCH_END, BEFORE_EPOCH_END], ids=["after", "before"])
def test_an_interrupted_training_resumes_to_the_same_bits(tmp_path, saves, n_epochs, until):
    whole = fitted(n_epochs)
    fitted(n_epochs, tmp_path, until=until, saves=saves)
    resumed = fitted(n_epochs, tmp_path, saves=saves)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(resumed.annealing.state_dict(), whole.annealing.state_dict(), rtol=0, atol=0)


def test_another_fit_of_a_module_is_annealed_from_its_beginning():
    def weights_after_fit(module):
        pl.Trainer(max_epochs=12, enable_checkpointing=False, **QUIET).fit(module, loader())
        return torch.cat([parameter.detach().flatten() for parameter in module.model.parameters()])

    used = fitted(12)
    fresh = MCLModule(copy.deepcopy(used.model), AutoAnnealing(), learning_rate=0.05)
    assert torch.equal(weights_after_fit(used), weights_after_fit(fresh))
    assert used.annealing.events == fresh.annealing.events


@for_each("options", [{"plateau": PLATEAU}, {"learning_rate": mcl.Linear(0.1, 0.0, 5)}])
def test_the_rate_has_one_master(options):
    with pytest.raises(ValueError, match="`learning_rate`"):
        MCLModule(network(), AutoAnnealing(), **options)
