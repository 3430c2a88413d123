"""Estimators on disk, as a checkpoint in a folder. No pickle."""

from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmcl import density, schedules
from torchmcl._checks import bad_value
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.fleet.search import Candidate, FleetSearch
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.persistence.checkpoints import read_saved, write_checkpoint
from torchmcl.persistence.codec import FORMS, Codec, Form, record_form
from torchmcl.persistence.headers import MODEL_FILE, check_free
from torchmcl.persistence.reading import as_written
from torchmcl.rules import transport
from torchmcl.rules import winners as assignment
from torchmcl_tables.data.schema import RECORDS
from torchmcl_tables.estimators._blend import Blend
from torchmcl_tables.estimators._forest import Forest
from torchmcl_tables.estimators._inputs import Bends, Gaps, Scaler
from torchmcl_tables.estimators._private import without_rows
from torchmcl_tables.estimators._rows import Rows
from torchmcl_tables.estimators._saved_checks import check_estimator, check_record

__all__ = ["from_state", "read_estimator", "save_estimator", "to_state"]

_KIND = "torchmcl estimator"
# What a parameter may hold: rules, schedules and densities, by name.
_KNOWN: dict[str, Any] = {
    name: getattr(module, name) for module in (assignment, transport, schedules, density) for name in module.__all__
}


def to_state(estimator: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return a fitted estimator as what JSON can hold, and tensors by name.

    Raises:
        ValueError: if a parameter is neither made of plain values nor of torchmcl's own rules and schedules.
    """
    kind = type(estimator).__name__
    # A random generator cannot be stored, and a fitted estimator does not need it.
    parameters = {
        name: None if isinstance(value, (np.random.RandomState, np.random.Generator)) else value
        for name, value in estimator.get_params(deep=False).items()
    }
    fitted = {
        name: value
        for name, value in sorted(vars(estimator).items())
        if name not in parameters and not name.startswith("_sklearn")
    }
    try:
        return _CODEC.encode({"estimator": kind, "parameters": parameters, "fitted": fitted})
    except TypeError as error:
        rule = "have parameters made of numbers, strings and torchmcl's own rules and schedules to be saved"
        advice = "Pickle can hold more, but should be loaded only from people you trust."
        raise ValueError(bad_value(f"{kind}.save", "self", rule, str(error).rstrip("."), advice)) from error


def from_state(state: Any, tensors: dict[str, Tensor], kinds: dict[str, type[Any]]) -> Any:
    """Return the estimator of `to_state`; `kinds` are the classes it may be, by name."""
    content = _CODEC.decode(state, tensors)
    estimator = kinds[content["estimator"]](**content["parameters"])
    for name, value in content["fitted"].items():
        if name.startswith("__") or hasattr(type(estimator), name):  # data never replaces a method
            raise ValueError(f"{name!r} is not a fitted attribute")
        setattr(estimator, name, value)
    estimator._complete()
    check_estimator(estimator)
    return estimator


def save_estimator(estimator: Any, folder: Path, *, private: bool = False) -> None:
    """Write a fitted estimator into a folder, which must be new, empty or hold a saved model.

    Args:
        estimator: to write.
        folder: to write to.
        private: leave out the rows that it learned from, see `without_rows`.
    """
    owner = f"{type(estimator).__name__}.save"
    check_free(owner, folder, "`save`")
    state, tensors = to_state(without_rows(estimator) if private else estimator)
    write_checkpoint(folder / MODEL_FILE, _KIND, state=state, tensors=tensors)


def read_estimator(owner: str, folder: Path, kinds: dict[str, type[Any]]) -> Any:
    """Return the estimator in a folder, which must be one of `kinds` (by name).

    Raises:
        ValueError: if the folder holds no such model, a damaged one, or one of a newer version.
    """
    checkpoint = read_saved(owner, folder, _KIND, "`save`")
    name = checkpoint.state.get("estimator") if isinstance(checkpoint.state, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(bad_value(owner, "folder", f"hold a saved {' or '.join(kinds)}", repr(name)))
    with as_written(owner, "folder", "`save`"):
        return from_state(checkpoint.state, checkpoint.tensors, kinds)


def _encode_network(module: MultiHypothesisMLP, part: Any) -> Any:
    linear = [layer for layer in module.trunk if isinstance(layer, torch.nn.Linear)]
    head = module.head
    sizes = {
        "in_features": linear[0].in_features if linear else head.in_features,
        "out_features": head.out_features,
        "n_hypotheses": head.n_hypotheses,
        "hidden": [layer.out_features for layer in linear],
        "detach_scores": head.detach_scores,
        "scales": head.scales,
    }
    weights = dict(module.state_dict())
    return {"$network": {"sizes": sizes, "weights": {name: part(name, value) for name, value in weights.items()}}}


def _decode_network(contents: Any, part: Any) -> MultiHypothesisMLP:
    sizes, weights = contents["sizes"], part(contents["weights"])
    with torch.device("meta"):  # shapes only: no memory is allocated that the file does not justify
        expected = {name: value.shape for name, value in MultiHypothesisMLP(**sizes).state_dict().items()}
    if expected != {name: value.shape for name, value in weights.items()}:
        raise ValueError("the weights of a network have other shapes than its description")
    module = MultiHypothesisMLP(**sizes)
    module.load_state_dict(weights)
    return module.eval()


def _encode_known(value: Any, part: Any) -> Any:
    name: str = value.__name__
    return {"$known": name} if _KNOWN.get(name) is value else NotImplemented


def _checked_form(kind: type[Any]) -> Form:
    """Return the form of a dataclass whose contents are checked when they are read."""
    form = record_form(kind)
    read = form.decoders[kind.__name__]
    return Form(form.encode, {kind.__name__: lambda contents, part: check_record(read(contents, part))})


_RECORDS = [kind for kind in _KNOWN.values() if is_dataclass(kind) or hasattr(kind, "_fields")]
_OWN = (Bends, Blend, Candidate, FleetSearch, Forest, Gaps, Rows, Scaler)
_BY_NAME = Form(_encode_known, {"known": lambda contents, part: _KNOWN[contents]})
_CODEC = Codec(
    {
        **FORMS,
        **{kind: record_form(kind) for kind in (*_RECORDS, *RECORDS, AutoAnnealing)},
        **{kind: _checked_form(kind) for kind in _OWN},
        MultiHypothesisMLP: Form(_encode_network, {"network": _decode_network}),
        type: _BY_NAME,
        FunctionType: _BY_NAME,
    }
)
