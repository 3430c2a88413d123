"""Shannon's lower bound of R(D), and the entropy of samples that it needs. In bits."""

import math

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_non_negative, check_positive_int, check_tensor
from torchmcl.costs import pairwise_euclidean

# Rows of the distance matrix held at a time: 1024 rows of 100 000 float32 samples are 400 MB.
_CHUNK = 1024


def shannon_lower_bound(distortion: float | Tensor, *, entropy: float | Tensor, dim: int) -> Tensor:
    """Return a lower bound of R(D) in bits, for the squared Euclidean cost.

        SLB(D) = h(Y) - (d / 2) log2(2 pi e D / d)

    The second term is the entropy of the widest noise that D allows, a Gaussian of variance D / d
    in each of d directions (the paper's "Gaussian with variance D" is the case d = 1). Equal to R(D)
    for a Gaussian source up to d times its smallest variance; tight for small D in general.

    Args:
        distortion: > 0, total over the coordinates. A float or a tensor; at 0 the bound is infinite.
        entropy: h(Y) in bits, known or from `differential_entropy`; broadcasts with the distortion.
        dim: d, the number of coordinates of Y.

    Returns:
        The bound, negative where it says nothing.

    Example:
        >>> h = 0.5 * math.log2(2 * math.pi * math.e)  # of N(0, 1)
        >>> shannon_lower_bound(0.25, entropy=h, dim=1)
        tensor(1.)

    Reference:
        Prop. 3 (iii), Eq. (12), there in nats.
    """
    check_non_negative("shannon_lower_bound", "distortion", distortion)
    check_positive_int("shannon_lower_bound", "dim", dim)
    d = torch.as_tensor(distortion)
    d = d.to(torch.promote_types(d.dtype, torch.get_default_dtype()))
    bound = entropy - dim / 2 * (2 * math.pi * math.e / dim * d).log2()
    # A source without a density has no bound, at a distortion of 0 neither.
    return torch.where(torch.as_tensor(entropy, device=d.device) == -torch.inf, -torch.inf, bound)


def differential_entropy(samples: Tensor, n_neighbors: int = 3) -> Tensor:
    """Return the entropy of the distribution that samples come from, in bits.

    The estimator of Kozachenko and Leonenko, from the distance of each sample to its nearest
    neighbours. Samples that repeat come from a distribution with atoms, whose entropy is minus
    infinity, and so is the estimate.

    Args:
        samples: [..., samples, dim], more than `n_neighbors` of them.
        n_neighbors: which neighbour to use. A larger number gives a smoother estimate, with more bias.

    Returns:
        [...]

    Example:
        >>> samples = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
        >>> differential_entropy(samples)  # N(0, 1) has log2(2 pi e) / 2 = 2.05
        tensor(2.0...)

    Reference:
        Kozachenko and Leonenko (1987); Kraskov, Stögbauer and Grassberger (2004), Eq. (20).
    """
    owner = "differential_entropy"
    check_tensor(owner, "samples", samples)
    check_positive_int(owner, "n_neighbors", n_neighbors)
    if samples.ndim < 2 or samples.shape[-2] <= n_neighbors:
        rule = f"have shape [..., samples, dim] with more than n_neighbors = {n_neighbors} samples"
        raise ValueError(bad_value(owner, "samples", rule, tuple(samples.shape)))
    n, dim = samples.shape[-2:]
    samples = samples.detach().to(torch.promote_types(samples.dtype, torch.float32))
    parts = []
    for rows in samples.split(_CHUNK, dim=-2):
        distance = pairwise_euclidean(hypotheses=samples, targets=rows)
        # The sample itself is at distance 0, so the k-th neighbour is the (k + 1)-th smallest.
        parts.append(distance.kthvalue(n_neighbors + 1, dim=-1).values.log())
    log_radius = torch.cat(parts, dim=-1).mean(dim=-1)
    digamma = torch.special.digamma(torch.tensor([n, n_neighbors], dtype=torch.float64))
    log_ball = dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1)
    constant = (digamma[0] - digamma[1]).item() + log_ball
    return (constant + dim * log_radius) / math.log(2)
