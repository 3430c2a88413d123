"""Epochs can be compared by another cost than the one that trains."""

import pytest
import torch

from torchmcl import (
    WTA,
    Batch,
    Cosine,
    Distributions,
    Matching,
    MultiHypothesisMLP,
    Predictions,
    StepOutput,
    assign,
)
from torchmcl.costs import MixtureNLLWithCRPS
from torchmcl.io import described
from torchmcl_fleet import Fleet, FleetData, HeldOutCost, MixtureLogLoss, Validation, WeightedDistortion, native

WATCHED = MixtureNLLWithCRPS(1000.0)


def a_fleet(backend=None):
    return Fleet(
        lambda: MultiHypothesisMLP(2, 1, 3, hidden=(8,), scales=True),
        2,
        learning_rate=Cosine(0.02, 0.0, 10),
        cost_fn=MixtureNLLWithCRPS(3.0),
        score_weight=0.0,
        backend=backend,
    )


def rows(n, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 2, generator=generator)
    return inputs, (inputs[:, :1] + 0.3 * torch.randn(n, 1, generator=generator)).unsqueeze(1)


def watched(backend, weights=None):
    fleet = a_fleet(backend)
    validation = Validation(FleetData.shared(*rows(30, 1), 2), monitor=HeldOutCost(WATCHED, weights))
    history = fleet.fit(FleetData.shared(*rows(100, 0), 2), 10, batch_size=50, validation=validation, progress=False)
    return fleet, history


@pytest.mark.parametrize("backend", ["autograd", "compiled"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_best_value_is_the_cost_of_the_kept_networks(backend, weighted):
    if backend == "compiled" and not native.available():
        pytest.skip("the extension was not built")
    weights = torch.arange(1.0, 31.0) if weighted else None
    fleet, history = watched(backend, weights)
    inputs, targets = rows(30, 1)
    shares = (torch.ones(30) if weights is None else weights).double()
    for place, model in enumerate(fleet.best_models):
        found = model.double()(inputs.double())
        given = {"hypotheses": found.hypotheses, "scale": found.scale, "score_logits": found.score_logits}
        costs = WATCHED(targets=targets.double(), **given).flatten().detach()
        expected = float(costs @ (shares / shares.sum()))
        assert float(history.best_value[place]) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(history.watched.min(dim=0).values, history.best_value)


def test_padded_rows_do_not_count():
    whole, short = rows(30, 1), rows(12, 2)
    fleet = a_fleet()
    validation = Validation(FleetData.of_sets([whole, short], [0, 1]), monitor=HeldOutCost(WATCHED))
    training = FleetData.shared(*rows(100, 0), 2)
    history = fleet.fit(training, 3, batch_size=50, validation=validation, progress=False)
    for place, (inputs, targets) in enumerate((whole, short)):
        found = fleet.best_models[place](inputs)
        costs = WATCHED(targets=targets, **found._asdict()).detach()
        assert float(history.best_value[place]) == pytest.approx(float(costs.mean()), rel=1e-4)


@pytest.mark.parametrize("monitor", [WeightedDistortion, MixtureLogLoss, lambda weights: MixtureLogLoss()])
def test_monitors_of_costs_skip_padded_targets(monitor):
    cost, weights, mask = torch.rand(2, 5, 2, 3), torch.arange(1.0, 6.0), torch.ones(2, 5, 2, dtype=torch.bool)
    mask[:, 4] = False

    def value(matching, weights):
        return monitor(weights)(StepOutput(cost, cost, None, matching, Predictions(cost), Batch(None, cost)))

    expected = value(assign(cost[:, :4], WTA()), weights[:4])
    torch.testing.assert_close(value(assign(cost, WTA(), mask), weights), expected)


def test_weights_that_would_not_count_are_refused():
    weighted = FleetData.shared(*rows(30, 1), 2, weights=torch.ones(30))
    for name, call in (("Validation: `rows`", Validation), ("Fleet.evaluate: `data`", a_fleet().evaluate)):
        with pytest.raises(ValueError, match=f"{name} must have no weights"):
            call(weighted)


@pytest.mark.parametrize(
    ("predictions", "steps", "error", "message"),
    [
        (Predictions(torch.zeros(1, 2, 1, 1), None), None, TypeError, "must be Distributions, got"),
        (
            Distributions(*[torch.zeros(1, 2, 1, 1)] * 3),
            torch.ones(1, 2, 1, 1, dtype=torch.bool),
            ValueError,
            "`mask` must be a mask of whole targets",
        ),
    ],
)
def test_other_networks_and_masks_of_steps_are_refused(predictions, steps, error, message):
    matching = Matching(torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 1, 1), torch.ones(1, 2, 1, dtype=torch.bool))
    batch = Batch(None, torch.zeros(1, 2, 1, 1), steps)
    with pytest.raises(error, match=message):
        HeldOutCost(WATCHED)(StepOutput(torch.zeros(1), torch.zeros(1), None, matching, predictions, batch))


@pytest.mark.parametrize(
    "monitor",
    [HeldOutCost(WATCHED, torch.ones(30)), WeightedDistortion(torch.ones(30)), MixtureLogLoss(torch.ones(30))],
)
def test_weights_are_copied_once_because_a_captured_epoch_cannot_copy_from_the_host(monitor):
    costs = torch.zeros(2, 30, dtype=torch.float64)
    before = described(monitor)
    first = monitor.weights_like(costs)
    assert described(monitor) == before  # a training run with a monitor that was used resumes
    assert first.dtype == torch.float64
    assert monitor.weights_like(costs) is first
    assert monitor.weights_like(costs.float()).dtype == torch.float32
