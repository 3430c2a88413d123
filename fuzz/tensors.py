"""Edges that take tensors and numbers: rules, costs, losses, scores, metrics, schedules."""

import math
from typing import Any

import torch

import torchmcl as mcl
from fuzz.feed import Feed
from fuzz.judge import NotAsPromised
from torchmcl import metrics

__all__ = ["costs", "losses", "metric_values", "rules", "schedules"]


def _promise(holds: Any, text: str) -> None:
    if not bool(holds):
        raise NotAsPromised(text)


def _parameter(feed: Feed, cost: torch.Tensor) -> Any:
    if feed.below(3):
        return feed.anything()
    return feed.tensor((1,) * cost.ndim if cost.ndim else (), finite=feed.below(4) != 0, dtype=torch.float32).abs()


def _rule(feed: Feed, cost: torch.Tensor) -> Any:
    kind = feed.below(7)
    if kind == 0:
        return mcl.WTA()
    if kind == 1:
        return mcl.RelaxedWTA(_parameter(feed, cost))
    if kind == 2:
        return mcl.AnnealedWTA(_parameter(feed, cost))
    if kind == 3:
        return mcl.TopK(_parameter(feed, cost))
    if kind == 4:
        n_iters = feed.pick((1, 3, 10, 2.6, 0, -1, "3", None, True, math.nan, math.inf))
        return mcl.Sinkhorn(_parameter(feed, cost), n_iters=n_iters)
    return mcl.PIT() if kind == 5 or cost.numel() > 64 else mcl.EMD()


def _fields_are_good(rule: Any) -> bool:
    values = [value for value in vars(rule).values() if isinstance(value, torch.Tensor)]
    return all(bool(value.isfinite().all()) for value in values)


def rules(feed: Feed) -> None:
    """Weights of finite costs are finite, >= 0 and sum to 1 for each real target."""
    shape = (*feed.shape(feed.below(3), 3), *feed.shape(2, 6))
    cost = feed.tensor(shape, finite=feed.below(3) != 0)
    mask = feed.mask(shape[:-1])
    rule = _rule(feed, cost)
    weights = rule(cost, mask)
    before = cost.clone()
    _promise(weights.shape == cost.shape, "another shape")
    _promise(not weights.requires_grad, "a gradient")
    _promise(torch.equal(cost, before) or not cost.isfinite().all(), "the cost was changed")
    full = torch.ones(shape[:-1], dtype=torch.bool) if mask is None else mask.expand(shape[:-1])
    if cost.isfinite()[full].all() and _fields_are_good(rule):
        _promise(weights.isfinite().all(), "NaN from finite costs")
        if not (isinstance(rule, mcl.RelaxedWTA) and _fields_out_of_range(rule)):
            _promise((weights >= 0).all(), "a negative weight")
            _promise((weights.sum(-1) - full.double()).abs().max() < 1e-4 if full.numel() else True, "rows not 1")
    elif full.any():
        with mcl.debug_checks():
            if not cost.isfinite()[full].all():
                try:
                    mcl.assign(cost, rule, mask)
                except ValueError:
                    return
                raise NotAsPromised("debug_checks let NaN through")


def _fields_out_of_range(rule: Any) -> bool:
    epsilon = rule.epsilon
    return isinstance(epsilon, torch.Tensor) and not bool(((epsilon >= 0) & (epsilon <= 1)).all())


COSTS = (
    mcl.pairwise_sq_euclidean, mcl.pairwise_euclidean, mcl.pairwise_l1, mcl.pairwise_huber, mcl.pairwise_cosine,
    mcl.pairwise_neg_si_sdr, mcl.pairwise_neg_snr,
)  # fmt: skip


