"""A multilayer perceptron with several hypotheses: the backbone of the paper's UCI and synthetic studies."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl.checks import bad_value, check_callable, check_positive_int, check_share
from torchmcl.costs.families import HypothesisFamily
from torchmcl.io import SharedNetwork
from torchmcl.nn.heads import MultiHypothesisHead
from torchmcl.types import Distributions, Predictions


class MultiHypothesisMLP(SharedNetwork):
    """A network from inputs [..., in_features] to Predictions, with hidden ReLU layers.

    Args:
        in_features: size of the input.
        out_features: size of one hypothesis, or its shape, such as (steps, dim) for sequences.
        n_hypotheses: the number of hypotheses.
        hidden: sizes of the hidden layers; (50,) in the paper's UCI study, (256, 256) in its synthetic one.
        scores: whether to add score logits.
        detach_scores: stop the score loss at the head.
        activation: creates the activation module after each hidden layer.
        output_activation: applied to the hypotheses, for example `torch.tanh`.
        scales: whether each hypothesis is a distribution, with a scale for each coordinate, or its family, see
            `MultiHypothesisHead`.
        dropout: share of the hidden units that are dropped in training, in [0, 1).

    Example:
        >>> import torch
        >>> model = MultiHypothesisMLP(in_features=6, out_features=1, n_hypotheses=5, hidden=(50,))
        >>> model(torch.randn(8, 6)).hypotheses.shape
        torch.Size([8, 5, 1])
    """

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
        check_share("MultiHypothesisMLP", "dropout", dropout, "[0, 1)")
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
        #: The arguments that rebuild the network, with ReLU and without an output activation.
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
            ValueError: if the folder contains anything else, or the network has activations other than ReLU, which
                cannot be saved as numbers.
        """
        kinds = (nn.Linear, nn.ReLU, nn.Dropout)
        if self.head.output_activation is not None or not all(isinstance(layer, kinds) for layer in self.trunk):
            rule, advice = "have ReLU activations and no output activation", "Save its `state_dict()`."
            raise ValueError(bad_value("MultiHypothesisMLP.save", "self", rule, "others", advice))
        super().save(folder)

    @classmethod
    def _check_config(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        with torch.device("meta"):  # shapes only: an untrusted file must not cause large allocations
            expected = {name: value.shape for name, value in cls(**config).state_dict().items()}
        if expected != {name: value.shape for name, value in tensors.items()}:
            raise ValueError("the weights of a network have other shapes than its description")
