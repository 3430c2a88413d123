"""Language models with several continuations: likelihoods without logits in memory, scores, generation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchmcl._checks import bad_value, check_choice, check_positive_int
from torchmcl.adapters.bank import AdapterBank
from torchmcl.costs.declared import declares
from torchmcl.types import Predictions

_IGNORED = -100  # labels of tokens that are not predicted, in transformers and in torch's cross-entropy


def token_nll(
    features: Tensor, weight: Tensor, ids: Tensor, bias: Tensor | None = None, *, chunk_size: int = 4096
) -> Tensor:
    """Return the negative log-likelihood of tokens under softmax(features @ weight.T + bias), [...].

    The logits are computed for a chunk of the vocabulary at a time, and again in the backward pass: [...,
    chunk_size] numbers are in memory at once, not [..., vocabulary].

    Args:
        features: [..., width], the inputs of the last layer.
        weight: [vocabulary, width], of the last layer.
        ids: [...], integers.
        bias: [vocabulary], or None.
        chunk_size: tokens of the vocabulary at a time.

    Example:
        >>> token_nll(torch.zeros(2, 8), torch.randn(50, 8), torch.tensor([3, 7]), chunk_size=20)
        tensor([3.9120, 3.9120])
    """
    check_positive_int("token_nll", "chunk_size", chunk_size)
    if ids.is_floating_point() or features.shape[:-1] != ids.shape:
        rule = f"hold integers of shape {tuple(features.shape[:-1])}"
        raise ValueError(bad_value("token_nll", "ids", rule, f"{tuple(ids.shape)} of {ids.dtype}"))
    biases = [None] * len(weight.split(chunk_size)) if bias is None else bias.split(chunk_size)
    parts = [
        checkpoint(_log_sum, features, part, of_part, use_reentrant=False, preserve_rng_state=False)
        for part, of_part in zip(weight.split(chunk_size), biases, strict=True)
    ]
    wide = torch.promote_types(features.dtype, torch.float32)
    picked = (features.to(wide) * weight[ids].to(wide)).sum(dim=-1)
    if bias is not None:
        picked = picked + bias[ids]
    return torch.stack(parts).logsumexp(dim=0) - picked


def _log_sum(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = nn.functional.linear(features, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(dim=-1)


@declares(event_dims=1, target_dims=1)
def given_cost(*, hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return hypotheses [batch, hypotheses, 1] that are already costs, as the pairwise cost for one target.

    For models that compute the cost of each hypothesis, such as `Continuations`: the likelihood of a text needs the
    whole network.

    Args:
        hypotheses: [..., hypotheses, 1], the costs.
        targets: [..., 1, any]; not used, because the model already has them.

    Example:
        >>> given_cost(hypotheses=torch.tensor([[[0.5], [2.0]]]), targets=torch.zeros(1, 1, 7)).shape
        torch.Size([1, 1, 2])
    """
    if hypotheses.shape[-1] != 1:
        rule = "have shape [..., hypotheses, 1]"
        raise ValueError(bad_value("given_cost", "hypotheses", rule, tuple(hypotheses.shape)))
    return hypotheses.mT


