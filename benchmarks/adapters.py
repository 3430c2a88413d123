"""Five adapters of a language model together, against a loop over five adapters of PEFT, in time and memory.

python benchmarks/adapters.py [--device cuda] [--rows 8] [--tokens 256] [--out results/adapters.json]

The model is GPT-2's architecture (124 million parameters, 12 layers) with random weights; needs transformers and peft.
The loop sets one adapter after the other, takes the cross-entropy of its logits, and weighs the five losses by the
same rule. Losses and gradients of both are compared in the same run. The bank is also measured with gradient
checkpoints of the network, and in two passes. The second part lowers the temperature to 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

import peft
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import torchmcl as mcl
from _common import in_turn_milliseconds, parser, peak_extra_megabytes, report
from torchmcl.adapters import AdapterBank, Continuations, given_cost
from torchmcl.passes import TwoPass

K, RANK, ALPHA, TARGETS = 5, 8, 16, ["c_attn", "c_proj", "c_fc"]
TEMPERATURES = (1.0, 0.3, 0.1, 0.05, 0.02, 0.01, 1e-3, 1e-4, 1e-6, 0.0)


@dataclass(frozen=True, eq=False)
class NormalizedAfterwards(mcl.AssignmentRule):
    """Weights exp(-cost / T), normalized afterwards, as published with LoRA-MCL: 0 / 0 when it is cold."""

    temperature: float

    def _assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        weights = torch.exp(-cost / self.temperature)
        return weights / weights.sum(dim=-1, keepdim=True)


def language_model(options: object, dtype: torch.dtype) -> GPT2LMHeadModel:
    """Return the network with random weights and without dropout."""
    torch.manual_seed(0)
    size = {"n_layer": options.layers, "n_embd": options.width, "n_head": options.width // 64}
    none = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(
        vocab_size=options.vocabulary, n_positions=options.tokens, use_cache=False, **size, **none, **tokens
    )
    return GPT2LMHeadModel(config).to(options.device, dtype).train()


def peft_loop(bank: AdapterBank, options: object, dtype: torch.dtype) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Return PEFT's model with the adapters of the bank, and the cost of its adapters [batch, 1, K]."""
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0, fan_in_fan_out=True)
    model = peft.get_peft_model(language_model(options, dtype), config, adapter_name="0")
    for number in range(1, K):
        model.add_adapter(str(number), config)
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    with torch.no_grad():
        for name, layer in layers.items():
            key = name.removeprefix("base_model.model.").replace(".", "/")
            for number in range(K):
                layer.lora_A[str(number)].weight.copy_(bank.down[key][number])
                layer.lora_B[str(number)].weight.copy_(bank.up[key][number])
    adapters = [parameter for name, parameter in model.named_parameters() if "lora_" in name]

    def costs(ids: Tensor) -> Tensor:
        losses = []
        for number in range(K):
            model.set_adapter(str(number))
            for parameter in adapters:  # PEFT freezes those that are not active, which would stop their gradients
                parameter.requires_grad_()
            logits = model(input_ids=ids).logits[:, :-1].float()
            losses.append(nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(dim=-1))
        return torch.stack(losses, dim=-1).unsqueeze(1)

    return model, costs


