"""Small ReLU networks in C: the training step, Adam, and the forward pass of mixture networks."""

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import Structure
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl_fleet import native

__all__ = [
    "MAX_HYPOTHESES",
    "MAX_LAYERS",
    "AdamStep",
    "Ladders",
    "Mixture",
    "Network",
    "NetworkStep",
    "mixture_kernels",
]

# Average number of columns per run from which sums of weights are faster than a product with them.
_SHORTEST_RUN = 4


class Ladders(NamedTuple):
    """Inputs whose last columns are runs of ordered bins: ones, then at most one value between 0 and 1, then zeros.

    Attributes:
        given: Columns before the runs, [sets, rows, columns].
        lengths: Number of columns of each run.
        lower: Number of columns plus number of runs before the position of each row, [sets, rows, runs].
        between: Value at the position of each row, [sets, rows, runs].
    """

    given: Tensor
    lengths: Tensor
    lower: Tensor
    between: Tensor

    @classmethod
    def of(cls, inputs: Tensor) -> "Ladders":
        """Find the runs in inputs [sets, rows, columns]; return none if they are too short to be useful."""
        n_given = inputs.shape[-1]
        if bool(_between_0_and_1(inputs[..., -1:])):  # avoids checking all columns of most inputs
            n_given -= _n_trailing(_between_0_and_1(inputs))
        given, climbs = inputs[..., :n_given], inputs[..., n_given:]
        breaks = ((climbs[..., :-1] != 1) & (climbs[..., 1:] != 0)).flatten(0, -2).any(dim=0)
        bounds = [0, *(breaks.nonzero().flatten() + 1).tolist(), climbs.shape[-1]]
        if climbs.shape[-1] < _SHORTEST_RUN * len(bounds[1:]):
            given, climbs, bounds = inputs, inputs[..., :0], [0]
        lower, between = [], []
        for run, (first, end) in enumerate(itertools.pairwise(bounds)):
            place = (climbs[..., first:end] == 1).sum(dim=-1).clamp(max=end - first - 1)
            lower.append(place + first + run)  # a run of n columns has n + 1 sums
            between.append(climbs[..., first:end].gather(-1, place.unsqueeze(-1)).squeeze(-1))
        none = inputs.new_empty(*inputs.shape[:-1], 0)
        return cls(
            given.contiguous(),
            torch.tensor(bounds, device="cpu").diff(),
            torch.stack(lower, dim=-1).int() if lower else none.int(),
            torch.stack(between, dim=-1) if between else none,
        )


def _between_0_and_1(inputs: Tensor) -> Tensor:
    """Return a mask [columns] of the columns of inputs [..., columns] with all values between 0 and 1."""
    return ((inputs >= 0) & (inputs <= 1)).flatten(0, -2).all(dim=0)


def _n_trailing(flags: Tensor) -> int:
    """Return the length of the run of set flags at the end."""
    return int(flags.flip(0).cumprod(dim=0).sum())


# The logarithm of a product of this many numbers in (1, 2] is taken at once.
MAX_HYPOTHESES = 100
MAX_LAYERS = 16

# Multiplications per epoch from which a second thread pays off.
_MANY_PRODUCTS = 10_000_000


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@dataclass(frozen=True)
class Mixture:
    """Settings of the mixture loss.

    Attributes:
        crps: Weight of the continuous ranked probability score relative to the negative log-likelihood.
        min_scale: Smallest scale of a hypothesis, added to the softplus of the network output.
    """

    crps: float
    min_scale: float


@dataclass(frozen=True)
class Network:
    """Shape of a ReLU network with several hypotheses.

    Attributes:
        sizes: Number of input features, followed by the number of output features of each layer.
        n_hypotheses: Number of hypotheses; the last layer returns the hypotheses and then, optionally, as many score
            logits.
        n_dims: Number of dimensions of a hypothesis.
        detach_scores: Whether gradients of the score loss stop at the last layer.
        absolute: Whether the cost sums absolute differences instead of squares.
        mixture: Settings of the mixture loss if the hypotheses are normal distributions; None for other costs.
    """

    sizes: tuple[int, ...]
    n_hypotheses: int
    n_dims: int
    detach_scores: bool
    absolute: bool = False
    mixture: "Mixture | None" = None

    @property
    def has_scores(self) -> bool:
        """Whether the network has score logits."""
        return self.sizes[-1] > self.n_hypotheses * self.n_dims


