"""Shapes that broadcast, against torch."""

import itertools

import torch

from torchmcl.dispatch import broadcast_shapes


def result(function, *shapes):
    try:
        return function(*shapes)
    except RuntimeError:
        return None


def test_shapes_broadcast_as_in_torch():
    shapes = [torch.Size(each) for n in range(3) for each in itertools.product((0, 1, 2, 3), repeat=n)]
    for pair in itertools.product(shapes, repeat=2):
        assert result(broadcast_shapes, *pair) == result(torch.broadcast_shapes, *pair)
    assert broadcast_shapes(torch.Size([2, 1, 1]), torch.Size([3, 1]), torch.Size([4])) == (2, 3, 4)
