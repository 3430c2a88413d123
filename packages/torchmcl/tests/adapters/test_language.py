"""Continuations of language models of transformers, with random weights."""

import pytest
import torch
from torch import nn

import torchmcl as mcl
from grids import for_each
from torchmcl.adapters import AdapterBank, Continuations, given_cost, load_peft, save_peft, token_nll
from torchmcl.passes import TwoPass

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
K, TOKENS = 3, 40
SMALL = {"vocab_size": TOKENS, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


def gpt2():
    none = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    config = transformers.GPT2Config(n_positions=16, n_embd=8, n_layer=2, n_head=2, **SMALL, **none)
    return transformers.GPT2LMHeadModel(config), ["c_attn", "c_fc"]


def llama():
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **SMALL)), ["q_proj", "v_proj"]


def t5():
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **SMALL, decoder_start_token_id=0)), [
        "q",
        "v",
    ]


def bart():
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, **HEADS}
    config = transformers.BartConfig(**sizes, **SMALL, decoder_start_token_id=2, forced_eos_token_id=None)
    return transformers.BartForConditionalGeneration(config), ["q_proj"]


def continuations(make, **options):
    torch.manual_seed(0)
    model, targets = make()
    bank = AdapterBank(model.double(), K, 2, targets=targets)
    for up in bank.up.values():
        nn.init.normal_(up)
    return Continuations(bank, chunk_size=16, **options)


def texts(is_seq2seq):
    torch.manual_seed(1)
    ids = torch.randint(3, TOKENS, (4, 9))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    labels = ids.clone()
    labels[:, -2:] = torch.where(torch.rand(4, 2) < 0.5, -100, labels[:, -2:])
    if not is_seq2seq:
        labels[:, :4] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@for_each("make", [gpt2, llama, t5, bart])
def test_costs_and_gradients_are_those_of_each_merged_adapter(make):
    model = continuations(make, scores=False)
    bank, is_seq2seq = model.bank, model.bank.model.config.is_encoder_decoder
    given = texts(is_seq2seq)
    found = model(given).hypotheses.squeeze(-1)
    for number in range(K):
        merged = bank.merge(number)
        with torch.no_grad():
            logits = merged(**given).logits
        bank.unmerge()
        labels = given["labels"]
        if not is_seq2seq:
            logits, labels = logits[:, :-1], labels[:, 1:]
        nll = nn.functional.cross_entropy(logits.mT, labels, reduction="none").sum(-1) / (labels != -100).sum(-1)
        torch.testing.assert_close(found[:, number], nll, rtol=0, atol=1e-10)


@for_each("make", [gpt2, t5])
def test_two_passes_and_gradient_checkpoints_have_the_same_gradients(make):
    model = continuations(make)
    given = texts(model.bank.model.config.is_encoder_decoder)
    batch = mcl.Batch(given, given["labels"].unsqueeze(1))
    found = []
    for wrapped in (model, TwoPass(model, K), TwoPass(model, K, independent_rows=True), model):
        model.zero_grad()
        mcl.mcl_step(wrapped, batch, mcl.AnnealedWTA(0.5), cost_fn=given_cost).loss.backward()
        found.append([parameter.grad for parameter in model.parameters() if parameter.requires_grad])
        if len(found) == 3:
            model.bank.model.train().gradient_checkpointing_enable({"use_reentrant": False})
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=0, atol=1e-10)


@for_each("make", [gpt2, llama, t5, bart])
def test_each_adapter_generates_what_it_generates_alone(make):
    model = continuations(make).eval()
    given = texts(True)
    prompts = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    found = model.generate(prompts, **options)
    for number in range(K):
        merged = model.bank.merge(number)
        assert torch.equal(found[:, number], merged.generate(**prompts, **options))
        model.bank.unmerge()


@for_each("make", [gpt2, t5])
def test_scores_depend_on_the_prompt_only(make):
    model = continuations(make)
    is_seq2seq = model.bank.model.config.is_encoder_decoder
    given = texts(is_seq2seq)
    end = None if is_seq2seq else 4
    prompts = {name: given[name][:, :end] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(model.prompt_scores(prompts), model(given).score_logits)


def test_chunks_of_the_vocabulary_give_the_likelihood_and_its_gradients():
    torch.manual_seed(0)
    features, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 8), (50, 8), (50,)))
    tensors, ids = [each.requires_grad_() for each in (features, weight, bias)], torch.randint(50, (5,))
    expected = nn.functional.cross_entropy(nn.functional.linear(*tensors), ids, reduction="none")
    for chunk_size in (7, 50, 1000):
        found = token_nll(features, weight, ids, bias, chunk_size=chunk_size)
        torch.testing.assert_close(found, expected)
        both = [torch.autograd.grad(each.square().sum(), tensors, retain_graph=True) for each in (found, expected)]
        torch.testing.assert_close(*both)
    with pytest.raises(ValueError, match="token_nll: `ids` must hold integers"):
        token_nll(features, weight, ids[:3])


@for_each("temperature", [1.0, 0.1, 0.02, 1e-3, 1e-6, 0.0])
def test_gradients_are_finite_at_every_temperature(temperature):
    model = continuations(gpt2)
    given = texts(False)
    batch = mcl.Batch(given, given["labels"].unsqueeze(1))
    mcl.mcl_step(model, batch, mcl.AnnealedWTA(temperature), cost_fn=given_cost).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.bank.adapters())


@for_each("make", [gpt2, llama])
def test_peft_computes_the_same_with_our_files_and_we_with_those_of_peft(make, tmp_path):
    peft = pytest.importorskip("peft")
    model = continuations(make, scores=False)
    given = texts(False)
    folders = save_peft(model.bank, tmp_path / make.__name__)
    torch.manual_seed(0)
    plain = make()[0].double()
    wrapped = peft.PeftModel.from_pretrained(plain, folders[0], adapter_name="answer0", autocast_adapter_dtype=False)
    for number, folder in enumerate(folders[1:], 1):
        wrapped.load_adapter(folder, adapter_name=f"answer{number}", autocast_adapter_dtype=False)
    found = model(given).hypotheses.squeeze(-1)
    for number in range(K):
        wrapped.set_adapter(f"answer{number}")
        with torch.no_grad():
            logits, labels = wrapped(**given).logits[:, :-1], given["labels"][:, 1:]
        nll = nn.functional.cross_entropy(logits.mT, labels, reduction="none").sum(-1) / (labels != -100).sum(-1)
        torch.testing.assert_close(found[:, number], nll, rtol=0, atol=1e-8)
        wrapped.save_pretrained(tmp_path / "theirs", selected_adapters=[f"answer{number}"])
    torch.manual_seed(0)
    bank = load_peft(make()[0].double(), [tmp_path / "theirs" / f"answer{number}" for number in range(K)])
    again = Continuations(bank, scores=False)(given).hypotheses.squeeze(-1)
    torch.testing.assert_close(again, found, rtol=0, atol=1e-8)


def test_other_kinds_of_peft_are_refused_in_words(tmp_path):
    pytest.importorskip("safetensors")
    model = continuations(gpt2, scores=False)
    folders = save_peft(model.bank, tmp_path)
    config = folders[0] / "adapter_config.json"
    config.write_text(config.read_text().replace('"bias": "none"', '"bias": "none", "use_dora": true'))
    with pytest.raises(ValueError, match="load_peft: `folders` must hold plain LoRA adapters"):
        load_peft(gpt2()[0], folders)
