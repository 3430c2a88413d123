import pickle

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl.loop import CUDAGraphModel, FiniteGuard, NonFiniteLossError, Recorder


def test_the_mask_and_the_scores_are_optional():
    inputs, targets = torch.zeros(2, 3), torch.zeros(2, 1, 1)
    assert mcl.Batch(inputs, targets).mask is None
    assert mcl.Predictions(torch.zeros(2, 4, 1)).score_logits is None


def test_tuples_unpack_in_the_documented_order():
    assert mcl.Batch._fields == ("inputs", "targets", "mask", "scene")
    assert mcl.Predictions._fields == ("hypotheses", "score_logits")
    assert mcl.Distributions._fields == ("hypotheses", "score_logits", "scale")
    assert mcl.Matching._fields == ("cost", "weights", "mask")
    assert mcl.StepOutput._fields == ("loss", "assignment_loss", "score_loss", "matching", "predictions", "batch")


def test_tuples_are_trees_of_tensors():
    batch = mcl.Batch(torch.zeros(2, 3), torch.zeros(2, 1, 1), torch.ones(2, 1, dtype=torch.bool), torch.arange(2))
    moved = torch.utils._pytree.tree_map(lambda tensor: tensor + 1 if tensor.is_floating_point() else tensor, batch)
    assert isinstance(moved, mcl.Batch)
    assert (moved.inputs == 1).all()


def test_tuples_can_be_pickled():
    answers = mcl.Predictions(torch.randn(2, 3, 1), torch.randn(2, 3))
    twin = pickle.loads(pickle.dumps(answers))
    assert isinstance(twin, mcl.Predictions)
    assert torch.equal(twin.hypotheses, answers.hypotheses)
    assert torch.equal(twin.score_logits, answers.score_logits)


def test_the_default_collate_function_of_a_loader_makes_batches():
    samples = [mcl.Batch(torch.zeros(3), torch.zeros(1, 1), torch.ones(1, dtype=torch.bool)) for _ in range(4)]
    batch = torch.utils.data.default_collate(samples)
    assert isinstance(batch, mcl.Batch)
    assert batch.inputs.shape == (4, 3)
    assert batch.mask.shape == (4, 1)


@for_each("kind", [tuple, dict])
def test_inputs_may_be_several_tensors_everywhere(kind):
    def several(*tensors):
        return tensors if kind is tuple else dict(zip(("past", "lengths"), tensors, strict=True))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = mcl.MultiHypothesisHead(4, 1, 3)

        def forward(self, inputs):
            past, lengths = inputs if kind is tuple else inputs.values()
            return self.head(past.cumsum(dim=1)[torch.arange(past.shape[0]), lengths - 1])

    samples = [mcl.Batch(several(torch.randn(5, 4), torch.tensor(3)), torch.randn(1)) for _ in range(6)]
    model, batch = Model(), torch.utils.data.default_collate(samples)
    recorder = Recorder(every=1, model=model, probes=batch.inputs)
    for either in (model, CUDAGraphModel(model)):
        output = mcl.mcl_step(either, batch, mcl.WTA())
        recorder(0, output, mcl.WTA())
    assert recorder.records().hypotheses.shape == (2, 6, 3, 1)
    samples[2] = samples[2]._replace(inputs=several(torch.full((5, 4), torch.nan), torch.tensor(3)))
    batch = torch.utils.data.default_collate(samples)
    with pytest.raises(NonFiniteLossError) as stopped:
        FiniteGuard(model.parameters())(mcl.mcl_step(model, batch, mcl.WTA()), batch, "batch 0")
    assert stopped.value.cause == "inputs"
