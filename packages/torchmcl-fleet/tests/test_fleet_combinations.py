"""Options together that each work alone: buffers, early stopping, chunks, checkpoints, weights, fresh rows, records."""

import pytest
import torch
from torch import nn

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl.annealing.auto import AutoAnnealing
from torchmcl_fleet import (
    SGD,
    Checkpointing,
    Fleet,
    FleetData,
    Validation,
    current_loss,
)

INPUTS, TARGETS = rows(20)


class PowerCutError(Exception):
    pass


class Normalised(nn.Module):
    """BatchNorm and dropout: statistics and random numbers."""

    def __init__(self, p=0.2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(p))
        self.head = mcl.MultiHypothesisHead(8, 2, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def cut_at(epoch, first):
    def after_epoch(end):
        if (end.epoch, end.models.start) == (epoch, first):
            raise PowerCutError

    return after_epoch


RULES = [mcl.WTA(), AutoAnnealing(), mcl.RelaxedWTA(0.1), AutoAnnealing(0.25)]
EVERYTHING = {
    "batch_size": 6,
    "validation": Validation(
        FleetData.shared(*rows(9, seed=3), 4), monitor=current_loss, every=[1, 2, 1, 3], patience=4
    ),
    "models_at_once": 3,
    "continued": True,
    "progress": False,
}
WEIGHTED = FleetData.shared(INPUTS, TARGETS, 4, weights=torch.linspace(0.5, 1.5, 20))


@pytest.mark.parametrize(
    ("factory", "cut", "device"),
    [(small_mlp, (7, 3), "cpu"), (Normalised, (7, 0), ["cpu", "cpu"])],
)
def test_everything_at_once_goes_on_to_the_same_bits(factory, cut, device, tmp_path):
    def new():
        torch.manual_seed(0)  # of dropout
        return Fleet(factory, 4, rule=RULES, optimizer=SGD(0.5), weight_decay=0.01, score_weight=0.5, device=device)

    whole, resumed = new(), new()
    saved = {"checkpoint": Checkpointing(tmp_path, every=3, keep=1)}
    torch.manual_seed(0)
    expected = whole.fit(WEIGHTED, 12, after_epoch=lambda *_: None, **EVERYTHING)
    torch.manual_seed(0)
    with pytest.raises(PowerCutError):
        new().fit(WEIGHTED, 12, after_epoch=cut_at(*cut), **saved, **EVERYTHING)
    torch.manual_seed(0)
    history = resumed.fit(WEIGHTED, 12, after_epoch=lambda *_: None, **saved, **EVERYTHING)
    assert len(list(tmp_path.glob("chunk-0000-*"))) == 1
    assert_same_bits(expected, history)
    assert_same_bits(whole.state_dict(), resumed.state_dict())
    assert_same_bits(whole.optimizer_state, resumed.optimizer_state)
