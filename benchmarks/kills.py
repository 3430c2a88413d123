"""Kill trainings with SIGKILL at random moments until each has been killed often enough; the ends must be the same.

python benchmarks/kills.py [--kills 50] [--only fleet,lightning,uci,estimator] [--fork] [--small]
    [--out results/kills-cpu.json]

A run is started, killed at a moment that is drawn uniformly over the time an undisturbed run takes, and started again
in the same folder, until it ends; then its records and weights are compared, bit for bit, with those of the run that
nobody disturbed. Each start is a fresh interpreter, or with --fork a child of this one, which saves the imports. The
moment counts from the end of the imports. It ends with code 1 if one bit differs.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import torchmcl as mcl
from _common import parser, report
from torchmcl.annealing import AutoAnnealing
from torchmcl.fleet import Checkpointing, Fleet, FleetData
from torchmcl.persistence import write_checkpoint

_LONGEST = 300.0
_SMALL = "TORCHMCL_KILLS_SMALL"  # handed on to the processes that are killed


def _is_small() -> bool:
    return bool(os.environ.get(_SMALL))


def plain_mlp() -> torch.nn.Module:
    """Return a small model."""
    return mcl.MultiHypothesisMLP(2, 1, 3, hidden=(16,))


def dropout_mlp() -> torch.nn.Module:
    """Return a small model that draws random numbers."""
    return torch.nn.Sequential(torch.nn.Dropout(0.2), plain_mlp())


def fleet(folder: Path) -> None:
    """Train two fleets in chunks, with minibatches, validation and saves every third epoch: with dropout, and plain."""
    generator = torch.Generator().manual_seed(0)
    sets = [(torch.randn(n, 2, generator=generator), torch.randn(n, 1, 1, generator=generator)) for n in (40, 30, 50)]
    n_epochs = 15 if _is_small() else 40
    cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(0.5, 0.9, cutoff=1e-3))
    ends: dict[str, torch.Tensor] = {}
    for name, make, own in (("dropout", dropout_mlp, [0, 1] * 4), ("plain", plain_mlp, [0] * 8)):
        models = Fleet(make, 8, rule=[mcl.WTA(), cooling, AutoAnnealing(), mcl.RelaxedWTA(0.1)] * 2, learning_rate=0.02)
        torch.manual_seed(0)
        history = models.fit(
            FleetData.of_sets(sets, own),
            n_epochs,
            batch_size=20,
            validation=FleetData.of_sets(sets[2:], [0] * 8),
            checkpoint=Checkpointing(folder / "checkpoints" / name, every=3),
            models_at_once=5,
            progress=False,
        )
        parts = {key: part for key, part in history._asdict().items() if isinstance(part, torch.Tensor)}
        ends |= {f"{name}.{key}": part for key, part in (parts | models.state_dict()).items()}
    write_checkpoint(folder / "end.safetensors", "end", state=None, tensors=ends)


def lightning(folder: Path) -> None:
    """Train with Lightning: dropout, a plateau, averaged weights, records, a checkpoint after each epoch."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader

    from torchmcl.lightning import Checkpoints, ExponentialAverage, MCLModule, RecordWriter, RuleLogger

    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(80, 2, generator=generator), torch.randn(80, 1, 1, generator=generator)
    loader = DataLoader(
        [mcl.Batch(x, y, torch.ones(1, dtype=torch.bool)) for x, y in zip(inputs, targets, strict=True)], 8
    )
    torch.manual_seed(0)
    cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.5, 0.0, 8))
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, factor=0.5, patience=0)
    module = MCLModule(dropout_mlp(), cooling, learning_rate=0.05, plateau=plateau)
    checkpoints = Checkpoints(folder / "checkpoints")
    writer = RecordWriter(folder / "records.jsonl")
    trainer = pl.Trainer(
        max_epochs=5 if _is_small() else 8,
        callbacks=[writer, RuleLogger(), ExponentialAverage(0.9), checkpoints],
        accelerator="cpu",
        gradient_clip_val=5,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, loader, ckpt_path=checkpoints.latest())
    write_checkpoint(folder / "end.safetensors", "end", state=None, tensors=module.model.state_dict())


def uci(folder: Path) -> None:
    """Run `torchmcl reproduce uci` on rows of the shape of yacht, with four methods and two protocols."""
    from torchmcl.cli import main

    if not (folder / "data/yacht/data.npz").exists():
        rng = np.random.default_rng(0)
        inputs = rng.normal(size=(308, 6))
        targets = 30 * (np.sin(inputs[:, 0]) * inputs[:, 1] + 0.5 * rng.normal(size=308))
        (folder / "data/yacht").mkdir(parents=True, exist_ok=True)
        partial = folder / f"data/yacht/{os.getpid()}.npz"
        np.savez(partial, data=np.column_stack([inputs, targets]))
        partial.replace(folder / "data/yacht/data.npz")
    protocols = "last" if _is_small() else "last,validation"
    methods = ["--methods", "mcl,amcl-exponential,mc-dropout", "--protocol", protocols]
    size = ["--sets", "yacht", "--folds", "0", "--epochs", "130", "--quiet"]
    assert main(["reproduce", "uci", "--data", str(folder / "data"), "--out", str(folder), *methods, *size]) == 0


