"""Predictive distribution of trained networks: hypotheses with probabilities, and the density around them."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl import MultiHypothesisHead, Predictions, normalized_scores
from torchmcl.density import Bandwidth, Mixture, best_points, fit_bandwidth
from torchmcl.errors import bad_value
from torchmcl_fleet import placement
from torchmcl_tables.estimators.results import Hypotheses
from torchmcl_tables.estimators.rows import Encoder, Rows, check_numbers
from torchmcl_tables.estimators.tables import Targets

# Number of rows that suffice to fit the two parameters of a bandwidth, or to compare densities.
_BANDWIDTH_ROWS = 4096
_ROWS_AT_ONCE = 65_536
# Minimum and maximum number of rows in a block on a CPU: in smaller blocks, reading the weights dominates the time, and
# larger blocks do not fit in the cache.
_FEWEST_ROWS, _ROWS_IN_CACHE = 64, 1024

_Joined = TypeVar("_Joined")


@dataclass(frozen=True)
class Predictive:
    """Map from rows of a table to hypotheses and densities.

    A single network returns its own hypotheses. The hypotheses of several networks are reduced to the points that best
    represent the mixture of kernels around all of them.

    Attributes:
        modules: Networks on encoded columns and standardized targets.
        encoder: Encoder of the columns.
        targets: Names, units and bounds of the targets.
        bandwidth: Bandwidth of the kernels around all hypotheses, in standardized units.
        device: Device that computes the predictions.
    """

    modules: list[nn.Module]
    encoder: Encoder
    targets: Targets
    bandwidth: Bandwidth
    device: str | torch.device

    def __post_init__(self) -> None:
        """Check the values, because a file may come from an untrusted source."""
        check_numbers("the parameters of a bandwidth", self.bandwidth)

    @classmethod
    def fit(
        cls,
        modules: list[nn.Module],
        encoder: Encoder,
        targets: Targets,
        rows: Rows,
        device: str | torch.device,
    ) -> "Predictive":
        """Fit the bandwidth by maximum likelihood to rows, preferably held-out rows."""
        rows = rows.head(_BANDWIDTH_ROWS)
        hypotheses = network_hypotheses(modules, encoder(rows.inputs.astype(np.float64), np.float64), device)
        bandwidth = fit_bandwidth(*hypotheses, targets.standardized(rows.targets), torch.from_numpy(rows.weights))
        return cls(modules, encoder, targets, bandwidth, device)

    @property
    def n_answers(self) -> int:
        """Number of hypotheses per row."""
        head: MultiHypothesisHead = self.modules[0].head  # type: ignore[assignment]
        return head.n_hypotheses

    def _hypotheses(self, X: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Compute the standardized hypotheses of all networks and their probabilities."""
        return network_hypotheses(self.modules, self.encoder(X, X.dtype), self.device)

    def _reduced(self, X: NDArray[Any], n_points: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute standardized hypotheses, [rows, hypotheses, outputs], with probabilities and standard deviations."""
        values, probabilities = self._hypotheses(X)
        widths = self.bandwidth(values, probabilities)
        if len(self.modules) == 1:
            if n_points not in (None, self.n_answers):
                rule, advice = f"be {self.n_answers}", "A single network has a fixed number of hypotheses."
                raise ValueError(bad_value(self.targets.owner, "n_hypotheses", rule, n_points, advice))
            return values, probabilities, widths
        points, masses, deviations = best_points(Mixture(values, probabilities, widths), n_points or self.n_answers)
        return self.targets.bounded(points), masses, deviations.unsqueeze(-1)

    def means(self, X: NDArray[Any]) -> Tensor:
        """Compute the standardized mean of each row, [rows, outputs]."""
        values, probabilities = self._hypotheses(X)
        return (probabilities.unsqueeze(-1) * values).sum(dim=1)

    def mean(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Compute the mean of each row in the units of y, [rows, outputs]."""
        return self.targets.restored(self.means(X).numpy())

    def hypotheses(self, X: NDArray[Any], n_hypotheses: int | None = None) -> Hypotheses:
        """Compute hypotheses in the units of y."""
        values, probabilities, _ = self._reduced(X, n_hypotheses)
        return Hypotheses(self.targets.restored(values.numpy()), probabilities.numpy())

    def standardized(self, X: NDArray[Any]) -> Mixture:
        """Compute the density of each row in standardized units."""
        return Mixture(*self._reduced(X))

    def standardized_with_means(self, X: NDArray[Any]) -> tuple[Mixture, Tensor]:
        """Compute the density of each row and its mean, [rows, outputs], in standardized units."""
        return self.standardized(X), self.means(X)

    def surprise(self, rows: Rows) -> float:
        """Compute the mean negative log density of rows, in standardized units."""
        rows = rows.head(_BANDWIDTH_ROWS)
        logs = self.standardized(rows.inputs.astype(np.float64)).log_prob(self.targets.standardized(rows.targets))
        return -float(np.average(logs.numpy(), weights=rows.weights))

    def density(self, X: NDArray[Any]) -> Mixture:
        """Compute the density of each row in the units of y."""
        density = self.standardized(X)
        scale, mean = (torch.from_numpy(part) for part in (self.targets.scaler.scale, self.targets.scaler.mean))
        return Mixture(density.hypotheses * scale + mean, density.probabilities, density.widths * scale)

    def sample(self, X: NDArray[Any], n_samples: int, generator: torch.Generator) -> NDArray[np.float64]:
        """Draw samples in the units of y, clipped to the bounds, [rows, samples, outputs]."""
        return np.clip(self.density(X).sample((n_samples,), generator).movedim(0, 1).numpy(), *self.targets.bounds)


def outputs_of(
    modules: Sequence[nn.Module],
    inputs: Tensor,
    device: str | torch.device,
    joined: Callable[[list[tuple[Tensor, Tensor]]], _Joined],
) -> list[_Joined]:
    """Apply `joined` to the hypotheses and score logits of all modules, block by block, and return the results.

    The networks compute in the dtype of the inputs. The arguments of `joined` are float64 tensors on the CPU, so that
    hypotheses far from zero are not rounded to the coarse grid of float32. Blocks balance the load: a core that is
    shared with other programs processes fewer blocks.
    """
    at = torch.device(device)
    movable = [copy.deepcopy(module).to(at, inputs.dtype) for module in modules]  # other threads may be predicting

    @torch.no_grad()
    def outputs(block: Tensor) -> _Joined:
        predictions: list[Predictions] = [module(block.to(at)) for module in movable]
        return joined(
            [
                (prediction.hypotheses.cpu().double(), prediction.score_logits.cpu().double())
                for prediction in predictions
                if prediction.score_logits is not None
            ]
        )

    size = _ROWS_AT_ONCE
    if at.type == "cpu":  # several blocks for each thread
        size = min(max(-(-len(inputs) // (4 * torch.get_num_threads())), _FEWEST_ROWS), _ROWS_IN_CACHE)
    return placement.on_cores(outputs, inputs.split(size), at)


def network_hypotheses(
    modules: Sequence[nn.Module], inputs: NDArray[Any], device: str | torch.device
) -> tuple[Tensor, Tensor]:
    """Compute the hypotheses, [rows, hypotheses, dim], and probabilities, [rows, hypotheses], of all modules.

    All modules have equal weights.
    """

    def joined(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        values, logits = zip(*pairs, strict=True)
        return torch.cat(values, dim=1), torch.cat([normalized_scores(part) for part in logits], dim=1) / len(pairs)

    values, probabilities = zip(*outputs_of(modules, torch.from_numpy(inputs), device, joined), strict=True)
    return torch.cat(values), torch.cat(probabilities)
