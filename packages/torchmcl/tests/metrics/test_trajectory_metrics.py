"""Metrics of trajectories against plain loops, under every convention; the shells over batches of whole scenes."""

import itertools
import math
import pickle

import pytest
import torch

import oracles
from grids import for_each
from torchmcl import metrics

N_HYPOTHESES, N_STEPS = 5, 4
SCENE = torch.tensor([7, 2, 7, 7, 2, 9, 4, 4, 9, 11])
CONVENTIONS = list(itertools.product([None, 1, 3], ["ade", "fde"], ["agents", "scenes"], [True, False]))


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


# ------------------------------------------------------------------ functions


@for_each("error", ["ade", "fde"])
@for_each("k, best_by, average_over, last_valid_step", CONVENTIONS)
def test_errors_of_agents_agree_with_the_oracle(error, k, best_by, average_over, last_valid_step):
    data, scores = make_problem()
    options = {"k": k, "best_by": best_by, "average_over": average_over, "last_valid_step": last_valid_step}
    expected = oracles.mean_of_agents(
        agents_of(data, scores),
        SCENE.tolist(),
        k or N_HYPOTHESES,
        best(error, best_by),
        average_over,
        last_valid_step,
    )
    function = {"ade": metrics.min_ade, "fde": metrics.min_fde}[error]
    assert function(**data, scores=scores, **options).item() == pytest.approx(expected)


@for_each("error", ["ade", "fde"])
@for_each("k, best_by, average_over, last_valid_step", CONVENTIONS)
def test_errors_of_scenes_agree_with_the_oracle(error, k, best_by, average_over, last_valid_step):
    data, scores = make_problem()
    expected = oracles.joint_min_error(
        agents_of(data, scores), SCENE.tolist(), k or N_HYPOTHESES, error, best_by, average_over, last_valid_step
    )
    function = {"ade": metrics.joint_min_ade, "fde": metrics.joint_min_fde}[error]
    options = {"k": k, "best_by": best_by, "average_over": average_over, "last_valid_step": last_valid_step}
    assert function(**data, scores=scores, **options).item() == pytest.approx(expected)


@for_each("distance", ["final", "largest"])
@for_each("average_over", ["agents", "scenes"])
@for_each("k", [None, 1, 3])
def test_miss_rate_agrees_with_the_oracle(distance, average_over, k):
    data, scores = make_problem()
    name = {"final": "fde", "largest": "largest"}[distance]
    for threshold in (0.5, 1.0, 2.0):

        def missed(errors, _, threshold=threshold):
            return float(all(e[name] > threshold for e in errors))

        expected = oracles.mean_of_agents(
            agents_of(data, scores), SCENE.tolist(), k or N_HYPOTHESES, missed, average_over
        )
        value = metrics.miss_rate(
            **data, scores=scores, threshold=threshold, distance=distance, k=k, average_over=average_over
        )
        assert value.item() == pytest.approx(expected)


@for_each("renormalize", [True, False])
@for_each("average_over", ["agents", "scenes"])
@for_each("k", [None, 1, 3])
def test_brier_agrees_with_the_oracle(renormalize, average_over, k):
    data, chances = make_problem()

    def brier(errors, kept):
        error, chance = min((e["fde"], p) for e, p in zip(errors, kept, strict=True))
        return error + (1 - chance / (sum(kept) if renormalize else 1)) ** 2

    expected = oracles.mean_of_agents(agents_of(data, chances), SCENE.tolist(), k or N_HYPOTHESES, brier, average_over)
    value = metrics.brier_min_fde(
        **data, probabilities=chances, k=k, renormalize=renormalize, average_over=average_over
    )
    assert value.item() == pytest.approx(expected)


@for_each("count", ["pairs", "agents"])
@for_each("average_over", ["agents", "scenes"])
@for_each("distance", [0.3, 1.0])
def test_collision_rate_agrees_with_the_oracle(count, average_over, distance):
    data, _ = make_problem()
    del data["targets"]
    expected = oracles.collision_rate(
        *(data[name].tolist() for name in ("hypotheses", "scene", "mask")), distance, count, average_over
    )
    value = metrics.collision_rate(**data, distance=distance, count=count, average_over=average_over)
    assert value.item() == pytest.approx(expected)


def test_collisions_of_a_crowd_are_those_of_all_distances():
    # More numbers than are compared at once: 40 000 pairs of 200 steps.
    crowd = torch.rand(1, 200, 290, 2) * 400
    near = (torch.cdist(crowd, crowd) < 1).any(dim=1)[0]
    expected = near.triu(diagonal=1).sum() / (290 * 289 / 2)
    value = metrics.collision_rate(
        hypotheses=crowd.permute(2, 0, 1, 3), scene=torch.zeros(290, dtype=torch.long), distance=1.0
    )
    torch.testing.assert_close(value, expected)


