"""Models trained per second: a fleet against one model at a time, by hand and with Lightning.

python -m benchmarks.speed.fleet --data FOLDER [--device cpu|cuda] [--epochs 1000] [--models 120]
    [--sweep 1,10] [--out ...]

The task is the UCI study's yacht set: 5 hypotheses with scores, 50 hidden units, Adam, full batches, the six methods
of its tables on the 20 official folds. The baselines train a few models with the very same step and are scaled up.
"""

import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import torchmcl as mcl
from benchmarks._common import parser, report
from torchmcl_fleet import Fleet, FleetData
from torchmcl_studies.data.uci import load_uci
from torchmcl_studies.uci.methods import METHODS

_NAMES = ("mcl", "relaxed-0.1", "relaxed-0.5", "relaxed-annealed", "amcl-exponential", "amcl-linear")


def build() -> mcl.MultiHypothesisMLP:
    """Return the network of the UCI study."""
    return mcl.MultiHypothesisMLP(6, 1, 5, hidden=(50,))


def sets(folder: Path | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the standardised training folds of yacht."""
    folds = load_uci("yacht", folder)
    return [(fold.train_inputs, fold.train_targets) for fold in folds]


def fleet_seconds(folds: list, rules: list, n_models: int, n_epochs: int, device: str) -> float:
    """Return the time of `Fleet.fit` with capture; as for `Trainer.fit`, the models are built beforehand."""
    data = FleetData.of_sets(folds, [i % len(folds) for i in range(n_models)])
    # Neighbors with the same method form a group, as in the study.
    spread = [rules[i * len(rules) // n_models] for i in range(n_models)]
    fleet = Fleet(build, n_models, rule=spread, learning_rate=0.01, device=device)
    start = time.perf_counter()
    fleet.fit(data, n_epochs, batch_size="all", progress=False)
    return time.perf_counter() - start


def plain_seconds(folds: list, rule: object, n_epochs: int, device: str) -> float:
    """Return the time of one model in a plain loop."""
    inputs, targets = (part.to(device) for part in folds[0])
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = time.perf_counter()
    for epoch in range(n_epochs):
        loss = mcl.mcl_step(model, mcl.Batch(inputs, targets), rule(epoch)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def lightning_seconds(folds: list, rule: object, n_epochs: int, device: str) -> float:
    """Return the time of one model with a Lightning Trainer and a DataLoader."""
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = build()

        def training_step(self, batch: list, _: int) -> torch.Tensor:
            return mcl.mcl_step(self.model, mcl.Batch(*batch), rule(self.current_epoch)).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    loader = DataLoader(TensorDataset(*folds[0]), batch_size=1024, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=n_epochs,
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    start = time.perf_counter()
    trainer.fit(Module(), loader)
    return time.perf_counter() - start


def product_peak(device: str) -> float:
    """Return the GFLOP/s of large float32 matrix products."""
    n = 8192 if device == "cuda" else 2048
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    best = float("inf")
    for _ in range(5):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best / 1e9


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--epochs", type=int, default=1000)
    arguments.add_argument("--baseline-epochs", type=int, default=200)
    arguments.add_argument("--models", type=int, default=120)
    arguments.add_argument("--sweep", default="1,10,120,1280")
    options = arguments.parse_args()
    warnings.filterwarnings("ignore")
    folds, device = sets(options.data), options.device
    rules = [METHODS[name].rule(options.epochs) for name in _NAMES]
    annealed = rules[4]
    fleet_seconds(folds, rules, 12, 5, device)  # warm-up
    plain_seconds(folds, annealed, 5, device)
    lightning_seconds(folds, annealed, 5, device)
    share = options.epochs / options.baseline_epochs
    plain = plain_seconds(folds, annealed, options.baseline_epochs, device) * share
    lightning = lightning_seconds(folds, annealed, options.baseline_epochs, device) * share
    peak = product_peak(device)
    # Forward, and twice that backward (the inputs need no gradient): 2 (6 x 50) + 3 x 50 x 10 products of 277 rows.
    gflop_per_model = 2 * 277 * (2 * 6 * 50 + 3 * 50 * 10) * options.epochs / 1e9
    rows = []
    for n_models in sorted({*map(int, options.sweep.split(",")), options.models}):
        seconds = fleet_seconds(folds, rules, n_models, options.epochs, device)
        gflops = n_models * gflop_per_model / seconds
        rows.append(
            {
                "n_models": n_models,
                "seconds": seconds,
                "models_per_second": n_models / seconds,
                "times_lightning": n_models * lightning / seconds,
                "times_plain_loop": n_models * plain / seconds,
                "gflop_per_second": gflops,
                "share_of_product_peak": gflops / peak,
            }
        )
        print(rows[-1])
    rows.append(
        {
            "baseline_plain_seconds_per_model": plain,
            "baseline_lightning_seconds_per_model": lightning,
            "product_peak_gflop_per_second": peak,
            "epochs": options.epochs,
            "must_show": "times_lightning >= 100 (CPU, 120), >= 3000 (H200, 120), >= 10000 (H200, 1280)",
        }
    )
    report("fleet", device, rows, options.out)
