"""The step: the formula written by hand, and padding that changes nothing."""

import math
import sys
from pathlib import Path

import pytest
import torch

import torchmcl as mcl
from families import ALL_RULES
from grids import for_each
from torchmcl.scoring import PresenceScores


def make_model(**options):
    torch.manual_seed(1)
    return mcl.MultiHypothesisMLP(3, 2, 4, hidden=(8,), **options).double()


def make_batch(mask=None):
    torch.manual_seed(2)
    return mcl.Batch(torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 3, 2, dtype=torch.float64), mask)


def make_mask():
    return torch.arange(3) < (torch.arange(6) % 4).unsqueeze(-1)


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


@for_each("temperature", [0.0, 0.5])
@for_each("score_weight", [1.0, 0.3])
def test_step_is_the_formula(temperature, score_weight):
    model, batch, mask = make_model(), make_batch(), make_mask()
    output = mcl.mcl_step(model, batch._replace(mask=mask), mcl.AnnealedWTA(temperature), score_weight=score_weight)

    hypotheses, logits = model(batch.inputs)
    assignment, scoring, n_real, n_samples = 0.0, 0.0, 0, 0
    for answers, scores, truths, reals in zip(hypotheses, logits, batch.targets, mask, strict=True):
        wins = torch.zeros(4, dtype=torch.float64)
        for truth in truths[reals]:
            losses = torch.stack([((truth - answer) ** 2).sum() for answer in answers])
            winner = torch.nn.functional.one_hot(losses.argmin(), 4).double()
            weights = torch.softmax(-losses.detach() / temperature, 0) if temperature else winner
            assignment = assignment + (weights * losses).sum()
            wins = wins + winner
            n_real += 1
        if reals.any():
            label, gamma = wins / reals.sum(), scores.sigmoid()
            scoring = scoring + (-label * gamma.log() - (1 - label) * (1 - gamma).log()).mean()
            n_samples += 1
    expected = assignment / n_real + score_weight * scoring / n_samples

    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.assignment_loss, assignment / n_real)
    torch.testing.assert_close(output.score_loss, scoring / n_samples)
    output.loss.backward()
    actual = gradients(model)
    model.zero_grad()
    expected.backward()
    torch.testing.assert_close(actual, gradients(model))


@for_each("rule", ALL_RULES)
def test_step_is_the_composition_of_its_parts(rule):
    model, batch = make_model(), make_batch()
    output = mcl.mcl_step(model, batch, rule)
    cost = mcl.pairwise_sq_euclidean(hypotheses=model(batch.inputs).hypotheses, targets=batch.targets)
    matching = mcl.assign(cost, rule)
    torch.testing.assert_close(output.matching, matching)
    torch.testing.assert_close(output.predictions, model(batch.inputs))
    torch.testing.assert_close(output.assignment_loss, mcl.mcl_loss(matching))


@for_each("rule", ALL_RULES)
@for_each("padding", [math.nan, 1e30])
def test_padded_targets_change_neither_loss_nor_gradients(rule, padding):
    mask, results = make_mask(), []
    batch = make_batch(mask)
    for targets in (batch.targets, batch.targets.masked_fill(~mask.unsqueeze(-1), padding)):
        model = make_model()
        before = targets.clone()
        output = mcl.mcl_step(model, batch._replace(targets=targets), rule)
        output.loss.backward()
        torch.testing.assert_close(targets, before, equal_nan=True)
        results.append((output.loss.detach(), gradients(model)))
    assert results[0][0].isfinite()
    torch.testing.assert_close(results[0], results[1])


@for_each(
    "cost_fn",
    [mcl.pairwise_euclidean, mcl.pairwise_l1, mcl.pairwise_huber, mcl.pairwise_cosine, mcl.pairwise_neg_si_sdr],
)
def test_padded_targets_are_harmless_under_every_cost(cost_fn):
    mask, results = make_mask(), []
    batch = make_batch(mask)
    for targets in (batch.targets, batch.targets.masked_fill(~mask.unsqueeze(-1), math.nan)):
        model = make_model()
        output = mcl.mcl_step(model, batch._replace(targets=targets), mcl.AnnealedWTA(0.5), cost_fn=cost_fn)
        output.loss.backward()
        results.append((output.loss.detach(), gradients(model)))
    assert results[0][0].isfinite()
    torch.testing.assert_close(results[0], results[1])


