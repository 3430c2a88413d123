"""Fleets of convolutional, recurrent and attention models against a loop over the models, and the floor of the work.

python -m benchmarks.speed.fleet_models [--device cpu|cuda] [--models 64] [--steps 40]
    [--out results/fleet-models-h200.json]

Each model reads a window of 48 steps with 4 values and has 8 hypotheses of 2 values with scores; a step is one batch of
256 rows with Adam. The loops train one model and are scaled up: with `mcl_step` and torch.optim.Adam, launched from
Python, and as a fleet of one model, which on GPUs is replayed as CUDA graphs. The floor is the larger of two times: the
products of the forward and backward passes, as counted by torch, at the rate of large products, and each row, weight
and moment moved once at the rate of a copy. Times are differences between a longer and a shorter training.
"""

import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import torchmcl as mcl
from benchmarks._common import parser, report
from torchmcl_fleet import Fleet, FleetData

WINDOW, CHANNELS, WIDTH, N_HYPOTHESES, BATCH = 48, 4, 32, 8, 256
RULE = mcl.AnnealedWTA(0.3)


def ceilings(device: str) -> dict[str, float]:
    """Return the operations and bytes per second of large products and copies."""
    n = 8192 if device == "cuda" else 1024
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    numbers = torch.randn((1 << 28) if device == "cuda" else (1 << 24), device=device)
    other = torch.empty_like(numbers)
    products = _shortest(lambda: torch.mm(a, b), device)
    copies = _shortest(lambda: other.copy_(numbers), device)
    return {"flops": 2 * n**3 / products, "bytes": 2 * numbers.numel() * 4 / copies}


def _shortest(work: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(4):
        _wait(device)
        begin = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Forecaster(nn.Module):
    """A trunk that turns windows [rows, steps, channels] into [rows, width], and the head."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, mcl.MultiHypothesisHead(WIDTH, 2, N_HYPOTHESES)

    def forward(self, windows: Tensor) -> mcl.Predictions:
        """Return the predictions."""
        return self.head(self.trunk(windows))


class Recurrent(nn.Module):
    """The last state of a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(CHANNELS, WIDTH, batch_first=True)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the state after the last step."""
        return self.gru(windows)[0][:, -1]


class Mean(nn.Module):
    """The mean over the steps."""

    def forward(self, values: Tensor) -> Tensor:
        """Return [rows, width]."""
        return values.mean(dim=1)


class Channels(nn.Module):
    """The layout of convolutions."""

    def forward(self, windows: Tensor) -> Tensor:
        """Return [rows, channels, steps]."""
        return windows.mT


def convolutional() -> Forecaster:
    """Return two convolutions and a mean over the steps."""
    first, second = (nn.Conv1d(n, WIDTH, 5, padding=2) for n in (CHANNELS, WIDTH))
    return Forecaster(nn.Sequential(Channels(), first, nn.ReLU(), second, nn.ReLU(), Channels(), Mean()))


def recurrent() -> Forecaster:
    """Return a GRU."""
    return Forecaster(Recurrent())


def attention() -> Forecaster:
    """Return two transformer layers with four heads."""
    layers = (nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2))
    return Forecaster(nn.Sequential(nn.Linear(CHANNELS, WIDTH), *layers, Mean()))


KINDS = {"convolutions": convolutional, "GRU": recurrent, "transformer": attention}


def seconds_of_step(train: Callable[[int], object], n_steps: int, device: str) -> float:
    """Return the time of a step, the median of three differences."""

    def seconds(n: int) -> float:
        start = time.perf_counter()
        train(n)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(1)
    return statistics.median(seconds(1 + n_steps) - seconds(1) for _ in range(3)) / n_steps


def fleet(build: Callable[[], nn.Module], n_models: int, rows: tuple[Tensor, Tensor], device: str) -> Callable:
    """Return the training of a fleet for some steps."""
    models = Fleet(build, n_models, rule=RULE, device=device)
    data = FleetData.shared(*rows, n_models)
    return lambda n_steps: models.fit(data, n_steps, batch_size="all", models_at_once=n_models, progress=False)


def loop(build: Callable[[], nn.Module], rows: tuple[Tensor, Tensor], device: str) -> Callable[[int], None]:
    """Return the training of one model for some steps."""
    model, batch = build().to(device), mcl.Batch(*(part.to(device) for part in rows))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(n_steps: int) -> None:
        for _ in range(n_steps):
            optimizer.zero_grad()
            mcl.mcl_step(model, batch, RULE).loss.backward()
            optimizer.step()

    return train


def work_of_step(build: Callable[[], nn.Module], rows: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return the operations of the products of a step of one model, and the bytes of its weights and moments."""
    model = build()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        mcl.mcl_step(model, mcl.Batch(*rows), RULE).loss.backward()
    return counter.get_total_flops(), 4 * 6 * sum(parameter.numel() for parameter in model.parameters())


def rows_of_step() -> tuple[Tensor, Tensor]:
    """Return windows and targets of one batch."""
    return torch.randn(BATCH, WINDOW, CHANNELS), torch.randn(BATCH, 1, 2)


def compared(kind: str, n_models: int, n_steps: int, device: str, limits: dict[str, float]) -> dict[str, object]:
    """Return the times of a step of all models."""
    build = KINDS[kind]
    rows = rows_of_step()
    n_operations, n_bytes = work_of_step(build, rows)
    floor = max(
        n_models * n_operations / limits["flops"],
        (n_models * n_bytes + 4 * sum(part.numel() for part in rows)) / limits["bytes"],
    )
    ours = seconds_of_step(fleet(build, n_models, rows, device), n_steps, device)
    launched = n_models * seconds_of_step(loop(build, rows, device), n_steps, device)
    alone = n_models * seconds_of_step(fleet(build, 1, rows, device), n_steps, device)
    row = {"models": kind, "n_models": n_models, "fleet_ms": 1e3 * ours, "loop_ms": 1e3 * launched}
    return row | {
        "loop_of_fleets_of_one_ms": 1e3 * alone,
        "floor_ms": 1e3 * floor,
        "times_loop": launched / ours,
        "times_loop_of_fleets_of_one": alone / ours,
        "share_of_floor": floor / ours,
    }


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--models", type=int, default=64)
    arguments.add_argument("--steps", type=int, default=40)
    options = arguments.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    limits = ceilings(options.device)
    rows = [{"kind": "ceilings", **limits}]
    for kind in KINDS:
        rows.append(compared(kind, options.models, options.steps, options.device, limits))
        print(rows[-1], flush=True)
    report("fleet_models", options.device, rows, options.out)
