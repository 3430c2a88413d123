"""A diagnosis finds what was done to the predictions."""

import numpy as np
import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.app import main
from torchmcl.loop import Recorder
from torchmcl.postprocess import diagnose


def healthy(n=4000, k=4, seed=0):
    """Return predictions around a circle, targets near one of them, and the right scores."""
    generator = torch.Generator().manual_seed(seed)
    center = torch.randn(n, 1, 2, generator=generator)
    angles = torch.arange(k) * (2 * torch.pi / k)
    hypotheses = center + torch.stack([angles.cos(), angles.sin()], dim=-1)
    targets = hypotheses[torch.arange(n), torch.randint(k, (n,), generator=generator)]
    targets = targets + 0.1 * torch.randn(n, 2, generator=generator)
    return mcl.Predictions(hypotheses, torch.full((n, k), 1 / k).logit()), targets


def test_nothing_stands_out_in_a_healthy_network():
    found = diagnose(*healthy(400))
    assert (found.starved, found.duplicated, found.collapsed) == ((), (), 0.0)
    assert found.distortion == pytest.approx(0.02, rel=0.2)
    assert found.distortion_of_mean == pytest.approx(1.02, rel=0.1)
    assert found.split_temperature == pytest.approx(1.02, rel=0.2)
    assert found.misplaced == ()


def test_starved_and_duplicated_hypotheses_are_found():
    given, targets = healthy(400)
    far, twice = given.hypotheses.clone(), given.hypotheses.clone()
    far[:, 2] += 100
    found = diagnose(mcl.Predictions(far), targets)
    assert found.starved == (2,)
    twice[:, 3] = twice[:, 1] + 1e-5
    found = diagnose(mcl.Predictions(twice), targets)
    assert found.duplicated == ((1, 3),)
    assert "duplicated hypotheses    1 and 3" in str(found)


def test_a_collapse_and_bad_scores_are_found():
    given, targets = healthy(400)
    center = given.hypotheses.mean(dim=1, keepdim=True).expand(-1, 4, -1)
    found = diagnose(mcl.Predictions(center), targets)
    assert found.collapsed == 1.0
    assert found.score_error is None
    assert found.distortion_of_offsets < 0.1 * found.distortion
    sure = torch.tensor([9.0, -9.0, -9.0, -9.0]).expand(400, 4)
    assert diagnose(mcl.Predictions(given.hypotheses, sure), targets).score_error > 0.2


def test_padded_targets_do_not_count_and_sequences_are_flattened():
    given, targets = healthy(300)
    padded = torch.stack([targets, torch.full_like(targets, torch.nan)], dim=1)
    mask = torch.tensor([True, False]).expand(300, 2)
    assert diagnose(given, padded, mask) == diagnose(given, targets)
    paths = mcl.Predictions(given.hypotheses.unsqueeze(2).expand(-1, -1, 3, -1), given.score_logits)
    found = diagnose(paths, targets.unsqueeze(1).expand(-1, 3, -1))
    assert found.distortion == pytest.approx(3 * diagnose(given, targets).distortion, rel=1e-5)


def test_bad_input_is_named():
    given, targets = healthy(10)
    with pytest.raises(ValueError, match="`targets`"):
        diagnose(given, targets[:5])
    with pytest.raises(ValueError, match="be finite, got nan"):
        diagnose(given, targets * torch.nan)
    with pytest.raises(ValueError, match="at least one valid target"):
        diagnose(given, targets, torch.zeros(10, 1, dtype=torch.bool))


def test_the_command_says_what_the_function_says(tmp_path, capsys):
    given, targets = healthy(60)
    arrays = {"hypotheses": given.hypotheses, "scores": torch.full((60, 4), 0.25), "targets": targets.unsqueeze(1)}
    path, page = tmp_path / "predictions.npz", tmp_path / "page.html"
    np.savez(path, mask=np.ones((60, 1), dtype=bool), **{name: value.numpy() for name, value in arrays.items()})
    assert main(["diagnose", str(path), "--out", str(page)]) == 0
    expected = str(diagnose(given, targets, scores=arrays["scores"]))
    assert expected in capsys.readouterr().out
    assert expected in page.read_text()


