"""The rows of a fleet: sets of different length, stored once each."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from plain_loop import rows
from torchmcl_fleet import FleetData, even_batch_size

CPU = torch.device("cpu")


def two_sets():
    sets = [rows(7, seed=0), rows(4, seed=1)]
    return sets, FleetData.of_sets(sets, [1, 0, 1])


def test_shared_rows_are_stored_once():
    inputs, targets = rows(5)
    data = FleetData.shared(inputs, targets, n_models=100)
    assert data.inputs.shape == (1, 5, 2)
    assert data.n_models == 100
    assert data.lengths.tolist() == [5] * 100
    everything = data.rows()[0][:2]
    assert everything[0].shape == (100, 5, 2)
    assert everything[0].untyped_storage().nbytes() == inputs.untyped_storage().nbytes()


def test_shorter_sets_are_padded_behind():
    sets, data = two_sets()
    assert data.lengths.tolist() == [4, 7, 4]
    for i, number in enumerate([1, 0, 1]):
        for stored, own in zip(data.rows()[0][:2], sets[number], strict=True):
            assert torch.equal(stored[i, : len(own)], own)
            assert not stored[i, len(own) :].any()


def test_rows_are_taken_from_the_set_of_each_model():
    sets, data = two_sets()
    index = torch.tensor([[3, 0], [6, 1], [1, 2]])
    inputs, targets = data.rows(index)[0][:2]
    for i, number in enumerate([1, 0, 1]):
        assert torch.equal(inputs[i], sets[number][0][index[i]])
        assert torch.equal(targets[i], sets[number][1][index[i]])


def test_a_subset_leaves_out_sets_and_padding_that_it_does_not_need():
    sets, data = two_sets()
    part = data.subset(slice(2, 3), CPU)
    assert part.inputs.shape == (1, 4, 2)
    assert part.set_of_model.tolist() == [0]
    assert torch.equal(part.rows()[0].inputs[0], sets[1][0])
    part = data.subset(slice(0, 2), CPU)
    assert part.lengths.tolist() == [4, 7]
    assert torch.equal(part.rows()[0].targets[1], sets[0][1])


@given(n_rows=st.integers(1, 5000), at_most=st.integers(1, 1500))
@example(n_rows=1025, at_most=32)
@example(n_rows=225, at_most=112)
def test_no_batch_is_much_smaller_than_the_others(n_rows, at_most):
    size = even_batch_size(n_rows, at_most)
    assert 1 <= size <= min(at_most, n_rows)
    assert n_rows % size == 0 or n_rows % size >= 0.75 * size
    assert size >= min(at_most, n_rows) // 4  # and they do not become many
