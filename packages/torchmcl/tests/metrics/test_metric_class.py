"""`Metric` over batches and processes equals its function on everything."""

import pickle

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from problems import matching_problem, ragged_mask
from torchmcl import metrics

pytest.importorskip("torchmetrics")

N_ROWS = 11
SCENE = torch.arange(N_ROWS) // 3  # the batches below hold whole scenes


def of_matching():
    return {"matching": matching_problem(N_ROWS)[-1]}


def of_scores():
    predictions, _, _, matching = matching_problem(N_ROWS)
    return {"predictions": predictions, "matching": matching}


def of_predictions():
    predictions, targets, mask, _ = matching_problem(N_ROWS)
    return {"predictions": predictions, "targets": targets, "mask": mask}


def of_images():
    predictions = mcl.Predictions(torch.randn(N_ROWS, 4, 3, 5), torch.randn(N_ROWS, 4))
    return {"predictions": predictions, "targets": torch.rand(N_ROWS, 3, 3, 5).round(), "mask": ragged_mask(N_ROWS)}


def of_paths():
    hypotheses, targets = torch.randn(N_ROWS, 4, 5, 2), torch.randn(N_ROWS, 5, 2)
    return {"hypotheses": hypotheses, "targets": targets, "mask": torch.rand(N_ROWS, 5) < 0.7}


def of_scored_paths():
    return {**of_paths(), "probabilities": torch.rand(N_ROWS, 4).softmax(dim=-1)}


def of_scenes():
    return {**of_paths(), "scene": SCENE}


def of_moving_agents():
    return {name: value for name, value in of_scenes().items() if name != "targets"}


CASES = {
    metrics.average_pairwise_distance: (lambda: {"predictions": of_predictions()["predictions"]}, {}),
    metrics.brier_min_fde: (of_scored_paths, {"k": 2}),
    metrics.collision_rate: (of_moving_agents, {"distance": 1.0, "average_over": "scenes"}),
    metrics.crps: (of_predictions, {"scores": mcl.SoftmaxScores()}),
    metrics.distortion: (of_matching, {}),
    metrics.energy_score: (of_predictions, {}),
    metrics.generalized_energy_distance: (of_images, {}),
    metrics.hypothesis_usage: (of_matching, {}),
    metrics.joint_min_ade: (of_scenes, {}),
    metrics.joint_min_fde: (of_scenes, {"average_over": "agents"}),
    metrics.matched_dice: (of_images, {}),
    metrics.min_ade: (of_paths, {"best_by": "fde"}),
    metrics.min_fde: (of_paths, {}),
    metrics.miss_rate: (of_paths, {"threshold": 1.0, "distance": "largest"}),
    metrics.mode_coverage: (of_predictions, {"radius": 1.0}),
    metrics.mpjpe: (of_images, {}),
    metrics.n_dead_hypotheses: (of_matching, {}),
    metrics.oracle_rmse: (of_predictions, {}),
    metrics.pa_mpjpe: (of_images, {}),
    metrics.rmse_of_mean: (of_predictions, {"scores": mcl.SoftmaxScores()}),
    metrics.score_calibration_error: (of_scores, {"n_bins": 5}),
    metrics.usage_entropy: (of_matching, {}),
    metrics.variogram_score: (of_predictions, {"order": 1.0}),
}


def rows(arguments, index):
    def part(value):
        return type(value)(*(leaf[index] for leaf in value)) if isinstance(value, tuple) else value[index]

    return {name: part(value) for name, value in arguments.items()}


def test_every_function_is_here():
    assert {function.__name__ for function in CASES} == set(metrics.__all__)


@for_each("function", CASES)
def test_a_metric_over_batches_equals_the_function_on_everything(function):
    make, options = CASES[function]
    arguments = make()
    metric = metrics.Metric(function, **options)
    for index in (slice(0, 3), slice(3, 9), slice(9, N_ROWS)):
        metric.update(**rows(arguments, index))
    expected = function(**arguments, **options).double()
    torch.testing.assert_close(metric.compute().double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pickle.loads(pickle.dumps(metric)).compute(), metric.compute())
    metric.reset()
    torch.testing.assert_close(metric(**arguments).double(), expected, rtol=1e-5, atol=1e-6)


def test_a_metric_keeps_no_graph():
    predictions = mcl.Predictions(torch.randn(6, 4, 2, requires_grad=True))
    metric = metrics.Metric(metrics.oracle_rmse)
    metric.update(predictions, torch.randn(6, 2))
    assert not metric.total.requires_grad


def test_only_functions_of_the_package_can_be_accumulated():
    with pytest.raises(TypeError, match="Metric: `function`"):
        metrics.Metric(torch.mean)


def one_of_two_processes(rank, address, results):
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        torch.manual_seed(0)
        matching = of_matching()
        values = []
        for function in (metrics.distortion, metrics.hypothesis_usage, metrics.n_dead_hypotheses):
            metric = metrics.Metric(function)
            metric.update(**rows(matching, slice(0, 3) if rank == 0 else slice(3, N_ROWS)))
            values.append((metric.compute().double(), function(**matching).double()))
        torch.save(values, f"{results}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_metrics_add_up_over_two_processes(tmp_path):
    address = (tmp_path / "meeting_point").as_uri()
    torch.multiprocessing.spawn(one_of_two_processes, args=(address, str(tmp_path)), nprocs=2)
    for rank in range(2):
        for value, expected in torch.load(tmp_path / f"{rank}.pt"):
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
