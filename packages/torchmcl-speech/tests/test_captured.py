"""Models replayed as CUDA graphs: on other devices nothing changes; a rate that follows a schedule."""

import copy

import pytest
import torch
from torch import nn

import torchmcl as mcl
from grids import for_each
from torchmcl.loop import CUDAGraphModel
from torchmcl.step import mcl_step
from torchmcl_speech.nn import DPRNN

TINY = {"n_filters": 8, "segment_size": 20, "hidden_size": 8, "n_blocks": 1}


class Constant(nn.Module):
    """A model that counts its calls."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return mcl.Predictions(inputs.unsqueeze(1) * self.weight)


def test_without_a_gpu_the_model_itself_is_called():
    model = Constant()
    captured = CUDAGraphModel(model)
    for mode in (model.train, model.eval):
        mode()
        inputs = torch.randn(4, 3)
        torch.testing.assert_close(captured(inputs).hypotheses, inputs.unsqueeze(1) * model.weight)
    assert model.calls == 2


def test_gradients_reach_the_model_through_it():
    torch.manual_seed(0)
    model = DPRNN(2, **TINY, scores=True)
    twin = copy.deepcopy(model)
    batch = mcl.Batch(torch.randn(2, 800), torch.randn(2, 2, 800))
    for callee in (CUDAGraphModel(model), twin):
        mcl_step(callee, batch, mcl.WTA(), cost_fn=mcl.pairwise_neg_si_sdr).loss.backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # the first product of a process, in a thread of its own
@for_each("precision", [torch.float32, torch.bfloat16])
def test_replayed_passes_give_the_gradients_of_the_model_on_the_gpu(precision):
    torch.manual_seed(0)
    model = DPRNN(3, n_filters=32, segment_size=50, hidden_size=32, n_blocks=2, scores=True).cuda()
    twin = copy.deepcopy(model)
    captured = CUDAGraphModel(model)
    # The same up to the order of sums, which kernels with atomic additions do not keep.
    tolerance = 1e-3 if precision == torch.float32 else 2e-2
    half = precision != torch.float32
    for shape in ((2, 8000), (2, 8000), (1, 4000), (2, 8000)):  # recorded, replayed, another shape, replayed
        batch = mcl.Batch(torch.randn(shape).cuda(), torch.randn(shape[0], 2, shape[1]).cuda())
        kept = batch.inputs.clone()
        losses = []
        for callee, owner in ((captured, model), (twin, twin)):
            owner.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                output = mcl_step(callee, batch, mcl.AnnealedWTA(0.1), cost_fn=mcl.pairwise_neg_si_sdr)
            output.loss.backward()
            losses.append(output.loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=tolerance, abs=tolerance)
        torch.testing.assert_close(batch.inputs, kept, rtol=0, atol=0)
        ours, theirs = (torch.cat([p.grad.flatten() for p in owner.parameters()]) for owner in (model, twin))
        assert ((ours - theirs).norm() / theirs.norm()).item() < tolerance
        with torch.no_grad():  # as an optimizer would: the recording reads the weights where they are
            for one, other in zip(model.parameters(), twin.parameters(), strict=True):
                one.sub_(other.grad, alpha=1e-4)
                other.sub_(other.grad, alpha=1e-4)
    model.eval()
    with torch.inference_mode():
        torch.testing.assert_close(captured(batch.inputs).hypotheses, model(batch.inputs).hypotheses)
