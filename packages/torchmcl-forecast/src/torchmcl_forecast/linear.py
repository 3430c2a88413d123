"""Linear map of the past: a simple forecast around which the network predicts its paths."""

import torch
from torch import Tensor, nn

from torchmcl_forecast.windows import Layout, Window

__all__ = ["LinearMap", "Ridge"]

# Windows with larger targets, in units of the naive forecast, would dominate the map and are left out.
_UNUSUAL = 8.0
# Candidate strengths of the penalty; the first one is used if there are no windows to compare them.
_STRENGTHS = (1e-1, 1e-3, 1e-2, 1.0)


class LinearMap(nn.Linear):
    """Correction of the best naive forecast, linear in the past changes and shared by all channels.

    Args:
        layout: Layout of the windows.

    Example:
        >>> layout = Layout(horizon=3, context=5, periods=(1,), lags=(), n_channels=2, n_calendar=0)
        >>> LinearMap(layout)(torch.zeros(7, layout.n_inputs)).shape
        torch.Size([7, 2, 3])
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout.n_linear, layout.horizon)
        self.layout = layout

    def past(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the map for each channel, [windows, channels, n_linear]."""
        layout = self.layout
        of_channels = inputs[:, : layout.n_channels * layout.n_of_channel]
        return of_channels.view(-1, layout.n_channels, layout.n_of_channel)[..., : layout.n_linear]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return corrections [windows, channels, horizon] for inputs [windows, n_inputs]."""
        return super().forward(self.past(inputs))


class Ridge:
    """Ridge regression of window targets on window pasts, whose sums are shared by all penalties.

    Args:
        layout: Layout of the windows.
        window: Past windows; windows with missing or unusually large targets are left out.

    Example:
        >>> layout = Layout(horizon=1, context=3, periods=(1,), lags=(), n_channels=1, n_calendar=0)
        >>> inputs = torch.randn(500, layout.n_inputs, generator=torch.Generator().manual_seed(0))
        >>> window = Window(inputs, 2 * inputs[:, None, :1], torch.zeros(500, 1, 1), torch.ones(500, 1, 1))
        >>> Ridge(layout, window).solved(1e-6).weight.detach()[0, :2].abs().round(decimals=2)
        tensor([2., 0.])
    """

    def __init__(self, layout: Layout, window: Window) -> None:
        self._layout = layout
        past = LinearMap(layout).past(window.inputs).flatten(0, 1)
        truth = window.targets.flatten(0, 1)
        usual = (truth.abs() < _UNUSUAL).all(dim=-1)  # NaN compares as False
        past, truth = past[usual].double(), truth[usual].double()
        ones = torch.cat([past, torch.ones_like(past[:, :1])], dim=1)
        self._n_rows, self._square, self._product = len(ones), ones.mT @ ones, ones.mT @ truth

    @torch.no_grad()
    def solved(self, strength: float = 1e-3) -> LinearMap:
        """Compute the linear map.

        Args:
            strength: Strength of the penalty per window; inputs and targets are in units of the naive forecast.
        """
        penalty = (strength * self._n_rows + 1e-6) * torch.eye(len(self._square), dtype=self._square.dtype)
        solution = torch.linalg.solve(self._square + penalty, self._product)
        linear = LinearMap(self._layout)
        linear.weight.copy_(solution[:-1].mT)
        linear.bias.copy_(solution[-1])
        return linear

    @torch.no_grad()
    def best_strength(self, held_out: Window | None) -> float:
        """Return the strength with the smallest mean absolute error on held-out windows; the first one by default."""
        if held_out is None:
            return _STRENGTHS[0]

        def error(strength: float) -> float:
            return float((self.solved(strength)(held_out.inputs) - held_out.targets).abs().nanmean().nan_to_num())

        return min(_STRENGTHS, key=error)
