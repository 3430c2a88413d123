"""`Validation` and `Checkpointing`: the options that belong together, checked when they are made."""

from pathlib import Path

import pytest
import torch

from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl_fleet import Checkpointing, Fleet, FleetData, Validation

DATA = FleetData.shared(*rows(11), 3)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"rows": rows(11)}, TypeError, "Validation: `rows` must be FleetData, got tuple"),
        ({"rows": None}, TypeError, "Validation: `rows` must be FleetData, got NoneType"),
        ({"monitor": "loss"}, TypeError, "Validation: `monitor` must be callable, got 'loss'"),
        ({"every": 0}, ValueError, "Validation: `every` must be >= 1, got 0"),
        ({"every": [1, 0, 1]}, ValueError, "Validation: `every` must be >= 1, got 0"),
        ({"every": [1, 1]}, ValueError, "Validation: `every` must have one entry for each of the 3 models, got 2"),
        ({"every": 1.5}, TypeError, "Validation: `every` must be .*, got 1.5"),
        ({"patience": 0}, ValueError, "Validation: `patience` must be >= 1, got 0"),
    ],
)
def test_bad_options_of_a_validation_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        Validation(**({"rows": DATA} | options))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"folder": 3}, TypeError, "Checkpointing: `folder` must be a path, got 3"),
        ({"every": 0}, ValueError, "Checkpointing: `every` must be >= 1, got 0"),
        ({"every": -1}, ValueError, "Checkpointing: `every` must be >= 1, got -1"),
        ({"keep": 0}, ValueError, "Checkpointing: `keep` must be >= 1, got 0"),
        ({"keep": 1.5}, TypeError, "Checkpointing: `keep` must be .*, got 1.5"),
    ],
)
def test_bad_options_of_checkpoints_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        Checkpointing(**({"folder": "run"} | options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"validation": rows(11)}, "Fleet.fit: `validation` must be Validation or FleetData, got tuple"),
        ({"checkpoint": 3}, "Fleet.fit: `checkpoint` must be Checkpointing or a path, got int"),
    ],
)
def test_something_else_in_their_place_is_refused(options, words):
    with pytest.raises(TypeError, match=words):
        Fleet(small_mlp, 3).fit(DATA, 1, progress=False, **options)


def test_rows_alone_are_a_validation_with_the_defaults():
    plain, grouped = (
        Fleet(small_mlp, 3).fit(DATA, 5, validation=validation, progress=False)
        for validation in (DATA, Validation(DATA))
    )
    assert_same_bits(plain, grouped)


@pytest.mark.parametrize("form", [str, Path, Checkpointing])
def test_a_folder_alone_saves_with_the_defaults(form, tmp_path):
    Fleet(small_mlp, 3).fit(DATA, 3, checkpoint=form(tmp_path / "run"), progress=False)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["chunk-0000-epoch-00000003.safetensors", "plan.json"]


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_states_are_kept_as_asked_for(keep, tmp_path):
    Fleet(small_mlp, 3).fit(DATA, 8, checkpoint=Checkpointing(tmp_path, every=2, keep=keep), progress=False)
    epochs = sorted(int(path.stem[-2:]) for path in tmp_path.glob("chunk-*"))
    assert epochs == [2, 4, 6, 8][-keep:]


def test_an_epoch_end_says_what_was_trained():
    ends = []
    Fleet(small_mlp, 3).fit(DATA, 2, models_at_once=2, after_epoch=ends.append, progress=False)
    assert [(end.epoch, end.models) for end in ends] == [
        (0, slice(0, 2)),
        (1, slice(0, 2)),
        (0, slice(2, 3)),
        (1, slice(2, 3)),
    ]
    assert torch.equal(ends[0].temperatures, torch.zeros(2))
    assert ends[0].rule(torch.tensor([2.0, 1.0]).expand(2, 1, 1, 2)).flatten().tolist() == [0.0, 1.0] * 2
