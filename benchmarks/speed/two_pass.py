"""Sixteen hypotheses in two passes: peak memory against one hypothesis, time against the ideal.

python -m benchmarks.speed.two_pass [--device cuda] [--rows 16384] [--width 2048] [--out results/two_pass.json]

The model is a residual decoder with a normal latent. The ideal time covers the unavoidable computations, measured
alone: a forward pass without a graph for each hypothesis, and a forward and backward pass for each hypothesis with a
nonzero weight.
`strict_ratio` leaves the second forward pass out of the ideal. Gradients accumulate from chunk to chunk, so they are in
memory during all but the first; the network is small against its activations, as large batches have it.
"""

import torch
from torch import nn

import torchmcl as mcl
from benchmarks._common import in_turn_milliseconds, parser, peak_extra_megabytes, report
from torchmcl.nn import LatentHypotheses, NormalLatent
from torchmcl.two_pass import TwoPass

K, LATENT, OUT = 16, 16, 16


class Block(nn.Module):
    """A residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the features with a correction."""
        return features + self.inner(features)


def decoder(width: int, depth: int, device: str) -> nn.Module:
    """Return the network."""
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(64 + LATENT, width), *blocks, nn.Linear(width, OUT)).to(device)


def case(name: str, rule: mcl.AssignmentRule, independent_rows: bool, options: object) -> dict[str, object]:
    """Return time and memory under a rule."""
    torch.manual_seed(0)
    network = decoder(options.width, options.depth, options.device)
    batch = mcl.Batch(
        torch.randn(options.rows, 64, device=options.device), torch.randn(options.rows, OUT, device=options.device)
    )
    one = LatentHypotheses(network, 1, NormalLatent(LATENT))
    many = LatentHypotheses(network, K, NormalLatent(LATENT))
    two_pass = TwoPass(many, K, latents=many.draw, independent_rows=independent_rows)

    def step(model: nn.Module) -> None:
        network.zero_grad()
        mcl.mcl_step(model, batch, rule).loss.backward()

    @torch.no_grad()
    def forward() -> None:
        one(batch.inputs)

    with torch.no_grad():
        weights = mcl.mcl_step(many, batch, rule).matching.weights
    n_needed = int((weights > 0).sum()) / options.rows if independent_rows else int((weights > 0).any(0).sum())
    runs = {"two_pass": lambda: step(two_pass), "forward": forward, "one": lambda: step(one)}
    if not options.skip_all_at_once:
        runs["all_at_once"] = lambda: step(many)
    memory = {key: peak_extra_megabytes(run, options.device) for key, run in runs.items()}
    time = in_turn_milliseconds(runs, options.device, rounds=options.rounds)
    ideal = K * time["forward"] + n_needed * time["one"]
    strict = ideal - n_needed * time["forward"]
    return {
        "name": name,
        **{"hypotheses": K, "rows": options.rows, "parameters": sum(p.numel() for p in network.parameters())},
        **{"hypotheses_with_weight": n_needed, "milliseconds": time, "megabytes": memory},
        **{"ideal_milliseconds": ideal, "ratio": time["two_pass"] / ideal, "must_show_ratio": 1.05},
        "strict_ratio": time["two_pass"] / strict,
        **{"memory_ratio": memory["two_pass"] / memory["one"], "must_show_memory_ratio": 1.15},
    }


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=16384)
    arguments.add_argument("--width", type=int, default=2048)
    arguments.add_argument("--depth", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--skip-all-at-once", action="store_true")
    options = arguments.parse_args()
    cases = (
        ("winner-takes-all, pairs with weight", mcl.WTA(), True),
        ("winner-takes-all, whole batches", mcl.WTA(), False),
        ("annealed, all with weight", mcl.AnnealedWTA(1e3), False),
    )
    report("two_pass", options.device, [case(*each, options) for each in cases], options.out)


if __name__ == "__main__":
    main()