def recorded(temperatures, n_hypotheses=3, path=None):
    """Return the recorder of a short training on two branches."""
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=n_hypotheses, hidden=(16,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.rand(64, 1)
    batch = mcl.Batch(x, torch.where(torch.rand(64, 1, 1) < 0.5, -1.0, 1.0) + 0 * x.unsqueeze(1))
    with Recorder(every=1, path=path) as recorder:
        for step, temperature in enumerate(temperatures):
            rule = mcl.AnnealedWTA(temperature) if temperature else mcl.WTA()
            output = mcl.mcl_step(model, batch, rule)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            recorder(step, output, rule)
    return recorder


def test_the_records_of_a_hot_training_show_a_collapse():
    recorder = recorded([50.0] * 150)
    found = diagnose(recorder)
    assert found.collapsed == 1.0
    assert (found.n_targets, found.score_error, found.distortion_of_mean) == (None, None, None)
    assert found.final_temperature == 50.0


def test_the_records_of_a_cooled_training_show_the_split(tmp_path, capsys):
    cooling = [8.0] * 100 + [8.0 * 0.95**step for step in range(150)]
    recorder = recorded(cooling, path=tmp_path / "records.jsonl")
    found = diagnose(recorder)
    assert found.collapsed < 0.5
    assert 0.1 < found.split_temperature < 8.0
    assert found.final_temperature == pytest.approx(cooling[-1])
    assert found.win_rates == pytest.approx(diagnose(recorder.records()).win_rates)
    assert sum(found.win_rates) == pytest.approx(1.0)
    assert main(["diagnose", str(tmp_path / "records.jsonl")]) == 0
    assert "temperature of a split" in capsys.readouterr().out


def test_records_take_no_targets_and_predictions_need_them():
    with pytest.raises(ValueError, match="`targets`"):
        diagnose(recorded([1.0] * 3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="`targets`"):
        diagnose(healthy(10)[0])


def test_wins_and_mean_scores_are_listed_for_each_hypothesis():
    given, targets = healthy(400)
    found = diagnose(given, targets)
    assert found.mean_scores == pytest.approx((0.25,) * 4)
    assert "hypothesis  wins    mean score" in str(found)
    assert len(str(diagnose(mcl.Predictions(torch.randn(200, 60, 2)), torch.randn(200, 2))).splitlines()) < 60


def test_a_few_targets_are_not_compared_with_offsets():
    given, targets = healthy(12)
    assert diagnose(given, targets).distortion_of_offsets is None


@for_each("shape", ["rows and steps", "with the axis of targets"])
def test_masked_steps_say_nothing(shape):
    generator = torch.Generator().manual_seed(0)
    hypotheses, targets = torch.randn(80, 3, 6, 2, generator=generator), torch.randn(80, 6, 2, generator=generator)
    real = (torch.arange(6) < 4).expand(80, 6)
    expected = diagnose(mcl.Predictions(hypotheses[:, :, :4]), targets[:, :4])
    padded = targets.masked_fill(~real.unsqueeze(-1), torch.nan)
    if shape == "rows and steps":
        found = diagnose(mcl.Predictions(hypotheses), padded, real)
    else:
        found = diagnose(mcl.Predictions(hypotheses), padded.unsqueeze(1), real.unsqueeze(1))
    assert found.distortion == pytest.approx(expected.distortion)
    assert found.distortion_of_mean == pytest.approx(expected.distortion_of_mean)
    assert found.split_temperature == pytest.approx(expected.split_temperature)
    assert found.win_rates == expected.win_rates
    with pytest.raises(ValueError, match="`mask`"):
        diagnose(mcl.Predictions(hypotheses), targets.unsqueeze(1).expand(80, 2, 6, 2), real[:, None].expand(80, 2, 6))


def test_hypotheses_between_two_modes_are_named_with_their_cost():
    modes = torch.tensor([-1.0, 1.0, 5.0]).repeat(200).view(-1, 1)
    targets = modes + 0.05 * torch.randn(600, 1, generator=torch.Generator().manual_seed(0))
    lost = diagnose(mcl.Predictions(torch.tensor([[[0.0], [5.0], [5.02]]]).expand(600, 3, 1)), targets)
    assert [split for _, split in lost.misplaced] == [0]
    assert lost.distortion_of_moves < 0.01 < 0.6 < lost.distortion
    found = diagnose(mcl.Predictions(torch.tensor([[[-1.0], [1.0], [5.0]]]).expand(600, 3, 1)), targets)
    assert found.misplaced == ()
    assert found.distortion_of_moves == found.distortion
