"""Hostile options of fleets are refused; the message names the argument."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import torchmcl as mcl
from plain_loop import rows, small_mlp
from torchmcl_fleet import (
    SGD,
    Adam,
    Candidate,
    Checkpointing,
    Fleet,
    FleetData,
    FleetRecorder,
    FleetSearch,
    SampledData,
    Validation,
    choose_n_hypotheses,
    default_batch_size,
    even_batch_size,
)

INPUTS, TARGETS = rows(11)
DATA = FleetData.shared(INPUTS, TARGETS, 3)
POINTS, EVENTS = torch.zeros(3, 2), torch.zeros(3, 1, 1)
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Relaxed(mcl.AssignmentRule):
    """Rule with a field that has no value per model."""

    epsilon: float

    def weights(self, cost, mask):
        return mcl.RelaxedWTA(self.epsilon).weights(cost, mask)


def half_precision():
    return small_mlp().bfloat16()


FLEETS = {
    "n_models": [0, 2.0],
    "module_factory": [small_mlp(), 3, lambda: 3, lambda: torch.nn.Linear(2, 2), half_precision],
    "rule": [
        [mcl.WTA()] * 2,
        "wta",
        lambda epoch: 0.5,
        lambda epoch: mcl.WTA() if epoch else mcl.TopK(2),
        mcl.annealed(Relaxed, epsilon=mcl.Linear(0.5, 0.0, 2)),
    ],
    "learning_rate": [[0.1], -0.1, [0.1, 0.1, -0.2], mcl.Linear(0.1, -0.1, 2), NAN, "0.1", np.ones((3, 1))],
    "weight_decay": [(0.1,) * 4, -0.1, [0.0, -0.1, 0.0], "0.1", np.array([0.1, np.nan, 0.1])],
    "seeds": [range(2), np.array([0.0, 1.0, 2.0]), [0, 1, True], [0, 1, 2**63]],
    "score_weight": [-1.0],
    "optimizer": [torch.optim.Adam, "adam"],
    "device": [[], ["cpu", "meta"]],
    "backend": ["fast", "captured", "classes"],
    "k": [mcl.TopK(4)],
}
FITS = {
    "n_epochs": [0, 1.5],
    "batch_size": [0, -3, "some", 2.5, True],
    "models_at_once": [0, -1, 2.5],
    "data": [
        FleetData.shared(INPUTS, TARGETS, 2),
        (INPUTS, TARGETS),
        FleetData.shared(INPUTS.double(), TARGETS, 3),
        FleetData.shared(INPUTS, TARGETS.double(), 3),
        SampledData(lambda n_rows, generator: mcl.Batch(*rows(n_rows)), 8, 2),
        FleetData.shared(INPUTS, TARGETS, 3, weights=torch.ones(11, dtype=torch.bool)),
    ],
    "validation": [FleetData.shared(INPUTS, TARGETS, 4), FleetData.shared(INPUTS.double(), TARGETS, 3)],
}
FLEET = Fleet(small_mlp, 3)
CALLS = [
    ("sets", lambda: FleetData.of_sets([], [])),
    ("sets", lambda: FleetData.of_sets([(POINTS[:0], EVENTS[:0])], [0])),
    ("sets", lambda: FleetData.of_sets([(POINTS, EVENTS), (POINTS, EVENTS[:2])], [0, 1])),
    ("sets", lambda: FleetData.of_sets([(POINTS, EVENTS), (POINTS[:, :1], EVENTS)], [0, 1])),
    ("sets", lambda: FleetData.of_sets([(POINTS, EVENTS), (POINTS, EVENTS, EVENTS[..., 0] > 0)], [0, 1])),
    ("sets", lambda: FleetData.of_sets([(POINTS, EVENTS, EVENTS[:2, :, 0] > 0)], [0])),
    ("mask", lambda: FleetData.of_sets([(POINTS, EVENTS, EVENTS[..., 0])], [0])),
    ("mask", lambda: FleetData.of_sets([(POINTS, EVENTS, torch.ones(3, 2) > 0)], [0])),
    ("inputs", lambda: FleetData.of_sets([(POINTS.numpy(), EVENTS)], [0])),
    ("targets", lambda: FleetData.of_sets([(POINTS, EVENTS), (POINTS, EVENTS.double())], [0, 1])),
    ("set_of_model", lambda: FleetData.of_sets([(POINTS, EVENTS)], [0, 1, 5])),
    ("set_of_model", lambda: FleetData.of_sets([(POINTS, EVENTS)], [-1])),
    ("n_models", lambda: FleetData.shared(POINTS, EVENTS, n_models=0)),
    ("weights", lambda: FleetData.shared(POINTS, EVENTS, 2, weights=torch.ones(2))),
    ("draw", lambda: SampledData(3, 8, 3)),
    ("draw", lambda: SampledData(lambda n, _: mcl.Batch(*rows(n - 1)), 24, 3).epoch(0, torch.device("cpu"))),
    ("rows", lambda: FLEET.fit(DATA, 1, validation=rows(11))),
    ("monitor", lambda: Validation(DATA, monitor="loss")),
    ("every", lambda: Validation(DATA, every=[1, 0, 1])),
    ("every", lambda: Validation(DATA, every=[1, 1])),
    ("patience", lambda: Validation(DATA, patience=0)),
    ("folder", lambda: FLEET.fit(DATA, 1, checkpoint=3)),
    ("every", lambda: Checkpointing("run", every=-1)),
    ("keep", lambda: Checkpointing("run", keep=1.5)),
    ("key", lambda: Checkpointing("run", key=3)),
    ("beta1", lambda: Adam(beta1=1.0)),
    ("beta2", lambda: Adam(beta2=NAN)),
    ("epsilon", lambda: Adam(epsilon=-1.0)),
    ("momentum", lambda: SGD(momentum=True)),
    ("n_rows", lambda: even_batch_size(0, 3)),
    ("inputs", lambda: FLEET.predict(INPUTS[0])),
    ("inputs", lambda: FLEET.predict(INPUTS.expand(2, -1, -1), per_model=True)),
    ("inputs", lambda: FLEET.predict(INPUTS.double())),
    ("best", lambda: FLEET.predict(INPUTS, best=True)),
    ("data", lambda: FLEET.evaluate(FleetData.shared(INPUTS, TARGETS, 2))),
    ("state", lambda: FLEET.load_state_dict({"last": torch.zeros(3, 4)})),
    ("state", lambda: FLEET.load_state_dict(FLEET.state_dict() | {"other": torch.zeros(3)})),
    ("index", lambda: FLEET.models[3]),
    ("every", lambda: FleetRecorder(FLEET, 5, data=mcl.Batch(INPUTS, TARGETS), probes=INPUTS, every=0)),
    ("data", lambda: FleetRecorder(FLEET, 5, data=mcl.Batch(INPUTS[:3], TARGETS), probes=INPUTS)),
    ("records", lambda: FleetRecorder(FLEET, 5, data=mcl.Batch(INPUTS, TARGETS), probes=INPUTS).records()),
    ("held_out", lambda: FleetSearch(held_out=0.4, n_splits=3)),
    ("candidates", lambda: FleetSearch(candidates=[])),
    ("inputs", lambda: FleetSearch([Candidate("a", mcl.WTA())]).run(small_mlp, INPUTS[:1], TARGETS[:1], 2)),
    ("candidates", lambda: choose_n_hypotheses(small_mlp, INPUTS, TARGETS, candidates=(3, 3))),
    ("candidates", lambda: choose_n_hypotheses(small_mlp, INPUTS, TARGETS, candidates=(0, 3))),
    ("n_folds", lambda: choose_n_hypotheses(small_mlp, INPUTS, TARGETS, n_folds=6)),
    ("share", lambda: choose_n_hypotheses(small_mlp, INPUTS, TARGETS, share=0.0)),
    ("targets", lambda: choose_n_hypotheses(small_mlp, INPUTS, TARGETS[:3])),
    ("factory", lambda: choose_n_hypotheses({}, INPUTS, TARGETS)),
]


def fitted(options):
    options = {"module_factory": small_mlp, "n_models": 3} | options
    fleet = Fleet(options.pop("module_factory"), options.pop("n_models"), **options)
    return fleet.fit(DATA, 3, progress=False)


@pytest.mark.parametrize("name", FLEETS)
def test_hostile_options_of_a_fleet_are_refused(name):
    for value in FLEETS[name]:
        with pytest.raises((ValueError, TypeError), match=f"`{name}`"):
            fitted({"rule" if name == "k" else name: value})


@pytest.mark.parametrize("name", FITS)
def test_hostile_options_of_a_fit_are_refused_before_the_weights_change(name):
    before = FLEET.state_dict()["last"].clone()
    for value in FITS[name]:
        with pytest.raises((ValueError, TypeError), match=f"`{name}`"):
            FLEET.fit(**({"data": DATA, "n_epochs": 2, "progress": False} | {name: value}))
        assert torch.equal(FLEET.state_dict()["last"], before)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_hostile_arguments_are_refused(number):
    name, call = CALLS[number]
    with pytest.raises((ValueError, TypeError, IndexError), match=f"`{name}`"):
        call()


def test_the_moments_of_another_optimizer_are_refused():
    fleet = Fleet(small_mlp, 3, optimizer=SGD(0.9))
    fleet.optimizer_state = Adam().init(fleet.state_dict()["last"])
    with pytest.raises(ValueError, match="`continued`"):
        fleet.fit(DATA, 1, continued=True, batch_size=default_batch_size(11), progress=False)
