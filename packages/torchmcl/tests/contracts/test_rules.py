"""The contract of every assignment rule."""

import copy
import math
import pickle
import shutil

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchmcl as mcl
from families import ALL_RULE_CASES, ALL_RULES, DEVICE_RULES, RULE_CASES
from grids import for_each
from problems import make_cost, make_mask
from torchmcl import rules
from torchmcl.rules import SceneWinners

for_all_rules = for_each("rule", ALL_RULES)
for_device_rules = for_each("rule", DEVICE_RULES)


# ------------------------------------------------------------------ against the oracles


@for_each("case", ALL_RULE_CASES)
def test_weights_agree_with_the_oracle(case):
    cost = make_cost(6, dtype=torch.float64, n_targets=2, n_hypotheses=3)
    mask = make_mask(6, n_targets=2)
    torch.testing.assert_close(case.rule(cost), case.expected(cost), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(case.rule(cost, mask), case.expected(cost, mask), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@for_each("n_targets", [1, 2, 3, 4, 5])
def test_emd_agrees_with_pot(n_targets):
    ot = pytest.importorskip("ot")
    cost = make_cost(4, n_targets=n_targets, n_hypotheses=4, dtype=torch.float64)
    weights = mcl.EMD()(cost)
    for sample, plan in zip(cost.numpy(), weights.numpy(), strict=True):
        expected = ot.emd(np.full(n_targets, 1 / n_targets), np.full(4, 1 / 4), sample)
        np.testing.assert_allclose(plan, expected * n_targets, atol=1e-6)


@pytest.mark.slow
def test_emd_of_masked_targets_agrees_with_pot_on_the_real_ones():
    ot = pytest.importorskip("ot")
    cost = make_cost(n_targets=5, n_hypotheses=3, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, True])
    expected = ot.emd(np.full(4, 1 / 4), np.full(3, 1 / 3), cost[mask].numpy())
    np.testing.assert_allclose(mcl.EMD()(cost, mask)[mask].numpy(), expected * 4, atol=1e-6)


# ------------------------------------------------------------------ the contract


@for_all_rules
def test_weights_are_detached(rule):
    cost = make_cost(4).requires_grad_()
    assert not rule(cost).requires_grad
    assert not rule(cost, make_mask(4)).requires_grad


@for_each("rule_of", [mcl.AnnealedWTA, mcl.RelaxedWTA, mcl.Sinkhorn, mcl.TopK])
def test_weights_are_detached_from_a_learnable_parameter(rule_of):
    parameter = torch.tensor(1.0, requires_grad=True)
    assert not rule_of(parameter)(make_cost(4)).requires_grad
    assert not rule_of(parameter)(make_cost(4), make_mask(4)).requires_grad


@for_all_rules
def test_weights_have_the_shape_of_the_cost_and_are_not_negative(rule):
    cost = make_cost(4)
    for weights in (rule(cost), rule(cost, make_mask(4))):
        assert weights.shape == cost.shape
        assert (weights >= 0).all()


@for_all_rules
def test_rows_of_real_targets_sum_to_one_and_padded_rows_to_zero(rule):
    cost, mask = make_cost(8), make_mask(8)
    torch.testing.assert_close(rule(cost).sum(-1), torch.ones(8, 3))
    torch.testing.assert_close(rule(cost, mask).sum(-1), mask.float())
    assert (rule(cost, mask)[~mask] == 0).all()


@for_all_rules
def test_cost_and_mask_are_never_modified(rule):
    cost, mask = make_cost(4), make_mask(4)
    cost_before, mask_before = cost.clone(), mask.clone()
    rule(cost)
    rule(cost, mask)
    assert torch.equal(cost, cost_before)
    assert torch.equal(mask, mask_before)
    assert cost._version == 0
    assert mask._version == 0


@for_all_rules
@for_each("padding", [math.nan, math.inf, -math.inf, -100.0, 1e30])
def test_content_of_padded_rows_is_irrelevant(rule, padding):
    cost, mask = make_cost(8), make_mask(8)
    padded = cost.masked_fill(~mask.unsqueeze(-1), padding)
    assert torch.equal(rule(padded, mask), rule(cost, mask))


@for_all_rules
@for_each("leading", [(), (1,), (5,), (2, 3), (2, 1, 3)])
def test_leading_axes_are_free(rule, leading):
    cost, mask = make_cost(*leading), make_mask(*leading)
    n = math.prod(leading)
    flat, flat_mask = cost.reshape(n, 3, 4), mask.reshape(n, 3)
    one_by_one = torch.stack([rule(sample, real) for sample, real in zip(flat, flat_mask, strict=True)])
    torch.testing.assert_close(rule(cost, mask), one_by_one.reshape(cost.shape))


@for_all_rules
def test_a_mask_broadcasts_over_leading_axes(rule):
    cost, mask = make_cost(2, 3), torch.tensor([True, False, True])
    torch.testing.assert_close(rule(cost, mask), rule(cost, mask.expand(2, 3, 3)))


@for_all_rules
def test_a_full_mask_is_no_mask(rule):
    cost = make_cost(5)
    torch.testing.assert_close(rule(cost, torch.ones(5, 3, dtype=torch.bool)), rule(cost))


@for_all_rules
def test_a_sample_without_real_targets_has_no_weights(rule):
    cost, mask = make_cost(2), torch.tensor([[False] * 3, [True] * 3])
    weights = rule(cost, mask)
    assert (weights[0] == 0).all()
    torch.testing.assert_close(weights[1], rule(cost[1]))


@for_all_rules
def test_an_empty_batch_gives_empty_weights(rule):
    assert rule(torch.zeros(0, 3, 4)).shape == (0, 3, 4)
    assert rule(torch.zeros(0, 3, 4), torch.zeros(0, 3, dtype=torch.bool)).shape == (0, 3, 4)


@for_all_rules
def test_no_targets_at_all_give_empty_weights(rule):
    assert rule(torch.zeros(2, 0, 4)).shape == (2, 0, 4)
    assert rule(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0, 4)


@for_all_rules
def test_float64_stays_float64(rule):
    cost, mask = make_cost(4, dtype=torch.float64), make_mask(4)
    assert rule(cost).dtype == torch.float64
    assert rule(cost, mask).dtype == torch.float64
    torch.testing.assert_close(rule(cost, mask).sum(-1), mask.double(), rtol=0, atol=1e-7)


@for_all_rules
@for_each("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_cost_gives_float32_weights(rule, dtype):
    cost, mask = make_cost(4).to(dtype), make_mask(4)
    weights = rule(cost, mask)
    assert weights.dtype == torch.float32
    assert torch.equal(weights, rule(cost.float(), mask))


@for_all_rules
@for_each("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(rule, dtype):
    cost, mask = make_cost(4), make_mask(4)
    with torch.autocast("cpu", dtype=dtype):
        weights = rule(cost, mask)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, rule(cost, mask))


@for_all_rules
@for_each("copy_of", [copy.deepcopy, lambda rule: pickle.loads(pickle.dumps(rule))])
def test_a_copy_is_equal_and_does_the_same(rule, copy_of):
    cost, twin = make_cost(4), copy_of(rule)
    assert twin == rule
    assert hash(twin) == hash(rule)
    assert torch.equal(twin(cost), rule(cost))


def test_rules_are_equal_only_to_the_same_rule_with_the_same_fields():
    numbers = [case.rule for case in RULE_CASES]
    for i, left in enumerate(numbers):
        for j, right in enumerate(numbers):
            assert (left == right) == (i == j)
    assert mcl.AnnealedWTA(torch.tensor([0.0, 1.0])) == mcl.AnnealedWTA(torch.tensor([0.0, 1.0]))
    assert mcl.AnnealedWTA(torch.tensor([0.0, 1.0])) != mcl.AnnealedWTA(torch.tensor([0.0, 2.0]))
    assert mcl.AnnealedWTA(torch.tensor([0.0, 1.0])) != mcl.AnnealedWTA(torch.tensor([0.0]))
    assert mcl.AnnealedWTA(torch.tensor(1.0)) != mcl.AnnealedWTA(1.0)
    assert mcl.WTA() != "WTA()"
    assert mcl.AnnealedWTA(0.5) != mcl.Sinkhorn(0.5)


def test_equal_rules_are_one_key_of_a_dictionary():
    rules = {mcl.AnnealedWTA(1): "first"}
    rules[mcl.AnnealedWTA(1.0)] = "second"
    assert list(rules.values()) == ["second"]


@for_each("rule", [case.rule for case in RULE_CASES])
def test_repr_can_be_read_back(rule):
    assert eval(repr(rule), vars(mcl) | vars(rules) | {"inf": math.inf}) == rule


@for_all_rules
def test_rules_are_frozen(rule):
    with pytest.raises(AttributeError):
        rule.temperature = 3.0


# ------------------------------------------------------------------ one parameter per model on a leading axis

PER_MODEL = [
    (mcl.AnnealedWTA, [0.0, 0.1, 5.0, math.inf]),
    (mcl.Sinkhorn, [0.0, 0.3, 5.0, math.inf]),
    (mcl.RelaxedWTA, [0.0, 0.1, 0.5, 1.0]),
    (mcl.TopK, [1.0, 2.0, 3.0, 4.0]),
]


@for_each("rule_of, values", PER_MODEL)
@for_each("dtype", [torch.float32, torch.float64])
def test_one_parameter_per_model_equals_one_rule_per_model(rule_of, values, dtype):
    cost, mask = make_cost(4, 5, dtype=dtype), make_mask(4, 5)
    together = rule_of(torch.tensor(values).view(4, 1, 1, 1))
    for m in (None, mask):
        weights = together(cost, m)
        assert weights.shape == cost.shape
        assert weights.dtype == dtype
        for index, value in enumerate(values):
            alone = rule_of(value)(cost[index], None if m is None else m[index])
            torch.testing.assert_close(weights[index], alone, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ compile, vmap, no waiting for the device


def test_all_rules_compile_into_one_graph():
    torch.compiler.reset()
    cost, mask = make_cost(4), make_mask(4)

    rules = [rule for rule in DEVICE_RULES if getattr(rule, "n_iters", 0) < 50]  # long loops make long graphs

    def weights(cost, mask):
        return [mcl.WTA()(cost), *(rule(cost, mask) for rule in rules)]

    compiled = torch.compile(weights, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(cost, mask), weights(cost, mask))


@pytest.mark.slow
def test_rules_can_be_made_inside_the_compiled_function():
    torch.compiler.reset()
    cost, parameters = make_cost(4, 2), [torch.tensor(values).view(4, 1, 1, 1) for _, values in PER_MODEL]

    def weights(cost, parameters):
        return [rule_of(value)(cost) for (rule_of, _), value in zip(PER_MODEL, parameters, strict=True)]

    compiled = torch.compile(weights, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(cost, parameters), weights(cost, parameters))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="the default backend of torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings(  # both raised by torch.compile itself
    "ignore:.*should not be instantiated:DeprecationWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_the_main_path_compiles_with_the_default_backend():
    torch.compiler.reset()
    hypotheses, targets, mask = torch.randn(8, 4, 2), torch.randn(8, 3, 2), make_mask(8)

    def main_path(hypotheses):
        cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
        return mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.5), mask))

    def value_and_gradient(fn):
        leaf = hypotheses.clone().requires_grad_()
        loss = fn(leaf)
        return loss.detach(), *torch.autograd.grad(loss, leaf)

    compiled = torch.compile(main_path, fullgraph=True)
    torch.testing.assert_close(value_and_gradient(compiled), value_and_gradient(main_path))


