"""Mixtures of hypotheses that are distributions."""

from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily

from torchmcl.checks import bad_value
from torchmcl.costs.families import HypothesisFamily
from torchmcl.scoring import ScoreObjective, SoftmaxScores, check_score_objective
from torchmcl.types import Distributions


def mixture_distribution(
    predictions: Distributions, family: HypothesisFamily, *, scores: ScoreObjective | None = None
) -> MixtureSameFamily:
    """Return the mixture of all hypotheses as a torch distribution: `log_prob`, `sample`, `mean`.

    Args:
        predictions: locations [..., hypotheses, dim] or [..., hypotheses, steps, dim], score logits and scales.
        family: the family that the scales belong to.
        scores: how score logits become probabilities; `SoftmaxScores()` by default, as in `MixtureNLL`.

    Returns:
        A distribution of batch shape [...] over [dim] or [steps, dim]; a gradient flows through `log_prob`.

    Raises:
        TypeError: for predictions without scales, or an unsupported family.

    Example:
        >>> import torch
        >>> from torchmcl.costs import FullNormal
        >>> predictions = Distributions(torch.zeros(5, 3, 2), torch.zeros(5, 3), torch.eye(2).expand(5, 3, 2, 2))
        >>> mixture = mixture_distribution(predictions, FullNormal())
        >>> mixture.log_prob(torch.zeros(5, 2))[0], mixture.sample((7,)).shape
        (tensor(-1.8379), torch.Size([7, 5, 2]))
    """
    owner = "mixture_distribution"
    if not isinstance(predictions, Distributions):
        advice = "A head with scales=FullNormal() returns them."
        raise TypeError(bad_value(owner, "predictions", "be Distributions", type(predictions).__name__, advice))
    if not isinstance(family, HypothesisFamily):
        raise TypeError(bad_value(owner, "family", "be a family, FullNormal() for example", repr(family)))
    reader = SoftmaxScores() if scores is None else scores
    check_score_objective(owner, reader)
    hypotheses, logits, scale = predictions
    n = hypotheses.ndim - 2 if logits is None else logits.ndim - 1  # leading axes
    chances = hypotheses.new_ones(hypotheses.shape[: n + 1]) if logits is None else reader.probabilities(logits)
    whole = (*hypotheses.shape[:-1], *family.scale_shape(hypotheses.shape[-1]))
    parts: Distribution = family.distribution(hypotheses, scale.expand(whole))
    n_steps = hypotheses.ndim - n - 2
    parts = Independent(parts, n_steps) if n_steps else parts
    return MixtureSameFamily(Categorical(chances, validate_args=False), parts, validate_args=False)
