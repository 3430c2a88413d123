"""
Several continuations from one language model
=============================================

A language model with a bank of low-rank adapters has one hypothesis for each adapter: the distribution of its next
tokens. Multiple choice learning trains the bank such that every continuation of a prompt is likely under one of the
adapters, without labels that say which (`LoRA-MCL <https://arxiv.org/abs/2507.10419>`_).

The program is complete: a language model in plain PyTorch, the bank, and the likelihood of continuations. To use it
with your own model, replace the first part.
"""

import copy
import functools

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.func import functional_call

import torchmcl as mcl

torch.manual_seed(0)

# %%
# A small language model
# ----------------------
#
# It maps token ids [batch, steps] to the logits of the next tokens, [batch, steps, tokens].


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        """Return the features of each step."""
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        later = torch.ones(x.shape[-2], x.shape[-2]).triu(1).bool()
        attention = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(dim=-1)
        x = x + self.out(attention @ v)
        return x + self.down(self.up(self.norms[1](x)).relu())


class LanguageModel(nn.Module):
    """Transformer with learned places."""

    def __init__(self, n_tokens, n_steps, width=32, n_blocks=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(n_tokens, width), nn.Parameter(0.1 * torch.randn(n_steps, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(n_blocks))
        self.head = nn.Linear(width, n_tokens)

    def forward(self, ids):
        """Return the logits of the next tokens, [batch, steps, tokens]."""
        x = self.tokens(ids) + self.places[: ids.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# %%
# A bank of adapters
# ------------------
#
# An adapter adds a matrix of low rank to the weight of each chosen linear layer. ``functional_call`` evaluates a copy
# of the structure of the model with these weights. The copy belongs to the call, so that threads may share a bank.
# Layers and keys that the bank does not understand are errors.


class AdapterBank(nn.Module):
    """Language model with several low-rank adapters.

    Args:
        model: Language model, which is frozen.
        layers: Names of linear layers with adapters.
        n_adapters: Number of adapters.
        rank: Rank of the matrix that an adapter adds to a weight.
    """

    def __init__(self, model: nn.Module, layers: list[str], n_adapters: int, rank: int = 4) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        modules, owners = dict(model.named_modules()), {}
        for name, weight in model.named_parameters(remove_duplicate=False):
            owners.setdefault(id(weight), []).append(name)
        if not layers:
            raise ValueError("AdapterBank: `layers` must name at least one layer.")
        for name in layers:
            layer = modules.get(name)
            if type(layer) is not nn.Linear:  # subclasses may use their weight in other ways
                got = "no layer" if layer is None else type(layer).__name__
                raise ValueError(f"AdapterBank: `layers` must name linear layers, got {name!r}, which is {got}.")
            if len(shared := owners[id(layer.weight)]) > 1:
                raise ValueError(f"AdapterBank: `layers` must not share their weights, got {shared}.")
        self._structure = [copy.deepcopy(model).to("meta")]  # a list hides it from the state of the bank
        sizes = {name.replace(".", "/"): modules[name].weight.shape for name in layers}
        self.down = nn.ParameterDict({n: torch.randn(n_adapters, rank, i) / i**0.5 for n, (_, i) in sizes.items()})
        self.up = nn.ParameterDict({n: torch.zeros(n_adapters, o, rank) for n, (o, _) in sizes.items()})

    def weights(self) -> dict[str, Tensor]:
        """Return the adapted weights by parameter name, [adapters, outputs, inputs] each."""
        names = {key: key.replace("/", ".") + ".weight" for key in self.up}
        return {name: self.model.get_parameter(name) + self.up[k] @ self.down[k] for k, name in names.items()}

    def forward(self, ids: Tensor) -> mcl.Predictions:
        """Return the logits of the tokens after the first, [batch, adapters, steps - 1, tokens]."""
        model = copy.deepcopy(self._structure[0]).train(self.model.training)
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        logits = torch.vmap(lambda weights: functional_call(model, own | weights, (ids,)))(self.weights())
        return mcl.Predictions(logits.movedim(0, 1)[..., :-1, :])

    def adapters(self) -> dict[str, Tensor]:
        """Return the adapters without the model, to save them."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("model.")}

    def load_adapters(self, saved: dict[str, Tensor]) -> None:
        """Load the result of `adapters`; keys and shapes must be those of this bank."""
        own = self.adapters()
        if saved.keys() != own.keys() or any(saved[name].shape != own[name].shape for name in own):
            got = sorted(saved.keys() ^ own.keys()) or "other shapes"
            raise ValueError(f"AdapterBank: `saved` must have the layers, rank and size of this bank, got {got}.")
        self.load_state_dict(saved, strict=False)  # without the keys of the model

    @torch.no_grad()
    def check(self, ids: Tensor) -> None:
        """Compare the logits of one row with those of the model itself, whose weights are replaced in a copy."""
        row, alone = ids[:1], copy.deepcopy(self.model)
        for k, logits in enumerate(self(row).hypotheses[0]):
            for name, weights in self.weights().items():
                alone.get_parameter(name).copy_(weights[k])
            torch.testing.assert_close(logits, alone(row)[0, :-1], rtol=1e-3, atol=1e-4)


# %%
# The likelihood of continuations
# -------------------------------
#
# The cost of an adapter is the negative log-likelihood of the continuation, given the prompt: the sum over its tokens.
# The logits at a step belong to the next token, so that targets and mask begin at the second token. Rows are a prompt,
# its continuation, and padding on the right, which causal attention never sees; padding on the left would change the
# places of the tokens and is refused.

continuation_nll = functools.partial(mcl.costs.pairwise_token_cross_entropy, reduction="sum")


def continuations(ids: Tensor, is_continuation: Tensor) -> mcl.Batch:
    """Return rows of token ids [batch, steps] as a batch, with the mask of their continuations."""
    begun = is_continuation.cummax(dim=1).values
    if is_continuation[:, 0].any() or not is_continuation.any(dim=1).all():
        raise ValueError("continuations: `is_continuation` must leave a prompt and at least one token in each row.")
    if (begun & ~is_continuation).int().diff(dim=1).lt(0).any():
        raise ValueError("continuations: `is_continuation` must be one run of tokens in each row.")
    return mcl.Batch(ids, ids[:, 1:], is_continuation[:, 1:])


# %%
# Prompts with two languages of continuations
# -------------------------------------------
#
# A prompt is two or three numbers and a colon. The continuation says them in one of two languages, each with its own
# words.

N_NUMBERS, LONGEST = 4, 3
COLON, PADDING, FIRST_WORD = N_NUMBERS, N_NUMBERS + 1, N_NUMBERS + 2


def sample(n_rows: int) -> tuple[mcl.Batch, Tensor]:
    """Return rows of prompts and continuations, and the language of each continuation, 0 or 1."""
    numbers, languages = torch.randint(N_NUMBERS, (n_rows, LONGEST)), torch.randint(2, (n_rows,))
    ids = torch.full((n_rows, 2 * LONGEST + 1), PADDING)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, n in enumerate(torch.randint(2, LONGEST + 1, (n_rows,)).tolist()):
        said = FIRST_WORD + N_NUMBERS * languages[row] + numbers[row, :n]
        ids[row, : 2 * n + 1] = torch.cat([numbers[row, :n], torch.tensor([COLON]), said])
        mask[row, n + 1 : 2 * n + 1] = True
    return continuations(ids, mask), languages


rows, _ = sample(2000)
test_rows, language = sample(500)


# %%
# The language model learns both languages, and cannot know which one comes. The best that it can do is a likelihood of
# one half, a cost of log 2 = 0.69.

model = LanguageModel(n_tokens=FIRST_WORD + 2 * N_NUMBERS, n_steps=2 * LONGEST + 1)


def as_one_hypothesis(ids: Tensor) -> mcl.Predictions:
    """Return the logits of the language model as those of one hypothesis."""
    return mcl.Predictions(model(ids)[:, None, :-1])


def train(network, parameters, n_steps, learning_rate, rule):
    """Train on random rows."""
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    for step in range(n_steps):
        index = torch.randint(2000, (64,))
        batch = mcl.Batch(*(part[index] for part in rows[:3]))
        output = mcl.mcl_step(network, batch, rule(step), cost_fn=continuation_nll)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()


@torch.no_grad()
def costs(network) -> Tensor:
    """Return the cost of the test continuations, [rows, hypotheses]."""
    return mcl.mcl_step(network, test_rows, mcl.WTA(), cost_fn=continuation_nll).matching.cost[:, 0]


train(as_one_hypothesis, model.parameters(), 300, 1e-2, lambda step: mcl.WTA())
print(f"language model: {costs(as_one_hypothesis).mean():.2f} nats per continuation")

# %%
# Training the bank
# -----------------
#
# The adapters begin as copies of the model. Annealing from a temperature of 1 separates them.

layers = [f"blocks.{i}.{name}" for i in range(2) for name in ("qkv", "up")]
bank = AdapterBank(model, layers, n_adapters=2)
bank.check(test_rows.inputs)
cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(1.0, 0.0, 75))
train(bank, [*bank.down.values(), *bank.up.values()], 150, 1e-2, cooling)
bank.check(test_rows.inputs)
bank.load_adapters(bank.adapters())

# %%
# One of the two adapters knows each continuation, in both languages. Which of them speaks which language may depend on
# the prompt: only the cheapest one counts.

alone, cheapest = costs(as_one_hypothesis)[:, 0], costs(bank).amin(dim=-1)
print(f"cheapest of two adapters: {cheapest.mean():.2f} nats per continuation")
assert cheapest.mean() < 0.1 < 0.6 < alone.mean()

figure, axis = plt.subplots(figsize=(5, 2.8))
for k, (label, cost) in enumerate({"language model": alone, "cheapest of two adapters": cheapest}.items()):
    axis.bar([0.4 * k, 1 + 0.4 * k], [cost[language == i].mean().item() for i in range(2)], 0.4, label=label)
axis.set(xticks=[0.2, 1.2], xticklabels=["first language", "second language"], ylabel="nats per continuation")
axis.legend()
figure.tight_layout()
plt.show()
