"""Metrics of trajectories against plain loops, under every convention."""

import math

import pytest
import torch

import oracles
from grids import for_each
from torchmcl import metrics

N_HYPOTHESES, N_STEPS = 5, 4
SCENE = torch.tensor([7, 2, 7, 7, 2, 9, 4, 4, 9, 11])


def make_problem(ragged=True):
    """Ten agents of five scenes, out of order; one has no valid step, and one scene a single agent."""
    n = len(SCENE)
    data = {
        "hypotheses": torch.randn(n, N_HYPOTHESES, N_STEPS, 2, dtype=torch.float64),
        "targets": torch.randn(n, N_STEPS, 2, dtype=torch.float64),
        "mask": torch.ones(n, N_STEPS, dtype=torch.bool),
        "scene": SCENE,
    }
    if ragged:
        data["mask"] = torch.rand(n, N_STEPS) < 0.7
        data["mask"][:, 1] = True
        data["mask"][3] = False
    return data, torch.rand(n, N_HYPOTHESES, dtype=torch.float64).softmax(-1)


def agents_of(data, scores):
    columns = (data["hypotheses"], data["targets"], data["mask"], scores)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def best(error, best_by):
    return lambda errors, _: min(errors, key=lambda e: e[best_by])[error]


@for_each("k", [None, 1, 3])
def test_errors_of_agents_agree_with_the_oracle(k):
    data, scores = make_problem()
    del data["scene"]
    agents = agents_of(data, scores)

    def expected(value):
        return pytest.approx(oracles.mean_of_agents(agents, k or N_HYPOTHESES, value))

    given = {**data, "scores": scores, "k": k}
    for best_by in ("ade", "fde"):
        assert metrics.min_ade(**given, best_by=best_by).item() == expected(best("ade", best_by))
    assert metrics.min_fde(**given).item() == expected(best("fde", "fde"))
    for distance, name in (("final", "fde"), ("largest", "largest")):
        for threshold in (0.5, 1.0, 2.0):

            def missed(errors, _, name=name, threshold=threshold):
                return float(all(e[name] > threshold for e in errors))

            assert metrics.miss_rate(**given, threshold=threshold, distance=distance).item() == expected(missed)

    def brier(errors, kept):
        error, probability = min((e["fde"], p) for e, p in zip(errors, kept, strict=True))
        return error + (1 - probability) ** 2

    assert metrics.brier_min_fde(**data, probabilities=scores, k=k).item() == expected(brier)


@for_each("average_over", ["agents", "scenes"])
@for_each("k", [None, 1, 3])
def test_errors_of_scenes_agree_with_the_oracle(k, average_over):
    data, scores = make_problem()
    for error, function in (("ade", metrics.joint_min_ade), ("fde", metrics.joint_min_fde)):
        expected = oracles.joint_min_error(
            agents_of(data, scores), SCENE.tolist(), k or N_HYPOTHESES, error, average_over
        )
        assert function(**data, scores=scores, k=k, average_over=average_over).item() == pytest.approx(expected)


@for_each("average_over", ["agents", "scenes"])
@for_each("distance", [0.3, 1.0])
def test_collision_rate_agrees_with_the_oracle(average_over, distance):
    data, _ = make_problem()
    del data["targets"]
    expected = oracles.collision_rate(
        *(data[name].tolist() for name in ("hypotheses", "scene", "mask")), distance, average_over
    )
    assert metrics.collision_rate(**data, distance=distance, average_over=average_over).item() == pytest.approx(
        expected
    )


def test_collisions_of_a_crowd_are_computed_in_chunks():
    # More numbers than are compared at once: 40 000 pairs of 200 steps.
    crowd = torch.rand(1, 200, 290, 2) * 800
    near = (
        (torch.cdist(crowd, crowd, compute_mode="donot_use_mm_for_euclid_dist") < 1).any(dim=1)[0].fill_diagonal_(False)
    )
    value = metrics.collision_rate(
        hypotheses=crowd.permute(2, 0, 1, 3), scene=torch.zeros(290, dtype=torch.long), distance=1.0
    )
    assert 0 < value < 1
    torch.testing.assert_close(value, near.any(dim=-1).float().mean())


def test_the_same_convention_of_social_gan_written_out():
    # The sum of the errors of a scene's agents, its minimum over the samples, and all of that divided by all agents.
    data, _ = make_problem(ragged=False)
    distance = (data["hypotheses"] - data["targets"].unsqueeze(1)).norm(dim=-1)
    for errors, function in ((distance.mean(-1), metrics.joint_min_ade), (distance[..., -1], metrics.joint_min_fde)):
        total = sum(errors[number == SCENE].sum(dim=0).min() for number in SCENE.unique())
        torch.testing.assert_close(function(**data, average_over="agents"), total / len(SCENE))


