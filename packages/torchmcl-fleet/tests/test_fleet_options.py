"""Options in every form that users have them in: arrays, types of numbers, rows of a batch."""

import numpy as np
import pytest
import torch

import torchmcl as mcl
from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl_fleet import Fleet, FleetData, SampledData, Validation

INPUTS, TARGETS = rows(11)
DATA = FleetData.shared(INPUTS, TARGETS, 3)


def fit(fleet, data=DATA, n_epochs=6, **options):
    return fleet.fit(data, n_epochs, progress=False, **options)


VALUES = {"learning_rate": [0.5, 0.25, 0.125], "weight_decay": [0.5, 0.25, 0.125], "seeds": [1, 2, 3]}
FORMS = {
    "tensor": torch.tensor,
    "array": np.array,
    "numbers of NumPy": lambda values: list(np.array(values)),
    "numbers of torch": lambda values: list(torch.tensor(values)),
    "tuple": tuple,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", VALUES)
def test_a_number_for_each_model_is_taken_in_every_form(name, form):
    listed, other = (Fleet(small_mlp, 3, **{name: value}) for value in (VALUES[name], FORMS[form](VALUES[name])))
    assert_same_bits(fit(listed), fit(other))
    assert_same_bits(listed.state_dict(), other.state_dict())


@pytest.mark.parametrize("one", [np.float32(0.25), np.array(0.25), torch.tensor(0.25), lambda _: np.float64(0.25)])
def test_a_number_for_all_is_taken_in_every_form(one):
    listed, other = Fleet(small_mlp, 3, learning_rate=0.25), Fleet(small_mlp, 3, learning_rate=one)
    assert_same_bits(fit(listed), fit(other))


def test_the_epochs_between_evaluations_can_be_given_as_an_array():
    assert_same_bits(
        fit(Fleet(small_mlp, 3), validation=Validation(DATA, every=np.array([1, 2, 3]))),
        fit(Fleet(small_mlp, 3), validation=Validation(DATA, every=[1, 2, 3])),
    )


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"learning_rate": np.ones((3, 1))},
            ValueError,
            r"Fleet: `learning_rate` must have one axis, the models, got shape \(3, 1\)",
        ),
        (
            {"learning_rate": torch.ones(2)},
            ValueError,
            "Fleet: `learning_rate` must have one entry for each of the 3 models, got 2 entries",
        ),
        ({"learning_rate": np.array([0.1, -0.1, 0.1])}, ValueError, "Fleet: `learning_rate` must be >= 0, got -0.1"),
        ({"weight_decay": np.array([0.1, np.nan, 0.1])}, ValueError, "Fleet: `weight_decay` must be a number, got nan"),
        ({"seeds": np.array([0.0, 1.0, 2.0])}, TypeError, "Fleet: `seeds` must be integers, got 0.0"),
        ({"seeds": [0, 1, True]}, TypeError, "Fleet: `seeds` must be integers, got True"),
        ({"seeds": [0, 1, 2**63]}, ValueError, "Fleet: `seeds` must lie between"),
    ],
)
def test_numbers_of_another_kind_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        fit(Fleet(small_mlp, 3, **options))


# ------------------------------------------------------------- types of rows and models


def in_double():
    return small_mlp().double()


@pytest.mark.parametrize(
    ("factory", "inputs", "targets", "words"),
    [
        (
            small_mlp,
            INPUTS.double(),
            TARGETS,
            "`data` must have inputs of the type of the models, torch.float32, got tor",
        ),
        (
            small_mlp,
            INPUTS,
            TARGETS.double(),
            "`data` must have targets of the type of the hypotheses, torch.float32, g",
        ),
        (
            in_double,
            INPUTS,
            TARGETS.double(),
            "`data` must have inputs of the type of the models, torch.float64, got tor",
        ),
        (
            in_double,
            INPUTS.double(),
            TARGETS,
            "`data` must have targets of the type of the hypotheses, torch.float64, g",
        ),
    ],
)
def test_rows_of_another_type_than_the_models_are_refused(factory, inputs, targets, words):
    with pytest.raises(TypeError, match=f"Fleet.fit: {words}.* Convert them"):
        fit(Fleet(factory, 3), FleetData.shared(inputs, targets, 3))


def test_rows_of_another_type_are_refused_wherever_they_come_in():
    fleet, wide = Fleet(small_mlp, 3), FleetData.shared(INPUTS.double(), TARGETS.double(), 3)
    for owner, name, call in (
        ("Fleet.fit", "validation", lambda: fit(fleet, validation=wide)),
        ("Fleet.evaluate", "data", lambda: fleet.evaluate(wide)),
        ("Fleet.predict", "inputs", lambda: fleet.predict(INPUTS.double())),
    ):
        with pytest.raises(TypeError, match=f"{owner}: `{name}` must have inputs of the type of the models"):
            call()


def test_a_module_that_converts_its_inputs_takes_them():
    class Converts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = small_mlp()

        def forward(self, inputs):
            return self.mlp(inputs.float())

    wide, plain = Fleet(Converts, 3), Fleet(small_mlp, 3)
    fit(wide, FleetData.shared(INPUTS.double(), TARGETS, 3))
    fit(plain)
    torch.testing.assert_close(wide.predict(INPUTS.double()).hypotheses, plain.predict(INPUTS).hypotheses)


@pytest.mark.parametrize("weights", [torch.ones(11).double(), torch.ones(11, dtype=torch.long)])
def test_weights_of_rows_are_numbers_of_any_type(weights):
    plain, weighted = Fleet(small_mlp, 3), Fleet(small_mlp, 3)
    fit(plain)
    fit(weighted, FleetData.shared(INPUTS, TARGETS, 3, weights=weights))
    assert_same_bits(plain.state_dict(), weighted.state_dict())


# ------------------------------------------------------------- rows of a batch


@pytest.mark.parametrize(("batch_size", "n_steps"), [(None, 11), ("all", 1), (10_000, 1), (256, 4)])
def test_a_batch_has_a_sensible_number_of_rows_by_default(batch_size, n_steps):
    fleet = Fleet(small_mlp, 2)
    fit(fleet, FleetData.shared(*rows(1000), 2), 1, batch_size=batch_size, continued=True)
    assert fleet.optimizer_state["n_steps"].flatten().tolist() == [n_steps] * 2


def test_the_default_number_of_rows_learns_in_a_few_epochs():
    inputs, targets = rows(1000, n_targets=1)
    data = FleetData.shared(inputs, targets, 2)
    fleet, slow = Fleet(small_mlp, 2), Fleet(small_mlp, 2)
    fit(fleet, data, 15)
    fit(slow, data, 15, batch_size="all")
    assert (3 * fleet.evaluate(data)["distortion"] < slow.evaluate(data)["distortion"]).all()


def test_fresh_rows_have_the_same_default():
    source = SampledData(lambda n_rows, generator: mcl.Batch(*rows(n_rows)), 1000, 2)
    fleet = Fleet(small_mlp, 2)
    fit(fleet, source, 1, continued=True)
    assert fleet.optimizer_state["n_steps"].flatten().tolist() == [11] * 2


@pytest.mark.parametrize(
    ("batch_size", "error"), [(0, ValueError), ("some", TypeError), (2.5, TypeError), (True, TypeError)]
)
def test_a_batch_of_something_else_is_refused(batch_size, error):
    with pytest.raises(error, match=r"Fleet.fit: `batch_size` must be .* All rows are 'all'."):
        fit(Fleet(small_mlp, 3), batch_size=batch_size)
