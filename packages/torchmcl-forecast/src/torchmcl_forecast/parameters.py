"""Checks of the parameters of a forecaster at the beginning of `fit`."""

from typing import Any

from torchmcl import checks
from torchmcl.errors import bad_value

__all__ = ["check_parameters"]

_COUNT, _OPEN_FRACTION = checks.Bounds(low=1, integer=True), checks.Bounds(0, 1, open_low=True, open_high=True)
_BOUNDS = {
    **dict.fromkeys(("n_futures", "n_hypotheses", "n_members", "batch_size", "context", "n_steps"), _COUNT),
    **dict.fromkeys(("weight_decay", "crps"), checks.Bounds(low=0)),
    "learning_rate": checks.Bounds(low=0, open_low=True),
    "coverage": _OPEN_FRACTION,
    "dropout": checks.Bounds(0, 1, open_high=True),
    "random_state": checks.Bounds(low=0, integer=True),
}
_OPTIONAL = ("context", "n_steps", "seasons")


def check_parameters(parameters: dict[str, Any], horizon: Any) -> None:
    """Check the parameters of a forecaster and the horizon.

    Raises:
        TypeError: For a parameter of an invalid type.
        ValueError: For an invalid value; the message names the parameter.
    """
    values = {name: value for name, value in parameters.items() if value is not None or name not in _OPTIONAL}
    _COUNT("Forecaster", "horizon", horizon, "For example fit(frame, horizon=28).")
    for name, bounds in _BOUNDS.items():
        if name in values:
            bounds("Forecaster", name, values[name])
    most = values["n_hypotheses"] * values["n_members"]
    if values["n_futures"] > most:
        rule = f"be at most n_hypotheses * n_members = {most}"
        raise ValueError(bad_value("Forecaster", "n_futures", rule, values["n_futures"], "Raise `n_hypotheses`."))
    for name in ("known", "past"):
        if not isinstance(values[name], list | tuple):
            rule, advice = "be a list of column names", f"For example {name}=['price']."
            raise TypeError(bad_value("Forecaster", name, rule, repr(values[name]), advice))
    for name, least in (("hidden", 1), ("seasons", 2)):
        sizes = values.get(name, ())
        fits = isinstance(sizes, list | tuple) and all(type(size) is int and size >= least for size in sizes)
        if not fits or (name == "hidden" and not sizes):
            raise ValueError(bad_value("Forecaster", name, f"be a sequence of integers >= {least}", repr(sizes)))