def test_contents_of_invalid_steps_are_ignored_and_agents_without_a_valid_step_left_out():
    data, probabilities = make_problem()
    absent = ~data["mask"]
    hypotheses = data["hypotheses"].masked_fill(absent[:, None, :, None], math.nan)
    targets = data["targets"].masked_fill(absent.unsqueeze(-1), math.inf)
    kept = torch.arange(len(SCENE)) != 3
    for function in (metrics.min_ade, metrics.min_fde, metrics.miss_rate, metrics.joint_min_ade, metrics.joint_min_fde):
        given = dict(data) if "joint" in function.__name__ else {k: v for k, v in data.items() if k != "scene"}
        expected = function(**given)
        torch.testing.assert_close(function(**{**given, "hypotheses": hypotheses, "targets": targets}), expected)
        torch.testing.assert_close(function(**{name: value[kept] for name, value in given.items()}), expected)
        one_target = {name: given[name].unsqueeze(1) for name in ("targets", "mask")}  # as in the batch of a StepOutput
        torch.testing.assert_close(function(**{**given, **one_target}), expected)
        assert function(**{**given, "mask": torch.zeros_like(data["mask"])}).isnan()
        assert function(**{name: value[:0] for name, value in given.items()}).isnan()
    del data["scene"]
    torch.testing.assert_close(
        metrics.brier_min_fde(**{**data, "hypotheses": hypotheses}, probabilities=probabilities),
        metrics.brier_min_fde(**data, probabilities=probabilities),
    )


def test_agents_that_are_alone_or_never_there_at_the_same_time_do_not_collide():
    hypotheses, alone = torch.zeros(2, 1, 2, 2), torch.arange(2)
    together, mask = torch.zeros(2, dtype=torch.long), torch.tensor([[True, False], [False, True]])
    assert metrics.collision_rate(hypotheses=hypotheses, scene=alone, distance=1.0) == 0
    assert metrics.collision_rate(hypotheses=hypotheses, scene=together, distance=1.0) == 1
    assert metrics.collision_rate(hypotheses=hypotheses, scene=together, mask=mask, distance=1.0) == 0
    assert metrics.collision_rate(hypotheses=hypotheses[:0], scene=alone[:0], distance=1.0).isnan()


def test_a_distance_equal_to_the_threshold_is_neither_a_miss_nor_a_collision():
    hypotheses = torch.tensor([[[[0.0, 0.0]]], [[[2.0, 0.0]]]])
    assert metrics.miss_rate(hypotheses=hypotheses[1:], targets=torch.zeros(1, 1, 2), threshold=2.0) == 0
    scene = torch.zeros(2, dtype=torch.long)
    assert metrics.collision_rate(hypotheses=hypotheses, scene=scene, distance=2.0) == 0


def test_half_precision_is_computed_in_float32():
    data, _ = make_problem()
    hypotheses, targets = data["hypotheses"].half(), data["targets"].float()
    value = metrics.min_ade(hypotheses=hypotheses, targets=targets)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, metrics.min_ade(hypotheses=hypotheses.float(), targets=targets))


@for_each(
    "change, kind",
    [
        ({"hypotheses": torch.zeros(10, 4, 2)}, ValueError),
        ({"hypotheses": torch.full((10, 5, 4, 2), math.nan)}, ValueError),
        ({"targets": torch.zeros(10, 2, 4, 2)}, ValueError),
        ({"targets": None}, TypeError),
        ({"mask": torch.ones(10, dtype=torch.bool)}, ValueError),
        ({"mask": torch.ones(10, 4)}, TypeError),
        ({"scores": torch.zeros(10, 4)}, ValueError),
        ({"scores": torch.full((10, 5), math.nan)}, ValueError),
        ({"scene": SCENE[:3]}, ValueError),
        ({"scene": SCENE.float()}, TypeError),
        ({"k": 6}, ValueError),
        ({"k": 0}, ValueError),
        ({"k": 2}, ValueError),
        ({"average_over": "samples"}, ValueError),
    ],
)
def test_bad_input_is_refused(change, kind):
    data, _ = make_problem()
    with pytest.raises(kind, match=f"joint_min_ade: `{next(iter(change))}`"):
        metrics.joint_min_ade(**{**data, **change})


def test_probabilities_and_options_are_checked():
    data, probabilities = make_problem()
    scene = data.pop("scene")
    for wrong in (-probabilities, probabilities + 1):
        with pytest.raises(ValueError, match="brier_min_fde: `probabilities`"):
            metrics.brier_min_fde(**data, probabilities=wrong)
    with pytest.raises(ValueError, match="miss_rate: `distance`"):
        metrics.miss_rate(**data, distance="max")
    with pytest.raises(ValueError, match="collision_rate: `distance`"):
        metrics.collision_rate(hypotheses=data["hypotheses"], scene=scene, distance=0)