class Continuations(nn.Module):
    """A causal or sequence-to-sequence transformers language model, with one continuation per adapter.

    As the model of `mcl_step` it returns the negative log-likelihood of the labeled tokens under each adapter, with
    `cost_fn=given_cost`. Scores are a linear function of the last layer at the end of the prompt, so that they are
    available before anything is generated.

    Args:
        bank: adapters on the language model, which has a linear last layer (`get_output_embeddings()`).
        scores: whether to add score logits.
        detach_scores: stop the score loss before the adapters.
        reduction: "mean" over the labeled tokens of a row, or their "sum".
        chunk_size: tokens of the vocabulary at a time, see `token_nll`.

    Raises:
        ValueError: if the model changes its logits after the last layer (`final_logit_softcapping`).
    """

    def __init__(
        self,
        bank: AdapterBank,
        *,
        scores: bool = True,
        detach_scores: bool = False,
        reduction: str = "mean",
        chunk_size: int = 4096,
    ) -> None:
        super().__init__()
        check_choice("Continuations", "reduction", reduction, ("mean", "sum"))
        self.bank, self.detach_scores, self.reduction, self.chunk_size = bank, detach_scores, reduction, chunk_size
        model: Any = bank.model
        if getattr(model.config, "final_logit_softcapping", None):
            rule = "have a linear last layer"
            advice = "Use a model without soft-capped logits."
            raise ValueError(bad_value("Continuations", "bank", rule, "final_logit_softcapping of its model", advice))
        weight = model.get_output_embeddings().weight
        self.scores: nn.Linear | None = None
        if scores:
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self.scores = nn.Linear(weight.shape[1], bank.n_hypotheses, device=weight.device, dtype=dtype)

    @property
    def n_hypotheses(self) -> int:
        """The number of adapters."""
        return self.bank.n_hypotheses

    def forward(self, inputs: Mapping[str, Tensor], numbers: Tensor | None = None) -> Predictions:
        """Return the negative log-likelihoods [batch, hypotheses, 1] as hypotheses, and score logits.

        Args:
            inputs: `input_ids` and `labels` [batch, tokens], `attention_mask` and other arguments of the model. Labels
                are -100 for tokens of the prompt and padding.
            numbers: [batch, chunk], the adapters of each row, in a `torchmcl.passes.TwoPass`; all by default.
        """
        model: Any = self.bank.model
        given = {name: value for name, value in inputs.items() if name != "labels"}
        labels = inputs["labels"]
        if model.config.is_encoder_decoder:
            given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
        else:
            labels = labels[:, 1:]  # each token predicts the next one
        if numbers is None:
            chunk, each = self.n_hypotheses, None
        else:
            chunk, each = numbers.shape[1], numbers.T.flatten()
            given = {name: value.repeat(chunk, *[1] * (value.ndim - 1)) for name, value in given.items()}
        labels = labels.repeat(chunk, 1)
        features = self._features(given, each)[:, : labels.shape[1]]
        real = labels != _IGNORED
        head = model.get_output_embeddings()
        nll = token_nll(features[real], head.weight, labels[real], head.bias, chunk_size=self.chunk_size)
        total = nll.new_zeros(real.shape).masked_scatter(real, nll).sum(dim=-1)
        if self.reduction == "mean":
            total = total / real.sum(dim=-1).clamp_min(1)
        logits = self._score_logits(features, real.int().argmax(dim=-1), chunk, each)
        return Predictions(total.view(chunk, -1).T.unsqueeze(-1), logits)

    def prompt_scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the score logits [batch, hypotheses] of prompts: `input_ids` and `attention_mask`."""
        given = dict(inputs)
        ids = given["input_ids"]
        last = torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)
        if "attention_mask" in given:
            last = last - given["attention_mask"].flip(-1).int().argmax(dim=-1)
        model: Any = self.bank.model
        if model.config.is_encoder_decoder:
            given["decoder_input_ids"] = torch.full_like(ids[:, :1], model.config.decoder_start_token_id)
            last = torch.zeros_like(last)
        logits = self._score_logits(
            self._features(given, None), last.repeat(self.n_hypotheses), self.n_hypotheses, None
        )
        if logits is None:
            rule = "be made with scores=True for scores"
            raise ValueError(bad_value("Continuations", "scores", rule, "False"))
        return logits

    @torch.no_grad()
    def generate(self, inputs: Mapping[str, Tensor], **options: Any) -> Tensor:
        """Return tokens from each adapter, [batch, hypotheses, tokens], generated in one batch.

        Args:
            inputs: `input_ids` and `attention_mask` of prompts, padded on the left for causal models.
            **options: of the model's `generate`; with `num_return_sequences` s the result is [batch * s, ...].
        """
        model: Any = self.bank.model
        self.bank._numbers = None
        return self.bank.unfold(model.generate(**self.bank.folded(dict(inputs)), **options))

    def _features(self, given: Mapping[str, Tensor], numbers: Tensor | None) -> Tensor:
        """Return the inputs of the last layer, [rows, tokens, width]."""
        with _without_logits(self.bank.model) as features:
            self.bank(**given, numbers=numbers)
        return features[0]

    def _score_logits(self, features: Tensor, places: Tensor, chunk: int, numbers: Tensor | None) -> Tensor | None:
        """Return the score logits [batch, chunk] of features at the end of the prompt."""
        if self.scores is None:
            return None
        ends = features[torch.arange(len(places), device=places.device), places].to(self.scores.weight.dtype)
        ends = ends.detach() if self.detach_scores else ends
        if numbers is None:
            numbers = torch.arange(chunk, device=ends.device).repeat_interleave(len(ends) // chunk)
        logits = (ends * self.scores.weight[numbers]).sum(dim=-1) + self.scores.bias[numbers]
        return logits.view(chunk, -1).T


@contextmanager
def _without_logits(model: Any) -> Iterator[list[Tensor]]:
    """Collect the inputs of the last layer, and skip the computation of its logits."""
    features: list[Tensor] = []

    def collect(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        features.append(given[0])
        return (given[0][:, :0],)

    hook = model.get_output_embeddings().register_forward_pre_hook(collect)
    try:
        yield features
    finally:
        hook.remove()
