"""The kernel of one-to-one assignments finds what SciPy finds: in Triton's interpreter, or on a GPU if there is one."""

import sys

import pytest
import torch

from places import ROOT

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("scipy", reason="the assignments are compared with SciPy's")

sys.path.insert(0, str(ROOT))
try:
    from benchmarks.speed._assignments import MATRICES, drawn, n_faults
finally:
    sys.path.pop(0)

import torchmcl as mcl
from torchmcl.rules.transport import one_to_one_weights
from torchmcl_fleet.gpu.augmenting import MAX_SIDE, one_to_one_rows

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# The interpreter computes padded entries too, with NumPy, which warns of infinity - infinity.
pytestmark = pytest.mark.gpu if ON_GPU else pytest.mark.filterwarnings("ignore::RuntimeWarning")
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")

# The interpreter takes a tenth of a second for a small matrix.
SHAPES = [(3, 4), (4, 3)] if not ON_GPU else [(n, n) for n in (*range(1, 13), 20)]
SHAPES += [] if not ON_GPU else [(1, 20), (20, 1), (7, 20), (20, 7), (2, 3), (33, 32), (100, 300), (300, 100)]


def at_once(shape):
    return 2 if not ON_GPU else 2000 if max(shape) <= 20 else 24


def solved(cost, mask):
    return one_to_one_rows(cost.to(DEVICE), None if mask is None else mask.to(DEVICE))


@pytest.mark.parametrize("masked", [False, True], ids=["all real", "masked"])
@pytest.mark.parametrize("kind", MATRICES)
def test_the_assignments_are_those_of_scipy(kind, masked):
    for shape in SHAPES if ON_GPU else SHAPES[masked::2]:
        cost, mask = drawn(kind, at_once(shape), *shape, masked)
        assert n_faults(cost, mask, solved(cost, mask)) == 0, shape


def test_a_sample_without_real_targets_and_one_that_fails_leave_the_others_alone():
    cost, mask = drawn("normal", 3, 3, 4, masked=False)[0], torch.ones(3, 3, dtype=torch.bool)
    cost[1, :2, 1:] = torch.inf  # both targets want the first hypothesis
    mask[0], mask[1, 2] = False, False
    weights = solved(cost, mask).cpu()
    assert (weights[0] == 0).all()
    assert weights[1, :2].isnan().all()
    assert (weights[1, 2] == 0).all()
    assert n_faults(cost, mask, weights) == 0


@needs_gpu
@pytest.mark.parametrize("shape", [(MAX_SIDE, 3), (5, MAX_SIDE), (600, 600)])
def test_the_largest_sides_are_solved(shape):
    cost, mask = drawn("normal", 2, *shape, masked=True)
    assert n_faults(cost, mask, solved(cost, mask)) == 0


@needs_gpu
def test_beyond_the_largest_side_the_host_solves():
    cost, mask = drawn("normal", 2, 3, MAX_SIDE + 1, masked=True)
    assert n_faults(cost, mask, one_to_one_weights(cost.cuda(), mask.cuda())) == 0


@needs_gpu
def test_a_captured_graph_solves_what_it_is_replayed_with():
    cost, mask = (part.cuda() for part in drawn("normal", 64, 12, 14, masked=True))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        mcl.PIT()(cost, mask)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weights = mcl.PIT()(cost, mask)
    for kind in ("normal", "ties", "forbidden pairs", "product"):
        new_cost, new_mask = drawn(kind, 64, 12, 14, masked=True)
        cost.copy_(new_cost)
        mask.copy_(new_mask)
        graph.replay()
        assert n_faults(new_cost, new_mask, weights) == 0, kind


@needs_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch.compile itself
def test_compiled_it_is_one_graph():
    cost, mask = (part.cuda() for part in drawn("normal", 64, 8, 9, masked=True))
    compiled = torch.compile(lambda cost, mask: 2 * mcl.PIT()(cost, mask), fullgraph=True)
    assert torch.equal(compiled(cost, mask), 2 * mcl.PIT()(cost, mask))


@needs_gpu
@pytest.mark.parametrize("masked", [False, True], ids=["all real", "masked"])
def test_mapped_it_solves_each_as_alone(masked):
    cost, mask = drawn("normal", 30, 6, 7, masked)
    cost, mask = cost.cuda(), None if mask is None else mask.cuda()
    alone = mcl.PIT()(cost, mask)
    grouped = cost.view(5, 6, 6, 7)
    mapped = torch.vmap(mcl.PIT(), in_dims=(1, None if mask is None else 1), out_dims=1)
    assert torch.equal(mapped(grouped, None if mask is None else mask.view(5, 6, 6)).reshape_as(alone), alone)


@needs_gpu
def test_too_many_real_targets_are_an_error_without_a_mask_and_nan_with_one():
    cost, mask = torch.rand(2, 3, 2).cuda(), torch.tensor([[True, True, True], [True, False, True]]).cuda()
    with pytest.raises(ValueError, match="PIT: `number of hypotheses` must be at least the number of valid targets 3"):
        mcl.PIT()(cost)
    weights = mcl.PIT()(cost, mask)
    assert weights[0].isnan().all()
    assert n_faults(cost[1:], mask[1:], weights[1:]) == 0
