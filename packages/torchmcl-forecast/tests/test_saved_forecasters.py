"""A saved forecaster forecasts the same; files that are not one are refused."""

import contextlib
import json

import numpy as np
import pandas as pd
import pytest
from quick_sales import UNTRAINED

from grids import for_each
from torchmcl.io import read_checkpoint, write_checkpoint
from torchmcl_forecast import Forecaster

FILE = "model.safetensors"


def test_a_loaded_forecaster_gives_the_same_frames(fitted, frame, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = Forecaster.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict())
    pd.testing.assert_frame_equal(loaded.forecast(frame).tube(), fitted.forecast(frame).tube())
    assert loaded.get_params()["rule"] == fitted.rule


def test_series_named_by_numbers_and_times_that_are_numbers_are_saved(tmp_path):
    frame = pd.DataFrame({"unique_id": np.repeat([7, 8], 40), "ds": np.tile(np.arange(40), 2), "y": np.arange(80.0)})
    forecaster = Forecaster(**UNTRAINED).fit(frame, horizon=3)
    forecaster.save(tmp_path)
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path).predict(), forecaster.predict())


def test_what_cannot_be_saved_is_named(fitted, frame, tmp_path):
    with pytest.raises(ValueError, match="`self`"):
        Forecaster().save(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match="`folder`"):
        fitted.save(tmp_path / "b")
    own = Forecaster(**UNTRAINED, rule=lambda part: fitted.rule)
    own.networks_, own.__dict__ = fitted.networks_, vars(fitted) | {"rule": own.rule}
    with pytest.raises(ValueError, match="torchmcl's own rules"):
        own.save(tmp_path / "c")


@for_each(
    "change",
    [
        {"layout_": {"$Layout": {name: value}}}
        for name, value in (
            ("horizon", 10**9),
            ("context", -1),
            ("usual_size", -1.0),
            ("usual_change", "a tenth"),
            ("lags", {"$tuple": [10**9]}),
            ("horizon", 8),
            ("unknown", 1),
        )
    ]
    + [
        {"shares_": {"$tuple": shares}}
        for shares in ([0.5, 0.5], [0.5, -0.5, 1.0], [0.5, 0.0, 0.2], [1.0, 0.0, "nothing"])
    ],
)
def test_a_changed_state_is_refused(fitted, tmp_path, change):
    fitted.save(tmp_path)
    saved = read_checkpoint(tmp_path / FILE)
    state = json.loads(json.dumps(saved.state))
    for name, parts in change.items():
        for kind, value in parts.items():
            part = state["fitted"][name]
            part[kind] = part[kind] | value if isinstance(value, dict) else value
    write_checkpoint(tmp_path / FILE, saved.kind, state=state, tensors=saved.tensors)
    with pytest.raises(ValueError, match=r"^Forecaster.load: `folder` must be as `save` wrote it"):
        Forecaster.load(tmp_path)


def leaves(part, path=()):
    if not isinstance(part, dict | list):
        return [path]
    items = part.items() if isinstance(part, dict) else enumerate(part)
    return [leaf for key, inner in items for leaf in leaves(inner, (*path, key))]


def variants(saved):
    """Yield the saved state and tensors with one impossible value in one place."""
    for *path, last in leaves(saved.state):
        for value in ({"$float": "nan"}, -1):
            state = part = json.loads(json.dumps(saved.state))
            for key in path:
                part = part[key]
            part[last] = value
            yield state, saved.tensors
    for name, tensor in saved.tensors.items():
        for value in (np.nan, np.inf, -1):
            yield (
                saved.state,
                saved.tensors | {name: tensor.clone().fill_(value) if tensor.is_floating_point() else tensor},
            )


def test_no_impossible_value_reaches_a_forecast(fitted, tmp_path):
    fitted.save(tmp_path)
    saved, loaded = read_checkpoint(tmp_path / FILE), []
    for state, tensors in variants(saved):
        write_checkpoint(tmp_path / FILE, saved.kind, state=state, tensors=tensors)
        with contextlib.suppress(ValueError):
            loaded.append(Forecaster.load(tmp_path))
    assert 0 < len(loaded) < 100
    for forecast in (forecaster.forecast() for forecaster in loaded):
        values = (forecast.paths, forecast.scales.log(), forecast.probabilities, *forecast.tube_ends())
        assert all(value.isfinite().all() for value in values)


def test_a_damaged_or_missing_file_is_refused(fitted, tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        Forecaster.load(tmp_path / "none")
    fitted.save(tmp_path)
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-5] ^= 1
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        Forecaster.load(tmp_path)
