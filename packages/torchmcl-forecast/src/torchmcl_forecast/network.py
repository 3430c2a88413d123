"""The network: a linear map of the past plus several paths around it, with scales and scores."""

import torch
from torch import Tensor, nn

from torchmcl import Distributions, MultiHypothesisHead
from torchmcl_forecast.linear import LinearMap
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
        linear: the initial linear map; a random one by default.

    Example:
        >>> layout = Layout(horizon=3, context=5, periods=(1,), lags=(), n_channels=2, n_calendar=0)
        >>> PathNetwork(layout, n_hypotheses=4, hidden=(8,))(torch.zeros(7, layout.n_inputs)).scale.shape
        torch.Size([7, 4, 6, 1])
    """

    def __init__(
        self,
        layout: Layout,
        n_hypotheses: int,
        hidden: tuple[int, ...],
        dropout: float = 0.0,
        linear: LinearMap | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout
        layers: list[nn.Module] = []
        width = layout.n_inputs + layout.n_channels * layout.horizon
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(dropout)]
            width = size
        self.linear = LinearMap(layout) if linear is None else linear
        self.trunk = nn.Sequential(*layers)
        self.head = MultiHypothesisHead(width, (layout.n_channels * layout.horizon, 1), n_hypotheses, scales=True)

    def forward(self, inputs: Tensor) -> Distributions:
        """Return paths [windows, hypotheses, channels * horizon, 1] for inputs [windows, n_inputs]."""
        base = self.linear(inputs).flatten(1)
        found: Distributions = self.head(self.trunk(torch.cat([inputs, base.detach()], dim=1)))
        return Distributions(found.hypotheses + base[:, None, :, None], found.score_logits, found.scale)
