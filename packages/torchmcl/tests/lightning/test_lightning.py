"""Lightning around the core's step: trainings, validations, records and callbacks of one process."""

import json
import math
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import torchmcl as mcl
from grids import for_each
from problems import score_labels

pytest.importorskip("lightning.pytorch")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

    from lightning_program import PLATEAU, QUIET, network, samples
    from torchmcl.lightning import CollapseWarning, MCLModule, RecordWriter, RuleLogger

pytestmark = pytest.mark.filterwarnings("ignore")


def records(folder):
    path = folder / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def loader(batch_size=6):
    return DataLoader(samples(), batch_size=batch_size)


def trainer(**options):
    return pl.Trainer(**{"max_epochs": 1, "enable_checkpointing": False, **QUIET, **options})


def test_the_module_trains_with_the_core_step_and_the_rule_of_the_epoch():
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 4))
    module = MCLModule(network(), rule, learning_rate=0.01, score_weight=0.5)
    trainer(max_epochs=3).fit(module, loader())
    expected = network()
    optimizer = torch.optim.Adam(expected.parameters(), lr=0.01)
    for epoch in range(3):
        for batch in loader():
            optimizer.zero_grad()
            mcl.mcl_step(expected, batch, rule(epoch), score_weight=0.5).loss.backward()
            optimizer.step()
    torch.testing.assert_close(module.model.state_dict(), expected.state_dict())


def test_validation_is_hard_and_weighs_real_targets():
    module = MCLModule(network(), mcl.AnnealedWTA(100.0))
    logged = trainer().validate(module, loader(batch_size=5), verbose=False)[0]
    whole = next(iter(DataLoader(samples(), batch_size=24)))
    output = mcl.mcl_step(module.model.eval(), whole, mcl.WTA())
    assert logged["val_distortion"] == pytest.approx(mcl.metrics.distortion(output.matching).item(), rel=1e-5)


def test_a_metric_of_masked_paths_weighs_paths_equally():
    paths, mask = torch.randn(11, 4, 2), torch.rand(11, 4) < 0.7
    mask[:, 0] = True
    data = torch.utils.data.TensorDataset(torch.randn(11, 3), paths.masked_fill(~mask.unsqueeze(-1), math.nan), mask)

    def min_fde(output):
        targets, step_mask = output.batch.targets, output.batch.mask
        return mcl.metrics.min_fde(hypotheses=output.predictions.hypotheses, targets=targets, mask=step_mask)

    model = mcl.MultiHypothesisMLP(3, (4, 2), n_hypotheses=3)
    module = MCLModule(model, mcl.WTA(), cost_fn=mcl.pairwise_ade, metrics={"fde": min_fde})
    logged = trainer().validate(module, DataLoader(data, batch_size=4), verbose=False)[0]
    expected = mcl.metrics.min_fde(hypotheses=model(data.tensors[0]).hypotheses, targets=paths, mask=mask)
    assert logged["val_fde"] == pytest.approx(expected.item(), rel=1e-5)


def test_score_labels_follow_their_rule():
    batch = next(iter(DataLoader(samples(), batch_size=24)))
    one_to_one = MCLModule(network(), mcl.WTA(), scores=mcl.SigmoidScores(mcl.PIT())).step(batch, mcl.WTA())
    labels = score_labels(one_to_one.matching.cost, batch.mask, mcl.PIT())
    expected = mcl.SigmoidScores().loss(one_to_one.predictions.score_logits, labels, batch.mask)
    torch.testing.assert_close(one_to_one.score_loss, expected)
    assert one_to_one.score_loss != MCLModule(network(), mcl.WTA()).step(batch, mcl.WTA()).score_loss


def test_records_hold_losses_metrics_rate_and_rule(tmp_path):
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 4))
    writer = RecordWriter(tmp_path / "records.jsonl")
    run = trainer(max_epochs=2, callbacks=[writer, RuleLogger()])
    run.fit(MCLModule(network(), rule), loader(), loader())
    lines = records(tmp_path)
    assert [line["epoch"] for line in lines] == [0, 1]
    assert lines[1].keys() == {"epoch", "step", "train_loss", "val_distortion", "learning_rate", "rule", "temperature"}
    assert lines[1]["rule"] == "AnnealedWTA(temperature=0.75)"
    assert [line["temperature"] for line in lines] == [1.0, 0.75]
    assert lines[1]["step"] == 8
    assert run.callback_metrics["temperature"] == 0.75


