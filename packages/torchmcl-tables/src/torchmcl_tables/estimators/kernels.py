"""Members of a blend as kernels, their mixtures, and a compact format of encoded columns."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl import MultiHypothesisMLP
from torchmcl.density import Mixture
from torchmcl_fleet import native, placement
from torchmcl_fleet.native import compiled, line
from torchmcl_tables.estimators.preprocessing import Encoder, MissingIndicators, PiecewiseLinear, filled


class Places(NamedTuple):
    """Encoded columns, with the bins of each column (1 up to a position, then 0) stored as that position.

    Attributes:
        dense: [rows, inputs], the inputs without bins.
        lower: [rows, runs], the row below the value in the table of all runs (a run has one row more than inputs).
        between: [rows, runs], the relative distance of the value to the next row, in [0, 1].
    """

    dense: NDArray[np.float32]
    lower: NDArray[np.int32]
    between: NDArray[np.float32]


def run_lengths(encoder: Encoder) -> tuple[int, ...]:
    """Return the number of bins of each binned column."""
    inner = encoder.encoder if isinstance(encoder, MissingIndicators) else encoder
    if not isinstance(inner, PiecewiseLinear):
        return ()
    return tuple(len(edges) - 1 for edges in inner.edges if len(edges) > 2)


def dense_inputs(encoder: Encoder, rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return the encoded rows without the piecewise linear encodings of the bins."""
    if isinstance(encoder, MissingIndicators):
        inner = dense_inputs(encoder.encoder, filled(rows, encoder.means))
        return np.concatenate([encoder.indicators(rows, np.float32), inner], axis=1)
    scaler = encoder.scaler if isinstance(encoder, PiecewiseLinear) else encoder
    return np.asarray(scaler(rows), dtype=np.float32)


def places(encoder: Encoder, rows: NDArray[Any]) -> Places:
    """Return rows in the compact format."""
    dense = dense_inputs(encoder, rows)
    if isinstance(encoder, MissingIndicators):
        rows, encoder = filled(rows, encoder.means), encoder.encoder
    if not isinstance(encoder, PiecewiseLinear):
        return Places(dense, np.zeros((len(rows), 0), dtype=np.int32), np.zeros((len(rows), 0), dtype=np.float32))
    rows = filled(rows, encoder.scaler.mean)
    binned = [(column, edges) for column, edges in zip(rows.T, encoder.edges, strict=True) if len(edges) > 2]
    n_bins = np.array([len(edges) - 1 for _, edges in binned], dtype=np.int64)
    passed = np.empty((len(rows), len(binned)))  # bins below each value, and a part of its own
    for run, (column, edges) in enumerate(binned):
        passed[:, run] = np.interp(column, edges, np.arange(len(edges)))
    lower = np.minimum(passed.astype(np.int32), (n_bins - 1).astype(np.int32))
    starts = np.cumsum(n_bins + 1) - n_bins - 1  # a run has a row more than bins
    return Places(dense, lower + starts.astype(np.int32), (passed - lower).astype(np.float32))


_BLOCK = 1024


class Kernels(NamedTuple):
    """Normal kernels for each row: values and widths [rows, kernels, outputs], probabilities [rows, kernels]."""

    values: Tensor
    probabilities: Tensor
    widths: Tensor

    def density(self) -> Mixture:
        """Return the kernels as a density."""
        return Mixture(self.values, self.probabilities, self.widths)

    def times(self, share: float) -> "Kernels":
        """Return the kernels with probabilities multiplied by a share."""
        return self._replace(probabilities=self.probabilities * share)

    def stretched(self, factor: float) -> "Kernels":
        """Return the kernels with widths multiplied by a factor."""
        return self._replace(widths=self.widths * factor)

    def moved(self, scale: Tensor, mean: Tensor) -> "Kernels":
        """Return the kernels in other units: values times a scale [outputs] plus a mean [outputs]."""
        return Kernels(self.values * scale + mean, self.probabilities, self.widths * scale)

    def means(self) -> Tensor:
        """Return the mean of each row, [rows, outputs]."""
        return torch.einsum("rk,rko->ro", self.probabilities, self.values)

    def trimmed(self, share: float) -> "Kernels":
        """Return the kernels without a share of the probability at each end, with each kernel counted at its value.

        Args:
            share: below 1/2; the rest is normalized to 1.
        """
        if not torch.compiler.is_compiling() and line.supports(*self):
            return self._replace(probabilities=line.trimmed(self.values.squeeze(-1), self.probabilities, share))
        values, order = self.values.squeeze(-1).sort(dim=1)
        weights = self.probabilities.gather(1, order)
        above = weights.cumsum(dim=1)
        whole = above[:, -1:]
        kept = torch.minimum(above, (1 - share) * whole) - torch.maximum(above - weights, share * whole)
        kept = kept.clamp_min(0)
        widths = self.widths.gather(1, order.unsqueeze(-1))
        return Kernels(values.unsqueeze(-1), kept / kept.sum(dim=1, keepdim=True), widths)

    @classmethod
    def joined(cls, parts: "Sequence[Kernels]") -> "Kernels":
        """Return the kernels of several parts as one; their probabilities must sum to 1."""
        return cls(*(torch.cat(each, dim=1) for each in zip(*parts, strict=True)))