def compared(dtype: torch.dtype, rule: mcl.AssignmentRule, options: object) -> dict[str, object]:
    """Return times, memory, and the largest difference of losses and gradients."""
    bank = AdapterBank(language_model(options, dtype), K, RANK, targets=TARGETS, alpha=ALPHA)
    for up in bank.up.values():
        nn.init.normal_(up, std=0.02)
    continuations = Continuations(bank, scores=False)
    ids = torch.randint(options.vocabulary, (options.rows, options.tokens), device=options.device)
    batch = mcl.Batch({"input_ids": ids, "labels": ids}, ids.unsqueeze(1))
    model, costs = peft_loop(bank, options, dtype)

    def ours(wrapped: nn.Module) -> mcl.StepOutput:
        bank.zero_grad()
        output = mcl.mcl_step(wrapped, batch, rule, cost_fn=given_cost)
        output.loss.backward()
        return output

    def theirs() -> Tensor:
        model.zero_grad()
        loss = mcl.mcl_loss(mcl.assign(costs(ids), rule))
        loss.backward()
        return loss

    def checkpointed() -> None:
        bank.model.gradient_checkpointing_enable({"use_reentrant": False})
        ours(continuations)
        bank.model.gradient_checkpointing_disable()

    two_pass = TwoPass(continuations, K, independent_rows=True)
    runs = {"bank": lambda: ours(continuations), "peft_loop": theirs, "bank_checkpointed": checkpointed}
    runs["bank_two_pass"] = lambda: ours(two_pass)
    loss_difference = float((ours(continuations).loss - theirs()).detach().abs())
    largest = compared_gradients(bank, model)
    memory = {name: peak_extra_megabytes(run, options.device) for name, run in runs.items()}
    time = in_turn_milliseconds(runs, options.device, rounds=options.rounds)
    return {
        **{"name": f"{rule!r}, {dtype}", "adapters": K, "rank": RANK, "rows": options.rows, "tokens": options.tokens},
        "parameters": sum(parameter.numel() for parameter in bank.model.parameters()),
        **{"milliseconds": time, "megabytes": memory, "loss_difference": loss_difference},
        "relative_gradient_difference": largest,
        "ratios": {name: time[name] / time["peft_loop"] for name in runs},
        "memory_ratios": {name: memory[name] / memory["peft_loop"] for name in runs},
        **{"must_show_ratio": 0.7, "must_show_memory_ratio": 0.6},
    }


def compared_gradients(bank: AdapterBank, model: nn.Module) -> float:
    """Return the largest difference of gradients, relative to the largest gradient of the layer."""
    differences = []
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A"):
            key = name.removeprefix("base_model.model.").replace(".", "/")
            for part, of_bank in ((layer.lora_A, bank.down), (layer.lora_B, bank.up)):
                theirs = torch.stack(
                    [
                        torch.zeros_like(of_bank[key][0])
                        if part[str(k)].weight.grad is None
                        else part[str(k)].weight.grad
                        for k in range(K)
                    ]
                )
                differences.append(float((of_bank[key].grad - theirs).abs().max() / theirs.abs().max()))
    return max(differences)


def cooled(options: object) -> list[dict[str, object]]:
    """Return whether loss and gradients are finite at each temperature, with both formulas."""
    bank = AdapterBank(language_model(options, torch.float32), K, RANK, targets=TARGETS, alpha=ALPHA)
    for up in bank.up.values():
        nn.init.normal_(up, std=0.02)
    continuations = Continuations(bank, scores=False)
    ids = torch.randint(options.vocabulary, (2, min(64, options.tokens)), device=options.device)
    batch = mcl.Batch({"input_ids": ids, "labels": ids}, ids.unsqueeze(1))
    rows = []
    for temperature in TEMPERATURES:
        finite = {}
        for name, rule in (("AnnealedWTA", mcl.AnnealedWTA), ("normalized afterwards", NormalizedAfterwards)):
            bank.zero_grad()
            mcl.mcl_step(continuations, batch, rule(temperature), cost_fn=given_cost).loss.backward()
            finite[name] = all(bool(parameter.grad.isfinite().all()) for parameter in bank.adapters())
        rows.append({"name": "finite gradients", "temperature": temperature, **finite})
    return rows


def main() -> None:
    """Run it."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=8)
    arguments.add_argument("--tokens", type=int, default=256)
    arguments.add_argument("--layers", type=int, default=12)
    arguments.add_argument("--width", type=int, default=768)
    arguments.add_argument("--vocabulary", type=int, default=50257)
    arguments.add_argument("--rounds", type=int, default=7)
    options = arguments.parse_args()
    torch.set_float32_matmul_precision("high")  # for both
    dtypes = (torch.float32, torch.bfloat16) if options.device == "cuda" else (torch.float32,)
    cases = [(dtype, rule) for dtype in dtypes for rule in (mcl.AnnealedWTA(1.0), mcl.WTA())]
    rows = [compared(*case, options) for case in cases] + cooled(options)
    report("adapters", options.device, rows, options.out)


if __name__ == "__main__":
    main()