def test_class_ids_with_cross_entropy_and_padding_of_minus_100():
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(3, 5, 4, hidden=(8,))
    inputs, ids = torch.randn(6, 3), torch.randint(0, 5, (6, 2))
    mask = torch.tensor([[True, True], [True, False], [False, False]] * 2)
    padded = mcl.mcl_step(
        model,
        mcl.Batch(inputs, ids.masked_fill(~mask, -100), mask),
        mcl.WTA(),
        cost_fn=mcl.pairwise_cross_entropy,
        score_weight=0,
    )
    logits = model(inputs).hypotheses
    expected = torch.stack(
        [
            torch.stack([torch.nn.functional.cross_entropy(answer, ids[b, t]) for answer in logits[b]]).amin()
            for b, t in mask.nonzero().tolist()
        ]
    ).mean()
    torch.testing.assert_close(padded.loss, expected)


def test_step_without_scores_has_no_score_loss():
    for output in (
        mcl.mcl_step(make_model(scores=False), make_batch(), mcl.WTA()),
        mcl.mcl_step(make_model(), make_batch(), mcl.WTA(), score_weight=0),
    ):
        assert output.score_loss is None
        assert torch.equal(output.loss, output.assignment_loss)


def test_step_without_any_real_target_is_zero_with_zero_gradients():
    model = make_model()
    output = mcl.mcl_step(model, make_batch(torch.zeros(6, 3, dtype=torch.bool)), mcl.AnnealedWTA(0.5))
    output.loss.backward()
    assert output.loss.item() == 0
    for gradient in gradients(model):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@for_each("scores", [mcl.SigmoidScores(), mcl.SoftmaxScores(), PresenceScores()])
def test_no_targets_are_the_same_with_and_without_a_mask(scores):
    model = mcl.MultiHypothesisMLP(4, 2, 3, hidden=(5,))
    batch = mcl.Batch(torch.zeros(3, 4), torch.zeros(3, 0, 2))
    for mask in (None, torch.zeros(3, 0, dtype=torch.bool)):
        output = mcl.mcl_step(model, batch._replace(mask=mask), mcl.WTA(), scores=scores)
        assert output.loss == output.score_loss == 0


def test_scores_are_taught_the_hard_winner_whatever_the_rule():
    model, batch = make_model(), make_batch()
    hot = mcl.mcl_step(model, batch, mcl.AnnealedWTA(1e6)).score_loss
    torch.testing.assert_close(hot, mcl.mcl_step(model, batch, mcl.WTA()).score_loss)


def test_detached_scores_keep_the_score_loss_out_of_the_trunk():
    plain, detached = make_model(scores=True), make_model(detach_scores=True)
    mcl.mcl_step(plain, make_batch(), mcl.WTA(), score_weight=0).loss.backward()
    mcl.mcl_step(detached, make_batch(), mcl.WTA(), score_weight=10.0).loss.backward()
    torch.testing.assert_close(plain.trunk[0].weight.grad, detached.trunk[0].weight.grad)
    plain_head, detached_head = (list(model.head.parameters()) for model in (plain, detached))
    assert any(not torch.equal(a.grad, b.grad) for a, b in zip(plain_head, detached_head, strict=True))


def test_a_bad_value_anywhere_gives_a_nan_loss():
    model, batch = make_model(), make_batch()
    batch.targets[3, 1, 0] = math.nan
    assert mcl.mcl_step(model, batch, mcl.AnnealedWTA(0.5)).loss.isnan()
    mask = torch.ones(6, 3, dtype=torch.bool)
    mask[3, 1] = False
    assert mcl.mcl_step(model, batch._replace(mask=mask), mcl.AnnealedWTA(0.5)).loss.isfinite()


@for_each("dtype", [torch.bfloat16, torch.float16])
def test_step_under_autocast_keeps_cost_weights_and_loss_in_float32(dtype):
    torch.manual_seed(0)
    model = mcl.MultiHypothesisMLP(3, 2, 4, hidden=(8,))
    batch = mcl.Batch(torch.randn(6, 3), torch.randn(6, 3, 2), make_mask())
    with torch.autocast("cpu", dtype=dtype):
        output = mcl.mcl_step(model, batch, mcl.AnnealedWTA(0.5))
    assert output.predictions.hypotheses.dtype == dtype
    assert output.matching.cost.dtype == torch.float32
    assert output.matching.weights.dtype == torch.float32
    assert output.assignment_loss.dtype == torch.float32
    assert output.score_loss.dtype == torch.float32
    assert output.loss.dtype == torch.float32
    output.loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model))


