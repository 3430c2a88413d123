"""The network: a linear map of the past plus several paths around it, with scales and scores."""

import torch
from torch import Tensor, nn

from torchmcl.nn import MultiHypothesisHead
from torchmcl.types import Distributions
from torchmcl_forecast.windows import Layout

__all__ = ["PathNetwork"]


class PathNetwork(nn.Module):
    """A network that maps the inputs of windows to distributions over paths.

    Everything is relative to the best naive forecast of the window. A linear map of its changes and of the other naive
    forecasts, the same for all channels, corrects it; a perceptron adds the hypotheses. Paths of all
    channels are one hypothesis, [channels * horizon, 1].

    Args:
        layout: of the windows.
        n_hypotheses: the number of paths.
        hidden: sizes of the hidden layers.
        dropout: share of the hidden units that are dropped in training.

    Example:
        >>> layout = Layout(horizon=3, context=5, periods=(1,), lags=(), n_channels=2, n_calendar=0)
        >>> PathNetwork(layout, n_hypotheses=4, hidden=(8,))(torch.zeros(7, layout.n_inputs)).scale.shape
        torch.Size([7, 4, 6, 1])
    """

    def __init__(self, layout: Layout, n_hypotheses: int, hidden: tuple[int, ...], dropout: float = 0.0) -> None:
        super().__init__()
        self.layout = layout
        layers: list[nn.Module] = []
        width = layout.n_inputs + layout.n_channels * layout.horizon
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(dropout)]
            width = size
        self.linear = nn.Linear(layout.n_linear, layout.horizon)
        self.trunk = nn.Sequential(*layers)
        self.head = MultiHypothesisHead(width, (layout.n_channels * layout.horizon, 1), n_hypotheses, scales=True)

    def past(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the linear map for each channel, [windows, channels, n_linear]."""
        layout = self.layout
        of_channels = inputs[:, : layout.n_channels * layout.n_of_channel]
        return of_channels.view(-1, layout.n_channels, layout.n_of_channel)[..., : layout.n_linear]

    def forward(self, inputs: Tensor) -> Distributions:
        """Return paths [windows, hypotheses, channels * horizon, 1] for inputs [windows, n_inputs]."""
        base = self.linear(self.past(inputs)).flatten(1)
        found: Distributions = self.head(self.trunk(torch.cat([inputs, base.detach()], dim=1)))
        return Distributions(found.hypotheses + base[:, None, :, None], found.score_logits, found.scale)

    @torch.no_grad()
    def fit_linear(self, inputs: Tensor, targets: Tensor, strength: float = 1e-3) -> None:
        """Set the linear map by ridge regression.

        Args:
            inputs: [windows, n_inputs]
            targets: [windows, channels, horizon]; windows with missing values are left out.
            strength: of the penalty, relative to the variance of an input.
        """
        past, truth = self.past(inputs).flatten(0, 1).double(), targets.flatten(0, 1).double()
        usual = (truth.abs() < _UNUSUAL).all(dim=-1)  # NaN compares as False
        past, truth = past[usual], truth[usual]
        ones = torch.cat([past, torch.ones_like(past[:, :1])], dim=1)
        square = ones.mT @ ones + (strength * len(ones) + 1e-6) * torch.eye(ones.shape[1], dtype=ones.dtype)
        solution = torch.linalg.solve(square, ones.mT @ truth)
        self.linear.weight.copy_(solution[:-1].mT)
        self.linear.bias.copy_(solution[-1])


# Windows with targets beyond this, in units of the naive forecast, would dominate the linear map; they are left out.
_UNUSUAL = 8.0
