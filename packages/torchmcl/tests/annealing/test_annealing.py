"""Phase transitions, of hand-made coolings and of a network that was annealed."""

import pytest
import torch

import torchmcl as mcl
from torchmcl.annealing import AnnealingRecords, network_tolerance, phase_transitions
from torchmcl.loop import Recorder


def records_of(temperatures, places):
    """Records of hypotheses [records, hypotheses] on a line, with one probe."""
    t = torch.tensor(temperatures)
    hypotheses = torch.tensor(places)[:, None, :, None]
    usage = torch.full((len(t), hypotheses.shape[2]), 1 / hypotheses.shape[2])
    return AnnealingRecords(torch.arange(len(t)), t, t, t, t, t, t, usage, hypotheses)


# ------------------------------------------------------------------ transitions


def test_a_split_is_found_where_it_happens():
    records = records_of([4.0, 2.0, 1.0, 0.5], [[0.0, 0.0, 0.0]] * 2 + [[-1.0, 1.0, 1.0], [-1.0, 0.8, 1.2]])
    found = phase_transitions(records)
    assert [(f.step, f.temperature, f.n_before, f.n_after) for f in found] == [(2, 1.0, 1, 2), (3, 0.5, 2, 3)]


def test_hypotheses_that_have_not_come_together_yet_are_no_split():
    records = records_of([4.0, 3.0, 2.0, 1.0], [[-2.0, 2.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    assert [f.temperature for f in phase_transitions(records)] == [1.0]


def test_hypotheses_that_part_for_a_moment_are_no_split():
    records = records_of([4.0, 3.0, 2.0, 1.0], [[0.0, 0.0], [-2.0, 2.0], [0.0, 0.0], [-1.0, 1.0]])
    assert [f.temperature for f in phase_transitions(records)] == [1.0]


def test_a_wider_tolerance_sees_less():
    records = records_of([4.0, 1.0], [[0.0, 0.0], [-1.0, 1.0]])
    assert phase_transitions(records, tolerance=3.0) == []


def test_hypotheses_that_stay_together_never_split():
    assert phase_transitions(records_of([4.0, 1.0], [[0.0, 0.0], [0.0, 0.0]])) == []


def test_a_training_at_one_temperature_has_no_transitions_to_look_for():
    with pytest.raises(ValueError, match="`records`"):
        phase_transitions(records_of([0.5] * 3, [[0.0, 1.0]] * 3))


def test_a_training_that_heats_is_refused():
    with pytest.raises(ValueError, match="rise"):
        phase_transitions(records_of([0.5, 1.0], [[0.0, 0.0], [0.0, 1.0]]))


def test_a_probe_that_was_not_recorded_is_refused():
    with pytest.raises(ValueError, match="`probe`"):
        phase_transitions(records_of([1.0, 0.5], [[0.0, 0.0], [0.0, 1.0]]), probe=2)


def test_the_tolerance_of_networks_falls_with_the_temperature():
    torch.testing.assert_close(network_tolerance(torch.tensor([4.0, 1.0, 0.0])), torch.tensor([0.6, 0.3, 0.0]))


# ------------------------------------------------------------------ a network that was annealed


@pytest.fixture(scope="module")
def annealed_network():
    """Return the records of one network, trained on the conditional three Gaussians."""
    gaussians = pytest.importorskip("torchmcl_fleet.demo.gaussians", reason="needs torchmcl-fleet")
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(1, 2, 25, hidden=(32, 32), output_activation=torch.tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    n_steps = 1000
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps, eta_min=1e-3)
    rule = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.7, 0.0, n_steps))
    generator = torch.Generator().manual_seed(0)
    recorder = Recorder(every=10, model=model, probes=torch.tensor([[0.1], [0.6], [0.9]]))
    for step in range(n_steps):
        batch = gaussians.conditional_three_gaussians(100, generator)
        output = mcl.mcl_step(model, batch, rule(step))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        rates.step()
        recorder(step, output, rule(step))
    return recorder.records()


def test_inputs_with_a_larger_variance_split_first_and_near_the_prediction(annealed_network):
    from torchmcl_fleet.demo.gaussians import conditional_covariance

    records = annealed_network
    predicted = 2 * torch.linalg.eigvalsh(conditional_covariance(records.probes[:, 0]))[:, -1]
    observed = [phase_transitions(records, probe)[0].temperature for probe in range(3)]
    assert observed == sorted(observed)
    for seen, theory in zip(observed, predicted.tolist(), strict=True):
        assert 0.6 * theory < seen < 1.8 * theory + 0.01  # this cooling is fast, the network lags behind


def test_free_energy_rate_and_entropy_tell_the_same_story(annealed_network):
    records = annealed_network
    hot, cold = records.temperature > 0.5, records.temperature < 0.05
    assert records.rate[hot][5:].mean() < 0.2
    assert records.rate[-1] > 2
    assert records.entropy[hot].mean() > records.entropy[cold].mean()
    torch.testing.assert_close(
        records.free_energy, records.soft_distortion - records.temperature * records.entropy, atol=1e-5, rtol=0
    )