def costs(feed: Feed) -> None:
    """Costs and gradients of finite points are finite as long as squares are."""
    leading = feed.shape(feed.below(3), 3)
    dim = feed.pick((1, 2, 3, 5, 33, 40, 0))
    n_hypotheses, n_targets = feed.shape(2, 4)
    finite = feed.below(3) != 0
    left = (*leading, n_hypotheses, dim)
    right = (
        *(leading if feed.below(8) else feed.shape(feed.below(3), 3)),
        n_targets,
        dim if feed.below(16) else dim + 1,
    )
    hypotheses = feed.tensor(left, finite=finite)
    if feed.one_in(6):
        ids = torch.randint(-1, dim + 1, right[:-1]) if feed.one_in(3) else torch.zeros(right[:-1], dtype=torch.long)
        cost = mcl.pairwise_cross_entropy(hypotheses=hypotheses, targets=ids)
        small = hypotheses.isfinite() & (hypotheses.double().abs() <= 1e30)
        _promise(cost.isfinite().all() or not small.all() or not dim, "NaN from finite logits")
        return
    targets = feed.tensor(right, finite=finite)
    fn = feed.pick(COSTS)
    options: dict[str, Any] = {}
    if fn is mcl.pairwise_huber and feed.below(2):
        options["delta"] = feed.anything()
    if fn in (mcl.pairwise_neg_si_sdr, mcl.pairwise_neg_snr) and feed.below(2):
        options["zero_mean"] = True
    grows = hypotheses.is_floating_point() and feed.below(2)
    hypotheses = hypotheses.requires_grad_() if grows else hypotheses
    cost = fn(hypotheses=hypotheses, targets=targets, **options)
    largest = max([float(x.detach().abs().max()) for x in (hypotheses, targets) if x.numel()], default=0.0)
    if not largest <= 1e15 or not hypotheses.isfinite().all() or not targets.isfinite().all():
        return
    if not 1e-9 < options.get("delta", 1.0) < 1e9:
        return
    _promise(cost.isfinite().all(), "NaN from finite points")
    if fn not in (mcl.pairwise_neg_si_sdr, mcl.pairwise_neg_snr):
        _promise((cost >= 0).all(), "a negative cost")
    if grows and largest <= 1e4:
        (gradient,) = torch.autograd.grad(cost.sum(), hypotheses)
        if hypotheses.dtype not in (torch.float16, torch.bfloat16):
            _promise(gradient.isfinite().all(), "a NaN gradient from finite points")


def losses(feed: Feed) -> None:
    """Losses of finite costs and logits are finite; of others NaN, never a plausible number."""
    shape = (*feed.shape(feed.below(3), 3), *feed.shape(2, 5))
    cost = feed.tensor(shape, finite=feed.below(3) != 0)
    mask = feed.mask(shape[:-1])
    rule = feed.pick(
        (mcl.WTA(), mcl.AnnealedWTA(0.5), mcl.AnnealedWTA(1e12), mcl.AnnealedWTA(1e-12), mcl.RelaxedWTA(0.1))
    )
    reduction = feed.pick(("mean", "sample_mean", "none", "sum", None))
    weights = feed.tensor(shape[:-2], finite=True, dtype=torch.float32).abs() if feed.one_in(4) else None
    if weights is not None and feed.one_in(4):
        weights = feed.pick((weights.unsqueeze(-1).repeat_interleave(3, -1), [1.0], 2.0, weights.bool()))
    matching = mcl.assign(cost, rule, mask)
    loss = mcl.mcl_loss(matching, reduction, sample_weights=weights)
    full = matching.mask
    finite = bool(cost.isfinite()[full].all())
    small = finite and bool((cost[full].abs() <= 1e30).all()) and (weights is None or bool((weights <= 1e3).all()))
    if small:
        _promise(loss.isfinite().all(), "NaN loss from finite costs")
    if not finite and reduction == "mean":
        zero = weights is not None and not bool(weights.all())
        _promise(not loss.isfinite().all() or zero, "a plausible loss from NaN")
    labels = mcl.score_targets(cost, mask)
    if finite:
        _promise(labels.isfinite().all(), "NaN labels")
    logits = feed.tensor((*shape[:-2], shape[-1]) if feed.below(12) else feed.shape(2), finite=feed.below(3) != 0)
    score = mcl.score_loss(logits, labels, mask)
    # A sample's loss is a sum over the hypotheses: logits near the largest number are an honest overflow.
    largest = torch.finfo(torch.promote_types(logits.dtype, torch.float32)).max / max(logits.shape[-1], 1)
    if finite and bool((logits.double().abs() <= largest).all()):
        _promise(score.isfinite().all(), "NaN score loss")
    _promise(not score.isnan().any() or not finite or not logits.isfinite().all(), "NaN score loss of finite logits")
    scores = mcl.normalized_scores(logits)
    if logits.isfinite().all() and logits.numel():
        _promise(scores.isfinite().all(), "NaN scores")
        tolerance = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 0.05
        _promise((scores.double().sum(-1) - 1).abs().max() < tolerance, "scores do not sum to 1")