def test_a_masked_step_makes_at_most_forty_calls_of_functions():
    predictions, batch = make_model()(make_batch().inputs), make_batch(make_mask())
    package, names = str(Path(mcl.__file__).parent), []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            names.append(code.co_name)

    mcl.mcl_step(lambda _: predictions, batch, mcl.WTA())  # imports what it needs once
    sys.setprofile(note)
    try:
        mcl.mcl_step(lambda _: predictions, batch, mcl.WTA())
    finally:
        sys.setprofile(None)
    assert "step_output" in names
    assert len(names) <= 40, names


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by torch.compile itself
def test_step_compiles_into_one_graph():
    torch.compiler.reset()
    model, batch = make_model(), make_batch(make_mask())

    def loss_of(inputs, targets, mask):
        return mcl.mcl_step(model, mcl.Batch(inputs, targets, mask), mcl.AnnealedWTA(0.5)).loss

    results = []
    for fn in (loss_of, torch.compile(loss_of, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        loss = fn(*batch[:3])
        loss.backward()
        results.append((loss.detach(), gradients(model)))
    torch.testing.assert_close(results[0], results[1])


def test_step_maps_over_models_and_temperatures():
    models = [mcl.MultiHypothesisMLP(3, 2, 4, hidden=(8,)).double() for _ in range(3)]
    batch, temperatures = make_batch(make_mask()), torch.tensor([0.0, 0.3, 2.0], dtype=torch.float64)
    weights, buffers = torch.func.stack_module_state(models)

    def loss_of(weights, buffers, temperature):
        def model(inputs):
            return torch.func.functional_call(models[0], (weights, buffers), (inputs,))

        return mcl.mcl_step(model, batch, mcl.AnnealedWTA(temperature)).loss

    losses = torch.vmap(loss_of)(weights, buffers, temperatures)
    for model, temperature, loss in zip(models, temperatures.tolist(), losses, strict=True):
        torch.testing.assert_close(loss, mcl.mcl_step(model, batch, mcl.AnnealedWTA(temperature)).loss)


@for_each("score_weight", [0.0, 1.0])
@for_each("padded", [False, True])
def test_stacked_models_have_the_losses_of_each_model_alone(score_weight, padded):
    models = [mcl.MultiHypothesisMLP(3, 2, 4, hidden=(8,)).double() for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(models)
    temperatures = [0.0, 0.3, 2.0]
    inputs, targets = torch.randn(3, 6, 3, dtype=torch.float64), torch.randn(3, 6, 3, 2, dtype=torch.float64)
    mask = torch.rand(3, 6, 3) < 0.6 if padded else None

    def stacked_model(inputs):
        return torch.vmap(lambda w, b, x: torch.func.functional_call(models[0], (w, b), (x,)))(weights, buffers, inputs)

    rule = mcl.AnnealedWTA(torch.tensor(temperatures, dtype=torch.float64).view(3, 1, 1, 1))
    together = mcl.mcl_step(
        stacked_model, mcl.Batch(inputs, targets, mask), rule, score_weight=score_weight, stacked=True
    )
    assert together.loss.shape == (3,)
    for index, (model, temperature) in enumerate(zip(models, temperatures, strict=True)):
        batch = mcl.Batch(inputs[index], targets[index], None if mask is None else mask[index])
        alone = mcl.mcl_step(model, batch, mcl.AnnealedWTA(temperature), score_weight=score_weight)
        torch.testing.assert_close(together.loss[index], alone.loss)
        torch.testing.assert_close(together.assignment_loss[index], alone.assignment_loss)
        if score_weight:
            torch.testing.assert_close(together.score_loss[index], alone.score_loss)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # forward mode in torch makes use of it
@for_each("rule", [mcl.WTA(), mcl.AnnealedWTA(0.5), mcl.RelaxedWTA(0.1), mcl.TopK(2), mcl.Sinkhorn(0.5, 5)])
def test_forward_mode_follows_the_step(rule):
    batch = mcl.Batch(*(torch.randn(3, *shape, dtype=torch.float64) for shape in ((1,), (2, 2))))

    def loss_of(hypotheses, logits):
        return mcl.mcl_step(lambda _: mcl.Predictions(hypotheses, logits), batch, rule).loss

    points = torch.randn(3, 4, 2, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    for argument in (0, 1):
        backward = torch.func.jacrev(loss_of, argument)
        torch.testing.assert_close(torch.func.jacfwd(loss_of, argument)(*points), backward(*points))
        hessian = torch.func.jacrev(backward, argument)(*points)
        torch.testing.assert_close(torch.func.hessian(loss_of, argument)(*points), hessian)
