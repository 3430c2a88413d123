import copy
import pickle

import pytest
import torch

import torchmcl as mcl
from grids import for_each


@for_each("leading", [(), (8,), (2, 3)])
def test_head_returns_every_hypothesis_and_a_score_for_each(leading):
    answers = mcl.MultiHypothesisHead(16, 2, 5)(torch.randn(*leading, 16))
    assert isinstance(answers, mcl.Predictions)
    assert answers.hypotheses.shape == (*leading, 5, 2)
    assert answers.score_logits.shape == (*leading, 5)


def test_head_without_scores_has_no_score_parameters():
    head = mcl.MultiHypothesisHead(16, 2, 5, scores=False)
    assert head(torch.randn(8, 16)).score_logits is None
    assert sum(parameter.numel() for parameter in head.parameters()) == (16 + 1) * 10


def test_hypotheses_and_scores_are_affine_in_the_features():
    head = mcl.MultiHypothesisHead(3, 2, 4).double()
    left, right = torch.randn(2, 5, 3, dtype=torch.float64)
    between = head(0.3 * left + 0.7 * right)
    for mixed, x, y in zip(between, head(left), head(right), strict=True):
        torch.testing.assert_close(mixed, 0.3 * x + 0.7 * y)


def test_all_hypotheses_start_from_the_same_distribution():
    head = mcl.MultiHypothesisHead(100, 3, 50)
    hypotheses = head(torch.randn(2000, 100)).hypotheses
    spread = hypotheses.std(dim=0)
    assert spread.min() > 0.7 * spread.mean()
    assert spread.max() < 1.3 * spread.mean()


def test_no_two_hypotheses_or_scores_share_parameters():
    head = mcl.MultiHypothesisHead(3, 2, 4)
    outputs = torch.cat([part.flatten() for part in head(torch.ones(3))])
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(output, list(head.parameters()), retain_graph=True)]) != 0
        for output in outputs
    ]
    used = torch.stack(rows).sum(0)
    assert (used == 1).all()


def test_output_activation_is_applied_to_hypotheses_and_not_to_scores():
    head = mcl.MultiHypothesisHead(3, 2, 4, output_activation=torch.tanh)
    features = 100 * torch.randn(5, 3)
    plain = copy.deepcopy(head)
    plain.output_activation = None
    assert head(features).hypotheses.abs().max() <= 1
    torch.testing.assert_close(head(features).hypotheses, plain(features).hypotheses.tanh())
    torch.testing.assert_close(head(features).score_logits, plain(features).score_logits)


def trunk_gradient(detach_scores, loss_of):
    """Return the gradient of the first hidden layer, and how much of it reached the head."""
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(3, 2, 4, hidden=(8,), detach_scores=detach_scores)
    weight = model.trunk[0].weight
    loss_of(model(torch.randn(5, 3))).backward()
    reached_head = sum(p.grad.abs().sum() for p in model.head.parameters() if p.grad is not None)
    return torch.zeros_like(weight) if weight.grad is None else weight.grad, reached_head


def test_detached_scores_stop_the_score_loss_at_the_head():
    to_trunk, to_head = trunk_gradient(True, lambda answers: answers.score_logits.sum())
    assert torch.equal(to_trunk, torch.zeros_like(to_trunk))
    assert to_head > 0
    to_trunk, to_head = trunk_gradient(False, lambda answers: answers.score_logits.sum())
    assert to_trunk.abs().sum() > 0
    assert to_head > 0


def test_detached_scores_leave_the_gradient_of_the_hypotheses_alone():
    torch.testing.assert_close(
        trunk_gradient(True, lambda answers: answers.hypotheses.square().sum() + answers.score_logits.sum())[0],
        trunk_gradient(False, lambda answers: answers.hypotheses.square().sum())[0],
    )


def test_detached_scores_change_no_value():
    features = torch.randn(5, 3)
    head = mcl.MultiHypothesisHead(3, 2, 4)
    detached = copy.deepcopy(head)
    detached.detach_scores = True
    torch.testing.assert_close(head(features), detached(features))


def test_mlp_has_the_layers_it_is_asked_for():
    model = mcl.MultiHypothesisMLP(6, 1, 5, hidden=(50, 20), activation=torch.nn.Tanh)
    kinds = [type(layer) for layer in model.trunk]
    assert kinds == [torch.nn.Linear, torch.nn.Tanh, torch.nn.Linear, torch.nn.Tanh]
    assert [layer.out_features for layer in model.trunk[::2]] == [50, 20]
    answers = model(torch.randn(2, 7, 6))
    assert answers.hypotheses.shape == (2, 7, 5, 1)
    assert answers.score_logits.shape == (2, 7, 5)


def test_mlp_without_hidden_layers_is_the_head():
    model = mcl.MultiHypothesisMLP(6, 1, 5, hidden=())
    features = torch.randn(3, 6)
    torch.testing.assert_close(model(features), model.head(features))


def test_mlp_passes_its_options_to_the_head():
    model = mcl.MultiHypothesisMLP(6, 2, 5, hidden=(8,), scores=False, detach_scores=True, output_activation=torch.tanh)
    answers = model(100 * torch.randn(3, 6))
    assert answers.score_logits is None
    assert answers.hypotheses.abs().max() <= 1
    assert model.head.detach_scores
    assert "n_hypotheses=5" in repr(model)
    assert "detach_scores=True" in repr(model)


def test_weights_travel_by_state_dict():
    model, other = (mcl.MultiHypothesisMLP(6, 2, 5, hidden=(8,)) for _ in range(2))
    inputs = torch.randn(3, 6)
    assert not torch.equal(model(inputs).hypotheses, other(inputs).hypotheses)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(inputs), other(inputs))
    assert {name.split(".")[0] for name in model.state_dict()} == {"trunk", "head"}


def test_models_can_be_pickled():
    model = mcl.MultiHypothesisMLP(6, 2, 5, hidden=(8,), output_activation=torch.tanh)
    inputs = torch.randn(3, 6)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(inputs), model(inputs))


def test_models_compile_and_map_over_their_weights():
    torch.compiler.reset()
    models = [mcl.MultiHypothesisMLP(6, 2, 5, hidden=(8,)) for _ in range(3)]
    inputs = torch.randn(4, 6)
    compiled = torch.compile(models[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs), models[0](inputs))
    weights, buffers = torch.func.stack_module_state(models)
    answers = torch.vmap(lambda w, b: torch.func.functional_call(models[0], (w, b), (inputs,)))(weights, buffers)
    for index, model in enumerate(models):
        torch.testing.assert_close(answers.hypotheses[index], model(inputs).hypotheses)


def test_dropout_follows_each_hidden_layer_and_is_off_in_evaluation():
    model = mcl.MultiHypothesisMLP(6, 1, 5, hidden=(8, 4), dropout=0.25)
    assert [part.p for part in model.trunk if isinstance(part, torch.nn.Dropout)] == [0.25, 0.25]
    inputs = torch.randn(30, 6)
    assert not torch.equal(model(inputs).hypotheses, model(inputs).hypotheses)
    model.eval()
    assert torch.equal(model(inputs).hypotheses, model(inputs).hypotheses)


@for_each("dropout", [1.0, -0.1])
def test_dropout_must_be_a_share(dropout):
    with pytest.raises(ValueError, match="MultiHypothesisMLP: `dropout`"):
        mcl.MultiHypothesisMLP(6, 1, 5, dropout=dropout)
