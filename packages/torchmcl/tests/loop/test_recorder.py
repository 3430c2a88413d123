"""The recorder of plain loops: right values, little of the host's time, files that can be read again."""

import csv
import json

import pytest
import torch

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl.annealing import AnnealingRecords, annealing_statistics
from torchmcl.annealing.records import SCALARS
from torchmcl.loop import Recorder

RULE_AT = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.5, 0.0, 20))


def batch_of(n_rows=16, n_targets=1, mask=None):
    return mcl.Batch(torch.rand(n_rows, 1), torch.randn(n_rows, n_targets, 2), mask)


def run(recorder, model, batch, n_steps=20):
    outputs = []
    for step in range(n_steps):
        outputs.append(mcl.mcl_step(model, batch, RULE_AT(step)))
        recorder(step, outputs[-1], RULE_AT(step))
    return outputs


def network(**options):
    return mcl.MultiHypothesisMLP(1, 2, 4, hidden=(8,), **options)


@for_each("n_targets", [1, 5])
@for_each("rule", [mcl.WTA(), mcl.RelaxedWTA(0.3), mcl.AnnealedWTA(0.4)])
def test_measurements_are_those_of_the_definitions(rule, n_targets):
    cost = torch.rand(6, n_targets, 4, dtype=torch.float64)
    mask = torch.rand(6, n_targets) < 0.7
    mask[0] = True
    matching = mcl.assign(cost, rule, mask)
    temperature = getattr(rule, "temperature", 0.0)
    measured = annealing_statistics(matching, temperature)
    expected = oracles.measurement(cost, matching.weights, mask, temperature)
    for name in SCALARS:
        assert getattr(measured, name).item() == pytest.approx(expected[name], abs=1e-9), name
    assert measured.usage.sum().item() == pytest.approx(1.0)


def test_every_kth_step_is_recorded_from_what_the_step_computed():
    model, recorder = network(), Recorder(every=4)
    outputs = run(recorder, model, batch_of())
    records = recorder.records()
    assert records.step.tolist() == [0, 4, 8, 12, 16]
    torch.testing.assert_close(records.temperature, torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1]))
    expected = annealing_statistics(outputs[8].matching, 0.3)
    for name in SCALARS:
        torch.testing.assert_close(getattr(records, name)[2], getattr(expected, name))
    torch.testing.assert_close(records.usage[2], expected.usage)
    torch.testing.assert_close(records.hypotheses[2], outputs[8].predictions.hypotheses[:4].detach())
    assert records.probes is None


def test_probes_are_asked_of_the_model():
    model, probes = network(), torch.tensor([[0.2], [0.7], [0.9]])
    recorder = Recorder(every=10, model=model, probes=probes)
    run(recorder, model, batch_of())
    records = recorder.records()
    torch.testing.assert_close(records.hypotheses[1], model(probes).hypotheses.detach())
    torch.testing.assert_close(records.scores[1], mcl.normalized_scores(model(probes).score_logits).detach())
    assert records.n_distinct.shape == (2, 3)
    assert torch.equal(records.probes, probes)


def test_probes_are_asked_in_evaluation_mode_and_leave_no_trace():
    norm, frozen = torch.nn.BatchNorm1d(1), torch.nn.Dropout(0.5).eval()
    body = torch.nn.Sequential(norm, torch.nn.Dropout(0.5), frozen)
    model = torch.nn.Sequential(body, mcl.MultiHypothesisMLP(1, 1, 3, hidden=(8,)))
    output = mcl.mcl_step(model, mcl.Batch(torch.rand(16, 1), torch.randn(16, 1, 1)), mcl.WTA())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_numbers, recorder = torch.get_rng_state(), Recorder(every=1, model=model, probes=torch.full((4, 1), 9.0))
    recorder(0, output, mcl.WTA())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random_numbers)
    assert [part.training for part in (model, norm, frozen)] == [True, True, False]
    expected = model.eval()(torch.full((4, 1), 9.0)).hypotheses
    torch.testing.assert_close(recorder.records().hypotheses[0], expected.detach())


@for_each("sizes", [(16, 16, 1), (16, 3), (2, 16), (16, 0)])
def test_batches_of_different_sizes_are_recorded(sizes, tmp_path):
    model = mcl.MultiHypothesisMLP(1, 1, 3, hidden=(8,))
    with Recorder(every=1, path=tmp_path / "records.jsonl") as recorder:
        for step, n in enumerate(sizes):
            recorder(step, mcl.mcl_step(model, mcl.Batch(torch.rand(n, 1), torch.randn(n, 1, 1)), mcl.WTA()), mcl.WTA())
    records = recorder.records()
    assert records.step.tolist() == [step for step, n in enumerate(sizes) if n]
    assert records.hypotheses.shape == (len(records), min(sizes[0], 4), 3, 1)
    assert records.distortion.isfinite().all()


def test_nothing_is_fetched_from_the_device_before_many_records_wait(tmp_path):
    path = tmp_path / "run.jsonl"  # written with what was fetched
    recorder = Recorder(every=1, path=path)
    run(recorder, network(), batch_of(), n_steps=20)
    assert not path.exists()
    run(recorder, network(), batch_of(), n_steps=180)
    assert len(AnnealingRecords.load(path)) == 200


@for_each("scores", [True, False])
def test_a_file_of_records_reads_back(tmp_path, scores):
    path = tmp_path / "run.jsonl"
    model = network(scores=scores)
    with Recorder(every=5, model=model, probes=torch.tensor([[0.5]]), path=path) as recorder:
        run(recorder, model, batch_of())
    loaded, kept = AnnealingRecords.load(path), recorder.records()
    for name, value in vars(kept).items():
        if value is None:
            assert getattr(loaded, name) is None
        else:
            torch.testing.assert_close(getattr(loaded, name), value)
    assert json.loads(path.read_text().splitlines()[0])["n_distinct"] == kept.n_distinct[0].tolist()


def test_an_error_in_the_loop_leaves_what_was_recorded(tmp_path):
    path = tmp_path / "run.jsonl"
    recorder = Recorder(every=5, path=path)

    def interrupted():
        with recorder:
            run(recorder, network(), batch_of(), n_steps=7)
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        interrupted()
    assert AnnealingRecords.load(path).step.tolist() == [0, 5]


def test_scalars_are_written_as_a_table(tmp_path):
    recorder = Recorder(every=10)
    run(recorder, network(), batch_of())
    recorder.records().save(tmp_path / "run.csv")
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "10"]
    assert float(rows[1]["rate"]) == pytest.approx(recorder.records().rate[1].item())
    assert {"temperature", "free_energy", "n_distinct_0", "n_distinct_3"} <= rows[0].keys()


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Recorder: `every`"):
        Recorder(every=0)
    with pytest.raises(TypeError, match="Recorder: `model`"):
        Recorder(probes=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="Recorder: `path`"):
        Recorder(path="run.txt")
    with pytest.raises(ValueError, match="Recorder: `records`"):
        Recorder().records()
    recorder = Recorder()
    run(recorder, network(), batch_of())
    with pytest.raises(ValueError, match=r"AnnealingRecords\.save: `path`"):
        recorder.records().save(tmp_path / "run.txt")


def test_a_rule_with_a_temperature_for_each_sample_is_refused():
    rule = mcl.AnnealedWTA(torch.rand(16, 1, 1))
    output = mcl.mcl_step(network(), batch_of(), rule)
    with pytest.raises(ValueError, match="`rule`"):
        Recorder()(0, output, rule)