class KernelsOfRows(Protocol):
    """A function of rows [rows, columns]; without widths, they may be [rows, 0, outputs]."""

    def __call__(self, X: NDArray[Any], *, widths: bool) -> Kernels:
        """Return the kernels."""


def network_kernels(networks: Sequence[MultiHypothesisMLP], encoder: Encoder, X: NDArray[Any], device: Any) -> Kernels:
    """Return the kernels of all networks, which share the probability equally, in double precision.

    Args:
        networks: of the same shape, with scales.
        encoder: of their inputs.
        X: [rows, columns]
        device: where to compute.
    """
    return network_pass(networks, encoder, device)(X, widths=True)


@torch.no_grad()
def network_pass(networks: Sequence[MultiHypothesisMLP], encoder: Encoder, device: Any) -> KernelsOfRows:
    """Return `network_kernels` as a function of rows; the weights are read once, for any number of blocks of rows."""
    at = torch.device(device)
    if at.type == "cpu" and native.available() and _is_plain(networks[0]):
        return _compiled(networks, encoder)
    layers = [layer for layer in (*networks[0].trunk, networks[0].head.linear) if isinstance(layer, nn.Linear)]
    chosen = [place for place, layer in enumerate((*networks[0].trunk, networks[0].head.linear)) if layer in layers]
    stacked = [_stacked([(*net.trunk, net.head.linear)[place] for net in networks], at) for place in chosen]
    first, rest = stacked[0], stacked[1:]
    n_given = first[0].shape[1] - sum(run_lengths(encoder))
    table = _table(first[0][:, n_given:], run_lengths(encoder)).to(at)  # [places, networks * units]
    given = first[0][:, :n_given], first[1]

    @torch.no_grad()
    def kernels(X: NDArray[Any], *, widths: bool) -> Kernels:  # the widths take little of the time here
        dense, lower, between = places(encoder, X)

        @torch.no_grad()
        def outputs(start: int) -> Tensor:
            rows = slice(start, start + _BLOCK)
            x = _filled(dense[rows]).to(at)
            hidden = torch.baddbmm(given[1], x.expand(len(networks), -1, -1), given[0])
            if lower.shape[1]:
                climbed = _climbed(table, _filled(lower[rows]).to(at), _filled(between[rows]).to(at))
                hidden += climbed.unflatten(1, (len(networks), -1)).transpose(0, 1)
            for weight, bias in rest:
                hidden = torch.baddbmm(bias, hidden.relu_(), weight)
            return hidden[:, : len(dense[rows])].cpu()

        parts = placement.on_cores(outputs, range(0, max(1, len(dense)), _BLOCK), at)
        return _read(torch.cat(parts, dim=1), networks[0].head)

    return kernels


def _is_plain(network: MultiHypothesisMLP) -> bool:
    """Return whether the compiled pass supports a network: ReLU layers, scores, and scales of a normal."""
    layers = list(network.trunk)
    inner, activations = layers[::2], layers[1::2]
    kinds = all(type(layer) is nn.Linear for layer in inner) and all(type(layer) is nn.ReLU for layer in activations)
    head = network.head
    is_normal = head.scales is True and head.output_activation is None and len(head.event) == 1
    return kinds and is_normal and bool(head.output_sizes[1]) and len(inner) < compiled.MAX_LAYERS


def _compiled(networks: Sequence[MultiHypothesisMLP], encoder: Encoder) -> KernelsOfRows:
    layers: list[Any] = [[*list(net.trunk)[::2], net.head.linear] for net in networks]
    flat = torch.stack(
        [torch.cat([part.flatten() for one in own for part in (one.weight, one.bias)]) for own in layers]
    ).float()
    sizes = [layers[0][0].in_features, *(layer.out_features for layer in layers[0])]
    head, lengths = networks[0].head, run_lengths(encoder)

    def kernels(X: NDArray[Any], *, widths: bool) -> Kernels:
        given, lower, between = map(torch.from_numpy, places(encoder, X))
        inputs: dict[str, Any] = {"given": given, "lower": lower, "between": between, "run_lengths": lengths}
        return Kernels(
            *compiled.mixture_kernels(flat, sizes, head.n_hypotheses, head.min_scale, **inputs, widths=widths)
        )

    return kernels


