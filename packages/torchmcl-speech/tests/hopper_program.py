"""Compile a recurrence for Hopper on any machine, and print what it needs as JSON.

python hopper_program.py forward
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from torchmcl_speech.kernels import lstm_hopper

MATRICES = ("gates", "to_gates", "weight", "outputs", "cells", "grad")
OTHERS = {"states": "*fp32", "flags": "*i32"}


def compiled(name):
    """Return a kernel compiled with the options it is launched with."""
    kernel = getattr(lstm_hopper, f"_{name}")
    options = dict(getattr(lstm_hopper, f"_{name.upper()}"))
    if name == "forward":
        options["KEEP"] = True
    n_warps = options.pop("num_warps")
    names = kernel.arg_names
    kinds = {key: "*bf16" for key in MATRICES} | OTHERS | {key: "constexpr" for key in options}
    kinds = {key: kinds.get(key, "i32") for key in names}
    aligned = {(names.index(key),): [["tt.divisibility", 16]] for key in (*MATRICES, *OTHERS) if key in names}
    source = GluonASTSource(kernel, kinds, options, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": n_warps})


def stack_bytes(binary):
    """Return the local memory of a thread: more than 0 where registers were spilled."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage).group(1))


if __name__ == "__main__":
    code = compiled(sys.argv[1]).asm
    products = code["ptx"].count("wgmma.mma_async")
    print(json.dumps({"products": products, "stack_bytes": stack_bytes(code["cubin"])}))
