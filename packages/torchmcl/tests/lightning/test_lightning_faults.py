"""What can go wrong in a training with Lightning: bad batches, damaged checkpoints, signals."""

import json
import math
import os
import signal
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

import torchmcl as mcl
from torchmcl.io import CheckpointError, TrainingInterrupted, read_checkpoint, stop_on_signals
from torchmcl.loop import NonFiniteLossError

pytest.importorskip("lightning.pytorch")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

    from lightning_program import PLATEAU, QUIET, network, samples
    from torchmcl.lightning import Checkpoints, MCLModule, RecordWriter, SafeCheckpointIO

pytestmark = pytest.mark.filterwarnings("ignore")
RULE = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 4))


def loader(bad=None):
    data = samples()
    if bad is not None:
        data[bad].inputs[1] = math.nan
    return DataLoader(data, batch_size=6)


def fit(folder, n_epochs=4, *, data=None, callbacks=(), module=None, **options):
    module = module or MCLModule(network(dropout=0.5), RULE, plateau=PLATEAU)
    checkpoints = Checkpoints(folder / "checkpoints", keep=3)
    callbacks = [*callbacks, RecordWriter(folder / "records.jsonl"), checkpoints]
    trainer = pl.Trainer(max_epochs=n_epochs, callbacks=callbacks, **QUIET, **options)
    trainer.fit(module, data or loader(), loader(), ckpt_path=checkpoints.latest())
    return module.model.state_dict()


def records(folder):
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def assert_same_ends(one, other):
    assert records(one[0]) == records(other[0])
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return folder, fit(folder)


def test_checkpoints_hold_no_pickle_and_the_last_k_are_kept(undisturbed):
    names = sorted(path.name for path in (undisturbed[0] / "checkpoints").iterdir())
    assert names == [f"epoch-0000000{i}.safetensors" for i in (2, 3, 4)]
    loaded = SafeCheckpointIO().load_checkpoint(undisturbed[0] / "checkpoints" / names[-1])
    assert loaded["epoch"] == 3
    assert isinstance(loaded["optimizer_states"][0]["state"][0]["exp_avg"], torch.Tensor)


def test_strategies_that_shard_the_weights_are_refused(tmp_path):
    trainer = SimpleNamespace(strategy=pl.strategies.ModelParallelStrategy())
    with pytest.raises(ValueError, match="Checkpoints: `strategy`"):
        Checkpoints(tmp_path).setup(trainer, None, "fit")


def test_with_a_damaged_newest_checkpoint_the_one_before_leads_to_the_same_end(undisturbed, tmp_path):
    fit(tmp_path, 3)
    newest = tmp_path / "checkpoints" / "epoch-00000003.safetensors"
    data = bytearray(newest.read_bytes())
    data[-50] ^= 1
    newest.write_bytes(data)
    with pytest.warns(RuntimeWarning, match=r"epoch-00000003.* Resuming from the previous one, epoch-00000002"):
        weights = fit(tmp_path)
    assert_same_ends((tmp_path, weights), undisturbed)


