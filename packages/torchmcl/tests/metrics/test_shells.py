"""The torchmetrics classes over batches and processes equal their functions on everything."""

import pickle

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from problems import matching_problem as make_problem
from problems import ragged_mask as make_mask
from problems import some_predictions as make_predictions
from torchmcl import metrics

SHELLS = {
    "Distortion": (lambda: metrics.Distortion(), lambda a, t, m, q: (q,), metrics.distortion),
    "SoftDistortion": (lambda: metrics.SoftDistortion(), lambda a, t, m, q: (q,), metrics.soft_distortion),
    "HypothesisUsage": (lambda: metrics.HypothesisUsage(4), lambda a, t, m, q: (q,), metrics.hypothesis_usage),
    "DeadHypotheses": (lambda: metrics.DeadHypotheses(4), lambda a, t, m, q: (q,), metrics.n_dead_hypotheses),
    "RMSEOfMean": (lambda: metrics.RMSEOfMean(), lambda a, t, m, q: (a, t, m), metrics.rmse_of_mean),
    "OracleRMSE": (lambda: metrics.OracleRMSE(), lambda a, t, m, q: (a, t, m), metrics.oracle_rmse),
    "EnergyScore": (lambda: metrics.EnergyScore(), lambda a, t, m, q: (a, t, m), metrics.energy_score),
    "ScoreCalibrationError": (
        lambda: metrics.ScoreCalibrationError(n_bins=5),
        lambda a, t, m, q: (a, q),
        lambda a, q: metrics.score_calibration_error(a, q, n_bins=5),
    ),
    "WassersteinToSamples": (
        lambda: metrics.WassersteinToSamples(order=2),
        lambda a, t, m, q: (a, t, m),
        lambda a, t, m: metrics.wasserstein_to_samples(a, t, m, order=2),
    ),
    "UsageEntropy": (
        lambda: metrics.UsageEntropy(),
        lambda a, t, m, q: (q,),
        lambda q: metrics.usage_entropy(q)[q.mask.any(-1)].mean(),
    ),
}
for_all_shells = for_each("make, pick, function", SHELLS.values())


def rows(problem, index):
    return tuple(
        type(part)(*(leaf[index] for leaf in part)) if isinstance(part, tuple) else part[index] for part in problem
    )


@for_all_shells
def test_a_shell_over_batches_equals_the_function_on_everything(make, pick, function):
    problem = make_problem(n_samples=11)
    metric = make()
    for index in (slice(0, 1), slice(1, 2), slice(2, 7), slice(7, 11)):
        metric.update(*pick(*rows(problem, index)))
    expected = function(*pick(*problem))
    torch.testing.assert_close(metric.compute().double(), expected.double(), rtol=1e-6, atol=1e-7)


@for_all_shells
def test_a_shell_can_be_reset_pickled_and_used_for_one_batch(make, pick, function):
    problem = make_problem(n_samples=5)
    metric = make()
    first = metric(*pick(*problem))
    torch.testing.assert_close(first.double(), function(*pick(*problem)).double(), rtol=1e-6, atol=1e-7)
    twin = pickle.loads(pickle.dumps(metric))
    torch.testing.assert_close(twin.compute(), metric.compute())
    other = make_problem(n_samples=8)
    metric.reset()
    metric.update(*pick(*other))
    torch.testing.assert_close(metric.compute().double(), function(*pick(*other)).double(), rtol=1e-6, atol=1e-7)


@for_all_shells
def test_a_shell_keeps_no_graph(make, pick, function):
    answers = make_predictions()
    answers.hypotheses.requires_grad_()
    targets, mask = torch.randn(6, 3, 2, dtype=torch.float64), make_mask()
    cost = mcl.pairwise_sq_euclidean(hypotheses=answers.hypotheses, targets=targets)
    metric = make()
    metric.update(*pick(answers, targets, mask, mcl.assign(cost, mcl.WTA(), mask)))
    for name in metric._defaults:
        assert not getattr(metric, name).requires_grad


def test_shells_are_loaded_by_name_and_unknown_names_are_refused():
    for name in SHELLS:
        assert isinstance(getattr(metrics, name), type)
    with pytest.raises(AttributeError, match=r"module 'torchmcl\.metrics' has no attribute 'Accuracy'"):
        metrics.Accuracy  # noqa: B018


@for_each(
    "make, words",
    [
        (lambda: metrics.HypothesisUsage(0), "HypothesisUsage: `n_hypotheses` must be >= 1, got 0"),
        (lambda: metrics.DeadHypotheses(0), "DeadHypotheses: `n_hypotheses` must be >= 1, got 0"),
        (lambda: metrics.ScoreCalibrationError(n_bins=0), "ScoreCalibrationError: `n_bins` must be >= 1, got 0"),
        (lambda: metrics.WassersteinToSamples(order=0), "WassersteinToSamples: `order` must be >= 1, got 0"),
    ],
)
def test_bad_options_of_a_shell_are_refused_in_words(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_shell_refuses_predictions_without_scores():
    answers, _, _, matching = make_problem(scores=False)
    with pytest.raises(ValueError, match="ScoreCalibrationError: `predictions` must have score logits, got none"):
        metrics.ScoreCalibrationError().update(answers, matching)


def one_of_two_processes(rank, address, results):
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        torch.manual_seed(0)
        problem = make_problem(n_samples=8)
        share = rows(problem, slice(0, 3) if rank == 0 else slice(3, 8))
        values = {}
        for name in ("Distortion", "HypothesisUsage", "DeadHypotheses", "RMSEOfMean"):
            make, pick, _ = SHELLS[name]
            metric = make()
            metric.update(*pick(*share))
            values[name] = metric.compute().double()
        torch.save(values, f"{results}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_shells_add_up_over_two_processes(tmp_path):
    address = (tmp_path / "meeting_point").as_uri()
    torch.multiprocessing.spawn(one_of_two_processes, args=(address, str(tmp_path)), nprocs=2)
    torch.manual_seed(0)
    problem = make_problem(n_samples=8)
    for rank in range(2):
        for name, value in torch.load(tmp_path / f"{rank}.pt").items():
            _, pick, function = SHELLS[name]
            torch.testing.assert_close(value, function(*pick(*problem)).double(), rtol=1e-6, atol=1e-7)
