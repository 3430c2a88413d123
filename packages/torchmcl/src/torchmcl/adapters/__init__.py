"""Low-rank adapters as hypotheses, and language models with several continuations."""

from torchmcl.adapters.bank import AdapterBank
from torchmcl.adapters.files import load_adapters, load_peft, save_adapters, save_peft
from torchmcl.adapters.language import Continuations, given_cost, token_nll

__all__ = [
    "AdapterBank",
    "Continuations",
    "given_cost",
    "load_adapters",
    "load_peft",
    "save_adapters",
    "save_peft",
    "token_nll",
]
