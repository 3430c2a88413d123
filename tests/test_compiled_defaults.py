"""What compiled loops are handed is of one type and in main memory, whatever the defaults of torch are."""

import pytest
import torch

from torchmcl_fleet.native import available, compiled, line, one_target

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")
IN_C = {"dtype": torch.float32, "device": "cpu"}
POINTS = torch.randn(5, 9, 3, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.full((5, 9), 1 / 9)


def training_step():
    flat = torch.linspace(-1, 1, 72, **IN_C).view(2, 36)
    rows = {"inputs": POINTS[:1], "targets": POINTS[1:2, :, :1].unsqueeze(-1)}
    models = torch.zeros(2, dtype=torch.long, device="cpu")
    network = compiled.Network((3, 4, 4), 2, 1, False)
    step = compiled.NetworkStep(network, flat, row_weights=None, set_of_model=models, **rows)
    zeros = torch.zeros_like(flat), torch.zeros_like(flat), flat.new_zeros(2, 1)
    adam = compiled.AdamStep(*zeros, flat.new_full((2, 1), 0.1), None, (0.9, 0.999), 1e-8)
    rule = torch.tensor([[0.1, 0.2], [0.0, 0.0]], dtype=torch.float64, device="cpu")
    active = torch.ones(2, dtype=torch.bool, device="cpu")
    losses = step.epochs(rule.unsqueeze(0), 1.0, adam, bounds=[0, 4, 9], active=active)
    return losses, flat


CALLS = {
    "best points": lambda: line.Mixtures(POINTS[..., 0], WEIGHTS, WEIGHTS).best_points(2),
    "sets": lambda: line.Mixtures(POINTS[..., 0], WEIGHTS, WEIGHTS).sets(WEIGHTS[:, 0], 1.0),
    "masses": lambda: line.Mixtures(POINTS[..., 0], WEIGHTS, WEIGHTS).mass_above(POINTS[:, 0, 0]),
    "one target": lambda: one_target.one_target_losses(POINTS, POINTS[:, :1], WEIGHTS, 0.3, 0.0),
    "training": training_step,
}


@pytest.fixture(params=["double precision", "another device"])
def other_default(request):
    if request.param == "another device":
        with torch.device("meta"):
            yield
        return
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def expected(request):
    return CALLS[request.node.callspec.params["name"]]()


@pytest.mark.parametrize("name", CALLS)
def test_results_do_not_depend_on_the_defaults_of_torch(name, expected, other_default):
    torch.testing.assert_close(CALLS[name](), expected, rtol=0, atol=0, equal_nan=True)