def estimator(folder: Path) -> None:
    """Fit a table with `torchmcl fit`, restarts and all."""
    from torchmcl.cli import main

    table = folder / "table.csv"
    if not table.exists():
        rng = np.random.default_rng(0)
        rows = [f"{x:.4f},{'uvw'[i % 3]},{(1 if i % 2 else -1) * x:.4f}" for i, x in enumerate(rng.uniform(size=200))]
        partial = folder / f"{os.getpid()}.csv"
        partial.write_text("\n".join(["a,b,y", *rows]) + "\n")
        partial.replace(table)
    command = ["fit", str(table), "--target", "y", "-o", str(folder / "model"), "--epochs", "60", "--restarts", "2"]
    assert main([*command, "--hidden", "16", "--quiet"]) == 0


def the_end(folder: Path) -> dict[str, object]:
    """Return what must be the same: records but for the seconds, and weights."""
    end: dict[str, object] = {}
    records = folder / "records.jsonl"
    if records.exists():
        rows = [json.loads(line) for line in records.read_text().splitlines()]
        end["records"] = [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
    if (folder / "end.safetensors").exists():
        end["weights"] = (folder / "end.safetensors").read_bytes()
    if (folder / "model").exists():
        from torchmcl.persistence import read_checkpoint

        saved = read_checkpoint(folder / "model/model.safetensors")
        end["weights"] = {name: tensor.numpy().tobytes() for name, tensor in saved.tensors.items()}
        saved.state["regressor"]["fitted"].pop("seconds_")
        end["regressor"] = saved.state["regressor"]
    return end


WORKLOADS: dict[str, Callable[[Path], None]] = {
    "fleet": fleet,
    "lightning": lightning,
    "uci": uci,
    "estimator": estimator,
}


def log_of(folder: Path) -> str:
    """Return the last of what the runs in a folder said."""
    return (folder.parent / f"{folder.name}.log").read_text()[-2000:]


def started(name: str, folder: Path, *, fork: bool) -> "Victim":
    """Return a process that runs a workload, when it has done its imports."""
    folder.mkdir(parents=True, exist_ok=True)
    if fork:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(os.open(folder.parent / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                os.dup2(2, 1)
                run_workload(name, folder)
                code = 0
            finally:
                os._exit(code)
        return Victim(pid)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = (folder.parent / f"{folder.name}.log").open("ab")
    command = [sys.executable, str(Path(__file__).resolve()), "--victim", name, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(log_of(folder))
    return Victim(process.pid, process)


class Victim:
    """A process that may be killed."""

    def __init__(self, pid: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid, self.process = pid, process
        self.code: int | None = None

    def wait(self, seconds: float) -> bool:
        """Return whether it has ended within this time."""
        ends = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                if self.process is not None:
                    self.process.returncode = self.code
                    self.process.stdout.close()
            elif time.monotonic() > ends:
                return False
            else:
                time.sleep(0.002)
        return True

    def kill(self) -> None:
        """End it without a word."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait(_LONGEST)


def run_workload(name: str, folder: Path) -> None:
    """Run a workload to its end, on one core."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    WORKLOADS[name](folder)


def ended(name: str, folder: Path, *, fork: bool) -> float:
    """Run a workload without a kill; return its seconds."""
    victim = started(name, folder, fork=fork)
    begin = time.monotonic()
    if not victim.wait(_LONGEST) or victim.code != 0:
        raise RuntimeError(f"{name} ended with {victim.code}: {log_of(folder)}")
    return time.monotonic() - begin


def killed_often(name: str, place: Path, n_kills: int, moments: random.Random, *, fork: bool) -> dict[str, object]:
    """Kill runs of a workload until there were enough kills; return how their ends compare."""
    seconds = ended(name, place / "undisturbed", fork=fork)
    expected = the_end(place / "undisturbed")
    done = same = writing = runs = 0
    while done < n_kills:
        folder = place / f"run-{runs}"
        runs += 1
        n_before = done
        while True:
            victim = started(name, folder, fork=fork)
            begin = time.monotonic()
            if done >= n_kills or victim.wait(moments.uniform(0.0, seconds)):
                if not victim.wait(_LONGEST) or victim.code != 0:
                    raise RuntimeError(f"{name} ended with {victim.code} after {done} kills: {log_of(folder)}")
                if done == n_before:  # the machine may have been busy before
                    seconds = min(seconds, time.monotonic() - begin)
                break
            victim.kill()
            if victim.code == 0:  # it was quicker
                break
            done += 1
            writing += any(".tmp" in path.name for path in folder.rglob(".*"))
        same += the_end(folder) == expected
    return {
        "name": name,
        "started_by": "fork" if fork else "fresh interpreter",
        "kills": done,
        "runs": runs,
        "same_end": same,
        "killed_while_writing": writing,
        "undisturbed_s": round(seconds, 2),
        "must_show": "same_end = runs",
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--victim"]:
        if sys.argv[2] == "lightning":
            import torchmcl.lightning
        print("ready", flush=True)
        run_workload(sys.argv[2], Path(sys.argv[3]))
        sys.exit()
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=50, help="of each workload (default: %(default)s)")
    arguments.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas (default: all)")
    arguments.add_argument("--fork", action="store_true", help="start children of this process instead of new ones")
    arguments.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    arguments.add_argument("--small", action="store_true", help="shorter trainings, for a test")
    options = arguments.parse_args()
    os.environ[_SMALL] = "1" if options.small else ""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for workload in options.only.split(","):
            if options.fork and workload == "lightning":
                import torchmcl.lightning
            drawn = random.Random(f"{options.seed} {workload}")
            begin = time.monotonic()
            row = killed_often(workload, Path(folder) / workload, options.kills, drawn, fork=options.fork)
            rows.append(row | {"seconds": round(time.monotonic() - begin, 1)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    report("kills", "cpu", rows, options.out)
    sys.exit(any(row["same_end"] != row["runs"] for row in rows))
