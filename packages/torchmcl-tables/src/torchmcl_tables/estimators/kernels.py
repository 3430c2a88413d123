"""Normal kernels of the members of a blend, their mixtures, and a compact format of encoded columns."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl import MultiHypothesisMLP
from torchmcl.density import Mixture
from torchmcl_fleet import native, placement
from torchmcl_fleet.native import compiled, line
from torchmcl_tables.estimators.rows import Encoder, filled


class Places(NamedTuple):
    """Encoded columns, in which the bins of a column (1 up to a position, then 0) are stored as this position.

    The bins of a column are a run of inputs. A run with n inputs has n + 1 rows in the table of all runs.

    Attributes:
        dense: Inputs without bins, [rows, inputs].
        lower: Row below the value in the table of all runs, [rows, runs].
        between: Relative distance of the value from this row to the next one in [0, 1], [rows, runs].
    """

    dense: NDArray[np.float32]
    lower: NDArray[np.int32]
    between: NDArray[np.float32]


def places(encoder: Encoder, rows: NDArray[Any]) -> Places:
    """Encode rows in the compact format."""
    dense = encoder.dense(rows)
    columns = filled(rows, encoder.filling).T if encoder.edges else ()
    binned = [(column, edges) for column, edges in zip(columns, encoder.edges, strict=True) if len(edges) > 2]
    n_bins = np.array([len(edges) - 1 for _, edges in binned], dtype=np.int64)
    passed = np.empty((len(rows), len(binned)))  # number of bins below each value, with a fraction of its bin
    for run, (column, edges) in enumerate(binned):
        passed[:, run] = np.interp(column, edges, np.arange(len(edges)))
    lower = np.minimum(passed.astype(np.int32), (n_bins - 1).astype(np.int32))
    starts = np.cumsum(n_bins + 1) - n_bins - 1  # a run has one more row than bins
    return Places(dense, lower + starts.astype(np.int32), (passed - lower).astype(np.float32))


# Number of rows that a network processes at once on a CPU.
_BLOCK = 1024


class Kernels(NamedTuple):
    """Normal kernels of each row.

    Attributes:
        values: Centers of the kernels, [rows, kernels, outputs].
        probabilities: Probability of each kernel, [rows, kernels].
        widths: Standard deviations of the kernels, [rows, kernels, outputs].
    """

    values: Tensor
    probabilities: Tensor
    widths: Tensor

    def density(self) -> Mixture:
        """Convert the kernels to a density."""
        return Mixture(self.values, self.probabilities, self.widths)

    def times(self, weight: float) -> "Kernels":
        """Multiply the probabilities of the kernels by a weight."""
        return self._replace(probabilities=self.probabilities * weight)

    def stretched(self, factor: float) -> "Kernels":
        """Multiply the widths of the kernels by a factor."""
        return self._replace(widths=self.widths * factor)

    def moved(self, scale: Tensor, mean: Tensor) -> "Kernels":
        """Convert the kernels to other units: values are multiplied by a scale, [outputs], and shifted by a mean."""
        return Kernels(self.values * scale + mean, self.probabilities, self.widths * scale)

    def means(self) -> Tensor:
        """Compute the mean of each row, [rows, outputs]."""
        return torch.einsum("rk,rko->ro", self.probabilities, self.values)

    def trimmed(self, fraction: float) -> "Kernels":
        """Remove a fraction of the probability at each end, where the mass of a kernel is concentrated at its value.

        Args:
            fraction: Fraction to remove, below 1/2; the remaining probability is normalized to 1.
        """
        if not torch.compiler.is_compiling() and line.supports(*self):
            return self._replace(probabilities=line.trimmed(self.values.squeeze(-1), self.probabilities, fraction))
        values, order = self.values.squeeze(-1).sort(dim=1)
        weights = self.probabilities.gather(1, order)
        above = weights.cumsum(dim=1)
        whole = above[:, -1:]
        kept = torch.minimum(above, (1 - fraction) * whole) - torch.maximum(above - weights, fraction * whole)
        kept = kept.clamp_min(0)
        widths = self.widths.gather(1, order.unsqueeze(-1))
        return Kernels(values.unsqueeze(-1), kept / kept.sum(dim=1, keepdim=True), widths)

    @classmethod
    def joined(cls, parts: "Sequence[Kernels]") -> "Kernels":
        """Concatenate the kernels of several parts; the probabilities of all parts must sum to 1."""
        return cls(*(torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True)))


class KernelsOfRows(Protocol):
    """Function from rows, [rows, columns], to kernels; if widths are not requested, they may be [rows, 0, outputs]."""

    def __call__(self, X: NDArray[Any], *, widths: bool) -> Kernels:
        """Compute the kernels of the rows."""


@torch.no_grad()
def network_kernels(networks: Iterable[Any], inputs: Tensor, dtype: torch.dtype = torch.float64) -> Kernels:
    """Compute the kernels of all networks, which have equal weights.

    Args:
        networks: Networks with scores and scales.
        inputs: Encoded rows, [rows, inputs].
        dtype: Type of the kernels.
    """
    predictions = [network(inputs) for network in networks]
    scores = [part.score_logits.to(dtype).softmax(dim=-1) / len(predictions) for part in predictions]
    parts = [part.hypotheses for part in predictions], scores, [part.scale for part in predictions]
    return Kernels(*(torch.cat(part, dim=1).to(dtype) for part in parts))


def network_pass(networks: Sequence[MultiHypothesisMLP], encoder: Encoder, device: Any) -> KernelsOfRows:
    """Return a function that computes `network_kernels` from rows, [rows, columns], for blocks of rows of any size.

    Args:
        networks: Networks of the same shape.
        encoder: Encoder of the inputs of the networks.
        device: Device that computes the kernels, which are returned on the CPU.
    """
    at = torch.device(device)
    if at.type == "cpu" and native.available() and _is_plain(networks[0]):
        return _compiled(networks, encoder)
    moved = [copy.deepcopy(network).to(at) for network in networks]

    def block_kernels(block: Tensor) -> Kernels:
        return Kernels(*(part.cpu() for part in network_kernels(moved, block.to(at))))

    def kernels(X: NDArray[Any], *, widths: bool) -> Kernels:
        parts = placement.on_cores(block_kernels, torch.from_numpy(encoder(X)).split(_BLOCK), at)
        return Kernels(*(torch.cat(part) for part in zip(*parts, strict=True)))

    return kernels


def _is_plain(network: MultiHypothesisMLP) -> bool:
    """Return whether the compiled kernel supports a network: ReLU layers, scores, and scales of normal kernels."""
    layers = list(network.trunk)
    inner, activations = layers[::2], layers[1::2]
    kinds = all(type(layer) is nn.Linear for layer in inner) and all(type(layer) is nn.ReLU for layer in activations)
    head = network.head
    is_normal = head.scales is True and head.output_activation is None and len(head.event) == 1
    return kinds and is_normal and bool(head.output_sizes[1]) and len(inner) < compiled.MAX_LAYERS


def _compiled(networks: Sequence[MultiHypothesisMLP], encoder: Encoder) -> KernelsOfRows:
    layers: list[Any] = [[*list(net.trunk)[::2], net.head.linear] for net in networks]
    flat = torch.stack(
        [torch.cat([part.flatten() for layer in network for part in (layer.weight, layer.bias)]) for network in layers]
    ).float()
    sizes = [layers[0][0].in_features, *(layer.out_features for layer in layers[0])]
    head, lengths = networks[0].head, encoder.run_lengths

    def kernels(X: NDArray[Any], *, widths: bool) -> Kernels:
        dense, lower, between = map(torch.from_numpy, places(encoder, X))
        inputs: dict[str, Any] = {"given": dense, "lower": lower, "between": between, "run_lengths": lengths}
        return Kernels(
            *compiled.mixture_kernels(flat, sizes, head.n_hypotheses, head.min_scale, **inputs, widths=widths)
        )

    return kernels


# Input-independent background in standardized units: a normal distribution of the scale of all targets, in case the
# other members learned nothing, and a wide normal distribution, so that outliers have nonzero density.
_BACKGROUND_WIDTHS, _BACKGROUND_PROBABILITIES = (1.0, 4.0), (0.9, 0.1)
#: If the background has a larger weight, the other members have learned little.
MOSTLY_BACKGROUND = 0.3


def mixed(members: Sequence[Kernels], weights: NDArray[np.float64]) -> Kernels:
    """Combine the kernels of all members with their weights."""
    return Kernels.joined([part.times(weight) for part, weight in zip(members, weights, strict=True)])


def informed(members: Sequence[Kernels], weights: NDArray[np.float64]) -> Kernels:
    """Combine the kernels of all members except the background, the last member, unless the others learned little."""
    if weights[-1] >= MOSTLY_BACKGROUND:
        return mixed(members, weights)
    return mixed(members[:-1], weights[:-1] / weights[:-1].sum())


def forest_kernels(values: NDArray[np.float64], spreads: NDArray[np.float64], factor: float, floor: float) -> Kernels:
    """Return a kernel for each tree, with equal probabilities."""
    centers = torch.from_numpy(values).double()
    widths = torch.from_numpy(np.hypot(floor, factor * spreads)).double()
    probabilities = torch.full(widths.shape, 1 / widths.shape[1], dtype=torch.float64)
    return Kernels(centers, probabilities, widths.unsqueeze(-1).expand_as(centers))


def background(like: Kernels) -> Kernels:
    """Return the kernels of the background, which are the same for each row, around the mean of all targets."""
    n_rows, _, n_outputs = like.values.shape
    widths = torch.tensor(_BACKGROUND_WIDTHS, dtype=torch.float64)[:, None].expand(n_rows, -1, n_outputs)
    probabilities = torch.tensor(_BACKGROUND_PROBABILITIES, dtype=torch.float64).expand(n_rows, -1)
    return Kernels(torch.zeros_like(widths), probabilities, widths)