@pytest.mark.parametrize(
    ("n_workers", "options"),
    [
        (0, {}),
        (0, {"reload_dataloaders_every_n_epochs": 1}),  # Lightning starts the loader of a resumed epoch twice
        pytest.param(2, {}, marks=pytest.mark.slow),
    ],
)
def test_a_shuffled_loader_has_the_same_order_after_an_interruption(tmp_path, n_workers, options):
    def shuffled():
        return DataLoader(samples(), batch_size=5, shuffle=True, num_workers=n_workers)

    class Killed(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if (trainer.current_epoch, index) == (1, 1):
                raise FloatingPointError

    def run(name, *callbacks):
        torch.rand(1)  # the state of torch's generator does not matter
        module = MCLModule(network(dropout=0.5), RULE)
        return fit(tmp_path / name, 3, data=shuffled(), module=module, callbacks=callbacks, **options)

    with pytest.raises(FloatingPointError):
        run("interrupted", Killed())
    torch.testing.assert_close(run("interrupted"), run("whole"), rtol=0, atol=0)


def test_the_format_serves_lightnings_own_checkpoint_callback(undisturbed, tmp_path):
    module = MCLModule(network(), mcl.WTA())
    own = pl.callbacks.ModelCheckpoint(tmp_path, filename="own")
    trainer = pl.Trainer(max_epochs=1, callbacks=[own], plugins=[SafeCheckpointIO()], **QUIET)
    trainer.fit(module, loader())
    with pytest.raises(CheckpointError, match="must be of kind 'fleet', got 'lightning'"):
        read_checkpoint(tmp_path / "own.ckpt", "fleet")
    other = MCLModule(network(), mcl.WTA())
    trainer = pl.Trainer(max_epochs=1, plugins=[SafeCheckpointIO()], enable_checkpointing=False, **QUIET)
    trainer.fit(other, loader(), ckpt_path=str(tmp_path / "own.ckpt"))
    torch.testing.assert_close(other.state_dict(), module.state_dict(), rtol=0, atol=0)


class SendSignal(pl.Callback):
    def __init__(self, number, epoch, hook):
        self.number, self.epoch, self.hook = number, epoch, hook

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.hook == "train" and (trainer.current_epoch, batch_idx) == (self.epoch, 1):
            os.kill(os.getpid(), self.number)

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        if self.hook == "validation" and (trainer.current_epoch, batch_idx) == (self.epoch, 1):
            os.kill(os.getpid(), self.number)


def fit_with_signal(folder, number, epoch, hook):
    with stop_on_signals():
        fit(folder, callbacks=[SendSignal(number, epoch, hook)])


@pytest.mark.parametrize(("number", "hook"), [(signal.SIGTERM, "train"), (signal.SIGINT, "validation")])
def test_a_signal_ends_the_training_and_the_next_run_comes_to_the_same_end(undisturbed, tmp_path, number, hook):
    message = r"Stopped by SIG(TERM|INT). 2 epochs are saved in .*checkpoints': run the same again to resume"
    with pytest.raises(TrainingInterrupted, match=message) as stopped:
        fit_with_signal(tmp_path, number, 2, hook)
    assert stopped.value.code == 128 + number
    assert_same_ends((tmp_path, fit(tmp_path)), undisturbed)


def test_a_signal_before_the_first_epoch_has_ended_says_so(tmp_path):
    with pytest.raises(TrainingInterrupted, match="No epoch had ended yet"):
        fit_with_signal(tmp_path, signal.SIGTERM, 0, "train")


def test_a_full_disk_stops_the_training_and_leaves_the_last_good_state(undisturbed, tmp_path, monkeypatch):
    fit(tmp_path, 2)

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device"):
            fit(tmp_path)
    assert_same_ends((tmp_path, fit(tmp_path)), undisturbed)


# ---------------------------------------------------------------------------- losses that are not finite


def guarded(max_skipped=0):
    return MCLModule(network(), mcl.WTA(), learning_rate=0.1, max_skipped=max_skipped)


def test_a_bad_batch_is_named_with_its_epoch_and_the_weights_stay(tmp_path):
    module, good = guarded(), guarded()
    with pytest.raises(NonFiniteLossError, match=r"FiniteGuard: the loss of batch 1 of epoch 0 is nan; .* the inputs"):
        fit(tmp_path / "bad", data=loader(bad=8), module=module)
    trainer = pl.Trainer(max_steps=1, enable_checkpointing=False, **QUIET)
    trainer.fit(good, loader())
    torch.testing.assert_close(module.model.state_dict(), good.model.state_dict(), rtol=0, atol=0)


def test_bad_batches_can_be_left_out_and_the_mean_loss_is_of_the_others(tmp_path):
    module, good = guarded(max_skipped=10), guarded()
    with pytest.warns(RuntimeWarning, match=r"batch 1 of epoch \d is nan.*Skipped \(\d of at most 10\)"):
        fit(tmp_path / "bad", 2, data=loader(bad=8), module=module)
    without = DataLoader([sample for i, sample in enumerate(samples()) if not 6 <= i < 12], batch_size=6)
    fit(tmp_path / "good", 2, data=without, module=good)
    torch.testing.assert_close(module.model.state_dict(), good.model.state_dict(), rtol=1e-2, atol=1e-2)
    losses = [[record["train_loss"] for record in records(tmp_path / name)] for name in ("bad", "good")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert module._guard.n_skipped == 2


def test_the_number_of_skipped_batches_is_kept_in_the_checkpoint(tmp_path):
    with pytest.warns(RuntimeWarning, match=r"Skipped \(1 of at most 1\)"):
        fit(tmp_path, 1, data=loader(bad=8), module=guarded(max_skipped=1))
    with pytest.raises(NonFiniteLossError, match="batch 1 of epoch 1"):
        fit(tmp_path, 2, data=loader(bad=8), module=guarded(max_skipped=1))


def test_accumulated_gradients_name_the_batch_that_was_bad(tmp_path):
    with pytest.raises(NonFiniteLossError, match="batch 0 of epoch 0 is nan"):
        fit(tmp_path, data=loader(bad=2), module=guarded(), accumulate_grad_batches=2)
