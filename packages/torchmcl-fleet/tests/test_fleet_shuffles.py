"""Shuffles: permutations that depend on the seed and the epoch only."""

import pytest
import torch

from torchmcl_fleet.problem import shuffled_rows

BITS = (1 << 64) - 1


def shuffles(seeds, epoch, lengths, n_rows=None):
    lengths = torch.tensor([lengths] * len(seeds) if isinstance(lengths, int) else lengths)
    return shuffled_rows(torch.tensor(seeds), epoch, lengths, n_rows or int(lengths.max()))


def mixed(number):
    """The finaliser of SplitMix64 in whole numbers of any size."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & BITS
    return number ^ (number >> 31)


def order_in_whole_numbers(seed, epoch, n_rows):
    stream = mixed((mixed((seed + 1) & BITS) + epoch) & BITS)
    # The top bits fall away: the lower bits of a half decide.
    keys = [(mixed((stream + row * 0x9E3779B97F4A7C15) & BITS) >> 1) & 0x3FFFFFFFFFFFFFFF for row in range(n_rows)]
    return sorted(range(n_rows), key=keys.__getitem__)


@pytest.mark.parametrize("epoch", [0, 1, 999])
def test_every_model_gets_a_permutation(epoch):
    order = shuffles(range(20), epoch, 31)
    assert torch.equal(order.sort(dim=-1).values, torch.arange(31).expand(20, 31))
    assert order.dtype == torch.int64


def test_a_shuffle_does_not_depend_on_the_other_models():
    together = shuffles([5, 3, 8], 4, [10, 12, 7])
    for seed, length, order in zip([5, 3, 8], [10, 12, 7], together, strict=True):
        assert torch.equal(shuffles([seed], 4, length)[0], order[:length])
    assert torch.equal(shuffles([8, 5], 4, [7, 10], n_rows=12), together[[2, 0]])


def test_the_orders_of_several_epochs_are_those_of_each():
    seeds, lengths = torch.tensor([5, 3, 8]), torch.tensor([10, 12, 7])
    together = shuffled_rows(seeds, torch.tensor([[4], [7]]), lengths, 12)
    assert torch.equal(together, torch.stack([shuffled_rows(seeds, epoch, lengths, 12) for epoch in (4, 7)]))


def test_padding_stays_behind_in_order():
    order = shuffles([0, 1], 3, [4, 6], n_rows=9)
    assert order[0, 4:].tolist() == [4, 5, 6, 7, 8]
    assert order[1, 6:].tolist() == [6, 7, 8]
    assert sorted(order[0, :4].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", [0, 1, 123456789, 2**31, 2**53 + 1, 2**62 + 7, 2**63 - 1, -5])
@pytest.mark.parametrize("epoch", [0, 7, 2**33])
def test_hashing_is_exact_in_64_bits(seed, epoch):
    assert shuffles([seed], epoch, 40)[0].tolist() == order_in_whole_numbers(seed, epoch, 40)


def test_every_row_comes_to_every_place_about_equally_often():
    order = shuffles(range(3000), 11, 10)
    counts = torch.nn.functional.one_hot(order, 10).sum(dim=0)  # [places, rows]
    assert ((counts - 300).abs() < 5 * 300**0.5).all()
