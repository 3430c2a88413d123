"""The score of a mixture equals its integral, has the right gradient, and is the same in compiled code."""

import pytest
import torch

import torchmcl as mcl
from grids import for_each
from oracles import mixture_crps, mixture_log_likelihood
from torchmcl.costs import MixtureNLLWithCRPS


def mixtures(n_rows=6, n_targets=2, n_hypotheses=3, dim=2):
    generator = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    scale = normal(n_rows, n_hypotheses, dim).abs() + 0.1
    targets = 2 * normal(n_rows, n_targets, dim)
    return normal(n_rows, n_hypotheses, dim), targets, scale, normal(n_rows, n_hypotheses)


def score(crps, hypotheses, targets, scale, logits):
    return MixtureNLLWithCRPS(crps)(hypotheses=hypotheses, targets=targets, scale=scale, score_logits=logits)


@for_each("crps", [0.0, 3.0])
def test_the_score_is_that_of_the_definition(crps):
    hypotheses, targets, scale, logits = mixtures()
    values = score(crps, hypotheses, targets, scale, logits)
    assert values.shape == (6, 2, 1)
    shares = logits.softmax(dim=-1)
    for row in range(6):
        for place in range(2):
            parts = shares[row], hypotheses[row], scale[row], targets[row, place]
            expected = crps * mixture_crps(*parts) - mixture_log_likelihood(*parts)
            torch.testing.assert_close(values[row, place, 0], expected, atol=2e-4, rtol=2e-4)


@for_each("crps", [0.0, 3.0])
def test_gradients_are_those_of_differences(crps):
    parts = [part.requires_grad_() for part in mixtures(n_rows=2)]
    assert torch.autograd.gradcheck(lambda *given: score(crps, *given), parts)


def test_the_crps_of_one_certain_hypothesis_is_its_distance():
    place, target, scale = (torch.tensor([[value]], dtype=torch.float64) for value in (3.0, 0.0, 1e-3))
    with_crps, without = (score(weight, place, target, scale, torch.zeros(1)) for weight in (1.0, 0.0))
    assert (with_crps - without).item() == pytest.approx(3.0, abs=1e-3)


@for_each("crps", [0.0, 3.0])
@for_each("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_score_of_narrower_and_mixed_types_is_that_of_the_rounded_numbers(crps, dtype):
    rounded = [part.to(dtype) for part in mixtures()]
    exact = score(crps, *(part.double() for part in rounded))
    torch.testing.assert_close(score(crps, *rounded), exact.float(), atol=1e-4, rtol=1e-4)
    hypotheses, targets, scale, logits = rounded
    torch.testing.assert_close(score(crps, hypotheses, targets.double(), scale, logits), exact, atol=1e-4, rtol=1e-4)


@for_each("crps", [0.0, 3.0])
@for_each("shape", [(), (1,), (2,), (3, 1), (6, 1, 2)])
def test_scales_broadcast_to_the_hypotheses(crps, shape):
    hypotheses, targets, scale, logits = mixtures()
    shared = scale.flatten()[: torch.Size(shape).numel()].view(shape)
    expected = score(crps, hypotheses, targets, shared.expand(hypotheses.shape), logits)
    torch.testing.assert_close(score(crps, hypotheses, targets, shared, logits), expected)


def test_scores_must_not_be_trained_twice():
    model = mcl.MultiHypothesisMLP(2, 1, 3, scales=True)
    batch = mcl.Batch(torch.zeros(4, 2), torch.zeros(4, 1, 1))
    with pytest.raises(ValueError, match="`score_weight`"):
        mcl.mcl_step(model, batch, mcl.WTA(), cost_fn=MixtureNLLWithCRPS())
    with pytest.raises(ValueError, match="return score logits for a cost that requires them"):
        mcl.mcl_step(
            mcl.MultiHypothesisMLP(2, 1, 3, scales=True, scores=False),
            batch,
            mcl.WTA(),
            cost_fn=MixtureNLLWithCRPS(),
        )
    with pytest.raises(ValueError, match="MixtureNLLWithCRPS: `crps`"):
        MixtureNLLWithCRPS(-1.0)


def test_targets_may_lack_their_axis():
    model = mcl.MultiHypothesisMLP(2, 1, 3, scales=True)
    inputs, targets = torch.randn(4, 2), torch.randn(4, 1)
    with_axis, without = (
        mcl.mcl_step(model, mcl.Batch(inputs, given), mcl.WTA(), cost_fn=MixtureNLLWithCRPS(1.0), score_weight=0).loss
        for given in (targets.unsqueeze(1), targets)
    )
    assert with_axis == without