def _stacked(layers: Sequence[Any], at: torch.device) -> tuple[Tensor, Tensor]:
    """Return weights [networks, in, out] and biases [networks, 1, out] of the same layer of all networks."""
    weights = torch.stack([layer.weight.detach().T for layer in layers])
    return weights.to(at).contiguous(), torch.stack([layer.bias.detach() for layer in layers]).unsqueeze(1).to(at)


def _table(weights: Tensor, run_lengths: Sequence[int]) -> Tensor:
    """Return the contribution of each position in each run to the first layer: sums over the columns below it.

    Args:
        weights: [networks, columns of all runs, units]
        run_lengths: columns of each run.
    """
    flat = weights.transpose(0, 1).flatten(1)  # [columns, networks * units]
    sums = [torch.cat([run.new_zeros(1, run.shape[1]), run.cumsum(dim=0)]) for run in flat.split(list(run_lengths))]
    return torch.cat(sums) if sums else flat


def _climbed(table: Tensor, lower: Tensor, between: Tensor) -> Tensor:
    """Return interpolated rows of a table, summed over runs."""
    places = torch.cat([lower, lower + 1], dim=1)
    shares = torch.cat([1 - between, between], dim=1)
    return nn.functional.embedding_bag(places, table, per_sample_weights=shares, mode="sum")


def _filled(rows: NDArray[Any]) -> Tensor:
    """Return a block of rows, padded with rows of zeros."""
    block = np.zeros((_BLOCK, *rows.shape[1:]), dtype=rows.dtype)
    block[: len(rows)] = rows
    return torch.from_numpy(block)


def _read(outputs: Tensor, head: Any) -> Kernels:
    """Return kernels from the outputs of the last layers, [networks, rows, ...]."""
    n_networks = len(outputs)
    values, logits, raw = outputs.transpose(0, 1).split(head.output_sizes, dim=-1)
    scale = nn.functional.softplus(raw) + head.min_scale
    values, scale = (x.unflatten(-1, (head.n_hypotheses, *head.event)).flatten(1, 2).double() for x in (values, scale))
    probabilities = logits.double().softmax(dim=-1).flatten(1) / n_networks
    return Kernels(values, probabilities, scale)


# Input-independent background component, in standardized units: a normal distribution like that of all targets, in case
# the other members learned nothing, and a wide one, so that outliers have nonzero density.
_BACKGROUND_WIDTHS, _BACKGROUND_SHARES = (1.0, 4.0), (0.9, 0.1)
#: With a larger weight of the background, the other members have learned little.
MOSTLY_BACKGROUND = 0.3


def mixed(members: Sequence[Kernels], weights: NDArray[np.float64]) -> Kernels:
    """Return the kernels of all members."""
    return Kernels.joined([part.times(weight) for part, weight in zip(members, weights, strict=True)])


def informed(members: Sequence[Kernels], weights: NDArray[np.float64]) -> Kernels:
    """Return the kernels of all members except the background (the last); of all if the others contribute little."""
    if weights[-1] >= MOSTLY_BACKGROUND:
        return mixed(members, weights)
    return mixed(members[:-1], weights[:-1] / weights[:-1].sum())


def forest_kernels(values: NDArray[np.float64], spreads: NDArray[np.float64], factor: float, floor: float) -> Kernels:
    """Return a kernel for each tree, all equally probable."""
    centres = torch.from_numpy(values).double()
    widths = torch.from_numpy(np.hypot(floor, factor * spreads)).double()
    shares = torch.full(widths.shape, 1 / widths.shape[1], dtype=torch.float64)
    return Kernels(centres, shares, widths.unsqueeze(-1).expand_as(centres))


def background(like: Kernels) -> Kernels:
    """Return the same kernels for each row, around the mean of all targets."""
    n_rows, _, n_outputs = like.values.shape
    widths = torch.tensor(_BACKGROUND_WIDTHS, dtype=torch.float64)[:, None].expand(n_rows, -1, n_outputs)
    shares = torch.tensor(_BACKGROUND_SHARES, dtype=torch.float64).expand(n_rows, -1)
    return Kernels(torch.zeros_like(widths), shares, widths)