def test_the_same_convention_of_social_gan_written_out():
    # The sum of the errors of a scene's agents, its minimum over the samples, and all of that divided by all agents.
    data, _ = make_problem(ragged=False)
    distance = (data["hypotheses"] - data["targets"].unsqueeze(1)).norm(dim=-1)
    for errors, function in ((distance.mean(-1), metrics.joint_min_ade), (distance[..., -1], metrics.joint_min_fde)):
        total = sum(errors[number == SCENE].sum(dim=0).min() for number in SCENE.unique())
        value = function(**data, average_over="agents")
        torch.testing.assert_close(value, total / len(SCENE))


def test_joint_errors_are_never_below_those_of_agents_and_equal_when_everybody_is_alone():
    data, _ = make_problem(ragged=False)
    alone = {**data, "scene": torch.arange(len(SCENE))}
    for single, joint in ((metrics.min_ade, metrics.joint_min_ade), (metrics.min_fde, metrics.joint_min_fde)):
        assert joint(**data, average_over="agents") > single(**data)
        torch.testing.assert_close(joint(**alone), single(**alone))


def test_logits_and_probabilities_choose_the_same_hypotheses():
    data, chances = make_problem()
    for function in (metrics.min_ade, metrics.min_fde, metrics.miss_rate):
        torch.testing.assert_close(function(**data, scores=chances, k=2), function(**data, scores=chances.log(), k=2))


def test_the_contents_of_invalid_steps_are_ignored_and_kept():
    data, chances = make_problem()
    absent = ~data["mask"]
    hypotheses = data["hypotheses"].masked_fill(absent[:, None, :, None], math.nan)
    targets = data["targets"].masked_fill(absent.unsqueeze(-1), math.inf)
    before = hypotheses.clone()
    spoilt = {**data, "hypotheses": hypotheses, "targets": targets}
    for function in (metrics.min_ade, metrics.min_fde, metrics.miss_rate, metrics.joint_min_ade, metrics.joint_min_fde):
        torch.testing.assert_close(function(**spoilt), function(**data))
    torch.testing.assert_close(
        metrics.brier_min_fde(**spoilt, probabilities=chances), metrics.brier_min_fde(**data, probabilities=chances)
    )
    torch.testing.assert_close(hypotheses, before, equal_nan=True)


def test_an_agent_without_a_valid_step_is_left_out():
    data, _ = make_problem()
    kept = torch.arange(len(SCENE)) != 3
    less = {name: value[kept] for name, value in data.items()}
    for function in (metrics.min_ade, metrics.min_fde, metrics.miss_rate, metrics.joint_min_ade, metrics.joint_min_fde):
        for average_over in ("agents", "scenes"):
            torch.testing.assert_close(
                function(**data, average_over=average_over), function(**less, average_over=average_over)
            )
    del data["targets"], less["targets"]
    for count in ("pairs", "agents"):
        torch.testing.assert_close(
            metrics.collision_rate(**data, distance=1.0, count=count),
            metrics.collision_rate(**less, distance=1.0, count=count),
        )


def test_without_anything_to_average_the_result_is_nan():
    data, chances = make_problem()
    nothing = {**data, "mask": torch.zeros_like(data["mask"])}
    for function in (metrics.min_ade, metrics.min_fde, metrics.miss_rate, metrics.joint_min_ade, metrics.joint_min_fde):
        assert function(**nothing).isnan()
        assert function(**{name: value[:0] for name, value in data.items()}).isnan()
    assert metrics.brier_min_fde(**nothing, probabilities=chances).isnan()


def test_agents_that_are_all_alone_make_no_pairs_and_do_not_collide():
    hypotheses, scene = torch.zeros(3, 2, 4, 2), torch.arange(3)
    assert metrics.collision_rate(hypotheses=hypotheses, scene=scene, distance=1.0).isnan()
    assert metrics.collision_rate(hypotheses=hypotheses, scene=scene, distance=1.0, count="agents") == 0
    nobody = hypotheses[:0]
    assert metrics.collision_rate(hypotheses=nobody, scene=scene[:0], distance=1.0).isnan()


def test_agents_that_are_never_there_at_the_same_time_do_not_collide():
    hypotheses, scene = torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.long)
    mask = torch.tensor([[True, False], [False, True]])
    assert metrics.collision_rate(hypotheses=hypotheses, scene=scene, distance=1.0) == 1
    assert metrics.collision_rate(hypotheses=hypotheses, scene=scene, mask=mask, distance=1.0).isnan()
    assert metrics.collision_rate(hypotheses=hypotheses, scene=scene, mask=mask, distance=1.0, count="agents") == 0


