"""Work handed to the cores: in order, one core for each item, and the setting of torch as before."""

import pytest
import torch

from torchmcl_fleet.placement import on_cores


@pytest.mark.parametrize("n_items", [0, 1, 2, 9])
def test_items_have_one_core_each_and_keep_their_order(n_items):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        results = on_cores(lambda item: (item, torch.get_num_threads()), range(n_items), torch.device("cpu"))
        assert results == [(item, 1) for item in range(n_items)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_of_an_item_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        on_cores(lambda item: 1 / item, [1, 0, 2], torch.device("cpu"))
