"""Options of a fleet: one value for all models or one for each, and their checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_non_negative, check_positive_int
from torchmcl.fleet.data import FleetData
from torchmcl.schedules import Schedule

__all__ = ["check_data", "check_fit", "check_moments", "check_types", "per_model", "rates_of", "seeds_of"]


def per_model(name: str, value: Any, n_models: int) -> list[Any]:
    """Return one value for each model, of a single value, a sequence, an array or a tensor.

    Raises:
        TypeError: for a text.
        ValueError: for a sequence of another length, or an array of several axes.
    """
    if isinstance(value, str | bytes):
        raise TypeError(bad_value("Fleet", name, "be one value or a sequence of them", repr(value)))
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim > 1:
            raise ValueError(bad_value("Fleet", name, "have one axis, the models", f"shape {tuple(value.shape)}"))
        value = value.tolist()
    if not isinstance(value, Sequence):
        return [_plain(value)] * n_models
    if len(value) != n_models:
        rule = f"have one entry for each of the {n_models} models"
        raise ValueError(bad_value("Fleet", name, rule, f"{len(value)} entries"))
    return [_plain(entry) for entry in value]


def _plain(value: Any) -> Any:
    """Return a number of NumPy or torch as one of Python, anything else as it is."""
    return value.item() if isinstance(value, np.generic | Tensor) and value.ndim == 0 else value


def seeds_of(seeds: Sequence[int] | None, n_models: int) -> list[int]:
    """Return one seed for each model: 0, 1, 2, ... by default.

    Raises:
        TypeError: for a seed that is not an integer.
        ValueError: for one that does not fit into 64 bits.
    """
    each = per_model("seeds", range(n_models) if seeds is None else seeds, n_models)
    for seed in each:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(bad_value("Fleet", "seeds", "be integers", repr(seed)))
        if not -(2**63) <= seed < 2**63:
            raise ValueError(bad_value("Fleet", "seeds", "lie between -2**63 and 2**63 - 1", repr(seed)))
    return each


def rates_of(rates: Sequence[float | Schedule], n_epochs: int) -> Tensor:
    """Return the learning rates [epochs, models]."""
    columns: dict[int, Tensor] = {}
    for rate in rates:
        if id(rate) not in columns:
            values = [_plain(rate(epoch)) for epoch in range(n_epochs)] if callable(rate) else [rate] * n_epochs
            for value in set(values):
                check_non_negative("Fleet", "lr", value)
            columns[id(rate)] = torch.tensor(values, dtype=torch.float64)
    return torch.stack([columns[id(rate)] for rate in rates], dim=1)


def check_fit(
    n_epochs: int,
    validation: FleetData | None,
    validate_every: Sequence[int],
    patience: int | None,
) -> None:
    """Check the numbers that `Fleet.fit` takes."""
    check_positive_int("Fleet.fit", "n_epochs", n_epochs)
    for every in set(validate_every):
        check_positive_int("Fleet.fit", "validate_every", every)
    if patience is not None:
        check_positive_int("Fleet.fit", "patience", patience)
        if validation is None:
            raise ValueError(bad_value("Fleet.fit", "patience", "come with `validation` rows", repr(patience)))


def check_data(owner: str, name: str, data: object, n_models: int) -> None:
    """Check that rows are there for each of the models."""
    if not isinstance(data, FleetData):
        advice = "FleetData.shared(inputs, targets, n_models) makes it."
        raise TypeError(bad_value(owner, name, "be FleetData", type(data).__name__, advice))
    if data.n_models != n_models:
        raise ValueError(bad_value(owner, name, f"be for {n_models} models", data.n_models))


def check_types(owner: str, name: str, data: FleetData, hypotheses: Tensor) -> None:
    """Check that targets are of the type of the hypotheses, and weights are numbers."""
    if data.targets.is_floating_point() and data.targets.dtype != hypotheses.dtype:
        rule = f"have targets of the type of the hypotheses, {hypotheses.dtype}"
        advice = f"Convert them: targets.to({hypotheses.dtype})."
        raise TypeError(bad_value(owner, name, rule, data.targets.dtype, advice))
    if data.weights is not None and (data.weights.dtype == torch.bool or data.weights.is_complex()):
        raise TypeError(bad_value(owner, name, "have weights that are numbers", data.weights.dtype))


def check_moments(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Check that the state of the optimiser to begin with is one of this optimiser and fleet."""
    shapes, own = ({name: tuple(value.shape) for name, value in each.items()} for each in (given, wanted))
    if shapes != own:
        rule = f"find the moments of this optimiser in `optimizer_state`, {own}"
        raise ValueError(bad_value("Fleet.fit", "continued", rule, shapes, "Set it to None to begin anew."))
