"""The same seed gives the same bits; what threads and workers may change is what docs/checkpoints.rst says."""

import contextlib

import pytest
import torch

import torchmcl as mcl
from torchmcl_fleet import Fleet, FleetData


@contextlib.contextmanager
def threads(n_threads):
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def trained(n_models, n_rows, batch_size, hidden, n_threads, dropout=0.0):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n_rows, 6, generator=generator), torch.randn(n_rows, 1, 1, generator=generator)

    def make():
        network = mcl.MultiHypothesisMLP(6, 1, 5, hidden=hidden)
        return torch.nn.Sequential(torch.nn.Dropout(dropout), network) if dropout else network

    with threads(n_threads):
        torch.manual_seed(0)
        fleet = Fleet(make, n_models, rule=mcl.AnnealedWTA(0.1))
        data = FleetData.shared(*rows, n_models)
        history = fleet.fit(data, 4, batch_size=batch_size, validation=data, progress=False)
    return fleet.state_dict()["last"], history.losses


@pytest.mark.parametrize("batch_size", ["all", 64])
def test_a_fleet_whose_chunks_have_a_core_each_has_the_same_bits_with_any_number_of_threads(batch_size):
    options = {"n_models": 32, "n_rows": 200, "batch_size": batch_size, "hidden": (20,)}
    expected = trained(n_threads=1, **options)
    for n_threads in (1, 2, 4):
        for part, wanted in zip(trained(n_threads=n_threads, **options), expected, strict=True):
            assert torch.equal(part, wanted)


@pytest.mark.parametrize(
    "options",
    [
        {"n_models": 1, "n_rows": 2048, "batch_size": 1024, "hidden": (256, 128)},
        {"n_models": 16, "n_rows": 200, "batch_size": 64, "hidden": (20,), "dropout": 0.2},
        {"n_models": 3, "n_rows": 100, "batch_size": 32, "hidden": (20,)},
    ],
    ids=["large network", "dropout", "few models"],
)
def test_elsewhere_threads_may_change_the_last_digits_and_nothing_else_does(options):
    weights = [trained(n_threads=n_threads, **options)[0] for n_threads in (1, 2, 2)]
    assert torch.equal(weights[1], weights[2])
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)
