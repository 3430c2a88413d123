"""`Validation` and `Checkpointing`: the options that belong together, checked when they are made."""

from pathlib import Path

import pytest
import torch

from plain_loop import rows, small_mlp
from torchmcl_fleet import Checkpointing, Fleet, FleetData

DATA = FleetData.shared(*rows(11), 3)


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
