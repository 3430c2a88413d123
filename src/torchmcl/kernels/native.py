"""The training step of small ReLU networks in C, compiled where a C compiler is at hand.

The source is `native.c` beside this file. It is compiled once in a process, on first use, into a private folder that
is gone before this returns; nothing is kept for a later process to trust. Without a compiler everything takes the
plain way. `TORCHMCL_NATIVE=0` in the environment switches it off.
"""

import ctypes
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["MAX_HYPOTHESES", "MAX_LAYERS", "Network", "NetworkStep", "adam_step", "available"]

# The logarithm of a product of so many numbers in (1, 2] is taken at once.
MAX_HYPOTHESES = 100
MAX_LAYERS = 16

_SOURCE = Path(__file__).with_name("native.c")
_FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_SECONDS = 60
_ALIGNMENT = 64
# Columns of a run, on average, from which sums of weights are faster than a product with them.
_SHORTEST_RUN = 4
_LOCK = threading.Lock()
_library: ctypes.CDLL | None = None
_tried = False

_LONG, _INT, _FLOAT, _POINTER = ctypes.c_long, ctypes.c_int, ctypes.c_float, ctypes.c_void_p


def available() -> bool:
    """Return whether the compiled functions can be used; the first call compiles them, in a second or two."""
    global _library, _tried
    with _LOCK:
        if not _tried:
            _library, _tried = _compiled(), True
    return _library is not None


def _compiled() -> ctypes.CDLL | None:
    if os.environ.get("TORCHMCL_NATIVE") == "0" or os.name != "posix" or ctypes.sizeof(_LONG) != 8:
        return None
    command = (
        shlex.split(os.environ.get("CC", "")) or [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    )
    if not command or (compiler := shutil.which(command[0])) is None:
        return None
    with tempfile.TemporaryDirectory(prefix="torchmcl-") as folder:
        out = Path(folder) / "native.so"
        for own_machine in (["-march=native"], ["-mcpu=native"], []):  # as the compiler knows the machine, if it does
            call = [compiler, *command[1:], *_FLAGS, *own_machine, "-o", str(out), str(_SOURCE), "-lm"]
            try:
                # The compiler that the user's own environment names, on our own source.
                if subprocess.run(call, capture_output=True, timeout=_SECONDS, check=False).returncode == 0:  # noqa: S603
                    return _declared(ctypes.CDLL(str(out)))
            except (OSError, subprocess.TimeoutExpired):
                return None
    return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.scratch_size.argtypes = [_LONG, _POINTER, _LONG, _LONG, _POINTER]
    library.scratch_size.restype = _LONG
    sizes = [_LONG, _LONG, _POINTER, _LONG, _LONG, _INT, _INT, _FLOAT]
    inputs = [_POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER]
    rows = [_POINTER, _POINTER, _POINTER, _LONG, _POINTER, _POINTER, _LONG, _LONG]
    library.fleet_step.argtypes = [*sizes, _POINTER, _POINTER, _LONG, *inputs, *rows, *[_POINTER] * 4]
    library.fleet_step.restype = None
    library.adam.argtypes = [_LONG, _LONG, *[_POINTER] * 7, _FLOAT, _FLOAT, _FLOAT]
    library.adam.restype = None
    return library


@dataclass(frozen=True)
class Network:
    """The shape of a ReLU network with several hypotheses.

    Attributes:
        sizes: features of the inputs and of the outputs of each layer.
        n_hypotheses: of the last layer, followed by as many score logits where there are any.
        n_dims: of a hypothesis.
        detach_scores: the score loss ends at the last layer.
    """

    sizes: tuple[int, ...]
    n_hypotheses: int
    n_dims: int
    detach_scores: bool

    @property
    def has_scores(self) -> bool:
        """Whether the network gives score logits."""
        return self.sizes[-1] > self.n_hypotheses * self.n_dims


class Ladders(NamedTuple):
    """Inputs whose last columns climb: in each row of a run they are 1 up to some place, then one between, then 0.

    Attributes:
        given: the columns before the runs, [sets, rows, columns].
        lengths: columns of each run.
        lower: how many columns, and runs, are before the place of each row, [sets, rows, runs].
        between: the value at that place, [sets, rows, runs].
    """

    given: Tensor
    lengths: Tensor
    lower: Tensor
    between: Tensor

    @classmethod
    def of(cls, inputs: Tensor) -> "Ladders":
        """Find the runs of inputs [sets, rows, columns]; there are none where they are too short to be of use."""
        n_given = inputs.shape[-1]
        if bool(_between_0_and_1(inputs[..., -1:])):  # which spares most inputs a look at all columns
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
            torch.tensor(bounds).diff(),
            torch.stack(lower, dim=-1).int() if lower else none.int(),
            torch.stack(between, dim=-1) if between else none,
        )


