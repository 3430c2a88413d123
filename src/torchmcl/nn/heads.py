"""The layer that turns features into several hypotheses and their scores."""

from collections.abc import Callable

from torch import Tensor, nn

from torchmcl._checks import bad_value, check_callable, check_positive_int
from torchmcl.types import Predictions

__all__ = ["MultiHypothesisHead"]


class MultiHypothesisHead(nn.Module):
    """Features [..., in_features] in, Predictions with n_hypotheses answers out.

    One linear layer serves all hypotheses and scores: their weights have the same initial
    distribution, as the number of inputs is the same, and one matrix product is faster than many
    small ones. Its first n_hypotheses * out_features outputs are the hypotheses, the rest the scores.

    Args:
        in_features: size of the features.
        out_features: size of one hypothesis.
        n_hypotheses: how many answers to give.
        scores: whether to give score logits too.
        detach_scores: stop the score loss at the head. With targets of small scale it can dwarf the
            regression loss in the trunk.
        output_activation: applied to the hypotheses, for example `torch.tanh`; None leaves them as they are.

    Example:
        >>> import torch
        >>> head = MultiHypothesisHead(in_features=16, out_features=2, n_hypotheses=5)
        >>> hypotheses, score_logits = head(torch.randn(8, 16))
        >>> hypotheses.shape, score_logits.shape
        (torch.Size([8, 5, 2]), torch.Size([8, 5]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_hypotheses: int,
        scores: bool = True,
        detach_scores: bool = False,
        output_activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("in_features", in_features),
            ("out_features", out_features),
            ("n_hypotheses", n_hypotheses),
        ):
            check_positive_int("MultiHypothesisHead", name, value)
        if output_activation is not None:
            check_callable("MultiHypothesisHead", "output_activation", output_activation, "torch.tanh")
        self.in_features = in_features
        self.out_features = out_features
        self.n_hypotheses = n_hypotheses
        self.detach_scores = detach_scores
        self.output_activation = output_activation
        self.linear = nn.Linear(in_features, n_hypotheses * (out_features + (1 if scores else 0)))

    def forward(self, features: Tensor) -> Predictions:
        """Return the predictions for features [..., in_features]."""
        if features.shape[-1] != self.in_features:
            rule = f"have {self.in_features} entries on its last axis"
            raise ValueError(bad_value("MultiHypothesisHead", "features", rule, tuple(features.shape)))
        n_values = self.n_hypotheses * self.out_features
        has_scores = self.linear.out_features > n_values
        if has_scores and self.detach_scores:
            weight, bias = self.linear.weight, self.linear.bias
            # from the right, so that it also serves stacked weights [models, out, in]
            values = nn.functional.linear(features, weight[..., :n_values, :], bias[..., :n_values])
            score_logits = nn.functional.linear(features.detach(), weight[..., n_values:, :], bias[..., n_values:])
        else:
            # split, not slices: its gradient is one concatenation
            sizes = [n_values, self.linear.out_features - n_values]
            values, score_logits = self.linear(features).split(sizes, dim=-1)
        hypotheses = values.unflatten(-1, (self.n_hypotheses, self.out_features))
        if self.output_activation is not None:
            hypotheses = self.output_activation(hypotheses)
        return Predictions(hypotheses, score_logits if has_scores else None)

    def extra_repr(self) -> str:
        """Return what `print` shows beyond the layers."""
        return f"n_hypotheses={self.n_hypotheses}, out_features={self.out_features}, detach_scores={self.detach_scores}"
