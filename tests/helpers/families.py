"""The members of each family, with their oracles: what the contracts run over."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import oracles
import torchmcl as mcl
from torchmcl import costs
from torchmcl.costs import pairwise_token_cross_entropy
from torchmcl.scoring import PresenceScores, QualityScores, ScoreObjective


class RuleCase(NamedTuple):
    rule: Any
    oracle: Any
    parameters: tuple[Any, ...] = ()

    def expected(self, cost, mask=None):
        return oracles.apply_rule(self.oracle, cost, mask, *self.parameters)


# Rules with plain numbers.
RULE_CASES = [
    RuleCase(mcl.WTA(), oracles.wta),
    RuleCase(mcl.RelaxedWTA(0.0), oracles.relaxed_wta, (0.0,)),
    RuleCase(mcl.RelaxedWTA(0.3), oracles.relaxed_wta, (0.3,)),
    RuleCase(mcl.RelaxedWTA(1.0), oracles.relaxed_wta, (1.0,)),
    RuleCase(mcl.AnnealedWTA(0.0), oracles.annealed_wta, (0.0,)),
    RuleCase(mcl.AnnealedWTA(0.5), oracles.annealed_wta, (0.5,)),
    RuleCase(mcl.AnnealedWTA(math.inf), oracles.annealed_wta, (math.inf,)),
    RuleCase(mcl.TopK(1), oracles.top_k, (1,)),
    RuleCase(mcl.TopK(2.4), oracles.top_k, (2,)),
    RuleCase(mcl.TopK(3), oracles.top_k, (3,)),
    RuleCase(mcl.PIT(), oracles.pit),
    RuleCase(mcl.Sinkhorn(0.0), oracles.sinkhorn, (0.0, 50)),
    RuleCase(mcl.Sinkhorn(0.5), oracles.sinkhorn, (0.5, 50)),
    RuleCase(mcl.Sinkhorn(temperature=0.5, n_iters=3), oracles.sinkhorn, (0.5, 3)),
    RuleCase(mcl.EMD(), oracles.emd),
]
# The same parameters as zero-dimensional tensors.
TENSOR_CASES = [
    RuleCase(mcl.RelaxedWTA(torch.tensor(0.3)), oracles.relaxed_wta, (0.3,)),
    RuleCase(mcl.AnnealedWTA(torch.tensor(0.0)), oracles.annealed_wta, (0.0,)),
    RuleCase(mcl.AnnealedWTA(torch.tensor(0.5)), oracles.annealed_wta, (0.5,)),
    RuleCase(mcl.TopK(torch.tensor(2)), oracles.top_k, (2,)),
    RuleCase(mcl.Sinkhorn(torch.tensor(0.0), n_iters=5), oracles.sinkhorn, (0.0, 5)),
    RuleCase(mcl.Sinkhorn(torch.tensor(0.5), n_iters=5), oracles.sinkhorn, (0.5, 5)),
]
ALL_RULE_CASES = RULE_CASES + TENSOR_CASES
ALL_RULES = [case.rule for case in ALL_RULE_CASES]
# EMD solves on the CPU and says so.
DEVICE_RULES = [rule for rule in ALL_RULES if not isinstance(rule, mcl.EMD)]


@dataclass(frozen=True)
class SquaredScores(ScoreObjective):
    """An objective of a user: probabilities are proportional to the squares of the logits."""

    def sample_losses(self, score_logits, labels):
        return -(labels * self.probabilities(score_logits).log()).sum(dim=-1)

    def probabilities(self, score_logits):
        return score_logits.square() / score_logits.square().sum(dim=-1, keepdim=True)

    def logits(self, probabilities):
        return probabilities.sqrt()


SCORE_OBJECTIVES = [
    mcl.SigmoidScores(),
    mcl.SoftmaxScores(),
    PresenceScores(mcl.PIT()),
    QualityScores(),
    QualityScores(temperature=2.0),
    SquaredScores(),
]


class CostCase(NamedTuple):
    name: str
    fn: Any
    oracle: Any
    dim: int = 3
    class_ids: bool = False
    all_pairs: bool = False  # makes a tensor of all pairs and dimensions

    def inputs(self, *leading, n_targets=2, n_hypotheses=3, dtype=torch.float64, dim=None):
        dim = dim or self.dim
        hypotheses = torch.randn(*leading, n_hypotheses, dim, dtype=dtype)
        if self.class_ids:
            return hypotheses, torch.randint(0, dim, (*leading, n_targets))
        return hypotheses, torch.randn(*leading, n_targets, dim, dtype=dtype)


def _huber_half(*, hypotheses, targets):
    return mcl.pairwise_huber(hypotheses=hypotheses, targets=targets, delta=0.5)


def _centered_si_sdr(*, hypotheses, targets):
    return mcl.pairwise_neg_si_sdr(hypotheses=hypotheses, targets=targets, zero_mean=True)


def _centered_snr(*, hypotheses, targets):
    return mcl.pairwise_neg_snr(hypotheses=hypotheses, targets=targets, zero_mean=True)


def max_difference(hypothesis, target):
    """A loss of a user, for `Pairwise`."""
    return (hypothesis - target).abs().amax()


def _max_difference_oracle(h, t):
    return max((t - h).abs())


def _paths(fn, **options):
    """A cost of sequences of two-dimensional steps, on vectors of their coordinates."""

    def cost(*, hypotheses, targets):
        return fn(hypotheses=hypotheses.unflatten(-1, (-1, 2)), targets=targets.unflatten(-1, (-1, 2)), **options)

    cost.public = fn
    return cost


def _of_paths(oracle):
    return lambda h, t: oracle(h.unflatten(-1, (-1, 2)), t.unflatten(-1, (-1, 2)))


def _with_scale(fn):
    """A likelihood whose scale depends on the hypothesis, so that one gradient checks both."""

    def cost(*, hypotheses, targets):
        wide = hypotheses.to(torch.promote_types(hypotheses.dtype, torch.float32))
        return fn(hypotheses=hypotheses, targets=targets, scale=(wide.abs() + 0.5).flip(-1))

    cost.public = fn
    return cost


def _scaled(oracle):
    return lambda h, t: oracle(h[None], t[None], (h.abs() + 0.5).flip(-1)[None])


def _one_token(*, hypotheses, targets):
    return pairwise_token_cross_entropy(hypotheses=hypotheses.unsqueeze(-2), targets=targets.unsqueeze(-1))


_one_token.public = pairwise_token_cross_entropy


def _wide(values):
    return values.double()


def _factor(h):
    """A Cholesky factor that depends on the hypothesis, so that one gradient checks both."""
    wide = _wide(h)
    outer = torch.tanh(wide).unsqueeze(-1) * torch.sin(wide).unsqueeze(-2)
    return outer.tril(-1) + torch.diag_embed(torch.tanh(wide).abs() + 0.5)


def _plane(h):
    """Two standard deviations and a correlation."""
    wide = _wide(h)
    return torch.cat([torch.tanh(wide).abs() + 0.5, 0.9 * torch.sin(wide[..., :1])], dim=-1)


def _plane_covariance(h):
    a, b, correlation = _plane(h)
    return torch.stack([a * a, a * b * correlation, a * b * correlation, b * b]).view(2, 2)


def _of_family(family, scale, event_dims=1):
    def cost(*, hypotheses, targets):
        events = [x if event_dims == 1 else x.unflatten(-1, (-1, 2)) for x in (hypotheses, targets)]
        return family(hypotheses=events[0], targets=events[1], scale=scale(events[0]), event_dims=event_dims)

    cost.public = family
    return cost


def _steps_of(oracle):
    return lambda h, t: sum(
        oracle(a, b) for a, b in zip(h.unflatten(-1, (-1, 2)), t.unflatten(-1, (-1, 2)), strict=True)
    )


def _six(*, hypotheses, targets):
    """One rotation in the first six numbers, well away from the degenerate ones."""
    return costs.pairwise_geodesic(hypotheses=hypotheses[..., :6], targets=targets[..., :6])


_six.public = costs.pairwise_geodesic


def _one_pixel(fn):
    """A cost of maps of classes, on images of one pixel."""

    def cost(*, hypotheses, targets):
        return fn(hypotheses=hypotheses[..., None, None], targets=targets[..., None, None])

    cost.public = fn
    return cost


COST_CASES = [
    CostCase("sq_euclidean", mcl.pairwise_sq_euclidean, oracles.sq_euclidean),
    CostCase("sq_euclidean_long", mcl.pairwise_sq_euclidean, oracles.sq_euclidean, dim=40),
    CostCase("euclidean", mcl.pairwise_euclidean, oracles.euclidean),
    CostCase("euclidean_long", mcl.pairwise_euclidean, oracles.euclidean, dim=40),
    CostCase("l1", mcl.pairwise_l1, oracles.l1),
    CostCase("l1_long", mcl.pairwise_l1, oracles.l1, dim=40),
    CostCase("huber", mcl.pairwise_huber, oracles.huber),
    CostCase("huber_half", _huber_half, lambda h, t: oracles.huber(h, t, 0.5)),
    CostCase("cosine", mcl.pairwise_cosine, oracles.cosine),
    CostCase("cross_entropy", mcl.pairwise_cross_entropy, oracles.cross_entropy, class_ids=True),
    CostCase("neg_si_sdr", mcl.pairwise_neg_si_sdr, oracles.neg_si_sdr, dim=12),
    CostCase("neg_si_sdr_zero_mean", _centered_si_sdr, lambda h, t: oracles.neg_si_sdr(h, t, True), dim=12),
    CostCase("neg_snr", mcl.pairwise_neg_snr, oracles.neg_snr, dim=12),
    CostCase("neg_snr_zero_mean", _centered_snr, lambda h, t: oracles.neg_snr(h, t, True), dim=12),
    CostCase("lifted", mcl.Pairwise(max_difference), _max_difference_oracle),
    CostCase("ade", _paths(mcl.pairwise_ade), _of_paths(oracles.ade), dim=6),
    CostCase("fde", _paths(mcl.pairwise_fde), _of_paths(oracles.fde), dim=6),
    CostCase("sq_ade", _paths(mcl.pairwise_sq_ade), _of_paths(oracles.sq_ade), dim=6),
    CostCase("token_cross_entropy", _one_token, oracles.cross_entropy, class_ids=True),
    CostCase("dice", _paths(mcl.pairwise_dice), _of_paths(oracles.dice), dim=6),
    CostCase("gaussian_nll", _with_scale(mcl.pairwise_gaussian_nll), _scaled(oracles.gaussian_nll), dim=4),
    CostCase("laplace_nll", _with_scale(mcl.pairwise_laplace_nll), _scaled(oracles.laplace_nll), dim=4),
    CostCase(
        "full_normal",
        _of_family(costs.FullNormal(), _factor),
        lambda h, t: oracles.full_normal_nll(h, t, _factor(h) @ _factor(h).mT),
        dim=5,
        all_pairs=True,
    ),
    CostCase(
        "bivariate_normal",
        _of_family(costs.BivariateNormal(), _plane, event_dims=2),
        _steps_of(lambda h, t: oracles.full_normal_nll(h, t, _plane_covariance(h))),
        dim=4,
        all_pairs=True,
    ),
    CostCase("sq_angle", costs.pairwise_sq_angle, oracles.sq_angle, dim=4),
    CostCase("geodesic", _six, oracles.geodesic_of_six, dim=6),
    CostCase("iou", _paths(costs.pairwise_iou), _of_paths(oracles.iou), dim=6),
    CostCase("mask_bce", _paths(costs.pairwise_mask_bce), _of_paths(oracles.mask_bce), dim=6),
    CostCase("focal", _paths(costs.pairwise_focal), _of_paths(oracles.focal), dim=6),
    CostCase(
        "pixel_cross_entropy", _one_pixel(costs.pairwise_pixel_cross_entropy), oracles.cross_entropy, class_ids=True
    ),
    CostCase("rmsd", _paths(costs.pairwise_rmsd), _of_paths(oracles.rmsd), dim=6),
]
