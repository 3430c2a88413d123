import torch
import transformers

import torchmcl as mcl
from torchmcl.adapters import AdapterBank, Continuations
from torchmcl.adapters.trainer import RuleCallback, TrainerModel

torch.manual_seed(0)
size = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 8, "n_positions": 8}
config = transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0)
bank = AdapterBank(transformers.GPT2LMHeadModel(config), n_hypotheses=2, rank=4, targets=["c_attn", "c_fc"])
continuations = Continuations(bank)

# After the prompt 1, a text is all 3 or all 4.
texts = [torch.tensor([1] + [3 + number % 2] * 7) for number in range(64)]
data = [{"input_ids": ids, "labels": torch.cat([torch.tensor([-100]), ids[1:]])} for ids in texts]
arguments = transformers.TrainingArguments(
    "out/continuations",
    max_steps=60,
    per_device_train_batch_size=16,
    learning_rate=0.05,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
)
trainer = transformers.Trainer(
    TrainerModel(continuations),
    arguments,
    train_dataset=data,
    callbacks=[RuleCallback(mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 30)))],
)
trainer.train()

prompt = {"input_ids": torch.tensor([[1]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
print(continuations.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0))  # one of each kind
print(continuations.prompt_scores(prompt).sigmoid())  # about a half each
