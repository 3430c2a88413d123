"""Options of a fleet: one value for all models or one for each, and their names in a checkpoint."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_non_negative, check_positive_int
from torchmcl.fleet.data import FleetData
from torchmcl.schedules import Schedule

__all__ = ["check_data", "check_fit", "digest_of", "name_of", "per_model", "rates_of"]


def per_model(name: str, value: Any, n_models: int) -> list[Any]:
    """Return one value for each model.

    Raises:
        TypeError: for a text or a tensor.
        ValueError: for a sequence of another length.
    """
    if isinstance(value, (str, bytes, Tensor)):
        advice = "A tensor becomes a list with .tolist()." if isinstance(value, Tensor) else ""
        rule = "be one value or a sequence of them"
        raise TypeError(bad_value("Fleet", name, rule, repr(value), advice))
    if not isinstance(value, Sequence):
        return [value] * n_models
    if len(value) != n_models:
        rule = f"have one entry for each of the {n_models} models"
        raise ValueError(bad_value("Fleet", name, rule, f"{len(value)} entries"))
    return list(value)


def name_of(value: Any) -> str:
    """Return a name that is the same in another process: a function's repr holds an address."""
    if " at 0x" in (text := repr(value)):
        return f"{type(value).__name__} {getattr(value, '__qualname__', '')}"
    return text


def digest_of(data: FleetData) -> str:
    """Return a checksum of the rows and of who trains on them."""
    digest = hashlib.sha256()
    for part in data:
        if part is None:
            continue
        digest.update(repr(tuple(part.shape)).encode())
        digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def rates_of(rates: Sequence[float | Schedule], n_epochs: int) -> Tensor:
    """Return the learning rates [epochs, models]."""
    columns: dict[int, Tensor] = {}
    for rate in rates:
        if id(rate) not in columns:
            values = [rate(epoch) for epoch in range(n_epochs)] if callable(rate) else [rate] * n_epochs
            for value in set(values):
                check_non_negative("Fleet", "lr", value)
            columns[id(rate)] = torch.tensor(values, dtype=torch.float32)
    return torch.stack([columns[id(rate)] for rate in rates], dim=1)


def check_fit(
    n_epochs: int,
    batch_size: int | None,
    validation: FleetData | None,
    validate_every: int | Sequence[int],
    patience: int | None,
) -> None:
    """Check the numbers that `Fleet.fit` takes."""
    check_positive_int("Fleet.fit", "n_epochs", n_epochs)
    if batch_size is not None:
        check_positive_int("Fleet.fit", "batch_size", batch_size)
    for every in {validate_every} if isinstance(validate_every, int) else set(validate_every):
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
