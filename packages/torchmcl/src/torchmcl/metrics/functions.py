"""Metrics as pure functions. Without any real target they return NaN: there is nothing to average."""

from torch import Tensor

from torchmcl.checks import check_positive_int
from torchmcl.metrics import _parts
from torchmcl.scoring import ScoreObjective
from torchmcl.types import Matching, Predictions


def distortion(matching: Matching, *, model_axes: int = 0) -> Tensor:
    """Return the mean cost of the cheapest hypothesis over all real targets, independent of the weights.

    Args:
        matching: from `assign`.
        model_axes: how many leading axes are independent models, whose distortions are kept apart.

    Example:
        >>> import torch, torchmcl as mcl
        >>> distortion(mcl.assign(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), mcl.AnnealedWTA(9.0)))
        tensor(2.)

    Reference:
        Eq. (1).
    """
    return _parts.hard_costs(matching).mean(model_axes)


def soft_distortion(matching: Matching) -> Tensor:
    """Return the mean weighted cost over all real targets.

    Example:
        >>> import torch, torchmcl as mcl
        >>> soft_distortion(mcl.assign(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), mcl.RelaxedWTA(0.5)))
        tensor(2.5000)

    Reference:
        Eq. (7).
    """
    return _parts.soft_costs(matching).mean()


def rmse_of_mean(
    predictions: Predictions, targets: Tensor, mask: Tensor | None = None, *, scores: ScoreObjective | None = None
) -> Tensor:
    """Return the root mean squared error of the conditional mean, sum_k score_k f_k(x).

    A sequence, [..., hypotheses, steps, dim], counts as one point: its squared error is the sum over its steps.

    Args:
        predictions: hypotheses [..., hypotheses, dim] and score logits; without scores all count alike.
        targets: [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, steps]; None when all are.
        scores: how score logits are read, as they were trained; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> from torchmcl import Predictions
        >>> answers = Predictions(torch.tensor([[[0.0], [2.0]]]))
        >>> rmse_of_mean(answers, torch.tensor([[[3.0]]]))
        tensor(2.)

    Reference:
        The RMSE of the UCI study, with scores normalized to sum to 1.
    """
    return _parts.squared_errors_of_mean(predictions, targets, mask, scores).mean().sqrt()


def oracle_rmse(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the root mean squared error of the best hypothesis of each target.

    Args:
        predictions: hypotheses [..., hypotheses, dim], or sequences, compared over all steps together.
        targets: [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, steps]; None when all are.

    Example:
        >>> import torch
        >>> from torchmcl import Predictions
        >>> oracle_rmse(Predictions(torch.tensor([[[0.0], [2.0]]])), torch.tensor([[[3.0]]]))
        tensor(1.)
    """
    return _parts.squared_errors_of_best(predictions, targets, mask).mean().sqrt()


def hypothesis_usage(matching: Matching) -> Tensor:
    """Return the share of the total weight that each hypothesis has, [hypotheses], summing to 1.

    Example:
        >>> import torch, torchmcl as mcl
        >>> hypothesis_usage(mcl.assign(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), mcl.WTA()))
        tensor([1., 0.])
    """
    weight, n_real = _parts.usage_sums(matching)
    return weight / n_real


def usage_entropy(matching: Matching) -> Tensor:
    """Return the entropy of hypothesis usage in each sample, in nats, [...]; 0 without real targets.

    Example:
        >>> import torch, torchmcl as mcl
        >>> usage_entropy(mcl.assign(torch.tensor([[[1.0, 2.0], [4.0, 3.0]]]), mcl.WTA()))
        tensor([0.6931])

    Reference:
        H(q) above Eq. (8), for the weights averaged over the targets of a sample. The mean entropy of each
        target's own weights is `torchmcl.theory.assignment_entropy`; their difference is the mutual information.
    """
    return _parts.sample_entropies(matching).values


def n_dead_hypotheses(matching: Matching) -> Tensor:
    """Return the number of hypotheses that are not the cheapest for any real target.

    Example:
        >>> import torch, torchmcl as mcl
        >>> n_dead_hypotheses(mcl.assign(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), mcl.AnnealedWTA(1.0)))
        tensor(1)
    """
    return (_parts.win_counts(matching) == 0).sum()


def score_calibration_error(predictions: Predictions, matching: Matching, n_bins: int = 10) -> Tensor:
    """Return the mean difference between scores and the frequency of winning, over bins of the score.

    Args:
        predictions: with score logits [..., hypotheses].
        matching: of the same predictions; the winner is the cheapest hypothesis.
        n_bins: equal bins of [0, 1].

    Raises:
        ValueError: if the predictions have no scores.

    Example:
        >>> import torch, torchmcl as mcl
        >>> answers = mcl.Predictions(torch.zeros(1, 2, 1), score_logits=torch.tensor([[0.0, 0.0]]))
        >>> score_calibration_error(answers, mcl.assign(torch.tensor([[[1.0, 2.0]]]), mcl.WTA()))
        tensor(0.)
    """
    check_positive_int("score_calibration_error", "n_bins", n_bins)
    bins = _parts.calibration_bins("score_calibration_error", predictions, matching, n_bins)
    return _parts.calibration_error(bins)


def energy_score(
    predictions: Predictions, targets: Tensor, mask: Tensor | None = None, *, scores: ScoreObjective | None = None
) -> Tensor:
    """Return the mean energy score of the scored hypotheses, a proper score: lower is better.

    For a target y and X, X' drawn independently from the hypotheses with their normalized scores it
    is E|X - y| - E|X - X'| / 2; in one dimension this is the CRPS.

    Args:
        predictions: hypotheses [..., hypotheses, dim] and score logits; without scores all count alike. Distances of
            sequences are over all steps together.
        targets: [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, steps]; None when all are.
        scores: how score logits are read, as they were trained; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> from torchmcl import Predictions
        >>> energy_score(Predictions(torch.tensor([[[0.0], [2.0]]])), torch.tensor([[[1.0]]]))
        tensor(0.5000)
    """
    return _parts.energy_scores(predictions, targets, mask, scores).mean()


def wasserstein_to_samples(
    predictions: Predictions,
    samples: Tensor,
    mask: Tensor | None = None,
    order: int = 1,
    *,
    scores: ScoreObjective | None = None,
) -> Tensor:
    """Return the mean Wasserstein distance between scored hypotheses and samples of p(y | x).

    Exact, by linear programming on the CPU (needs SciPy): meant for evaluation.

    Args:
        predictions: hypotheses [..., hypotheses, dim] and score logits; without scores all count alike.
        samples: [..., samples, dim], equally weighted.
        mask: [..., samples], True where a sample is real; None when all are.
        order: 1 for the earth mover's distance, 2 for the quadratic one.
        scores: how score logits are read, as they were trained; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> from torchmcl import Predictions
        >>> answers = Predictions(torch.tensor([[[0.0], [2.0]]]))
        >>> wasserstein_to_samples(answers, torch.tensor([[[0.5], [1.0], [2.0], [2.5]]]))
        tensor(0.5000)
    """
    check_positive_int("wasserstein_to_samples", "order", order)
    return _parts.wasserstein_distances(predictions, samples, mask, order, scores).mean()
