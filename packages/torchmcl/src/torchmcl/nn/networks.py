"""Networks with several hypotheses: a head for any backbone, and a multilayer perceptron."""

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.checks import check_callable, check_interval, check_positive, check_positive_int
from torchmcl.costs.families import BivariateNormal, FullNormal, HypothesisFamily
from torchmcl.errors import bad_value
from torchmcl.io import Codec, SharedNetwork
from torchmcl.types import Distributions, Predictions

__all__ = ["MultiHypothesisHead", "MultiHypothesisMLP"]


class MultiHypothesisHead(nn.Module):
    """Layer that computes `Predictions` with `n_hypotheses` hypotheses from features [..., in_features].

    One linear layer computes hypotheses, scores and scales, because one matrix product is faster than many small ones.
    Its first n_hypotheses * out_features outputs are the hypotheses, followed by the scores and the scales.

    Args:
        in_features: Size of the features.
        out_features: Size of one hypothesis, or its shape, such as (steps, dim) for sequences.
        n_hypotheses: Number of hypotheses.
        scores: Whether to add score logits.
        detach_scores: Whether to stop the gradient of the score loss at the head. With targets of small scale it can
            dwarf the regression loss in the trunk.
        output_activation: Function applied to the hypotheses, `torch.tanh` for example; None leaves them unchanged.
        scales: Whether to add a scale for each coordinate, so that a hypothesis is a distribution: softplus of an
            output plus `min_scale`, for `pairwise_gaussian_nll` and `pairwise_laplace_nll`. A family, such as
            `torchmcl.costs.FullNormal()`, adds the scales of that family.
        min_scale: Smallest scale, > 0; without it the likelihood could grow without bound.

    Example:
        >>> import torch
        >>> head = MultiHypothesisHead(in_features=16, out_features=2, n_hypotheses=5)
        >>> predictions = head(torch.randn(8, 16))
        >>> predictions.hypotheses.shape, predictions.score_logits.shape
        (torch.Size([8, 5, 2]), torch.Size([8, 5]))
        >>> paths = MultiHypothesisHead(in_features=16, out_features=(12, 2), n_hypotheses=20, scales=True)
        >>> paths(torch.randn(8, 16)).scale.shape
        torch.Size([8, 20, 12, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | Sequence[int],
        n_hypotheses: int,
        scores: bool = True,
        detach_scores: bool = False,
        output_activation: Callable[[Tensor], Tensor] | None = None,
        scales: bool | HypothesisFamily = False,
        min_scale: float = 1e-3,
    ) -> None:
        super().__init__()
        event = tuple(out_features) if isinstance(out_features, Sequence) else (out_features,)
        for name, value in (
            ("in_features", in_features),
            *(("out_features", size) for size in event),
            ("n_hypotheses", n_hypotheses),
        ):
            check_positive_int("MultiHypothesisHead", name, value)
        check_positive("MultiHypothesisHead", "min_scale", min_scale)
        if not isinstance(scales, bool | HypothesisFamily):
            raise TypeError(bad_value("MultiHypothesisHead", "scales", "be a boolean or a family", repr(scales)))
        if output_activation is not None:
            check_callable("MultiHypothesisHead", "output_activation", output_activation, "torch.tanh")
        self.in_features = in_features
        self.out_features = out_features
        self.event = event
        self.scales = scales
        self.n_hypotheses = n_hypotheses
        self.detach_scores = detach_scores
        self.output_activation = output_activation
        self.min_scale = min_scale
        n_values = prod(event)
        n_scales = n_values * int(scales) if isinstance(scales, bool) else prod(event[:-1]) * scales.n_scales(event[-1])
        #: Outputs of the linear layer that are coordinates, scores and scales, in this order.
        self.output_sizes = [n_hypotheses * n for n in (n_values, int(scores), n_scales)]
        self.linear = nn.Linear(in_features, sum(self.output_sizes))

    def forward(self, features: Tensor) -> Predictions | Distributions:
        """Return the predictions for features [..., in_features]."""
        if features.shape[-1] != self.in_features:
            rule = f"have {self.in_features} entries on its last axis"
            raise ValueError(bad_value("MultiHypothesisHead", "features", rule, tuple(features.shape)))
        _, n_scores, n_scales = self.output_sizes
        if n_scores and self.detach_scores:
            weight, bias = self.linear.weight, self.linear.bias  # with a leading axis of models in a fleet
            parts = zip(weight.split(self.output_sizes, dim=-2), bias.split(self.output_sizes, dim=-1), strict=True)
            sources = (features, features.detach(), features)
            values, score_logits, raw_scale = (
                nn.functional.linear(source, *part) for source, part in zip(sources, parts, strict=True)
            )
        else:
            # The gradient of a split is a single concatenation, unlike the gradient of slices.
            values, score_logits, raw_scale = self.linear(features).split(self.output_sizes, dim=-1)
        hypotheses = values.unflatten(-1, (self.n_hypotheses, *self.event))
        if self.output_activation is not None:
            hypotheses = self.output_activation(hypotheses)
        logits = score_logits if n_scores else None
        if not n_scales:
            return Predictions(hypotheses, logits)
        if isinstance(self.scales, bool):
            scale = nn.functional.softplus(raw_scale) + self.min_scale
            return Distributions(hypotheses, logits, scale.unflatten(-1, (self.n_hypotheses, *self.event)))
        raw_scale = raw_scale.unflatten(-1, (self.n_hypotheses, *self.event[:-1], -1))
        return Distributions(hypotheses, logits, self.scales.scale(raw_scale, self.min_scale))

    def extra_repr(self) -> str:
        """Return the arguments that `print` shows."""
        return f"n_hypotheses={self.n_hypotheses}, out_features={self.out_features}, detach_scores={self.detach_scores}"


class MultiHypothesisMLP(SharedNetwork):
    """Multilayer perceptron that computes `Predictions` from inputs [..., in_features].

    Args:
        in_features: Size of the input.
        out_features: Size of one hypothesis, or its shape, such as (steps, dim) for sequences.
        n_hypotheses: Number of hypotheses.
        hidden: Sizes of the hidden layers; (50,) in the paper's UCI study, (256, 256) in its synthetic one.
        scores: Whether to add score logits.
        detach_scores: Whether to stop the gradient of the score loss at the head.
        activation: Function that creates the activation module after each hidden layer.
        output_activation: Function applied to the hypotheses, `torch.tanh` for example.
        scales: Whether each hypothesis is a distribution, with a scale for each coordinate, or its family, see
            `MultiHypothesisHead`.
        dropout: Probability of dropping a hidden unit in training, in [0, 1).

    Example:
        >>> import torch
        >>> model = MultiHypothesisMLP(in_features=6, out_features=1, n_hypotheses=5, hidden=(50,))
        >>> model(torch.randn(8, 6)).hypotheses.shape
        torch.Size([8, 5, 1])
    """

    _codec = Codec(FullNormal, BivariateNormal)

    def __init__(
        self,
        in_features: int,
        out_features: int | Sequence[int],
        n_hypotheses: int,
        hidden: Sequence[int] = (256, 256),
        scores: bool = True,
        detach_scores: bool = False,
        activation: Callable[[], nn.Module] = nn.ReLU,
        output_activation: Callable[[Tensor], Tensor] | None = None,
        scales: bool | HypothesisFamily = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive_int("MultiHypothesisMLP", "in_features", in_features)
        check_callable("MultiHypothesisMLP", "activation", activation, "torch.nn.ReLU")
        check_interval("MultiHypothesisMLP", "dropout", dropout, "[0, 1)")
        if not isinstance(hidden, Sequence):
            advice = "One layer of 50 units is (50,)."
            raise TypeError(bad_value("MultiHypothesisMLP", "hidden", "be a sequence of sizes", repr(hidden), advice))
        layers: list[nn.Module] = []
        width = in_features
        for size in hidden:
            check_positive_int("MultiHypothesisMLP", "hidden", size)
            layers += [nn.Linear(width, size), activation(), *([nn.Dropout(dropout)] if dropout else [])]
            width = size
        self.trunk = nn.Sequential(*layers)
        #: Arguments that rebuild the network, with ReLU and without an output activation.
        self.config: dict[str, Any] = {
            "in_features": in_features,
            "out_features": list(out_features) if isinstance(out_features, Sequence) else out_features,
            "n_hypotheses": n_hypotheses,
            "hidden": [int(size) for size in hidden],
            "scores": scores,
            "detach_scores": detach_scores,
            "scales": scales,
            "dropout": dropout,
        }
        self.head = MultiHypothesisHead(
            width,
            out_features,
            n_hypotheses,
            scores=scores,
            detach_scores=detach_scores,
            output_activation=output_activation,
            scales=scales,
        )

    def forward(self, inputs: Tensor) -> Predictions | Distributions:
        """Return the predictions for inputs [..., in_features]."""
        return self.head(self.trunk(inputs))

    def save(self, folder: str | Path) -> None:
        """Write the network to a folder: `model.safetensors`.

        Raises:
            ValueError: If the folder contains anything else, or the network has activations other than ReLU, which
                cannot be saved as numbers.
        """
        kinds = (nn.Linear, nn.ReLU, nn.Dropout)
        if self.head.output_activation is not None or not all(isinstance(layer, kinds) for layer in self.trunk):
            rule, advice = "have ReLU activations and no output activation", "Save its `state_dict()`."
            raise ValueError(f"MultiHypothesisMLP.save: The network must {rule}. {advice}")
        super().save(folder)

    @classmethod
    def _check_config(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        with torch.device("meta"):  # shapes only: an untrusted file must not cause large allocations
            expected = {name: value.shape for name, value in cls(**config).state_dict().items()}
        if expected != {name: value.shape for name, value in tensors.items()}:
            raise ValueError("the weights of a network have other shapes than its description")
