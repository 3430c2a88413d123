"""Densities around hypotheses: the mixture of kernels, and bandwidths fitted on held-out targets."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import constraints

from torchmcl.checks import bad_value, check_fraction, check_non_negative, check_tensor
from torchmcl.density.on_line import OnLine
from torchmcl.dispatch import broadcast_shapes, faster

_LOG_TAU = math.log(2 * math.pi)


class KernelMixture(OnLine):
    """A Gaussian kernel around each hypothesis, mixed by the probabilities.

    Args:
        hypotheses: [..., hypotheses, dim]
        probabilities: [..., hypotheses], summing to 1.
        bandwidth: standard deviation of the kernels, > 0: a number, or [..., hypotheses] (or broadcast to it).
        scale: the unit of each coordinate, [dim], or of each kernel in each coordinate, [..., hypotheses, dim]; the
            standard deviation of a kernel there is bandwidth * scale.

    Example:
        >>> density = KernelMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.25, 0.75]), bandwidth=0.1)
        >>> density.mean, density.cdf(torch.tensor([0.0]))
        (tensor([0.5000]), tensor(0.2500))
        >>> density.sample((5,)).shape
        torch.Size([5, 1])
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (as in torch.distributions)
    support = constraints.real_vector
    has_rsample = False

    def __init__(
        self, hypotheses: Tensor, probabilities: Tensor, bandwidth: float | Tensor, scale: Tensor | None = None
    ) -> None:
        owner = type(self).__name__
        check_tensor(owner, "hypotheses", hypotheses)
        check_tensor(owner, "probabilities", probabilities)
        if hypotheses.ndim < 2 or probabilities.shape != hypotheses.shape[:-1]:
            rule = f"have the shape of `hypotheses` {tuple(hypotheses.shape)} without its last axis"
            raise ValueError(bad_value(owner, "probabilities", rule, tuple(probabilities.shape)))
        if not isinstance(bandwidth, Tensor):
            check_non_negative(owner, "bandwidth", bandwidth)
            if bandwidth == 0:
                advice = "At 0 the density is infinite; the points themselves are the hypotheses."
                raise ValueError(bad_value(owner, "bandwidth", "be > 0", repr(bandwidth), advice))
        self.hypotheses = hypotheses
        self.probabilities = probabilities
        self._width = torch.as_tensor(
            bandwidth, dtype=hypotheses.dtype, device=hypotheses.device
        )  # not expanded, so functions of it are computed once
        self.bandwidth = self._width.expand(probabilities.shape)
        self.scale = hypotheses.new_ones(hypotheses.shape[-1]) if scale is None else scale.to(hypotheses)
        self._check_scale()
        super().__init__(probabilities.shape[:-1], hypotheses.shape[-1:], validate_args=False)

    def _check_scale(self) -> None:
        shape = self.hypotheses.shape
        if self.scale.shape in (shape[-1:], shape):
            return
        try:
            fits = self.scale.ndim > 1 and broadcast_shapes(self.scale.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits:
            rule = f"have the shape [{shape[-1]}], or one that broadcasts to that of `hypotheses` {tuple(shape)}"
            raise ValueError(bad_value(type(self).__name__, "scale", rule, tuple(self.scale.shape)))

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.hypotheses.shape[-1]

    @property
    def widths(self) -> Tensor:
        """The standard deviation of each kernel in each coordinate, [..., hypotheses, dim]."""
        return (self.bandwidth.unsqueeze(-1) * self.scale).expand_as(self.hypotheses)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at value [..., dim]."""
        offsets = (value.unsqueeze(-2) - self.hypotheses) / self.scale  # [..., hypotheses, dim]
        squares = offsets.square().sum(dim=-1)
        units = self.scale.log().sum(dim=-1) + self.dim * 0.5 * _LOG_TAU
        kernel = squares * (-0.5 / self._width.square()) - self.dim * self._width.log() - units
        return torch.logsumexp(self.probabilities.log() + kernel, dim=-1)

    @property
    def mean(self) -> Tensor:
        """The mean, [..., dim]."""
        return (self.probabilities.unsqueeze(-1) * self.hypotheses).sum(dim=-2)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, [..., dim]."""
        offsets = self.hypotheses - self.mean.unsqueeze(-2)
        return (self.probabilities.unsqueeze(-1) * (self.widths.square() + offsets.square())).sum(dim=-2)

    def highest_density_level(self, mass: float, n_samples: int = 2000) -> Tensor:
        """Return the log density above which the region has `mass`, [...], estimated by sampling.

        Args:
            mass: in [0, 1].
            n_samples: samples of each distribution; the error of the mass is about 1 / sqrt(n_samples).
        """
        check_fraction(type(self).__name__, "mass", mass)
        logs = self.log_prob(self.sample(torch.Size((n_samples,))))
        return torch.quantile(logs, 1 - mass, dim=0)

    def sample(
        self,
        sample_shape: torch.Size | list[int] | tuple[int, ...] = torch.Size(),  # noqa: B008
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return samples, [sample_shape, ..., dim].

        Args:
            sample_shape: how many, for each distribution of the batch.
            generator: random number generator; torch's global one by default.
        """
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            shares = self.probabilities.reshape(-1, self.probabilities.shape[-1])
            drawn = torch.multinomial(shares, shape.numel(), replacement=True, generator=generator)
            index = drawn.mT.reshape(*shape, *self.batch_shape)
            wide = index[..., None, None].expand(*index.shape, 1, self.dim)
            centres = self.hypotheses.expand(*shape, *self.hypotheses.shape).gather(-2, wide).squeeze(-2)
            widths = self.widths.expand(*shape, *self.hypotheses.shape).gather(-2, wide).squeeze(-2)
            normal = torch.randn(centres.shape, dtype=centres.dtype, device=centres.device, generator=generator)
            return centres + widths * normal

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function at value [..., 1], [...]; in one dimension only.

        Raises:
            ValueError: in more than one dimension.
        """
        self._check_one_dimension("cdf")
        offsets = (value - self.hypotheses.squeeze(-1)) / self.widths.squeeze(-1)
        below = 0.5 + 0.5 * torch.erf(offsets * math.sqrt(0.5))  # several times as fast as ndtr
        return (self.probabilities * below).sum(dim=-1)

    def marginal(self, output: int) -> "KernelMixture":
        """Return the density of one coordinate."""
        columns = slice(output, output + 1) if output != -1 else slice(-1, None)
        return KernelMixture(
            self.hypotheses[..., columns], self.probabilities, self.bandwidth, self.scale[..., columns]
        )

    def expand(self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: Any = None) -> Self:
        """Return the same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape)
        return self._changed(lambda part, n_axes: part.expand(*shape, *part.shape[part.ndim - n_axes :]))

    def flat(self) -> Self:
        """Return the same distributions with a single batch axis."""
        return self._changed(lambda part, n_axes: part.reshape(-1, *part.shape[part.ndim - n_axes :]))

    def rows(self, chosen: slice | Tensor) -> Self:
        """Return the distributions at the given indices of the first batch axis."""
        return self._changed(lambda part, n_axes: part[chosen])

    def _changed(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """Apply `change` to all tensors; its arguments are a tensor and the number of axes after the batch axes."""
        scale = self.scale if self.scale.ndim == 1 else change(self.scale.expand_as(self.hypotheses), 2)
        return type(self)(change(self.hypotheses, 2), change(self.probabilities, 1), change(self.bandwidth, 1), scale)

    def compiled(self) -> Any:
        """Return the kernels of each row for faster functions, or None if those do not apply."""
        if self.dim != 1:
            return None
        parts = (self.hypotheses, self.probabilities, self.widths)
        mixtures = faster("univariate", *(part.reshape(-1, self.probabilities.shape[-1]) for part in parts))
        return None if mixtures is NotImplemented else mixtures


class Bandwidth(NamedTuple):
    """A rule for the bandwidth at each input: sqrt(floor^2 + (spread * deviation)^2).

    The deviation is the standard deviation of the scored hypotheses at that input: where the answers lie far apart
    because the noise is large, kernels should be wide; where they are separate branches, the fitted `spread` is 0 and
    kernels stay narrow.

    Attributes:
        floor: smallest bandwidth, in units of the scale.
        spread: factor on the deviation.
    """

    floor: float
    spread: float = 0.0

    def __call__(self, hypotheses: Tensor, probabilities: Tensor) -> Tensor:
        """Return the bandwidth for hypotheses [..., hypotheses, dim] in units of the scale, [..., 1]."""
        return (self.floor**2 + self.spread**2 * _deviation(hypotheses, probabilities).square()).sqrt()


def fit_bandwidth(
    hypotheses: Tensor, probabilities: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Bandwidth:
    """Return the bandwidth rule of a `KernelMixture` with the highest likelihood of held-out targets.

    Args:
        hypotheses: [rows, hypotheses, dim], of rows that the model was not trained on, in units of the scale.
        probabilities: [rows, hypotheses]
        targets: [rows, dim]
        weights: [rows], how much each row counts.

    Example:
        >>> noise = 0.3 * torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
        >>> round(fit_bandwidth(torch.zeros(1000, 1, 1), torch.ones(1000, 1), noise).floor, 1)
        0.3
    """
    if targets.shape != (len(hypotheses), hypotheses.shape[-1]) or len(targets) == 0:
        rule = f"have one row for each of `hypotheses` {tuple(hypotheses.shape)}, at least one, and its last axis"
        raise ValueError(bad_value("fit_bandwidth", "targets", rule, tuple(targets.shape)))
    weights = torch.ones(len(targets)).to(targets) if weights is None else weights.to(targets)
    hypotheses, probabilities = hypotheses.double(), probabilities.double()
    targets, weights = targets.double(), weights.double()
    deviation = _deviation(hypotheses, probabilities)

    def likelihood(floor: float, spread: float) -> float:
        width = (floor**2 + spread**2 * deviation.square()).sqrt()
        logs = KernelMixture(hypotheses, probabilities, width).log_prob(targets)
        return float((weights * logs).sum())

    # A coarse search over all scales from 1e-4 to 10, then two finer ones around the best.
    floors = [10 ** (power / 2) for power in range(-8, 3)]
    spreads = [0.0, 0.1, 0.3, 1.0]
    best = max((likelihood(floor, spread), floor, spread) for floor in floors for spread in spreads)
    for ratio in (1.5, 1.15):
        _, floor, spread = best
        near = [floor * ratio**i for i in (-2, -1, 0, 1, 2)]
        wide = [spread * ratio**i for i in (-2, -1, 0, 1, 2)] if spread else [0.0, 0.03, 0.05]
        best = max((likelihood(a, b), a, b) for a in near for b in wide)
    return Bandwidth(best[1], best[2])


def _deviation(hypotheses: Tensor, probabilities: Tensor) -> Tensor:
    """Return the root mean squared deviation of the scored hypotheses per coordinate, [..., 1]."""
    weights = probabilities.unsqueeze(-1)
    mean = (weights * hypotheses).sum(dim=-2, keepdim=True)
    variance = (weights * (hypotheses - mean).square()).sum(dim=-2)
    return variance.mean(dim=-1, keepdim=True).sqrt()
