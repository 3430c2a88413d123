"""The members of each family, with their oracles: what the contracts run over."""

import math
from typing import Any, NamedTuple

import torch

import oracles
import torchmcl as mcl


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


def rule_id(rule):
    return repr(getattr(rule, "rule", rule))


class CostCase(NamedTuple):
    name: str
    fn: Any
    oracle: Any
    dim: int = 3
    class_ids: bool = False

    def inputs(self, *leading, n_targets=2, n_hypotheses=3, dtype=torch.float64, dim=None):
        dim = dim or self.dim
        hypotheses = torch.randn(*leading, n_hypotheses, dim, dtype=dtype)
        if self.class_ids:
            return hypotheses, torch.randint(0, dim, (*leading, n_targets))
        return hypotheses, torch.randn(*leading, n_targets, dim, dtype=dtype)


def _huber_half(*, hypotheses, targets):
    return mcl.pairwise_huber(hypotheses=hypotheses, targets=targets, delta=0.5)


def _centred_si_sdr(*, hypotheses, targets):
    return mcl.pairwise_neg_si_sdr(hypotheses=hypotheses, targets=targets, zero_mean=True)


def _centred_snr(*, hypotheses, targets):
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
    return mcl.pairwise_token_cross_entropy(hypotheses=hypotheses.unsqueeze(-2), targets=targets.unsqueeze(-1))


_one_token.public = mcl.pairwise_token_cross_entropy

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
    CostCase("neg_si_sdr_zero_mean", _centred_si_sdr, lambda h, t: oracles.neg_si_sdr(h, t, True), dim=12),
    CostCase("neg_snr", mcl.pairwise_neg_snr, oracles.neg_snr, dim=12),
    CostCase("neg_snr_zero_mean", _centred_snr, lambda h, t: oracles.neg_snr(h, t, True), dim=12),
    CostCase("lifted", mcl.Pairwise(max_difference), _max_difference_oracle),
    CostCase("ade", _paths(mcl.pairwise_ade), _of_paths(oracles.ade), dim=6),
    CostCase("fde", _paths(mcl.pairwise_fde), _of_paths(oracles.fde), dim=6),
    CostCase("sq_ade", _paths(mcl.pairwise_sq_ade), _of_paths(oracles.sq_ade), dim=6),
    CostCase("sq_fde", _paths(mcl.pairwise_sq_fde), lambda h, t: oracles.sq_euclidean(h[-2:], t[-2:]), dim=6),
    CostCase("token_cross_entropy", _one_token, oracles.cross_entropy, class_ids=True),
    CostCase("dice", _paths(mcl.pairwise_dice), _of_paths(oracles.dice), dim=6),
    CostCase("gaussian_nll", _with_scale(mcl.pairwise_gaussian_nll), _scaled(oracles.gaussian_nll), dim=4),
    CostCase("laplace_nll", _with_scale(mcl.pairwise_laplace_nll), _scaled(oracles.laplace_nll), dim=4),
]
