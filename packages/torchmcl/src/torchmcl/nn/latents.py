"""Sampled hypotheses: networks with a latent input that return one hypothesis per latent vector."""

from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.checks import check_positive_int
from torchmcl.errors import bad_value
from torchmcl.types import Distributions, Predictions

__all__ = ["ConcatLatent", "EmbeddedLatent", "LatentHypotheses", "NormalLatent"]


class NormalLatent(nn.Module):
    """Standard normal latents, sampled in each call, for any number of hypotheses.

    Args:
        size: Size of one latent vector.

    Example:
        >>> NormalLatent(8).draw(2, 5).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        check_positive_int("NormalLatent", "size", size)
        self.size = size

    def draw(self, n_rows: int, n_hypotheses: int, device: torch.device | None = None) -> Tensor:
        """Sample latents, [rows, hypotheses, size]."""
        return torch.randn(n_rows, n_hypotheses, self.size, device=device)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the latents unchanged."""
        return latents


class EmbeddedLatent(nn.Module):
    """Learned latent vector of each hypothesis.

    Args:
        n_hypotheses: Number of vectors, and largest number of hypotheses.
        size: Size of one vector.

    Example:
        >>> latent = EmbeddedLatent(n_hypotheses=5, size=8)
        >>> latent(latent.draw(2, 5)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, n_hypotheses: int, size: int) -> None:
        super().__init__()
        check_positive_int("EmbeddedLatent", "n_hypotheses", n_hypotheses)
        check_positive_int("EmbeddedLatent", "size", size)
        self.size, self.n_hypotheses = size, n_hypotheses
        self.embedding = nn.Embedding(n_hypotheses, size)

    def draw(self, n_rows: int, n_hypotheses: int, device: torch.device | None = None) -> Tensor:
        """Return the indices of the hypotheses, [rows, hypotheses]."""
        if n_hypotheses > self.n_hypotheses:
            rule = f"be at most the number of embeddings {self.n_hypotheses}"
            advice = "NormalLatent supports any number."
            raise ValueError(bad_value("EmbeddedLatent", "n_hypotheses", rule, n_hypotheses, advice))
        return torch.arange(n_hypotheses, device=device).expand(n_rows, n_hypotheses)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the embeddings of hypothesis indices, [..., size]."""
        vectors: Tensor = self.embedding(latents)
        return vectors


class ConcatLatent(nn.Module):
    """Concatenation of latents to the last axis of the inputs; the network has `size` more input features.

    Example:
        >>> ConcatLatent()(nn.Linear(3 + 2, 1), torch.randn(6, 3), torch.randn(6, 2)).shape
        torch.Size([6, 1])
    """

    def forward(self, network: nn.Module, inputs: Tensor, codes: Tensor) -> Any:
        """Return the output of the network for inputs [rows, ..., features] and latents [rows, size]."""
        codes = codes.view(codes.shape[0], *[1] * (inputs.ndim - 2), -1).expand(*inputs.shape[:-1], -1)
        return network(torch.cat([inputs, codes.to(inputs.dtype)], dim=-1))


class LatentHypotheses(nn.Module):
    """Model with several hypotheses from a network with a single output and a latent input.

    Training samples `n_hypotheses` latents, and inference any number: `model(inputs, n_hypotheses=200)`.
    `torchmcl.postprocess.reduce` then reduces them to a few. For large networks, `TwoPass(model, 16,
    latents=model.draw)` trains one hypothesis after the other.

    Args:
        network: Network that returns one hypothesis, as a tensor [rows, ...] or as `Predictions`.
        n_hypotheses: Number of hypotheses in training.
        latent: Source of the latents: `NormalLatent(size)` for noise, `EmbeddedLatent(n_hypotheses, size)` for one
            vector per hypothesis.
        injection: Module that is called with the network, the inputs and the latents; `ConcatLatent()` by default.

    Example:
        >>> network = nn.Sequential(nn.Linear(2 + 8, 32), nn.ReLU(), nn.Linear(32, 1))
        >>> model = LatentHypotheses(network, n_hypotheses=5, latent=NormalLatent(8))
        >>> model(torch.randn(4, 2)).hypotheses.shape, model(torch.randn(4, 2), n_hypotheses=100).hypotheses.shape
        (torch.Size([4, 5, 1]), torch.Size([4, 100, 1]))
    """

    def __init__(
        self,
        network: nn.Module,
        n_hypotheses: int,
        latent: NormalLatent | EmbeddedLatent,
        injection: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("LatentHypotheses", "n_hypotheses", n_hypotheses)
        self.network, self.n_hypotheses, self.latent = network, n_hypotheses, latent
        self.injection = ConcatLatent() if injection is None else injection

    def draw(self, n_rows: int, n_hypotheses: int | None = None, device: torch.device | None = None) -> Tensor:
        """Sample latents, [rows, hypotheses, ...]."""
        return self.latent.draw(n_rows, n_hypotheses or self.n_hypotheses, device)

    def forward(
        self, inputs: Tensor, latents: Tensor | None = None, *, n_hypotheses: int | None = None
    ) -> Predictions | Distributions:
        """Return the predictions for inputs [batch, ...].

        Args:
            inputs: Inputs of the network, without latents.
            latents: Latents, [batch, hypotheses, ...]; drawn by default.
            n_hypotheses: Number of latents to draw; by default the number in training.
        """
        if latents is None:
            latents = self.draw(inputs.shape[0], n_hypotheses, inputs.device)
        batch, n_latents = latents.shape[:2]  # not `len`, which an export would take for a constant
        repeated = inputs.unsqueeze(1).expand(-1, n_latents, *inputs.shape[1:]).flatten(0, 1)
        output = self.injection(self.network, repeated, self.latent(latents).flatten(0, 1))
        if isinstance(output, Tensor):
            return Predictions(output.unflatten(0, (batch, n_latents)))
        if not isinstance(output, Predictions | Distributions) or output.hypotheses.shape[1] != 1:
            rule = "return a tensor, or Predictions of one hypothesis"
            raise TypeError(bad_value("LatentHypotheses", "network", rule, type(output).__name__))
        fields = {name: value for name, value in output._asdict().items() if value is not None}
        return output._replace(
            **{name: value.squeeze(1).unflatten(0, (batch, n_latents)) for name, value in fields.items()}
        )
