"""A stand-in for atheris, where it cannot be installed: tries inputs of chance and writes libFuzzer's log.

It sees what the real one needs: torchmcl is imported inside of the block that instruments imports, torch is not.
"""

import os
import random
import sys
from contextlib import contextmanager


@contextmanager
def instrument_imports(include):
    before = set(sys.modules)
    assert not any(name.split(".")[0] == "torchmcl" for name in before), "torchmcl came too early"
    assert "fuzz.feed" not in before
    assert "torch" in before
    yield
    global n_instrumented
    n_instrumented = sum(name.split(".")[0] in include for name in set(sys.modules) - before)


def Setup(arguments, one_input):  # noqa: N802
    global run, options
    run, options = one_input, arguments[1:]


def Fuzz():  # noqa: N802
    corpus = next(option for option in options if not option.startswith("-"))
    n_inputs, chance = 20, random.Random(0)
    for number in range(n_inputs):
        run(chance.randbytes(40))
        print(f"#{number + 1}\tNEW    cov: {n_instrumented} ft: 9 corp: {number + 1}/3b exec/s: 7", file=sys.stderr)
    print(
        f"#{n_inputs}\tDONE   cov: {n_instrumented} ft: 9 corp: {len(os.listdir(corpus))}/3b exec/s: 7", file=sys.stderr
    )
    print(f"Done {n_inputs} runs in 2 second(s)", file=sys.stderr, flush=True)
    os._exit(0)
