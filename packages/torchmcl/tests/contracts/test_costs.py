"""The contract of every pairwise cost: values and gradients of the oracle, finite everywhere."""

import inspect
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.functional.audio import (
    permutation_invariant_training,
    scale_invariant_signal_distortion_ratio,
    signal_noise_ratio,
)

import oracles
import torchmcl as mcl
from families import COST_CASES, CostCase, max_difference
from grids import for_each
from torchmcl import costs

for_all_costs = for_each("case", COST_CASES)
VECTOR_CASES = [case for case in COST_CASES if not case.class_ids]
for_vector_costs = for_each("case", VECTOR_CASES)


def without_lifted(cases):
    """Return the costs whose dtype and memory are ours, not those of a user's loss."""
    return for_each("case", [case for case in cases if case.name != "lifted"])


# Forward mode in torch makes use of it.
forward_mode = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
AUDIO = [mcl.pairwise_neg_si_sdr, mcl.pairwise_neg_snr]


def value_and_gradients(fn, hypotheses, targets, seed=1):
    """Return the cost and the gradients of a random linear function of it."""
    leaves = [hypotheses.clone().requires_grad_()]
    differentiable = targets.is_floating_point()
    leaves.append(targets.clone().requires_grad_() if differentiable else targets)
    cost = fn(hypotheses=leaves[0], targets=leaves[1])
    direction = torch.randn(cost.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gradients = torch.autograd.grad((cost * direction).sum(), leaves if differentiable else leaves[:1])
    return cost.detach(), *gradients


# ------------------------------------------------------------------ against the oracles


@for_all_costs
def test_values_and_gradients_agree_with_the_oracle(case):
    hypotheses, targets = case.inputs(2)
    actual = value_and_gradients(case.fn, hypotheses, targets)
    expected = value_and_gradients(
        lambda *, hypotheses, targets: oracles.pairwise(case.oracle, hypotheses, targets), hypotheses, targets
    )
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@forward_mode
@for_all_costs
def test_derivatives_agree_with_finite_differences(case):
    small = case._replace(dim=min(case.dim, 34))
    hypotheses, targets = small.inputs(n_hypotheses=2)
    hypotheses.requires_grad_()
    if not case.class_ids:
        targets.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda h, t: case.fn(hypotheses=h, targets=t),
        (hypotheses, targets),
        check_forward_ad=True,
        fast_mode=case.dim > 6,
    )


@forward_mode
@for_all_costs
def test_second_derivatives_agree_with_finite_differences(case):
    small = case._replace(dim=min(case.dim, 34))
    hypotheses, targets = small.inputs(n_targets=1, n_hypotheses=2)
    hypotheses.requires_grad_()
    if not case.class_ids:
        targets.requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda h, t: case.fn(hypotheses=h, targets=t),
        (hypotheses, targets),
        atol=1e-4,
        rtol=1e-3,
        check_fwd_over_rev=True,
        fast_mode=True,
    )


@forward_mode
@for_each("case", [case for case in COST_CASES if case.dim < 34])
def test_forward_mode_gives_the_jacobians_and_hessians_of_backward_mode(case):
    hypotheses, targets = case.inputs(2)
    direction = torch.randn(2, 2, 3, dtype=torch.float64)
    for argument in (0,) if case.class_ids else (0, 1):

        def cost(h, t):
            return case.fn(hypotheses=h, targets=t)

        def total(h, t):
            return (cost(h, t) * direction).sum()

        pairs = [
            (torch.func.jacfwd(cost, argument), torch.func.jacrev(cost, argument)),
            (torch.func.hessian(total, argument), torch.func.jacrev(torch.func.jacrev(total, argument), argument)),
            (torch.func.jacfwd(torch.func.jacfwd(total, argument), argument), torch.func.hessian(total, argument)),
        ]
        for forward, backward in pairs:
            torch.testing.assert_close(forward(hypotheses, targets), backward(hypotheses, targets))


@forward_mode
@for_vector_costs
@for_each("dtype", [torch.float32, torch.bfloat16])
def test_forward_mode_keeps_the_dtype_of_the_cost(case, dtype):
    hypotheses, targets = case.inputs(3, dtype=dtype)
    value, change = torch.func.jvp(
        lambda h: case.fn(hypotheses=h, targets=targets), (hypotheses,), (torch.ones_like(hypotheses),)
    )
    assert change.dtype == value.dtype
    assert change.isfinite().all()