class Temperatures(pl.Callback):
    def __init__(self):
        self.seen = []

    def on_train_epoch_end(self, trainer, module):
        self.seen.append(float(module.rule_at(trainer.current_epoch).temperature))


@for_each("rule", [mcl.AutoAnnealing(), lambda epoch: mcl.AnnealedWTA(0.5)])
def test_the_rule_logger_logs_what_no_schedule_names(rule):
    used = Temperatures()
    run = trainer(max_epochs=2, callbacks=[used, RuleLogger()])
    run.fit(MCLModule(network(), rule), loader())
    assert run.callback_metrics["temperature"] == pytest.approx(used.seen[-1])


def test_a_batch_without_a_real_target_does_not_count_in_a_validation():
    batches = [mcl.Batch(torch.rand(4, 2), torch.randn(4, 1, 1), torch.full((4, 1), i != 1)) for i in range(3)]
    module = MCLModule(mcl.MultiHypothesisMLP(2, 1, 3), mcl.WTA())

    def validated(given):
        return trainer().validate(module, DataLoader(given, batch_size=None), verbose=False)[0]["val_distortion"]

    assert validated(batches) == validated(batches[::2]) > 0
    assert math.isnan(validated(batches[1:2]))  # the mean of nothing


def test_a_training_leaves_the_random_numbers_as_they_were():
    module, rows = MCLModule(network(), mcl.WTA()), loader()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trainer(max_epochs=2).fit(module, rows)
    assert torch.equal(torch.get_rng_state(), before)


def test_collapse_is_said_once():
    model = network()
    with torch.no_grad():
        model[-1].linear.bias[:2] = 1000.0  # the first hypothesis is out of everybody's reach
    callback = CollapseWarning()
    module = MCLModule(model, mcl.WTA(), learning_rate=0.0)
    with pytest.warns(
        UserWarning, match=r"MCLModule: 1 of 4 hypotheses win no target in epoch 0 \(numbers \[0\]\)"
    ) as said:
        trainer(max_epochs=2, callbacks=[callback]).fit(module, loader(), loader())
    assert sum("win no target" in str(one.message) for one in said) == 1
    with pytest.raises(ValueError, match="CollapseWarning: `threshold`"):
        CollapseWarning(2)


def test_a_plateau_lowers_the_rate_and_its_value_must_be_logged(tmp_path):
    frozen = MCLModule(network(), mcl.WTA(), learning_rate=1e-6, plateau=PLATEAU)
    trainer(max_epochs=3, callbacks=[RecordWriter(tmp_path / "records.jsonl")]).fit(frozen, loader(), loader())
    assert [record["learning_rate"] for record in records(tmp_path)] == [1e-6, 1e-6, 5e-7]
    module = MCLModule(network(), mcl.WTA(), plateau=PLATEAU, monitor="val_pit")
    with pytest.raises(ValueError, match="MCLModule: `monitor`"):
        trainer().fit(module, loader(), loader())


def test_a_checkpoint_of_another_rule_is_refused(tmp_path):
    run = trainer(enable_checkpointing=True, default_root_dir=tmp_path)
    run.fit(MCLModule(network(), mcl.WTA()), loader())
    run.save_checkpoint(tmp_path / "a.ckpt")
    other = MCLModule(network(), mcl.AnnealedWTA(1.0))
    with pytest.raises(ValueError, match="MCLModule: `checkpoint`"):
        trainer(max_epochs=2).fit(other, loader(), ckpt_path=str(tmp_path / "a.ckpt"))


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(TypeError, match="MCLModule: `model`"):
        MCLModule(lambda x: x, mcl.WTA())
    with pytest.raises(TypeError, match="MCLModule: `rule`"):
        MCLModule(network(), "wta")


def test_a_scheduled_rate_is_that_of_the_epoch(tmp_path):
    rates = mcl.Cosine(0.1, 0.0, 4)
    module = MCLModule(network(), mcl.WTA(), learning_rate=rates, cuda_graphs=True)
    assert module.configure_optimizers().param_groups[0]["lr"] == 0.1
    writer = RecordWriter(tmp_path / "records.jsonl")
    trainer(max_epochs=4, callbacks=[writer]).fit(module, loader(), loader())
    used = [record["learning_rate"] for record in records(tmp_path)]
    assert used == pytest.approx([rates(epoch) for epoch in range(4)])


def test_a_rate_has_one_master():
    with pytest.raises(ValueError, match="MCLModule: `plateau`"):
        MCLModule(network(), mcl.WTA(), learning_rate=mcl.Constant(0.1), plateau=PLATEAU)
