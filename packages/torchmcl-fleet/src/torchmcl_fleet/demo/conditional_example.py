"""Input-dependent answers: the example whose code is shown on the demonstration page."""

import inspect
from typing import Any

import torch

import torchmcl as mcl


def train_fork(n_hypotheses: int) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Train on a fork: y is on the upper or on the lower branch, independent of x."""
    torch.manual_seed(0)
    x = 2 * torch.rand(1000, 1) - 1
    side = torch.where(torch.rand(1000, 1) < 0.5, 1.0, -1.0)
    y = side * (x + 1) / 2 + 0.03 * torch.randn(1000, 1)

    model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=n_hypotheses, hidden=(64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Exponential(1.0, decay=0.98, cutoff=1e-3))
    for epoch in range(500):
        output = mcl.mcl_step(model, mcl.Batch(x, y.unsqueeze(1)), rule(epoch))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    return x, y, model


def conditional_code() -> str:
    """Return the source code of the example."""
    return inspect.getsource(train_fork)


def conditional_records(n_grid: int = 41) -> dict[str, Any]:
    """Train with one answer and with four; return data and answers (value, score) over a grid of inputs."""
    grid = torch.linspace(-1, 1, n_grid).unsqueeze(-1)
    answers: dict[str, Any] = {}
    with torch.random.fork_rng():
        for n in (1, 4):
            x, y, model = train_fork(n)
            with torch.no_grad():
                hypotheses, score_logits = model(grid)
            scored = torch.cat([hypotheses, mcl.normalized_scores(score_logits).unsqueeze(-1)], dim=-1)
            answers[str(n)] = [[[round(v, 4) for v in answer] for answer in row] for row in scored.tolist()]
    pairs = torch.cat([x, y], dim=-1)
    return {
        "code": conditional_code(),
        "points": [[round(v, 4) for v in pair] for pair in pairs.tolist()],
        "grid": [round(v, 4) for v in grid.flatten().tolist()],
        "answers": answers,
    }