def _between_0_and_1(inputs: Tensor) -> Tensor:
    """Return which columns of inputs [..., columns] have such values alone."""
    return ((inputs >= 0) & (inputs <= 1)).flatten(0, -2).all(dim=0)


def _n_trailing(flags: Tensor) -> int:
    """Return how many flags are set from the last one back."""
    return int(flags.flip(0).cumprod(dim=0).sum())


class NetworkStep:
    """Losses and gradients of many networks on rows of their sets; everything is float32, contiguous and on the CPU.

    Args:
        network: their shape.
        flat: parameters [models, parameters], of each layer the weight and then the bias; read where they are.
        inputs: [sets, rows, features]
        targets: [sets, rows, dims]
        row_weights: [sets, rows], how much each row counts, or None.
        set_of_model: [models]
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
        assert _library is not None
        self._network, self._flat = network, flat
        self._sizes = torch.tensor(network.sizes)
        self._inputs, self._targets = Ladders.of(inputs), targets.contiguous()
        self._row_weights = None if row_weights is None else row_weights.contiguous()
        self._set_of_model = set_of_model.contiguous()
        n_layers = len(network.sizes) - 1
        lengths = self._inputs.lengths
        ladders = len(lengths), lengths.data_ptr()
        n_floats = _library.scratch_size(n_layers, self._sizes.data_ptr(), network.n_hypotheses, *ladders)
        memory = torch.zeros(n_floats + _ALIGNMENT // 4)
        self._scratch = memory[-memory.data_ptr() // 4 % (_ALIGNMENT // 4) :]  # vectors want to be aligned
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
        """Return the losses [models] of a batch; their gradient is then in `gradient`.

        Args:
            rule: [2, models], for each model a temperature, or 0 for hard weights, and the epsilon of those.
            score_weight: weight of the score loss.
            start: first row of the batch, in the order of each model.
            stop: the row behind the last.
            order: permutations of the rows [orders, rows] and which of them each model has [models]; None for as is.
            with_gradient: whether to compute the gradient.
            models: the models to take, all of them unless told.
        """
        assert _library is not None
        network, inputs = self._network, self._inputs
        some = models or slice(0, len(self._flat))
        flat, set_of_model, rule = self._flat[some], self._set_of_model[some], rule[:, some].contiguous()
        loss = flat.new_empty(len(flat))
        first = 0 if order is not None else start  # with an order the beginning is skipped there
        numbers, of_model = (None, None) if order is None else (order[0][:, start:], order[1][some])
        _library.fleet_step(
            len(flat),
            len(network.sizes) - 1,
            self._sizes.data_ptr(),
            network.n_hypotheses,
            network.n_dims,
            network.has_scores,
            network.detach_scores,
            score_weight,
            flat.data_ptr(),
            self.gradient[some].data_ptr() if with_gradient else None,
            flat.shape[1],
            inputs.given[:, first:].data_ptr(),
            inputs.given.shape[2],
            len(inputs.lengths),
            inputs.lengths.data_ptr(),
            inputs.lower[:, first:].data_ptr(),
            inputs.between[:, first:].data_ptr(),
            self._targets[:, first:].data_ptr(),
            None if self._row_weights is None else self._row_weights[:, first:].data_ptr(),
            set_of_model.data_ptr(),
            inputs.given.shape[1],
            None if numbers is None else numbers.data_ptr(),
            None if of_model is None else of_model.data_ptr(),
            0 if numbers is None else numbers.stride(0),
            stop - start,
            rule[0].data_ptr(),
            rule[1].data_ptr(),
            loss.data_ptr(),
            self._scratch.data_ptr(),
        )
        return loss


def adam_step(
    flat: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    n_steps: Tensor,
    lr: Tensor,
    decay: Tensor | None,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Change parameters and moments [models, parameters] in place; `n_steps` [models, 1] already counts this step."""
    assert _library is not None
    tensors = (flat, grad, mean, square, n_steps, lr, decay)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    _library.adam(*flat.shape, *pointers, *betas, epsilon)
