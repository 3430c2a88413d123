"""Regions for hypotheses that are distributions: level sets of their mixture."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.checks import bad_value
from torchmcl.costs.families import HypothesisFamily
from torchmcl.density.mixtures import mixture_distribution
from torchmcl.postprocess._inputs import WeightedHypotheses
from torchmcl.postprocess.nonconformity import Nonconformity
from torchmcl.scoring import SoftmaxScores
from torchmcl.types import Distributions


@dataclass(frozen=True)
class MixtureLevels(Nonconformity):
    """The negative log density of the mixture of hypotheses with scales: regions are its level sets.

    Args:
        family: the family of the scales, `FullNormal()` for example.

    Example:
        >>> from torchmcl.costs import FullNormal
        >>> given = WeightedHypotheses(torch.zeros(1, 1, 2), torch.ones(1, 1), torch.eye(2).expand(1, 1, 2, 2))
        >>> MixtureLevels(FullNormal())(given, torch.zeros(1, 2))
        tensor([1.8379])
    """

    family: HypothesisFamily

    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the negative log density at the targets."""
        if mask is not None:
            advice = "Leave out rows that are cut short, or use `TubeScore`."
            raise ValueError(bad_value("MixtureLevels", "mask", "be None", "a mask", advice))
        return -self._mixture(given).log_prob(targets)

    def volume(
        self, given: WeightedHypotheses, level: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return the volume of the level set as the mean of 1 / density over samples inside it."""
        mixture = self._mixture(given)
        device = given.hypotheses.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=generator is not None):
            if generator is not None:  # torch distributions do not accept a generator
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            logs = mixture.log_prob(mixture.sample(torch.Size((n_samples,))))  # [samples, rows]
        exponents = torch.where(-logs <= level, -logs, -torch.inf)
        return exponents.logsumexp(dim=0).exp() / n_samples

    def _mixture(self, given: WeightedHypotheses) -> torch.distributions.MixtureSameFamily:
        if given.scale is None:
            advice = "Train with `scales=True`, or use BallScore()."
            raise ValueError(bad_value("MixtureLevels", "predictions", "be Distributions", "no scale", advice))
        logits = given.probabilities.clamp_min(torch.finfo(given.probabilities.dtype).tiny).log()
        predictions = Distributions(given.hypotheses, logits, given.scale.to(given.hypotheses))
        return mixture_distribution(predictions, self.family, scores=SoftmaxScores())