@for_vector_costs
def test_gradient_of_one_input_alone_is_the_same(case):
    hypotheses, targets = case.inputs(3, n_targets=1)
    _, both_h, both_t = value_and_gradients(case.fn, hypotheses, targets)
    direction = torch.randn(3, 1, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    leaf = hypotheses.clone().requires_grad_()
    (alone,) = torch.autograd.grad((case.fn(hypotheses=leaf, targets=targets) * direction).sum(), leaf)
    torch.testing.assert_close(alone, both_h)
    leaf = targets.clone().requires_grad_()
    (alone,) = torch.autograd.grad((case.fn(hypotheses=hypotheses, targets=leaf) * direction).sum(), leaf)
    torch.testing.assert_close(alone, both_t)


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(-6, 6),
    st.integers(0, 2**31),
)
def test_vector_costs_agree_with_the_oracle_at_any_shape_and_scale(n_targets, n_hypotheses, dim, power, seed):
    for case in [case for case in VECTOR_CASES if case.dim == 3 and case.name != "lifted"]:
        torch.manual_seed(seed)
        hypotheses, targets = case.inputs(2, n_targets=n_targets, n_hypotheses=n_hypotheses, dim=dim)
        hypotheses, targets = hypotheses * 10.0**power, targets * 10.0**power
        torch.testing.assert_close(
            case.fn(hypotheses=hypotheses, targets=targets),
            oracles.pairwise(case.oracle, hypotheses, targets),
            rtol=1e-9,
            atol=1e-9 * min(10.0**power, 1.0) ** 2,
            msg=lambda message, name=case.name: f"{name}: {message}",
        )


# ------------------------------------------------------------------ against torchmetrics


@for_each("zero_mean", [False, True])
@for_each(
    "fn, reference",
    [
        (mcl.pairwise_neg_si_sdr, scale_invariant_signal_distortion_ratio),
        (mcl.pairwise_neg_snr, signal_noise_ratio),
    ],
)
def test_audio_costs_agree_with_torchmetrics(fn, reference, zero_mean):
    targets = torch.randn(3, 2, 800, dtype=torch.float64) + 0.3
    hypotheses = targets.repeat(1, 2, 1) + torch.randn(3, 4, 800, dtype=torch.float64) - 0.2
    cost = fn(hypotheses=hypotheses, targets=targets, zero_mean=zero_mean)
    expected = -reference(
        hypotheses[:, None].expand(3, 2, 4, 800), targets[:, :, None].expand(3, 2, 4, 800), zero_mean=zero_mean
    )
    torch.testing.assert_close(cost, expected, rtol=1e-5, atol=1e-5)


@for_each("n_sources", [1, 2, 3, 4])
def test_pit_agrees_with_torchmetrics(n_sources):
    targets = torch.randn(6, n_sources, 100)
    hypotheses = targets[:, torch.randperm(n_sources)] + torch.randn(6, n_sources, 100)
    best, permutation = permutation_invariant_training(
        hypotheses, targets, scale_invariant_signal_distortion_ratio, mode="speaker-wise", eval_func="max"
    )
    matching = mcl.assign(mcl.pairwise_neg_si_sdr(hypotheses=hypotheses, targets=targets), mcl.PIT())
    torch.testing.assert_close(-mcl.mcl_loss(matching, "none").mean(-1), best, rtol=1e-4, atol=1e-4)
    assert torch.equal(matching.weights.argmax(-1), permutation)


# ------------------------------------------------------------------ shapes and calling


@for_all_costs
def test_arguments_are_keyword_only(case):
    hypotheses, targets = case.inputs()
    with pytest.raises(TypeError, match="positional"):
        case.fn(hypotheses, targets)


@for_all_costs
@for_each("leading", [(), (4,), (2, 3)])
def test_cost_has_shape_targets_by_hypotheses(case, leading):
    hypotheses, targets = case.inputs(*leading, n_targets=2, n_hypotheses=5)
    assert case.fn(hypotheses=hypotheses, targets=targets).shape == (*leading, 2, 5)


