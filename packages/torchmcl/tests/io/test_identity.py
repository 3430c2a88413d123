"""What a value is: the same for equal ones, in another process too, and another for all that decides on a training."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torchmcl as mcl
from torchmcl.io.identity import identity_of

SCALE = 2.0


def scaled(cost, factor=1.0, *, shift=0.0):
    return SCALE * factor * cost + shift


def twice_scaled(cost):
    return scaled(scaled(cost))


def times(factor):
    return lambda cost: factor * cost


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, cost):
        return self.factor * cost

    def method(self, cost):
        return self.factor * cost


def network(activation=nn.ReLU, **options):
    return lambda: mcl.MultiHypothesisMLP(2, 2, 3, hidden=(4,), activation=activation, **options)


def weights_shared():
    module = mcl.MultiHypothesisMLP(2, 2, 3, hidden=(4, 4))
    module.trunk[2].bias = module.trunk[0].bias
    return module


def frozen():
    module = network()()
    module.trunk.requires_grad_(False)
    return module


DIFFERENT = {
    "numbers": [1, 1.5, True, None, "1", b"1", 2j, (1,), [1], {1: 1}, {1}, np.float32(3.0)],
    "arrays": [torch.ones(2), torch.zeros(2), torch.ones(2, 1), torch.ones(2).double(), np.ones(3), np.ones((3, 1))],
    "half precision": [torch.ones(2).bfloat16(), torch.ones(2).half(), torch.zeros(2).bfloat16()],
    "lambdas": [lambda x: x, lambda x: x + 1, lambda x: x + 2, lambda x: -x],
    "closures": [times(1), times(2), times(torch.ones(1)), times(times(2))],
    "functions": [scaled, twice_scaled, mcl.pairwise_sq_euclidean, mcl.pairwise_l1, torch.tanh, torch.sigmoid],
    "partials": [functools.partial(scaled, factor=n) for n in (1, 2)] + [functools.partial(scaled, shift=1)],
    "objects": [Scaled(1), Scaled(2), Scaled(1).method, Scaled(2).method],
    "rule": [mcl.WTA(), mcl.AnnealedWTA(1.0), mcl.AnnealedWTA(2.0), mcl.RelaxedWTA(0.1)],
    "modules": [
        network()(),
        network(nn.Tanh)(),
        network(lambda: nn.LeakyReLU(0.1))(),
        network(lambda: nn.LeakyReLU(0.2))(),
        network(detach_scores=True)(),
        network(output_activation=torch.tanh)(),
        network(output_activation=torch.sigmoid)(),
        network(output_activation=lambda x: x.softmax(-1))(),
        network(output_activation=lambda x: x.softmax(1))(),
        mcl.MultiHypothesisMLP(2, 2, 3, hidden=(4, 4)),
        weights_shared(),
        frozen(),
        network()().eval(),
    ],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_have_different_identities(name):
    identities = [identity_of(value) for value in DIFFERENT[name]]
    assert len(set(identities)) == len(identities)


def test_equal_values_have_one_identity():
    makers = [
        lambda: times(3),
        lambda: functools.partial(scaled, factor=2),
        lambda: Scaled(2).method,
        network(output_activation=torch.tanh),
        lambda: {"a": [torch.ones(2), (1, 2)], "b": {3, 4}},
        lambda: mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 5)),
    ]
    for make in makers:
        assert identity_of(make()) == identity_of(make())


def test_a_hook_is_part_of_a_module():
    plain, hooked = network()(), network()()
    hooked.register_forward_hook(lambda *_: None)
    assert identity_of(plain) != identity_of(hooked)


def test_a_global_number_of_a_function_counts(monkeypatch):
    before = identity_of(scaled), identity_of(twice_scaled)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert identity_of(scaled) != before[0]
    assert identity_of(twice_scaled) != before[1]  # through the function that it calls


def test_an_object_that_holds_itself_has_an_identity():
    one = Scaled(1)
    one.factor = [one]
    assert identity_of(one) == identity_of(one)


@pytest.mark.slow
def test_identities_are_those_of_another_process():
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_identity as t;"
        "from torchmcl.io.identity import identity_of;"
        "print([identity_of(v) for name in ('closures', 'functions', 'objects', 'modules') for v in t.DIFFERENT[name]])"
    )
    seeded = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert seeded[0] == seeded[1]
