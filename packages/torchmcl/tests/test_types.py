import pickle

import torch

import torchmcl as mcl


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