@for_all_costs
@for_each("left, right", [((4,), (1,)), ((1,), (4,)), ((), (4,)), ((4,), ()), ((2, 1), (3,)), ((3,), (2, 1))])
def test_leading_axes_broadcast(case, left, right):
    hypotheses, targets = case.inputs(*left)[0], case.inputs(*right)[1]
    leading = torch.broadcast_shapes(left, right)
    full_h = hypotheses.expand(*leading, *hypotheses.shape[len(left) :])
    full_t = targets.expand(*leading, *targets.shape[len(right) :])
    cost = case.fn(hypotheses=hypotheses, targets=targets)
    assert cost.shape == (*leading, 2, 3)
    torch.testing.assert_close(cost, case.fn(hypotheses=full_h.clone(), targets=full_t.clone()))


@for_all_costs
def test_gradients_of_broadcast_inputs_are_summed(case):
    hypotheses, targets = case.inputs(1)[0], case.inputs(4)[1]
    _, gradient, *_ = value_and_gradients(case.fn, hypotheses, targets)
    _, full, *_ = value_and_gradients(case.fn, hypotheses.expand(4, -1, -1).clone(), targets)
    torch.testing.assert_close(gradient, full.sum(0, keepdim=True))


@for_all_costs
def test_leading_axes_equal_one_by_one(case):
    hypotheses, targets = case.inputs(2, 3)
    flat = zip(hypotheses.flatten(0, 1), targets.flatten(0, 1), strict=True)
    one_by_one = torch.stack([case.fn(hypotheses=h, targets=t) for h, t in flat])
    torch.testing.assert_close(case.fn(hypotheses=hypotheses, targets=targets).flatten(0, 1), one_by_one)


@for_all_costs
def test_inputs_are_never_modified(case):
    hypotheses, targets = case.inputs(3)
    leaf = hypotheses.clone().requires_grad_()
    other = targets.clone().requires_grad_(targets.is_floating_point())
    case.fn(hypotheses=leaf, targets=other).sum().backward()
    assert torch.equal(leaf.detach(), hypotheses)
    assert torch.equal(other.detach(), targets)


@for_all_costs
def test_gradient_of_the_cost_is_never_modified(case):
    hypotheses, targets = case.inputs(3)
    cost = case.fn(hypotheses=hypotheses.requires_grad_(), targets=targets)
    gradient = torch.randn_like(cost)
    before = gradient.clone()
    cost.backward(gradient)
    assert torch.equal(gradient, before)


@for_all_costs
def test_backward_can_be_repeated(case):
    hypotheses, targets = case.inputs(3)
    leaf = hypotheses.clone().requires_grad_()
    cost = case.fn(hypotheses=leaf, targets=targets).sum()
    (first,) = torch.autograd.grad(cost, leaf, retain_graph=True)
    (second,) = torch.autograd.grad(cost, leaf)
    assert torch.equal(first, second)


@for_all_costs
def test_inputs_that_are_not_contiguous_are_fine(case):
    hypotheses, targets = case.inputs(3, n_hypotheses=4)
    strided = hypotheses.mT.contiguous().mT
    assert not strided.is_contiguous()
    torch.testing.assert_close(
        value_and_gradients(case.fn, strided, targets), value_and_gradients(case.fn, hypotheses, targets)
    )


@for_all_costs
def test_an_empty_batch_has_an_empty_cost_and_gradient(case):
    hypotheses, targets = case.inputs(0)
    hypotheses.requires_grad_()
    cost = case.fn(hypotheses=hypotheses, targets=targets)
    assert cost.shape == (0, 2, 3)
    cost.sum().backward()
    assert hypotheses.grad.shape == hypotheses.shape


@for_all_costs
def test_no_targets_have_an_empty_cost_and_zero_gradient(case):
    hypotheses, targets = case.inputs(2, n_targets=1)
    hypotheses.requires_grad_()
    cost = case.fn(hypotheses=hypotheses, targets=targets[:, :0])
    assert cost.shape == (2, 0, 3)
    cost.sum().backward()
    assert torch.equal(hypotheses.grad, torch.zeros_like(hypotheses))