def metric_values(feed: Feed) -> None:
    """Metrics of finite answers with a real target are finite."""
    batch, n_targets, n_hypotheses, dim = feed.shape(4, 4)
    hypotheses = feed.tensor((batch, n_hypotheses, dim), finite=feed.below(4) != 0)
    targets = feed.tensor((batch, n_targets, dim) if feed.below(10) else feed.shape(3), finite=feed.below(4) != 0)
    logits = feed.tensor((batch, n_hypotheses), finite=True, dtype=torch.float32) if feed.below(3) else None
    answers = mcl.Predictions(hypotheses, logits)
    mask = feed.mask((batch, n_targets))
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
    matching = mcl.assign(cost, mcl.AnnealedWTA(0.5), mask)
    values = {
        "distortion": metrics.distortion(matching),
        "usage": metrics.hypothesis_usage(matching),
        "entropy": metrics.usage_entropy(matching),
        "dead": metrics.n_dead_hypotheses(matching),
        "rmse": metrics.rmse_of_mean(answers, targets, mask),
        "oracle": metrics.oracle_rmse(answers, targets, mask),
        "energy": metrics.energy_score(answers, targets, mask),
    }
    if logits is not None:
        values["calibration"] = metrics.score_calibration_error(answers, matching, feed.pick((10, 1, 3, 0, "x")))
    good = hypotheses.isfinite().all() and targets.isfinite().all() and matching.mask.any()
    small = all(bool((x.abs() <= 1e15).all()) for x in (hypotheses, targets))
    for name, value in values.items():
        if good and small:
            _promise(value.isfinite().all(), f"{name} is NaN")


def _schedule(feed: Feed, depth: int = 0) -> Any:
    kind = feed.below(6 if depth < 3 else 4)
    if kind == 0:
        return mcl.Constant(feed.anything())
    if kind == 1:
        return mcl.Linear(feed.anything(), feed.anything(), feed.pick((1, 10, 10**400, 0, 2.5, None, True)))
    if kind == 2:
        return mcl.Cosine(feed.anything(), feed.anything(), feed.pick((1, 10, 10**400, 0, "3")))
    if kind == 3:
        return mcl.Exponential(
            feed.anything(), feed.pick((0.5, 0.95, 1, 1.0, 1e-300, 0, 1.5, math.nan, "x")), feed.anything()
        )
    if kind == 4:
        return mcl.CutoffAt(_schedule(feed, depth + 1), feed.anything())
    parts = tuple(_schedule(feed, depth + 1) for _ in range(1 + feed.below(3)))
    return mcl.JoinedSchedule(parts, tuple(feed.anything() for _ in range(len(parts) - (feed.below(6) != 5))))


def schedules(feed: Feed) -> None:
    """A schedule that can be made gives a number at every step."""
    schedule = _schedule(feed)
    step = feed.pick((0, 1, 5, 9.5, 10, 1e6, 10**6, 1e300, math.inf, -1, 10**400)) if feed.below(3) else feed.number()
    value = schedule(step)
    _promise(isinstance(value, (int, float)) and value == value, f"{value!r} at {step!r}")
    if feed.below(2):
        rule = mcl.annealed(mcl.AnnealedWTA, temperature=schedule)
        rule(step)
        scheduler = mcl.RuleScheduler(rule)
        scheduler.load_state_dict(scheduler.state_dict() | {"n_steps": feed.anything()})
        _promise(scheduler.rule is not None, "no rule")
