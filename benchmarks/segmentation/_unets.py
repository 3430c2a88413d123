"""Networks of the segmentation benchmark: a small U-Net, and the probabilistic U-Net of Kohl et al. (2018)."""

import itertools

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

import torchmcl as mcl

WIDTHS = (16, 32, 48, 64)


def _block(n_in: int, n_out: int, dropout: float = 0.0) -> nn.Sequential:
    layers: list[nn.Module] = []
    for first in (n_in, n_out):
        layers += [nn.Conv2d(first, n_out, 3, padding=1, bias=False), nn.GroupNorm(8, n_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Dropout(dropout)) if dropout else nn.Sequential(*layers)


class Encoder(nn.Module):
    """Features [batch, width, side, side] at each scale, the finest first."""

    def __init__(self, n_channels: int, widths: tuple[int, ...] = WIDTHS, dropout: float = 0.0) -> None:
        super().__init__()
        # Dropout in the deep half, as in Bayesian SegNet.
        rates = [dropout if k >= len(widths) // 2 else 0.0 for k in range(len(widths))]
        pairs = zip((n_channels, *widths[:-1]), widths, rates, strict=True)
        self.blocks = nn.ModuleList(_block(*pair) for pair in pairs)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the features."""
        found: list[Tensor] = []
        for block in self.blocks:
            found.append(block(nn.functional.max_pool2d(found[-1], 2) if found else inputs))
        return found


class UNet(nn.Module):
    """A U-Net: features of each pixel, and of the whole window from the coarsest scale."""

    def __init__(self, n_channels: int, widths: tuple[int, ...] = WIDTHS, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = Encoder(n_channels, widths, dropout)
        pairs = list(itertools.pairwise(widths))[::-1]
        rates = [dropout if k < len(pairs) // 2 else 0.0 for k in range(len(pairs))]
        self.blocks = nn.ModuleList(_block(a + b, a, rate) for (a, b), rate in zip(pairs, rates, strict=True))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [batch, widths[0], side, side] and [batch, widths[-1]]."""
        *skips, pixels = self.encoder(inputs)
        whole = pixels.mean(dim=(-2, -1))
        for block, skip in zip(self.blocks, skips[::-1], strict=True):
            pixels = block(torch.cat([skip, nn.functional.interpolate(pixels, scale_factor=2)], dim=1))
        return pixels, whole


class MaskNet(nn.Module):
    """A U-Net with one channel for each hypothesis, and a score for each from the features of the window and click."""

    def __init__(
        self, n_channels: int, n_hypotheses: int, widths: tuple[int, ...] = WIDTHS, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.unet = UNet(n_channels, widths, dropout)
        self.masks = nn.Conv2d(widths[0], n_hypotheses, 1)
        self.scores = nn.Sequential(
            nn.Linear(2 * widths[0] + widths[-1], 64), nn.ReLU(inplace=True), nn.Linear(64, n_hypotheses)
        )

    def forward(self, inputs: Tensor) -> mcl.Predictions:
        """Return logits of masks [batch, hypotheses, side, side], and scores."""
        pixels, whole = self.unet(inputs)
        middle = pixels[..., pixels.shape[-2] // 2, pixels.shape[-1] // 2]
        described = torch.cat([whole, middle, pixels.mean(dim=(-2, -1))], dim=-1)
        return mcl.Predictions(self.masks(pixels).float(), self.scores(described).float())


class Latent(nn.Module):
    """Normal distribution over the latent variables, from a separate encoder."""

    def __init__(self, n_channels: int, n_latents: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder, self.linear = Encoder(n_channels, widths), nn.Linear(widths[-1], 2 * n_latents)

    def forward(self, inputs: Tensor) -> Independent:
        """Return the distribution [batch, latents]."""
        mean, log_scale = self.linear(self.encoder(inputs)[-1].mean(dim=(-2, -1))).float().chunk(2, dim=-1)
        # Checks of the values would wait for the device.
        normal = Normal(mean, log_scale.clamp(-8, 4).exp(), validate_args=False)
        return Independent(normal, 1, validate_args=False)


class ProbabilisticUNet(nn.Module):
    """A U-Net whose last layers read a latent variable: from the posterior in training, from the prior afterwards."""

    def __init__(self, n_channels: int, n_latents: int = 6, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        self.unet = UNet(n_channels, widths)
        self.prior, self.posterior = (Latent(n, n_latents, widths) for n in (n_channels, n_channels + 1))
        self.combine = nn.Sequential(
            nn.Conv2d(widths[0] + n_latents, widths[0], 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(widths[0], widths[0], 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(widths[0], 1, 1),
        )

    def _masks(self, pixels: Tensor, latents: Tensor) -> Tensor:
        spread = latents[..., None, None].expand(*latents.shape, *pixels.shape[-2:])
        return self.combine(torch.cat([pixels, spread.to(pixels.dtype)], dim=1)).float()

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [batch, 1, side, side] of a draw from the posterior, and its divergence from the prior."""
        posterior = self.posterior(torch.cat([inputs, mask.unsqueeze(1) - 0.5], dim=1))
        latents = posterior.rsample()
        return self._masks(self.unet(inputs)[0], latents), kl_divergence(posterior, self.prior(inputs))

    def drawn(self, inputs: Tensor, n_draws: int) -> Tensor:
        """Return the logits [batch, draws, side, side] of draws from the prior, with one pass of the U-Net."""
        pixels, prior = self.unet(inputs)[0], self.prior(inputs)
        return torch.cat([self._masks(pixels, prior.sample()) for _ in range(n_draws)], dim=1)