# ------------------------------------------------------------------ dtypes, compile, vmap


@without_lifted(COST_CASES)
@for_each("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_give_a_float32_cost(case, dtype):
    hypotheses, targets = case.inputs(3, dtype=dtype)
    cost = case.fn(hypotheses=hypotheses, targets=targets)
    wide_targets = targets if case.class_ids else targets.float()
    assert cost.dtype == torch.float32
    torch.testing.assert_close(cost, case.fn(hypotheses=hypotheses.float(), targets=wide_targets))


@for_all_costs
def test_half_precision_inputs_get_half_precision_gradients(case):
    hypotheses, targets = case.inputs(3, dtype=torch.bfloat16)
    hypotheses.requires_grad_()
    case.fn(hypotheses=hypotheses, targets=targets).sum().backward()
    assert hypotheses.grad.dtype == torch.bfloat16
    assert hypotheses.grad.isfinite().all()


@without_lifted(VECTOR_CASES)
def test_mixed_precision_inputs_are_promoted(case):
    hypotheses, targets = case.inputs(3)
    mixed = case.fn(hypotheses=hypotheses.float(), targets=targets)
    assert mixed.dtype == torch.float64
    torch.testing.assert_close(mixed, case.fn(hypotheses=hypotheses.float().double(), targets=targets))


@for_all_costs
def test_autocast_does_not_round_the_cost(case):
    hypotheses, targets = case.inputs(3, dtype=torch.float32)
    expected = value_and_gradients(case.fn, hypotheses, targets)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            actual = value_and_gradients(case.fn, hypotheses, targets)
        assert actual[0].dtype == torch.float32
        torch.testing.assert_close(actual, expected)


@pytest.mark.slow
@for_each("case", COST_CASES[::6])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by torch.compile itself
def test_cost_compiles_into_one_graph_forward_and_backward(case):
    torch.compiler.reset()
    hypotheses, targets = case.inputs(2)

    def plain(*, hypotheses, targets):
        return case.fn(hypotheses=hypotheses, targets=targets)

    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        value_and_gradients(compiled, hypotheses, targets), value_and_gradients(plain, hypotheses, targets)
    )


@for_all_costs
def test_cost_runs_under_vmap(case):
    hypotheses, targets = case.inputs(4, 2)

    def mapped(*, hypotheses, targets):
        return torch.vmap(lambda h, t: case.fn(hypotheses=h, targets=t))(hypotheses, targets)

    torch.testing.assert_close(
        value_and_gradients(mapped, hypotheses, targets), value_and_gradients(case.fn, hypotheses, targets)
    )


@for_all_costs
def test_gradients_per_sample_by_vmap_of_grad(case):
    hypotheses, targets = case.inputs(4)
    per_sample = torch.func.vmap(torch.func.grad(lambda h, t: case.fn(hypotheses=h, targets=t).sum()))
    leaf = hypotheses.clone().requires_grad_()
    case.fn(hypotheses=leaf, targets=targets).sum().backward()
    torch.testing.assert_close(per_sample(hypotheses, targets), leaf.grad)


@for_all_costs
@for_each("dtype", [torch.float32, torch.float64])
@for_each("n_targets", [1, 2])
def test_batched_gradients_are_those_one_by_one(case, dtype, n_targets):
    hypotheses, targets = case.inputs(2, dtype=dtype, n_targets=n_targets)
    jacobian = torch.autograd.functional.jacobian
    functions = [(lambda h: case.fn(hypotheses=h, targets=targets), hypotheses)]
    if not case.class_ids:
        functions.append((lambda t: case.fn(hypotheses=hypotheses, targets=t), targets))
        functions.append((lambda h, t: case.fn(hypotheses=h, targets=t), (hypotheses, targets)))
    for cost, inputs in functions:
        torch.testing.assert_close(jacobian(cost, inputs, vectorize=True), jacobian(cost, inputs))


@for_all_costs
def test_only_the_hypotheses_may_be_mapped(case):
    hypotheses, targets = case.inputs(4)[0], case.inputs()[1]
    per_model = torch.func.vmap(torch.func.grad(lambda h, t: case.fn(hypotheses=h, targets=t).sum()), in_dims=(0, None))
    leaf = hypotheses.clone().requires_grad_()
    case.fn(hypotheses=leaf, targets=targets).sum().backward()
    torch.testing.assert_close(per_model(hypotheses, targets), leaf.grad)


