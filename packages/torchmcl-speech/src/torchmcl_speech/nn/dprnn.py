"""Dual-path recurrent network, which maps one waveform to n waveforms.

    waveform --encoder--> frames --segment--> map --blocks--> map --overlap-add--> masks --decoder--> waveforms
    [B, length]           [B, T, F]           [B, P, W, H]                         [B, T, n, F]       [B, n, length]

T frames of F features are divided into P segments of W frames, which overlap by half. Each block processes the map
along W within the segments (intra path), and then along P across the segments (inter path), so that a sequence of
thousands of frames is processed by two recurrences of about a hundred steps.

Features are always the last axis in memory. The map has the layout [B, P, W, H]; the inter path uses a transposed
view of it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchmcl import Predictions, checks, io
from torchmcl.errors import bad_value
from torchmcl_speech.nn.bilstm import FusedBiLSTM
from torchmcl_speech.nn.global_norm import GlobalLayerNorm, projected_norm

__all__ = ["DPRNN", "overlap_add", "segment"]


def segment(frames: Tensor, size: int, hop: int) -> Tensor:
    """Divide a sequence into overlapping segments; the last segment must be complete.

    Args:
        frames: Frames [..., time, features], with time = size + hop * (any integer >= 0).
        size: Segment length, a multiple of `hop`.
        hop: Distance between the beginnings of two segments.

    Returns:
        Contiguous segments [..., segments, size, features].

    Example:
        >>> segment(torch.arange(8.0).unsqueeze(-1), size=4, hop=2).squeeze(-1)
        tensor([[0., 1., 2., 3.],
                [2., 3., 4., 5.],
                [4., 5., 6., 7.]])
    """
    n_hops = hops_in("segment", size, hop)
    time = frames.shape[-2]
    if time < size or (time - size) % hop:
        rule = f"have {size} + {hop} * n frames on the second-to-last axis"
        raise ValueError(bad_value("segment", "frames", rule, tuple(frames.shape), "Pad the frames first."))
    if torch.compiler.is_exporting():  # splitting an axis of symbolic length would hide that the size is constant
        return frames.unfold(-2, size, hop).transpose(-2, -1).contiguous()
    hops = frames.unflatten(-2, (-1, hop))  # [..., hops, hop, features]
    n_segments = hops.shape[-3] - n_hops + 1
    return torch.cat([hops.narrow(-3, shift, n_segments) for shift in range(n_hops)], dim=-2)


def overlap_add(segments: Tensor, hop: int) -> Tensor:
    """Add up overlapping segments; this is the adjoint of `segment`.

    Args:
        segments: Segments [..., segments, size, features].
        hop: Distance between the beginnings of two segments; `size` is a multiple of it.

    Returns:
        Frames [..., time, features] with time = size + hop * (segments - 1). A frame in the middle is the sum of
        size / hop segments.

    Example:
        >>> overlap_add(torch.ones(3, 4, 1), hop=2).squeeze(-1)
        tensor([1., 1., 2., 2., 2., 2., 1., 1.])
    """
    n_hops = hops_in("overlap_add", int(segments.shape[-2]), hop)  # in a trace, sizes are tensors
    parts = segments.unflatten(-2, (n_hops, hop)).unbind(-3)  # each [..., segments, hop, features]
    shifted = [F.pad(part, (0, 0, 0, 0, shift, n_hops - 1 - shift)) for shift, part in enumerate(parts)]
    total = shifted[0]
    for part in shifted[1:]:
        total = total + part
    return total.flatten(-3, -2)


def hops_in(owner: str, size: int, hop: int) -> int:
    """Return the number of hops per segment; check that the hop divides the size."""
    checks.check_positive_int(owner, "size", size)
    checks.check_positive_int(owner, "hop", hop)
    if size % hop:
        raise ValueError(bad_value(owner, "size", f"be a multiple of the hop {hop}", size))
    return size // hop


class RecurrentPath(nn.Module):
    """Path of a block: a BiLSTM along time, a projection, a norm, and a residual connection.

    Args:
        width: Number of input and output features.
        hidden_size: Number of features per direction of the LSTM.
        bilstm: Function that constructs the LSTM from `(width, hidden_size)`.
    """

    def __init__(self, width: int, hidden_size: int, bilstm: Callable[[int, int], nn.Module] = FusedBiLSTM) -> None:
        super().__init__()
        self.bilstm = bilstm(width, hidden_size)
        self.linear = nn.Linear(2 * hidden_size, width)
        self.norm = GlobalLayerNorm(width)

    def forward(self, sequences: Tensor) -> Tensor:
        """Return a tensor of the shape of the input, [batch, sequences, time, width]."""
        return projected_norm(self.linear, self.norm, self.bilstm(sequences), sequences)


class DualPathBlock(nn.Module):
    """Block with two paths: along the frames within each segment, and then across the segments.

    Args:
        width: Number of input and output features.
        hidden_size: Number of features per direction of the LSTMs.
        bilstm: Function that constructs an LSTM from `(width, hidden_size)`.
        recompute: Whether to store only the input for the backward pass and recompute the rest.
    """

    def __init__(
        self,
        width: int,
        hidden_size: int,
        bilstm: Callable[[int, int], nn.Module] = FusedBiLSTM,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.intra = RecurrentPath(width, hidden_size, bilstm)
        self.inter = RecurrentPath(width, hidden_size, bilstm)
        self.recompute = recompute

    def forward(self, segments: Tensor) -> Tensor:
        """Return a tensor of the shape of the input, [batch, segments, size, width]."""
        if self.recompute and torch.is_grad_enabled():
            # The blocks are deterministic, so there is no generator state to restore.
            return checkpoint(self._both, segments, use_reentrant=False, preserve_rng_state=False)
        return self._both(segments)

    def _both(self, segments: Tensor) -> Tensor:
        segments = self.intra(segments)
        out: Tensor = self.inter(segments.transpose(1, 2))
        return out.transpose(1, 2)


# Sizes in a saved description, and the maximum of each.
_SIZES = ("n_outputs", "n_filters", "kernel_size", "stride", "segment_size", "hidden_size", "width", "n_blocks")
_MAX_SIZE = 1_000_000


class DPRNN(io.SharedNetwork):
    """Dual-path recurrent network that separates a waveform into any number of waveforms.

    Args:
        n_outputs: Number of output waveforms; with MCL, it may exceed the number of speakers.
        n_filters: Number of features of an encoded frame, F.
        kernel_size: Number of samples per frame, K; a multiple of `stride`.
        stride: Number of samples between two frames, S.
        segment_size: Number of frames per segment, W; even.
        hidden_size: Number of features per direction of the LSTMs, H.
        width: Number of features between the blocks; `hidden_size` by default, as in the paper.
        n_blocks: Number of dual-path blocks, B.
        scores: Whether to return a score logit for each output, if there may be more outputs than speakers.
        detach_scores: Whether to stop the gradient of the score loss at the score head.
        bilstm: Function that constructs a bidirectional LSTM from its input and hidden sizes; see
            `torchmcl_speech.nn.BiLSTM`.
        recompute: Number of blocks that store only their input in training and recompute the rest in the backward pass.
            This saves memory and takes the time of another forward pass. `bilstm` must be deterministic then.

    Example:
        >>> model = DPRNN(n_outputs=3, n_filters=8, segment_size=10, hidden_size=6, n_blocks=1, scores=True)
        >>> hypotheses, score_logits = model(torch.randn(2, 1234))
        >>> hypotheses.shape, score_logits.shape
        (torch.Size([2, 3, 1234]), torch.Size([2, 3]))

    Reference:
        The appendix on speech separation; the defaults are its table of the DPRNN configuration.
    """

    def __init__(
        self,
        n_outputs: int = 2,
        n_filters: int = 64,
        kernel_size: int = 16,
        stride: int = 8,
        segment_size: int = 100,
        hidden_size: int = 128,
        width: int | None = None,
        n_blocks: int = 6,
        scores: bool = False,
        detach_scores: bool = False,
        bilstm: Callable[[int, int], nn.Module] = FusedBiLSTM,
        recompute: int = 0,
    ) -> None:
        super().__init__()
        width = hidden_size if width is None else width
        #: Arguments of the model, except `bilstm` and `recompute`, which do not affect the parameters.
        self.config: dict[str, Any] = {
            "n_outputs": n_outputs,
            "n_filters": n_filters,
            "kernel_size": kernel_size,
            "stride": stride,
            "segment_size": segment_size,
            "hidden_size": hidden_size,
            "width": width,
            "n_blocks": n_blocks,
            "scores": scores,
            "detach_scores": detach_scores,
        }
        for name, value in self.config.items():
            if name not in ("scores", "detach_scores"):
                checks.check_positive_int("DPRNN", name, value)
        checks.check_callable("DPRNN", "bilstm", bilstm, "torchmcl_speech.nn.BiLSTM")
        checks.check_non_negative_int("DPRNN", "recompute", recompute)
        if recompute > n_blocks:
            raise ValueError(bad_value("DPRNN", "recompute", f"be at most `n_blocks`, {n_blocks}", recompute))
        if kernel_size % stride:
            raise ValueError(bad_value("DPRNN", "kernel_size", f"be a multiple of `stride` {stride}", kernel_size))
        if segment_size % 2:
            raise ValueError(bad_value("DPRNN", "segment_size", "be even", segment_size))
        self.n_outputs, self.kernel_size, self.stride, self.segment_size = n_outputs, kernel_size, stride, segment_size
        self.detach_scores = detach_scores
        self.encoder = nn.Linear(kernel_size, n_filters, bias=False)  # applied to frames, as a strided convolution
        self.norm = GlobalLayerNorm(n_filters)
        self.bottleneck = nn.Linear(n_filters, width)
        blocks = (DualPathBlock(width, hidden_size, bilstm, i < recompute) for i in range(n_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.activation = nn.PReLU()
        self.outputs = nn.Linear(width, n_outputs * width)
        self.value = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.mask = nn.Linear(width, n_filters, bias=False)
        self.decoder = nn.Parameter(torch.empty(n_outputs, n_filters, kernel_size))  # one decoder per output
        self.score = nn.Linear(width, 1) if scores else None
        self._begin_with_reconstruction()

    @torch.no_grad()
    def _begin_with_reconstruction(self) -> None:
        """Initialize encoder and decoder so that masks of 1 reconstruct the mixture.

        Filters form pairs of opposite sign, whose ReLUs add up to a linear map, and the decoder is its transpose.
        Initially every output is the same attenuated mixture, with an SI-SDR of 0 dB instead of about -30 dB. This
        saves a few hundred steps, and the data determine which output wins which speaker. With random decoders, one
        output would be the best for all samples, and winner-takes-all would never select another output.
        """
        half = self.encoder.out_features // 2
        filters = nn.init.orthogonal_(torch.empty(half, self.kernel_size)) if half else torch.empty(0, self.kernel_size)
        pairs = torch.cat([filters, -filters])
        self.encoder.weight[: 2 * half] = pairs
        nn.init.zeros_(self.decoder)
        self.decoder[:, : 2 * half] = pairs * self.stride / self.kernel_size  # each sample is in several frames

    def forward(self, waveform: Tensor) -> Predictions:
        """Separate waveforms [batch, length] of any length into hypotheses [batch, n_outputs, length]."""
        checks.check_tensor("DPRNN", "waveform", waveform)
        if waveform.ndim != 2 or waveform.shape[-1] < 1:
            advice = "A single recording is waveform.unsqueeze(0)."
            raise ValueError(
                bad_value("DPRNN", "waveform", "have shape [batch, length]", tuple(waveform.shape), advice)
            )
        # Encoder and decoder are cheap, and waveforms in bfloat16 would contain audible noise.
        with torch.autocast(waveform.device.type, enabled=False):
            frames = self._encode(waveform.to(self.encoder.weight.dtype))
        features = self._features(frames)
        masks = torch.sigmoid(self.mask(features))  # not ReLU, because an output with a mask of 0 could never recover
        with torch.autocast(waveform.device.type, enabled=False):
            hypotheses = self._decode(frames, masks.to(frames.dtype), waveform.shape[-1])
        return Predictions(hypotheses, self._score_logits(features))

    def _encode(self, waveform: Tensor) -> Tensor:
        """Compute the nonnegative encoded frames [batch, time, n_filters]."""
        length = max(waveform.shape[-1], self.kernel_size)
        length += -(length - self.kernel_size) % self.stride  # so that the last samples are in a frame, too
        waveform = F.pad(waveform, (0, length - waveform.shape[-1]))
        if torch.compiler.is_exporting():  # the same without a view, whose strides would become constraints
            filters = self.encoder.weight.unsqueeze(1)
            return torch.relu(F.conv1d(waveform.unsqueeze(1), filters, stride=self.stride)).transpose(1, 2).contiguous()
        windows = segment(waveform.unsqueeze(-1), self.kernel_size, self.stride).squeeze(-1)
        return torch.relu(self.encoder(windows))

    def _features(self, frames: Tensor) -> Tensor:
        """Compute the features of each output at each frame, [batch, time, n_outputs, width]."""
        time, hop = frames.shape[-2], self.segment_size // 2
        narrow = self.bottleneck(self.norm(frames))
        # Pad by one hop before and at least one hop after, so that every frame is in two segments.
        padded = F.pad(narrow, (0, 0, hop, hop + (-time) % hop))
        segments = self.blocks(segment(padded, self.segment_size, hop))
        merged = overlap_add(self.activation(segments), hop)[..., hop : hop + time, :] / 2
        features = self.outputs(merged).unflatten(-1, (self.n_outputs, -1))
        return torch.tanh(self.value(features)) * torch.sigmoid(self.gate(features))

    def _decode(self, frames: Tensor, masks: Tensor, length: int) -> Tensor:
        """Decode masked frames to waveforms [batch, n_outputs, length]."""
        masked = frames.unsqueeze(-2) * masks  # [batch, time, n_outputs, n_filters]
        if torch.compiler.is_exporting():  # one by one, because a joint product would have stride constraints
            windows = torch.stack([masked[..., n, :] @ self.decoder[n] for n in range(self.n_outputs)], dim=1)
        else:
            windows = torch.einsum("btnf,nfk->bntk", masked, self.decoder)
        waveforms = overlap_add(windows.unsqueeze(-1), self.stride).squeeze(-1)
        if torch.compiler.is_exporting():  # export does not allow the special case of an empty slice
            waveforms = F.pad(waveforms, (0, 1))
        return waveforms[..., :length]

    def _score_logits(self, features: Tensor) -> Tensor | None:
        if self.score is None:
            return None
        features = features.detach() if self.detach_scores else features
        return self.score(features.mean(dim=1)).squeeze(-1)

    @classmethod
    def _check_config(cls, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Reject a configuration of a larger model than the saved weights before memory is allocated."""
        for name in _SIZES:
            value = config[name]
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} is {str(value)[:80]!r}, which is not an integer")
            if not 1 <= value <= _MAX_SIZE:
                raise ValueError(f"{name} is {str(value)[:80]}, which is not between 1 and {_MAX_SIZE}")
        width, hidden, n_filters = config["width"], config["hidden_size"], config["n_filters"]
        needed = (
            16 * config["n_blocks"] * hidden * (width + hidden) + config["n_outputs"] * width**2 + n_filters * width
        )
        if needed + n_filters * (width + config["kernel_size"]) > sum(value.numel() for value in weights.values()):
            raise ValueError("its configuration describes a larger model")

    def extra_repr(self) -> str:
        """Return additional text for `repr`."""
        n_hops = hops_in("DPRNN", self.kernel_size, self.stride)
        return f"n_outputs={self.n_outputs}, {n_hops} frames over each sample, segments of {self.segment_size}"
