"""Time of `import torchmcl` against `import torch`, in fresh processes taken in turn.

python benchmarks/import_time.py [--out results/import-time.json]
"""

import statistics
import subprocess
import sys

from _common import parser, report

_CODE = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def seconds(module: str) -> float:
    """Return the import time of a module in a fresh process."""
    run = subprocess.run([sys.executable, "-c", _CODE.format(module)], capture_output=True, text=True, check=True)
    return float(run.stdout)


if __name__ == "__main__":
    options = parser(__doc__).parse_args()
    pairs = [(seconds("torchmcl"), seconds("torch")) for _ in range(15)]
    ours, base = (statistics.median(column) for column in zip(*pairs, strict=True))
    row = {"name": "import", "torchmcl_s": ours, "torch_s": base, "ratio": ours / base, "must_show": "ratio <= 1.1"}
    report("import_time", "cpu", [row], options.out)