@for_all_costs
@for_each("dtype", [torch.float32, torch.float64])
def test_the_meta_device_gives_shape_and_dtype(case, dtype):
    hypotheses, targets = case.inputs(4, dtype=dtype)
    expected = case.fn(hypotheses=hypotheses, targets=targets)
    without_values = hypotheses.to("meta").requires_grad_()
    cost = case.fn(hypotheses=without_values, targets=targets.to("meta"))
    cost.sum().backward()
    assert cost.is_meta
    assert (cost.shape, cost.dtype) == (expected.shape, expected.dtype)
    assert without_values.grad.shape == hypotheses.shape


@for_all_costs
def test_cost_never_reads_a_value_on_the_host(case):
    with FakeTensorMode():  # tensors without values: reading one raises
        hypotheses, targets = case.inputs(4)
        cost = case.fn(hypotheses=hypotheses.requires_grad_(), targets=targets)
        cost.sum().backward()
    assert cost.shape == (4, 2, 3)
    assert hypotheses.grad.shape == hypotheses.shape


# ------------------------------------------------------------------ finite everywhere, symmetry


def assert_finite(fn, hypotheses, targets):
    for name, value in zip(
        ("cost", "hypotheses", "targets"), value_and_gradients(fn, hypotheses, targets), strict=False
    ):
        assert value.isfinite().all(), f"{name}: {value}"


@for_vector_costs
@for_each("dtype", [torch.float32, torch.float64])
def test_cost_and_gradients_are_finite_at_a_hit_and_at_zero(case, dtype):
    hypotheses, targets = case.inputs(2, dtype=dtype)
    hypotheses[:, 0] = targets[:, 0]
    hypotheses[:, 1] = 0
    targets[:, 1] = 0
    assert_finite(case.fn, hypotheses, targets)
    assert_finite(case.fn, torch.zeros_like(hypotheses), targets)
    assert_finite(case.fn, torch.zeros_like(hypotheses), torch.zeros_like(targets))