class NetworkStep:
    """Losses and gradients of many networks on rows of their sets; all tensors are float32, contiguous and on the CPU.

    Args:
        network: Shape of the networks.
        flat: Parameters, [models, parameters], weight and then bias of each layer; read in place.
        inputs: Inputs, [sets, rows, features].
        targets: Targets, [sets, rows, targets, dims].
        row_weights: Weights of the rows, [sets, rows]; None for equal weights.
        set_of_model: Index of the set of each model, [models].
    """

    def __init__(
        self,
        network: Network,
        flat: Tensor,
        *,
        inputs: Tensor,
        targets: Tensor,
        row_weights: Tensor | None,
        set_of_model: Tensor,
    ) -> None:
        ladders, sizes = Ladders.of(inputs), torch.tensor(network.sizes, device="cpu")
        targets = targets.contiguous()
        row_weights = None if row_weights is None else row_weights.contiguous()
        self.network = network
        self._flat, self._set_of_model = flat, set_of_model.contiguous()
        self._network = native.NetworkFields(
            n_layers=len(network.sizes) - 1,
            sizes=sizes.data_ptr(),
            n_hypotheses=network.n_hypotheses,
            n_dims=network.n_dims,
            n_targets=targets.shape[2],
            absolute=network.absolute,
            has_scores=network.has_scores,
            detach_scores=network.detach_scores,
            n_given=ladders.given.shape[2],
            n_runs=len(ladders.lengths),
            run_lengths=ladders.lengths.data_ptr(),
            is_mixture=network.mixture is not None,
            crps=0.0 if network.mixture is None else network.mixture.crps,
            min_scale=0.0 if network.mixture is None else network.mixture.min_scale,
        )
        self._rows = native.RowsFields(
            n_set_rows=ladders.given.shape[1],
            inputs=ladders.given.data_ptr(),
            lower=ladders.lower.data_ptr(),
            between=ladders.between.data_ptr(),
            targets=targets.data_ptr(),
            counts=_pointer(row_weights),
        )
        self._kept = (sizes, ladders, targets, row_weights)  # alive as long as the pointers into them
        self._spare: list[Tensor] = []
        self.gradient = torch.zeros_like(flat)

    def __call__(
        self,
        rule: Tensor,
        score_weight: float,
        *,
        start: int,
        stop: int,
        order: tuple[Tensor, Tensor] | None = None,
        with_gradient: bool = True,
        models: slice | None = None,
    ) -> Tensor:
        """Return the losses [models] of a batch, and store their gradient in `gradient`.

        Args:
            rule: Temperatures, 0 for hard weights, and epsilons of the hard weights, [2, models].
            score_weight: Weight of the score loss.
            start: First row of the batch, in the order of each model.
            stop: Row after the last row of the batch.
            order: Permutations of the rows, [orders, rows], and index of the permutation of each model, [models]; None
                for rows in their original order.
            with_gradient: Whether to compute the gradient.
            models: Slice of the models to evaluate; all models by default.
        """
        chosen = models or slice(0, len(self._flat))
        batch, loss = self._batch(rule, score_weight, start, order, with_gradient, chosen)
        batch.n_rows = stop - start
        with self._scratch_of(batch):
            native.library().torchmcl_step(ctypes.byref(self._network), ctypes.byref(self._rows), ctypes.byref(batch))
        return loss

    def epochs(
        self,
        rules: Tensor,
        score_weight: float,
        adam: "AdamStep",
        *,
        bounds: Sequence[int],
        active: Tensor,
        orders: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Take an Adam step after each batch of some epochs, on all threads; return losses [epochs, batches, models].

        A model whose gradient is not finite keeps its weights, bit for bit.

        Args:
            rules: Temperatures and epsilons of each epoch, [epochs, 2, models].
            score_weight: Weight of the score loss.
            adam: Adam step for the parameters of this object, with learning rates [epochs, models].
            bounds: First row of each batch, and the row after the last batch.
            active: Mask of the models to train, [models]; the losses of other models are 0.
            orders: Permutations of the rows, [epochs, orders, rows], and index of the permutation of each model,
                [models]; None for rows in their original order.
        """
        n_models, n_parameters = self._flat.shape
        n_epochs, n_batches = len(rules), len(bounds) - 1
        rows = torch.tensor(bounds, device="cpu")
        losses = self._flat.new_empty(n_epochs, n_batches, n_models)
        active, rules = active.contiguous(), rules.float().contiguous()
        update = adam.structure(self._flat, self.gradient)
        order = None if orders is None else (orders[0][0], orders[1])

        def part(first: int, last: int) -> None:
            batch, _ = self._batch(rules[0], score_weight, 0, order, True, slice(0, n_models))
            batch.temperature = rules.data_ptr()
            n_ordered = 0 if orders is None else orders[0][0].numel()
            pointers = (rows.data_ptr(), active.data_ptr(), adam.n_steps.data_ptr(), losses.data_ptr())
            epochs = native.EpochsFields(first, last, n_epochs, n_batches, n_ordered, *pointers)
            with self._scratch_of(batch):
                problem = (self._network, self._rows, batch, update, epochs)
                native.library().torchmcl_epochs(*map(ctypes.byref, problem))

        if n_epochs * n_models * n_parameters * (bounds[-1] - bounds[0]) < _MANY_PRODUCTS:
            part(0, n_models)
        else:
            native.on_threads(part, n_models)
        return losses

    @contextmanager
    def _scratch_of(self, batch: native.BatchFields) -> Iterator[None]:
        """Provide memory for one call and reuse it for the next: each page of new memory causes a page fault."""
        try:
            memory = self._spare.pop()
        except IndexError:  # one for each thread that calls
            memory = native.aligned(native.library().torchmcl_scratch_size(ctypes.byref(self._network)))
        batch.scratch = memory.data_ptr()
        yield
        self._spare.append(memory)

    def _batch(
        self,
        rule: Tensor,
        score_weight: float,
        start: int,
        order: tuple[Tensor, Tensor] | None,
        with_gradient: bool,
        models: slice,
    ) -> tuple[native.BatchFields, Tensor]:
        """Return the arguments of a batch, without number of rows and scratch memory, and the tensor of its losses."""
        flat, set_of_model, rule = self._flat[models], self._set_of_model[models], rule[:, models].float().contiguous()
        loss = flat.new_empty(len(flat))
        numbers, of_model = (None, None) if order is None else (order[0][:, start:], order[1][models])
        batch = native.BatchFields(
            n_models=len(flat),
            n_parameters=flat.shape[1],
            flat=flat.data_ptr(),
            gradient=self.gradient[models].data_ptr() if with_gradient else None,
            set_of_model=set_of_model.data_ptr(),
            temperature=rule[0].data_ptr(),
            epsilon=rule[1].data_ptr(),
            loss=loss.data_ptr(),
            first=start if order is None else 0,  # a permutation is passed without its beginning
            order=_pointer(numbers),
            order_of_model=_pointer(of_model),
            order_stride=0 if numbers is None else numbers.stride(0),
            score_weight=score_weight,
        )
        batch.kept = rule  # alive as long as the pointers into it
        return batch, loss


@dataclass(frozen=True)
class AdamStep:
    """Adam with decoupled weight decay for parameters [models, parameters].

    Attributes:
        mean: First moments, [models, parameters]; changed in place.
        square: Second moments, [models, parameters]; changed in place.
        n_steps: Step counts, [models, 1], floats.
        lr: Learning rates, [models, 1]; [epochs, models] for several epochs.
        decay: Weight decays, [models, 1], or None.
        betas: Decay rates of both moments.
        epsilon: Constant added to the square root of the second moments.
    """

    mean: Tensor
    square: Tensor
    n_steps: Tensor
    lr: Tensor
    decay: Tensor | None
    betas: tuple[float, float]
    epsilon: float

    def structure(self, flat: Tensor, grad: Tensor) -> native.AdamFields:
        """Return the arguments of the C function."""
        return native.AdamFields(
            n_models=flat.shape[0],
            n_parameters=flat.shape[1],
            flat=flat.data_ptr(),
            gradient=grad.data_ptr(),
            mean=self.mean.data_ptr(),
            square=self.square.data_ptr(),
            n_steps=self.n_steps.data_ptr(),
            rate=self.lr.data_ptr(),
            decay=_pointer(self.decay),
            beta1=self.betas[0],
            beta2=self.betas[1],
            epsilon=self.epsilon,
        )

    def __call__(self, flat: Tensor, grad: Tensor) -> None:
        """Change parameters and moments in place; `n_steps` already counts this step."""
        native.library().torchmcl_adam(ctypes.byref(self.structure(flat, grad)))


class _Forward(Structure):
    _fields_ = (
        *native.integers("first last n_models n_parameters"),
        *native.pointers("flat values shares widths scratch"),
    )


def mixture_kernels(
    flat: Tensor,
    sizes: Sequence[int],
    n_hypotheses: int,
    min_scale: float,
    *,
    given: Tensor,
    lower: Tensor,
    between: Tensor,
    run_lengths: Sequence[int],
    widths: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return centers, weights and widths of the normal kernels that ReLU networks predict, in double precision.

    Args:
        flat: Parameters, [networks, parameters], weight [out, in] and then bias of each layer, float32.
        sizes: Number of input features, followed by the number of output features of each layer.
        n_hypotheses: Number of hypotheses per network; the last layer returns values, score logits and raw scales.
        min_scale: Smallest scale, added to the softplus of the raw scales.
        given: Inputs before the runs, [rows, columns], float32.
        lower: Positions in the runs, [rows, runs], int32; see `torchmcl_fleet.native.compiled.Ladders`.
        between: Values at the positions, [rows, runs], float32.
        run_lengths: Number of columns of each run.
        widths: Whether to compute the widths, which means do not need.

    Returns:
        Centers [rows, networks * hypotheses, dims], weights [rows, networks * hypotheses], which sum to 1, and widths
        with the shape of the centers, or [rows, 0, dims] if they were not requested.
    """
    n_rows, n_kernels = len(given), len(flat) * n_hypotheses
    n_dims = (sizes[-1] // n_hypotheses - 1) // 2
    flat, given, lower, between = (part.contiguous() for part in (flat, given, lower, between))
    shape, lengths = torch.tensor(sizes, device="cpu"), torch.tensor(run_lengths, dtype=torch.int64, device="cpu")
    network = native.NetworkFields(
        n_layers=len(sizes) - 1,
        sizes=shape.data_ptr(),
        n_hypotheses=n_hypotheses,
        n_dims=n_dims,
        n_given=given.shape[1],
        n_runs=len(lengths),
        run_lengths=lengths.data_ptr(),
        is_mixture=1,
        min_scale=min_scale,
    )
    rows = native.RowsFields(
        n_set_rows=n_rows, inputs=given.data_ptr(), lower=lower.data_ptr(), between=between.data_ptr()
    )
    shapes = ((n_rows, n_kernels, n_dims), (n_rows, n_kernels), (n_rows, n_kernels if widths else 0, n_dims))
    outputs = tuple(torch.empty(shape, dtype=torch.float64, device="cpu") for shape in shapes)

    def part(first: int, last: int) -> None:
        scratch = native.aligned(native.library().torchmcl_forward_scratch(ctypes.byref(network)), zeroed=False)
        written = (part.data_ptr() for part in (flat, *outputs, scratch))
        forward = _Forward(first, last, *flat.shape, *written)
        forward.widths = forward.widths if widths else None
        native.library().torchmcl_forward(ctypes.byref(network), ctypes.byref(rows), ctypes.byref(forward))

    native.on_threads(part, n_rows)
    centers, weights, deviations = outputs
    return centers, weights, deviations
