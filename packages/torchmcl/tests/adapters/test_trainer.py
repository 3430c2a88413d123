"""The Trainer of transformers trains continuations under any rule."""

import runpy
from pathlib import Path

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.adapters import AdapterBank, Continuations

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, number):
        ids = torch.full((8,), 3 + number % 2)
        return {"input_ids": ids, "labels": torch.cat([torch.full((1,), -100), ids[1:]])}


@for_each(
    "rule, every",
    [
        (mcl.WTA(), 1),
        (mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 10)), 1),
        (mcl.AutoAnnealing(), 1),
    ],
)
def test_a_rule_takes_its_course_and_the_loss_falls(rule, every, tmp_path):
    from torchmcl.adapters.trainer import RuleCallback, TrainerModel

    config = transformers.GPT2Config(
        vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    bank = AdapterBank(transformers.GPT2LMHeadModel(config), 2, 2, targets=["c_attn", "c_fc"])
    model = TrainerModel(Continuations(bank))
    options = {
        "max_steps": 24,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.05,
        "report_to": [],
        "use_cpu": True,
    }
    arguments = transformers.TrainingArguments(
        str(tmp_path), save_strategy="no", disable_tqdm=True, logging_steps=1, lr_scheduler_type="constant", **options
    )
    callback = RuleCallback(rule, every)
    trainer = transformers.Trainer(model, arguments, train_dataset=Texts(), callbacks=[callback])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert callback.scheduler.n_steps == 24
    if not isinstance(rule, mcl.WTA):
        assert float(model.rule.temperature) == 0
    if isinstance(rule, mcl.AutoAnnealing):  # the rate falls to 0
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
        assert rates[0] == pytest.approx(0.05)
        assert rates[-1] < 0.01
    assert trainer.evaluate(Texts())["eval_loss"] > 0


def test_the_program_of_the_page_finds_both_continuations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(Path(__file__).parent / "program.py"))
    found = names["continuations"].generate(names["prompt"], max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert {tuple(set(row[1:].tolist())) for row in found[0]} == {(3,), (4,)}