@for_vector_costs
@for_each("scales", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
@for_each("power", range(-33, -3, 5))
def test_cost_and_gradients_are_finite_for_faint_inputs(case, scales, power):
    hypotheses, targets = case.inputs(2, dtype=torch.float32)
    faint = 10.0**power
    assert_finite(case.fn, hypotheses * (faint if scales[0] else 1.0), targets * (faint if scales[1] else 1.0))


def test_cross_entropy_is_finite_for_extreme_logits():
    logits = torch.tensor([[1e30, -1e30, 0.0], [80.0, 90.0, -1e4]])
    assert_finite(mcl.pairwise_cross_entropy, logits, torch.tensor([0, 1, 2]))


@for_each("fn", [mcl.pairwise_sq_euclidean, mcl.pairwise_euclidean, mcl.pairwise_l1, mcl.pairwise_huber])
@for_each("dim", [1, 2, 40])
def test_distances_are_symmetric_not_negative_and_zero_with_zero_gradient_at_a_hit(fn, dim):
    points = torch.randn(5, dim, dtype=torch.float64)
    cost = fn(hypotheses=points, targets=points)
    torch.testing.assert_close(cost, cost.mT)
    assert (cost >= 0).all()
    torch.testing.assert_close(cost.diagonal(), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-6)
    hit, *gradients = value_and_gradients(fn, points[:1], points[:1])
    assert torch.equal(hit, torch.zeros_like(hit))
    for gradient in gradients:
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_distances_of_swapped_inputs_are_transposed():
    left, right = torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    for case in VECTOR_CASES:
        if case.dim == 3:
            swapped = case.fn(hypotheses=right, targets=left).mT
            torch.testing.assert_close(case.fn(hypotheses=left, targets=right), swapped)


def test_si_sdr_of_swapped_inputs_is_transposed():
    left, right = torch.randn(3, 50), torch.randn(2, 50)
    torch.testing.assert_close(
        mcl.pairwise_neg_si_sdr(hypotheses=left, targets=right),
        mcl.pairwise_neg_si_sdr(hypotheses=right, targets=left).mT,
    )


def test_cosine_lies_between_0_and_2_and_ignores_lengths():
    points = torch.randn(200, 1, 7, dtype=torch.float64)
    same = mcl.pairwise_cosine(hypotheses=3 * points, targets=points)
    opposite = mcl.pairwise_cosine(hypotheses=-0.1 * points, targets=points)
    torch.testing.assert_close(same, torch.zeros_like(same), rtol=0, atol=1e-12)
    torch.testing.assert_close(opposite, torch.full_like(opposite, 2.0))
    assert same.min() >= 0
    assert opposite.max() <= 2


def test_cosine_of_a_zero_vector_is_1_without_gradient():
    for hypotheses, targets in [(torch.zeros(1, 3), torch.randn(1, 3)), (torch.randn(1, 3), torch.zeros(1, 3))]:
        cost, *gradients = value_and_gradients(mcl.pairwise_cosine, hypotheses, targets)
        assert cost.item() == 1
        for gradient in gradients:
            assert torch.equal(gradient, torch.zeros_like(gradient))


@for_each("fn", AUDIO)
@for_each("zero_mean", [False, True])
def test_a_silent_target_costs_nothing_and_pulls_nothing(fn, zero_mean):
    hypotheses, targets = torch.randn(3, 20), torch.zeros(1, 20)

    def cost_fn(*, hypotheses, targets):
        return fn(hypotheses=hypotheses, targets=targets, zero_mean=zero_mean)

    cost, *gradients = value_and_gradients(cost_fn, hypotheses, targets)
    assert torch.equal(cost, torch.zeros(1, 3))
    for gradient in gradients:
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_silent_estimate_has_the_worst_si_sdr_and_0_db_snr():
    hypotheses, targets = torch.zeros(1, 20), torch.randn(1, 20)
    torch.testing.assert_close(mcl.pairwise_neg_si_sdr(hypotheses=hypotheses, targets=targets), torch.tensor([[100.0]]))
    torch.testing.assert_close(
        mcl.pairwise_neg_snr(hypotheses=hypotheses, targets=targets), torch.tensor([[0.0]]), rtol=0, atol=1e-6
    )


def test_si_sdr_ignores_the_scale_and_stays_within_100_db():
    target = torch.randn(4, 1, 1000)
    noise = torch.randn(4, 3, 1000)
    cost = mcl.pairwise_neg_si_sdr(hypotheses=target + noise, targets=target)
    torch.testing.assert_close(mcl.pairwise_neg_si_sdr(hypotheses=-7 * (target + noise), targets=0.01 * target), cost)
    perfect = mcl.pairwise_neg_si_sdr(hypotheses=3 * target, targets=target)
    assert (perfect >= -100.0001).all()
    assert (perfect <= -99).all()


def test_zero_mean_ignores_a_constant():
    target, estimate = torch.randn(1, 500), torch.randn(2, 500)
    for fn in AUDIO:
        torch.testing.assert_close(
            fn(hypotheses=estimate + 3, targets=target - 2, zero_mean=True),
            fn(hypotheses=estimate, targets=target, zero_mean=True),
            rtol=1e-4,
            atol=1e-4,
        )


def test_audio_costs_keep_their_digits_at_high_ratios():
    target = torch.randn(1, 4000)
    for decibels in (40, 60, 80):
        noise = torch.randn(1, 4000)
        noise = noise - (noise @ target.mT) / (target @ target.mT) * target
        estimate = target + noise * (target.norm() / noise.norm()) * 10 ** (-decibels / 20)
        exact = -10 * torch.log10(target.double().square().sum() / (estimate.double() - target.double()).square().sum())
        assert abs(mcl.pairwise_neg_snr(hypotheses=estimate, targets=target).item() - exact.item()) < 0.05
        assert abs(mcl.pairwise_neg_si_sdr(hypotheses=estimate, targets=target).item() + decibels) < 0.1


@for_each("delta", [0.1, 1.0, 10.0])
def test_huber_agrees_with_torch(delta):
    hypotheses, targets = torch.randn(4, 3, dtype=torch.float64) * 3, torch.randn(1, 3, dtype=torch.float64)
    expected = torch.nn.functional.huber_loss(hypotheses, targets.expand(4, 3), reduction="none", delta=delta).sum(-1)
    torch.testing.assert_close(
        mcl.pairwise_huber(hypotheses=hypotheses, targets=targets, delta=delta), expected.unsqueeze(0)
    )


def test_huber_with_an_infinite_delta_is_half_the_square():
    hypotheses, targets = torch.randn(4, 3), torch.randn(1, 3)
    torch.testing.assert_close(
        mcl.pairwise_huber(hypotheses=hypotheses, targets=targets, delta=math.inf),
        mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets) / 2,
    )


