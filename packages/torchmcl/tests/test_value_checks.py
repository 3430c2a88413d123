"""`debug_checks`: bad values inside tensors are named with their index."""

import math
import threading

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.checks import debug_checks


def model(inputs):
    return mcl.Predictions(inputs.unsqueeze(-1).expand(-1, -1, 1) * torch.ones(3, 1), torch.zeros(len(inputs), 3))


def step(**changes):
    arguments = {"model": model, "batch": mcl.Batch(torch.rand(2, 1), torch.rand(2, 1, 1)), "rule": mcl.WTA()} | changes
    return mcl.mcl_step(arguments.pop("model"), arguments.pop("batch"), arguments.pop("rule"), **arguments)


def test_value_checks_name_the_first_offending_index_of_the_cost():
    cost = torch.rand(2, 3, 4)
    cost[1, 0, 2] = math.nan
    cost[1, 2, 1] = math.inf
    with (
        debug_checks(),
        pytest.raises(
            ValueError, match=r"assign: `cost` must be finite, got nan at index \(1, 0, 2\)\. Look at the step"
        ),
    ):
        mcl.assign(cost, mcl.WTA())
    mask = torch.ones(2, 3, dtype=torch.bool)
    mask[1, 0] = False
    with (
        debug_checks(),
        pytest.raises(ValueError, match=r"got inf at index \(1, 2, 1\)"),
    ):
        mcl.assign(cost, mcl.WTA(), mask)


def test_value_checks_name_a_target_that_is_missing_without_a_mask():
    targets = torch.zeros(2, 1, 1)
    targets[1] = math.nan
    model, batch = mcl.MultiHypothesisMLP(1, 1, 2), mcl.Batch(torch.zeros(2, 1), targets)
    assert mcl.mcl_step(model, batch, mcl.WTA()).loss.isnan()
    with debug_checks(), pytest.raises(ValueError, match=r"`targets` must be finite, got nan at index \(1, 0, 0\)"):
        mcl.mcl_step(model, batch, mcl.WTA())
    with debug_checks():
        mcl.mcl_step(model, batch._replace(mask=torch.tensor([[True], [False]])), mcl.WTA())


def test_value_checks_ignore_padded_targets():
    cost = torch.rand(2, 3, 4)
    cost[:, 1] = math.nan
    with debug_checks():
        loss = mcl.mcl_loss(mcl.assign(cost, mcl.WTA(), torch.tensor([True, False, True])))
    assert loss.isfinite()


@for_each(
    "make, words",
    [
        (
            lambda: mcl.AnnealedWTA(torch.tensor([[0.1], [-2.0]])),
            r"AnnealedWTA: `temperature` must be >= 0, got -2\.0 at index \(1, 0\)",
        ),
        (
            lambda: mcl.AnnealedWTA(torch.tensor(math.nan)),
            r"AnnealedWTA: `temperature` must be >= 0, got nan at index \(\)",
        ),
        (
            lambda: mcl.Sinkhorn(torch.tensor([-1.0])),
            r"Sinkhorn: `temperature` must be >= 0, got -1\.0 at index \(0,\)",
        ),
        (
            lambda: mcl.RelaxedWTA(torch.tensor([0.5, 1.5])),
            r"RelaxedWTA: `epsilon` must lie in \[0, 1\], got 1\.5 at index \(1,\)",
        ),
        (lambda: mcl.TopK(torch.tensor([2.0, 0.0])), r"TopK: `k` must be >= 1, got 0\.0 at index \(1,\)"),
    ],
)
def test_value_checks_read_tensor_parameters(make, words):
    make()
    with debug_checks(), pytest.raises(ValueError, match=words):
        make()


CLASS_COSTS = {
    mcl.pairwise_cross_entropy: ((4, 3), ()),
    mcl.costs.pairwise_token_cross_entropy: ((4, 5, 3), (5,)),
    mcl.costs.pairwise_pixel_cross_entropy: ((4, 3, 5, 5), (5, 5)),
}


@for_each("bad", [3, -100, 255])
@for_each("fn, shapes", CLASS_COSTS.items())
def test_value_checks_read_class_ids(fn, shapes, bad):
    ids = torch.ones(2, *shapes[1], dtype=torch.long)
    ids[1] = bad
    words = f"{fn.__name__}: `targets` must lie between 0 and 2, got {bad} at index"
    with debug_checks(), pytest.raises(ValueError, match=words):
        fn(hypotheses=torch.rand(*shapes[0]), targets=ids)


def test_value_checks_accept_good_values():
    with debug_checks():
        cost = mcl.pairwise_cross_entropy(hypotheses=torch.rand(2, 4, 3), targets=torch.tensor([[0], [2]]))
        rule = mcl.AnnealedWTA(torch.tensor([0.0, 1.0]).view(2, 1, 1))
        assert mcl.mcl_loss(mcl.assign(cost, rule)).isfinite()


def bad_values_are_noticed():
    try:
        mcl.assign(torch.tensor([[math.nan]]), mcl.WTA())
    except ValueError:
        return True
    return False


def test_value_checks_are_off_unless_asked_for():
    assert not bad_values_are_noticed()
    with debug_checks():
        assert bad_values_are_noticed()
    assert not bad_values_are_noticed()


def test_value_checks_nest():
    with debug_checks():
        with debug_checks():
            assert bad_values_are_noticed()
        assert bad_values_are_noticed()
    assert not bad_values_are_noticed()


def test_value_checks_of_several_threads_end_in_any_order():
    first_is_open, first_may_end = threading.Event(), threading.Event()

    def first():
        with debug_checks():
            first_is_open.set()
            first_may_end.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    first_is_open.wait(60)
    with debug_checks():
        first_may_end.set()
        thread.join()
        assert bad_values_are_noticed()
    assert not bad_values_are_noticed()


def test_value_checks_end_after_an_exception():
    with pytest.raises(RuntimeError, match="boom"), debug_checks():
        raise RuntimeError("boom")
    assert not bad_values_are_noticed()


def test_value_checks_are_silent_where_values_cannot_be_read():
    torch.compiler.reset()
    cost = torch.tensor([[[math.nan, 1.0]]])
    with debug_checks():
        mapped = torch.vmap(lambda cost: mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.5))))(cost)
        compiled = torch.compile(
            lambda cost: mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.5))), fullgraph=True, backend="aot_eager"
        )(cost)
    assert mapped.isnan().all()
    assert compiled.isnan()


def test_a_missing_optional_package_is_named_with_its_extra():
    from torchmcl.optional import optional_import

    with pytest.raises(ImportError, match=r"PIT needs no_such_package: pip install './packages/torchmcl\[transport\]'"):
        optional_import("no_such_package.sub", extra="transport", needed_by="PIT")
