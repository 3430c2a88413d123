"""Checks of the parameters of a forecaster, in the first lines of `fit`."""

from typing import Any

from torchmcl.checks import (
    bad_value,
    check_non_negative,
    check_non_negative_int,
    check_positive,
    check_positive_int,
    check_real,
    device_of,
)

__all__ = ["check_parameters"]

_COUNTS = ("n_futures", "n_hypotheses", "n_members", "batch_size")


def check_parameters(forecaster: Any, horizon: Any) -> None:
    """Check parameters and the horizon.

    Raises:
        TypeError: for an invalid type.
        ValueError: for an invalid value; the message names the parameter.
    """
    owner = type(forecaster).__name__
    check_positive_int(owner, "horizon", horizon, "For example fit(frame, horizon=28).")
    for name in _COUNTS:
        check_positive_int(owner, name, getattr(forecaster, name))
    for name in ("context", "n_steps"):
        if getattr(forecaster, name) is not None:
            check_positive_int(owner, name, getattr(forecaster, name))
    most = forecaster.n_hypotheses * forecaster.n_members
    if forecaster.n_futures > most:
        rule = f"be at most n_hypotheses * n_members = {most}"
        raise ValueError(bad_value(owner, "n_futures", rule, forecaster.n_futures, "Raise `n_hypotheses`."))
    check_positive(owner, "learning_rate", forecaster.learning_rate)
    for name in ("weight_decay", "crps"):
        check_non_negative(owner, name, getattr(forecaster, name))
    for name in ("coverage", "dropout"):
        check_real(owner, name, getattr(forecaster, name))
    if not 0 < forecaster.coverage < 1:
        raise ValueError(bad_value(owner, "coverage", "lie in (0, 1)", repr(forecaster.coverage)))
    if not 0 <= forecaster.dropout < 1:
        raise ValueError(bad_value(owner, "dropout", "lie in [0, 1)", repr(forecaster.dropout)))
    check_non_negative_int(owner, "random_state", forecaster.random_state)
    if not isinstance(forecaster.joint, bool):
        raise TypeError(bad_value(owner, "joint", "be True or False", repr(forecaster.joint)))
    device_of(owner, forecaster.device)
    for name in ("known", "past"):
        if not isinstance(getattr(forecaster, name), (list, tuple)):
            got, advice = repr(getattr(forecaster, name)), f"For example {name}=['price']."
            raise TypeError(bad_value(owner, name, "be a list of names of columns", got, advice))
    for name, least in (("hidden", 1), ("seasons", 2)):
        _check_sizes(owner, name, getattr(forecaster, name), least)


def _check_sizes(owner: str, name: str, sizes: Any, least: int) -> None:
    if sizes is None and name == "seasons":
        return
    fits = isinstance(sizes, (list, tuple)) and all(type(size) is int and size >= least for size in sizes)
    if not fits or (name == "hidden" and not sizes):
        raise ValueError(bad_value(owner, name, f"be a sequence of integers >= {least}", repr(sizes)))