# ------------------------------------------------------------------ accuracy


@for_each("dim", [1, 2, 3, 8, 31, 32, 33, 256, 5000])
def test_vectors_keep_five_digits_around_a_large_offset(dim):
    center = torch.full((1, 1, dim), 1e3)
    targets = center + 1e-2 * torch.randn(8, 4, dim)
    hypotheses = center + 1e-2 * torch.randn(8, 6, dim)
    hypotheses[0, 0], targets[0, 0] = 1e3, 1e3 + 1e-2
    exact = (hypotheses.double()[:, None] - targets.double()[:, :, None]).square().sum(-1)
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
    assert cost.dtype == torch.float32
    apart = exact > 0
    assert ((cost.double() - exact).abs() / exact.clamp_min(1e-30))[apart].max() < 1e-5
    assert (cost[~apart] == 0).all()


@for_vector_costs
@for_each("dim", [6, 34])
@for_each("padding", [0.0, 1e4, -1e9])
def test_other_targets_change_neither_the_cost_of_a_target_nor_its_gradient(case, dim, padding):
    hypotheses, targets = (1e3 + x for x in case._replace(dim=dim).inputs(3, n_targets=4, dtype=torch.float32))
    padded = targets.clone()
    padded[:, 1:] = padding
    results = []
    for given_targets in (targets[:, :1], padded):
        leaf = hypotheses.clone().requires_grad_()
        cost = case.fn(hypotheses=leaf, targets=given_targets)[:, :1]
        results.append((cost.detach(), *torch.autograd.grad(cost.sum(), leaf)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@for_each("dim", [2, 33, 300])
def test_equal_points_are_at_distance_0_and_a_far_one_does_not_blur_the_others(dim):
    points = torch.randn(5, dim, generator=torch.Generator().manual_seed(0)) + 100
    far = torch.cat([points, points, torch.full((1, dim), 1e6)])
    cost = mcl.pairwise_sq_euclidean(hypotheses=far, targets=far)
    assert (cost.diagonal() == 0).all()
    assert (cost[:5, 5:10].diagonal() == 0).all()
    exact = (points.double()[:, None] - points.double()).square().sum(-1)
    torch.testing.assert_close(cost[:5, :5].double(), exact, rtol=1e-5, atol=0)


# ------------------------------------------------------------------ chunks and memory


@for_each(
    "fn, shape",
    [
        (mcl.pairwise_sq_euclidean, (30_000, 49, 2)),
        (mcl.pairwise_l1, (30_000, 49, 2)),
        (mcl.pairwise_huber, (30_000, 49, 2)),
        (mcl.pairwise_cosine, (30_000, 40, 3)),
        (mcl.pairwise_neg_si_sdr, (8, 10, 40_000)),
        (mcl.pairwise_neg_snr, (8, 10, 40_000)),
    ],
)
def test_large_batches_equal_their_parts(fn, shape):
    n_samples, n_hypotheses, dim = shape
    n_targets = 1 if dim < 10 else 4
    hypotheses = torch.randn(n_samples, n_hypotheses, dim, requires_grad=True)
    targets = torch.randn(n_samples, n_targets, dim, requires_grad=True)
    whole = fn(hypotheses=hypotheses, targets=targets)
    parts = zip(hypotheses.chunk(8), targets.chunk(8), strict=True)
    small = torch.cat([fn(hypotheses=h, targets=t) for h, t in parts])
    torch.testing.assert_close(whole, small, rtol=1e-4, atol=1e-5)
    direction = torch.randn(whole.shape)
    gradients = [torch.autograd.grad((cost * direction).sum(), (hypotheses, targets)) for cost in (whole, small)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


class LargestResult(TorchDispatchMode):
    """Keep the number of entries of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.n_entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.n_entries = max(self.n_entries, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


@without_lifted(case for case in COST_CASES if not case.all_pairs)  # scales that are matrices are mapped over all pairs
def test_no_tensor_of_all_pairs_and_dimensions_is_ever_made(case):
    hypotheses, targets = case.inputs(8, n_targets=8, n_hypotheses=256, dim=128, dtype=torch.float32)
    hypotheses.requires_grad_()
    if not case.class_ids:
        targets.requires_grad_()
    with LargestResult() as largest:
        case.fn(hypotheses=hypotheses, targets=targets).sum().backward()
    assert 0 < largest.n_entries < 8 * 8 * 256 * 128 // 2


def test_the_broadcast_implementation_would_be_noticed():
    hypotheses, targets = torch.randn(8, 64, 64), torch.randn(8, 8, 64)
    with LargestResult() as largest:
        (hypotheses[:, None] - targets[:, :, None]).square().sum(-1)
    assert largest.n_entries == 8 * 8 * 64 * 64


# ------------------------------------------------------------------ lifting a loss


def test_a_lifted_loss_takes_hypotheses_and_targets_of_any_shape():
    def disagreement(hypothesis, target):
        return (hypothesis.sum(0) - target).square().mean()

    cost_fn = mcl.Pairwise(disagreement, hypothesis_dims=2, target_dims=1)
    hypotheses, targets = torch.randn(5, 3, 2, 4), torch.randn(5, 2, 4)
    cost = cost_fn(hypotheses=hypotheses, targets=targets)
    assert cost.shape == (5, 2, 3)
    torch.testing.assert_close(cost[1, 0, 2], disagreement(hypotheses[1, 2], targets[1, 0]))


def test_a_lifted_cross_entropy_is_the_built_in_one():
    logits, ids = torch.randn(4, 3, 5), torch.randint(0, 5, (4, 2))
    cost_fn = mcl.Pairwise(torch.nn.functional.cross_entropy, target_dims=0)
    torch.testing.assert_close(
        cost_fn(hypotheses=logits, targets=ids), mcl.pairwise_cross_entropy(hypotheses=logits, targets=ids)
    )


@for_each("name", ["mse_loss", "huber_loss", "smooth_l1_loss", "l1_loss", "poisson_nll_loss"])
@for_each("leading", [(), (4,), (2, 4)])
def test_losses_of_torch_can_be_lifted(name, leading):
    loss = getattr(torch.nn.functional, name)
    hypotheses, targets = torch.randn(*leading, 3, 2, requires_grad=True), torch.randn(*leading, 5, 2)
    cost = mcl.Pairwise(loss)(hypotheses=hypotheses, targets=targets)
    both = torch.broadcast_tensors(hypotheses.unsqueeze(-3), targets.unsqueeze(-2))
    expected = loss(*both, reduction="none").mean(dim=-1)
    torch.testing.assert_close(cost, expected)
    slopes = [torch.autograd.grad(value.sum(), hypotheses)[0] for value in (cost, expected)]
    torch.testing.assert_close(*slopes)


def test_a_lifted_loss_can_be_pickled_and_compared():
    cost_fn = mcl.Pairwise(max_difference)
    twin = pickle.loads(pickle.dumps(cost_fn))
    assert twin == cost_fn
    assert cost_fn != mcl.Pairwise(max_difference, target_dims=0)
    assert "max_difference" in repr(cost_fn)


def test_every_public_cost_is_under_this_contract():
    tested = {getattr(case.fn, "public", case.fn) for case in COST_CASES}
    public = {getattr(costs, name) for name in costs.__all__ if name.startswith("pairwise_")}
    public |= {value for name in mcl.__all__ if name.startswith("pairwise_") for value in [getattr(mcl, name)]}
    missing = sorted(fn.__name__ for fn in public - tested)
    assert missing == [], "add a CostCase with an oracle to COST_CASES in tests/helpers/families.py"
    for fn in public:
        kinds = {p.kind for p in inspect.signature(fn).parameters.values()}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    assert CostCase in {type(case) for case in COST_CASES}