@for_all_rules
def test_the_meta_device_gives_shape_and_dtype(rule):
    cost, mask = make_cost(4), make_mask(4)
    for real in (None, mask.to("meta")):
        weights = rule(cost.to("meta"), real)
        assert weights.is_meta
        assert (weights.shape, weights.dtype) == (cost.shape, cost.dtype)


@for_device_rules
def test_rule_runs_under_vmap(rule):
    cost, mask = make_cost(4, 2), make_mask(4, 2)
    torch.testing.assert_close(torch.vmap(rule)(cost, mask), rule(cost, mask))
    torch.testing.assert_close(torch.vmap(rule)(cost), rule(cost))
    one_cost = torch.vmap(rule, in_dims=(None, 0))(cost[0, 0], mask[:, 0])
    torch.testing.assert_close(one_cost, rule(cost[0, 0].expand(4, -1, -1), mask[:, 0]))


@for_each("rule_of, values", PER_MODEL)
def test_vmap_over_the_parameter(rule_of, values):
    cost = make_cost(5)
    mapped = torch.vmap(lambda value: rule_of(value)(cost))(torch.tensor(values))
    for weights, value in zip(mapped, values, strict=True):
        torch.testing.assert_close(weights, rule_of(value)(cost), rtol=1e-5, atol=1e-6)


@for_device_rules
def test_rule_never_reads_a_value_on_the_host(rule):
    with FakeTensorMode(allow_non_fake_inputs=True):  # tensors without values: reading one raises
        cost, mask = torch.rand(4, 3, 4), torch.ones(4, 3, dtype=torch.bool)
        assert rule(cost).shape == cost.shape
        assert rule(cost, mask).shape == cost.shape


def test_every_rule_is_under_this_contract():
    public = {value for name in rules.__all__ if isinstance(value := getattr(rules, name), type)}
    # SceneWinners couples the samples of a batch; costs/test_sequences.py has its tests.
    missing = public - {type(rule) for rule in ALL_RULES} - {mcl.AssignmentRule, SceneWinners}
    assert sorted(rule.__name__ for rule in missing) == [], "add a RuleCase to RULE_CASES in tests/helpers/families.py"