def test_a_distance_equal_to_the_threshold_is_neither_a_miss_nor_a_collision():
    hypotheses = torch.tensor([[[[0.0, 0.0]]], [[[2.0, 0.0]]]])
    assert metrics.miss_rate(hypotheses=hypotheses[1:], targets=torch.zeros(1, 1, 2), threshold=2.0) == 0
    scene = torch.zeros(2, dtype=torch.long)
    assert metrics.collision_rate(hypotheses=hypotheses, scene=scene, distance=2.0) == 0


@for_each("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    data, _ = make_problem()
    data["hypotheses"], data["targets"] = data["hypotheses"].to(dtype), data["targets"].float()
    value = metrics.min_ade(**data)
    assert value.dtype == torch.float32
    wide = {**data, "hypotheses": data["hypotheses"].float()}
    torch.testing.assert_close(value, metrics.min_ade(**wide))


# ------------------------------------------------------------------ bad input

BAD = {
    "three axes": ({"hypotheses": torch.zeros(10, 4, 2)}, r"`hypotheses` must have shape \[batch, hypotheses, steps"),
    "no hypothesis": ({"hypotheses": torch.zeros(10, 0, 4, 2)}, r"got \(10, 0, 4, 2\)"),
    "fewer steps": ({"targets": torch.zeros(10, 3, 2)}, r"`targets` must have shape \(10, 4, 2\) \(\[batch, steps"),
    "two targets": ({"targets": torch.zeros(10, 2, 4, 2)}, r"`targets` must have shape \(10, 4, 2\)"),
    "mask of agents": ({"mask": torch.ones(10, dtype=torch.bool)}, r"`mask` must have shape \(10, 4\)"),
    "scores of another number": ({"scores": torch.zeros(10, 4)}, r"`scores` must have shape \(10, 5\)"),
    "scores that are NaN": ({"scores": torch.full((10, 5), math.nan)}, r"`scores` must be finite, got nan"),
    "too many": ({"k": 6}, r"`k` must be at most the number of hypotheses, 5, got 6. Leave `k` out to use all"),
    "none": ({"k": 0}, "`k` must be >= 1, got 0"),
    "k without scores": ({"k": 2}, "`scores` must be given to choose the best 2 of 5 hypotheses, got None"),
    "scenes of other agents": ({"scene": SCENE[:3]}, r"`scene` must have shape \(10,\)"),
    "no scenes": ({"scene": None, "average_over": "scenes"}, "`scene` must be given, .* got None"),
    "unknown average": ({"average_over": "samples"}, "`average_over` must be one of 'agents', 'scenes', got 'samples'"),
    "unknown best": ({"best_by": "score"}, "`best_by` must be one of 'ade', 'fde', got 'score'"),
}


@for_each("change, words", BAD.values())
def test_bad_input_is_refused_in_words(change, words):
    data, _ = make_problem()
    with pytest.raises(ValueError, match=f"^min_ade: .*{words}"):
        metrics.min_ade(**{**data, **change})


@for_each(
    "change, words",
    [
        ({"mask": torch.ones(10, 4)}, "`mask` must be a boolean tensor"),
        ({"scene": SCENE.float()}, "`scene` must be a tensor of integers"),
        ({"targets": torch.zeros(10, 4, 2).long()}, "`targets` must be a floating tensor"),
        ({"last_valid_step": "yes"}, "`last_valid_step` must be True or False"),
    ],
)
def test_other_types_are_refused_in_words(change, words):
    data, _ = make_problem()
    with pytest.raises(TypeError, match=words):
        metrics.joint_min_fde(**{**data, **change})


@for_each("name", ["hypotheses", "targets"])
def test_nan_at_a_valid_step_is_refused_with_its_index(name):
    data, _ = make_problem()
    data[name][2, ..., 1, 0] = math.nan
    for function in (metrics.min_fde, metrics.miss_rate, metrics.joint_min_ade):
        with pytest.raises(ValueError, match=rf"`{name}` must be finite where .* got nan at index \(2, .*1, 0\)"):
            function(**data)


def test_collisions_need_scenes_finite_positions_and_a_distance():
    hypotheses, scene = torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="collision_rate: `distance` must be > 0, got 0"):
        metrics.collision_rate(hypotheses=hypotheses, scene=scene, distance=0)
    with pytest.raises(ValueError, match="`count` must be one of 'pairs', 'agents', got 'steps'"):
        metrics.collision_rate(hypotheses=hypotheses, scene=scene, distance=1, count="steps")
    with pytest.raises(ValueError, match="`hypotheses` must be finite"):
        metrics.collision_rate(hypotheses=hypotheses / 0, scene=scene, distance=1)
    with pytest.raises(ValueError, match="`scene` must be given"):
        metrics.collision_rate(hypotheses=hypotheses, scene=None, distance=1)


