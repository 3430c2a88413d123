"""Options in every form that users have them in: arrays, types of numbers, rows of a batch."""

import numpy as np
import pytest
import torch

from plain_loop import assert_same_bits, rows, small_mlp
from torchmcl_fleet import Fleet, FleetData, Validation

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


# ------------------------------------------------------------- types of rows and models


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
