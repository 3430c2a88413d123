"""Network that predicts several paths with scales and scores around a linear map of the past."""

import torch
from torch import Tensor, nn

from torchmcl import Distributions, MultiHypothesisHead
from torchmcl_forecast.linear import LinearMap
from torchmcl_forecast.windows import Layout

__all__ = ["PathNetwork"]


class PathNetwork(nn.Module):
    """Network that maps the inputs of windows to distributions over paths.

    All paths are relative to the best naive forecast of the window. A linear map of the past changes and of the other
    naive forecasts, shared by all channels, corrects this forecast, and a perceptron adds the hypotheses. The paths of
    all channels form one hypothesis, [channels * horizon, 1].

    Args:
        layout: Layout of the windows.
        n_hypotheses: Number of paths.
        hidden: Sizes of the hidden layers.
        dropout: Probability with which a hidden unit is dropped in training.
        linear: Initial linear map; a random one by default.

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
        deviations: Distributions = self.head(self.trunk(torch.cat([inputs, base.detach()], dim=1)))
        return Distributions(deviations.hypotheses + base[:, None, :, None], deviations.score_logits, deviations.scale)