def test_probabilities_must_be_some():
    data, chances = make_problem()
    with pytest.raises(ValueError, match=r"brier_min_fde: `probabilities` must lie in \[0, 1\], got -1"):
        metrics.brier_min_fde(**data, probabilities=chances - chances - 1)
    with pytest.raises(ValueError, match=r"`probabilities` must be > 0, got 0.*possible"):
        metrics.brier_min_fde(**data, probabilities=chances * 0, renormalize=True)
    with pytest.raises(ValueError, match=r"`probabilities` must be given, .*got None"):
        metrics.brier_min_fde(**data, probabilities=None)
    with pytest.raises(TypeError, match=r"`probabilities` must be a torch\.Tensor"):
        metrics.brier_min_fde(**data, probabilities=[0.5])
    with pytest.raises(ValueError, match="miss_rate: `threshold` must be > 0"):
        metrics.miss_rate(**data, threshold=0.0)
    with pytest.raises(ValueError, match="`distance` must be one of 'final', 'largest'"):
        metrics.miss_rate(**data, distance="max")


# ------------------------------------------------------------------ shells


def with_scores(data, chances):
    return {**data, "scores": chances}


SHELLS = {
    "MinADE": (metrics.min_ade, {"k": 3, "best_by": "fde", "average_over": "scenes"}, with_scores),
    "MinFDE": (metrics.min_fde, {"k": 1, "last_valid_step": False}, with_scores),
    "JointMinADE": (metrics.joint_min_ade, {}, with_scores),
    "JointMinFDE": (metrics.joint_min_fde, {"k": 2, "average_over": "agents"}, with_scores),
    "MissRate": (metrics.miss_rate, {"threshold": 1.0, "distance": "largest", "k": 4}, with_scores),
    "BrierMinFDE": (
        metrics.brier_min_fde,
        {"k": 2, "renormalize": True},
        lambda data, chances: {**data, "probabilities": chances},
    ),
    "CollisionRate": (
        metrics.collision_rate,
        {"distance": 1.0, "count": "agents", "average_over": "scenes"},
        lambda data, _: {name: data[name] for name in ("hypotheses", "mask", "scene")},
    ),
}
for_all_shells = for_each("name", SHELLS)


@for_all_shells
def test_a_shell_over_batches_of_scenes_equals_the_function_on_everything(name):
    function, options, pick = SHELLS[name]
    arguments = pick(*make_problem())
    metric = getattr(metrics, name)(**options)
    for number in SCENE.unique():
        metric.update(**{key: value[number == SCENE] for key, value in arguments.items()})
    torch.testing.assert_close(metric.compute().double(), function(**arguments, **options), rtol=1e-6, atol=1e-7)


@for_all_shells
def test_a_shell_without_options_has_the_defaults_of_the_function(name):
    function, _, pick = SHELLS[name]
    arguments = pick(*make_problem())
    needed = {"distance": 1.0} if name == "CollisionRate" else {}
    value = getattr(metrics, name)(**needed)(**arguments)
    torch.testing.assert_close(value.double(), function(**arguments, **needed), rtol=1e-6, atol=1e-7)


@for_all_shells
def test_a_shell_can_be_reset_and_pickled_and_adds_up_over_processes(name):
    _, options, pick = SHELLS[name]
    metric = getattr(metrics, name)(**options)
    metric.update(**pick(*make_problem()))
    twin = pickle.loads(pickle.dumps(metric))
    torch.testing.assert_close(twin.compute(), metric.compute())
    assert {reduction.__name__ for reduction in metric._reductions.values()} == {"dim_zero_sum"}
    metric.reset()
    assert metric.total == 0


def test_bad_options_of_a_shell_are_refused_when_it_is_made():
    for name in ("MinADE", "MinFDE", "JointMinADE", "JointMinFDE", "MissRate", "BrierMinFDE"):
        with pytest.raises(ValueError, match=f"{name}: `k` must be >= 1, got 0"):
            getattr(metrics, name)(k=0)
    with pytest.raises(ValueError, match="CollisionRate: `distance` must be > 0"):
        metrics.CollisionRate(distance=-1.0)


def test_shells_share_the_arguments_of_a_collection():
    from torchmetrics import MetricCollection

    data, chances = make_problem()
    names = MetricCollection([metrics.MinADE(), metrics.BrierMinFDE(), metrics.CollisionRate(distance=1.0)])
    values = names(**data, scores=chances, probabilities=chances)
    torch.testing.assert_close(values["MinADE"].double(), metrics.min_ade(**data), rtol=1e-6, atol=1e-7)
