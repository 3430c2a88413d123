"""Project files that a public call visits.

python -m benchmarks.speed.walks [--files] [--only CALL] [--out FILE]

A profile hook notes the file of every Python function of the packages that is called. For each call the record has the
number of distinct files and of changes from one file to another, up to the first training epoch and for the whole call.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch

import torchmcl as mcl
import torchmcl_fleet
from torchmcl.app import main as command
from torchmcl_fleet import Fleet, FleetData
from torchmcl_forecast import Forecaster
from torchmcl_tables import MCLRegressor

_PACKAGES = Path(torchmcl_fleet.__file__).resolve().parents[3]
# Functions with which training begins: epochs of a fleet, and the steps of a forecaster.
_TRAINING = {"_run_epochs", "mcl_step"}


class Walk:
    """Files of the project in the order in which their functions are called.

    Attributes:
        files: One entry for every call of a function.
        n_before: Number of entries before training began; None if there was no training.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.n_before: int | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; a hook of `sys.setprofile`."""
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(_PACKAGES):
            return
        if self.n_before is None and frame.f_code.co_name in _TRAINING:
            self.n_before = len(self.files)
        self.files.append(str(path.relative_to(_PACKAGES)))

    def record(self) -> dict[str, Any]:
        """Return the number of files and of changes, before training and in all."""
        before = self.files if self.n_before is None else self.files[: self.n_before]
        return {
            "files_before_training": len(set(before)),
            "changes_before_training": _n_changes(before),
            "files": len(set(self.files)),
            "changes": _n_changes(self.files),
        }


def _n_changes(files: list[str]) -> int:
    return sum(left != right for left, right in pairwise(files))


@contextmanager
def _walked() -> Iterator[Walk]:
    walk = Walk()
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def _step() -> Callable[[], object]:
    hypotheses, rule = torch.randn(64, 5, 1, requires_grad=True), mcl.WTA()
    predictions = mcl.Predictions(hypotheses, torch.randn(64, 5, requires_grad=True))
    batch = mcl.Batch(torch.randn(64, 4), torch.randn(64, 2, 1), torch.ones(64, 2, dtype=torch.bool))
    return lambda: mcl.mcl_step(lambda _: predictions, batch, rule).loss.backward()


def _fleet() -> Callable[[], object]:
    data = FleetData.shared(torch.randn(200, 4), torch.randn(200, 1, 1), n_models=4)
    fleet = Fleet(lambda: mcl.MultiHypothesisMLP(4, 1, 5, hidden=(16,)), n_models=4)
    return lambda: fleet.fit(data, n_epochs=3, progress=False)


def _regressor() -> Callable[[], object]:
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(300, 4)), generator.normal(size=300)
    return lambda: MCLRegressor(n_epochs=3, random_state=0).fit(inputs, targets)


def _table() -> Callable[[], object]:
    folder = Path(tempfile.mkdtemp())
    generator = np.random.default_rng(0)
    columns = {name: generator.normal(size=300) for name in ("a", "b", "target")}
    pd.DataFrame(columns).to_csv(folder / "table.csv", index=False)
    words = ["fit", str(folder / "table.csv"), "--target", "target", "--out", str(folder / "model"), "--quiet"]
    return lambda: command(words)


def _forecaster() -> Callable[[], object]:
    days = pd.date_range("2024-01-01", periods=200, freq="D")
    frame = pd.DataFrame({"ds": days, "y": np.sin(np.arange(200) / 7)})
    return lambda: Forecaster(n_futures=3, n_members=1, n_steps=20).fit(frame, horizon=7)


_CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "mcl_step": _step,
    "Fleet.fit": _fleet,
    "MCLRegressor.fit": _regressor,
    "torchmcl fit": _table,
    "Forecaster.fit": _forecaster,
}


def main() -> None:
    """Walk through every call twice, the first time to import and build what is needed once, and print the counts."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--files", action="store_true", help="list the files, in the order of their first call")
    arguments.add_argument("--only", choices=_CALLS, help="walk through this call only")
    arguments.add_argument("--out", type=Path, help="write the record to this JSON file")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    records: dict[str, Any] = {}
    for name in [options.only] if options.only else _CALLS:
        _CALLS[name]()()
        call = _CALLS[name]()
        with _walked() as walk:
            call()
        records[name] = walk.record()
        if options.files:
            before = walk.files[: walk.n_before]
            records[name]["names"] = {"before": list(dict.fromkeys(before)), "all": list(dict.fromkeys(walk.files))}
    text = json.dumps(records, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
