"""
Several continuations: adapters of a language model
===================================================

A language model trained on texts of several kinds mixes them: its next token is an average over the kinds. Low-rank
adapters that compete, one :class:`~torchmcl.adapters.AdapterBank` on the frozen model, separate the kinds without
labels. The first part is a mixture of Markov chains, where the best possible loss is known; the second continues texts
that are part of Python, byte by byte.
"""

# %%
# A tiny transformer: one causal attention layer and a perceptron. Any ``torch`` module with linear layers works.

import argparse
import copy
import inspect
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from torch import nn

import torchmcl as mcl
from torchmcl.adapters import AdapterBank, given_cost

torch.manual_seed(0)


class Transformer(nn.Module):
    """Logits [rows, tokens, vocabulary] of the next token."""

    def __init__(self, vocabulary, n_tokens, width=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(n_tokens, width)
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        """Return the logits of each next token."""
        features = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        normal = self.norms[0](features)
        parts = (part(normal).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        features = features + self.mix(attended.transpose(1, 2).flatten(2))
        features = features + self.narrow(nn.functional.relu(self.wide(self.norms[1](features))))
        return self.head(self.norms[2](features))


def nll(logits, ids):
    """Return the mean negative log-likelihood of each row, in nats per token."""
    return nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none").mean(dim=-1)


def pretrained(model, ids, n_steps, rate=3e-3, rows=32):
    """Train all weights on all texts."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(n_steps):
        batch = ids[torch.randint(len(ids), (rows,))]
        loss = nll(model(batch), batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def adapted(base, ids, rule, n_steps, n_hypotheses, rows=32, rate=1e-2):
    """Train adapters under a function step -> rule."""
    layers = ["query", "key", "value", "mix", "wide", "narrow", "head"]
    bank = AdapterBank(copy.deepcopy(base), n_hypotheses, rank=8, targets=layers)
    optimizer = torch.optim.Adam(bank.adapters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for step in range(n_steps):
        batch = ids[torch.randint(len(ids), (rows,))]
        output = mcl.mcl_step(costs(bank), mcl.Batch(batch, batch.unsqueeze(1)), rule(step), cost_fn=given_cost)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        schedule.step()
    return bank


def costs(bank):
    """Return the model of the bank: each hypothesis is the negative log-likelihood of a row under its adapter."""
    return lambda ids: mcl.Predictions(bank.unfold(nll(bank(ids), ids.repeat(bank.n_hypotheses, 1))).unsqueeze(-1))


# %%
# Three Markov chains on eight states. A sequence follows one of them and has no label. The best loss with the
# chain given is the conditional entropy. The best of three adapters should reach it; the pretrained model cannot.

N_STATES, N_TOKENS, N_CHAINS = 8, 24, 3
chains = torch.distributions.Dirichlet(torch.full((N_STATES,), 0.3)).sample((N_CHAINS, N_STATES))


def draw(n_rows):
    """Return sequences and the chain of each."""
    chain = torch.randint(N_CHAINS, (n_rows,))
    ids = [torch.randint(N_STATES, (n_rows,))]
    for _ in range(N_TOKENS - 1):
        ids.append(torch.multinomial(chains[chain, ids[-1]], 1).squeeze(1))
    return torch.stack(ids, dim=1), chain


def entropy():
    """Return the conditional entropy per token given the chain, from the distribution of states at each step."""
    states, total = torch.full((N_CHAINS, N_STATES), 1 / N_STATES), 0.0
    of_state = torch.special.entr(chains).sum(dim=-1)
    for _ in range(N_TOKENS - 1):
        total += (states * of_state).sum(dim=-1).mean() / (N_TOKENS - 1)
        states = torch.einsum("cs,cst->ct", states, chains)
    return float(total)


ids, _ = draw(4000)
fresh, chain = draw(2000)
base = pretrained(Transformer(N_STATES, N_TOKENS), ids, n_steps=100)
bound, n_steps = entropy(), 200
rules = {
    "annealed": mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.5, 0.0, n_steps // 2)),
    "winner takes all": lambda step: mcl.WTA(),
}
with torch.no_grad():
    single = float(nll(base(fresh), fresh).mean())
print(f"entropy {bound:.3f}, pretrained model {single:.3f} ({single / bound - 1:+.1%})")
found = {}
for name, rule in rules.items():
    torch.manual_seed(1)
    bank = adapted(base, ids, rule, n_steps, N_CHAINS, rows=16)
    with torch.no_grad():
        found[name] = costs(bank)(fresh).hypotheses.squeeze(-1)
    best = float(found[name].min(dim=-1).values.mean())
    print(f"{name}: best of {N_CHAINS} {best:.3f} ({best / bound - 1:+.1%} of the bound)")

# %%
# The annealed adapters match the chains: each wins the sequences of one. The weights that LoRA-MCL publishes,
# exp(-cost / T) normalized afterwards, are 0 / 0 once the temperature is far below the losses; those of
# :class:`~torchmcl.AnnealedWTA` stay finite.

cold = torch.exp(-found["annealed"][:3] / 1e-3)
print("normalized afterwards:", (cold / cold.sum(dim=-1, keepdim=True)).tolist())
print("AnnealedWTA:", mcl.AnnealedWTA(1e-3)(found["annealed"][:3].unsqueeze(1)).squeeze(1).tolist())

plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
values = {"pretrained": single} | {name: float(cost.min(dim=-1).values.mean()) for name, cost in found.items()}
axes[0].bar(list(values), list(values.values()), alpha=0.6)
for place, value in enumerate(values.values()):
    axes[0].text(place, 0.05, f"{value:.3f}", ha="center")
axes[0].axhline(bound, color="black", linestyle="--", label="entropy bound")
axes[0].set_ylabel("nats per token, best of three")
axes[0].tick_params(axis="x", labelrotation=15)
axes[0].legend()
winners = found["annealed"].argmin(dim=-1)
table = torch.stack([torch.bincount(winners[chain == c], minlength=N_CHAINS) for c in range(N_CHAINS)])
axes[1].imshow(table.numpy(), cmap="Blues", alpha=0.5)
axes[1].set(xlabel="winning adapter", ylabel="chain", xticks=range(N_CHAINS), yticks=range(N_CHAINS))
for row, column in torch.cartesian_prod(*[torch.arange(N_CHAINS)] * 2).tolist():
    axes[1].text(column, row, int(table[row, column]), ha="center", va="center")
plt.show()

# %%
# Texts that come with Python: its help pages, and the source of a module. Two adapters compete for lines of both,
# byte by byte, and continue the same first bytes differently.

lines = [line for topic in topics.values() for line in topic.splitlines() if line.startswith("   ")]
prose = [line.strip() for line in lines if line.count(" ") > 8 and "(" not in line]
code = [line.strip() for line in inspect.getsource(argparse).splitlines() if any(sign in line for sign in "(=[:")]
N_BYTES = 24


def rows_of(texts, n_rows):
    """Return the first bytes of random lines."""
    long = [text.encode("ascii", "replace")[:N_BYTES] for text in texts if len(text) >= N_BYTES]
    return torch.stack([torch.tensor(list(long[i])) for i in torch.randint(len(long), (n_rows,))])


kinds = torch.stack([rows_of(prose, 1500), rows_of(code, 1500)])  # [2, rows, bytes]
ids = kinds[:, :1200].flatten(0, 1)
base = pretrained(Transformer(128, N_BYTES, width=48), ids, n_steps=150)
rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.3, 0.0, 75))
bank = adapted(base, ids, rule, n_steps=150, n_hypotheses=2)
with torch.no_grad():
    held_out = kinds[:, 1200:].flatten(0, 1)
    cost = costs(bank)(held_out).hypotheses.squeeze(-1)
    single = nll(base(held_out), held_out).mean()
print(f"held-out nats per byte: pretrained {single:.2f}, best of two {cost.min(dim=-1).values.mean():.2f}")
print("lines of prose and code won by each adapter:", cost.argmin(dim=-1).view(2, -1).float().mean(dim=-1).tolist())


@torch.no_grad()
def continued(prompt, n_bytes=20):
    """Return the likeliest continuation of each adapter, generated in one batch."""
    rows = torch.tensor([list(prompt.encode())] * bank.n_hypotheses)
    numbers = torch.arange(bank.n_hypotheses)
    for _ in range(min(n_bytes, N_BYTES - rows.shape[1])):
        rows = torch.cat([rows, bank(rows, numbers=numbers)[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    return [bytes(row.tolist()).decode("ascii", "replace") for row in rows]


for prompt in ("th", "se", "in"):
    print(repr(prompt), continued(prompt))
