"""The dual-path network against the textbook layout (convolutions, unfold, fold), and what it promises."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import torchmcl as mcl
from grids import for_each
from torchmcl_speech.nn import DPRNN
from torchmcl_speech.nn.dprnn import overlap_add, segment
from torchmcl_speech.nn.global_norm import GlobalLayerNorm


def tiny(n_outputs=2, **options):
    sizes = {"n_filters": 6, "kernel_size": 4, "stride": 2, "segment_size": 6, "hidden_size": 5, "n_blocks": 2}
    return DPRNN(n_outputs, **{**sizes, **options})


def global_norm(x, norm):
    axes = tuple(range(1, x.ndim))
    normed = (x - x.mean(axes, keepdim=True)) / (x.var(axes, correction=0, keepdim=True) + 1e-8).sqrt()
    shape = (1, -1, *[1] * (x.ndim - 2))
    return normed * norm.weight.view(shape) + norm.bias.view(shape)


def textbook_path(x, path):
    """Return one path on a map [batch, features, along, across], channels first as in the first publications."""
    batch, features, along, across = x.shape
    lstm = nn.LSTM(features, path.bilstm.hidden_size, bidirectional=True, batch_first=True).to(x.dtype)
    lstm.load_state_dict(path.bilstm.state_dict())
    rows = x.permute(0, 3, 2, 1).reshape(batch * across, along, features)
    hidden = path.linear(lstm(rows)[0]).reshape(batch, across, along, features).permute(0, 3, 2, 1)
    return x + global_norm(hidden, path.norm)


def textbook(model, waveform):
    """Return the waveforms of a DPRNN with strided convolutions, unfold and fold."""
    size, hop, n = model.segment_size, model.segment_size // 2, model.n_outputs
    frames = F.conv1d(waveform[:, None], model.encoder.weight[:, None], stride=model.stride).relu()
    time = frames.shape[-1]
    narrow = F.conv1d(global_norm(frames, model.norm), model.bottleneck.weight[..., None], model.bottleneck.bias)
    padded = F.pad(narrow, (hop, hop + (-time) % hop))
    maps = F.unfold(padded[..., None], (size, 1), stride=(hop, 1)).unflatten(1, (-1, size))  # [B, H, W, P]
    for block in model.blocks:
        maps = textbook_path(maps, block.intra)
        maps = textbook_path(maps.transpose(2, 3), block.inter).transpose(2, 3)
    maps = model.activation(maps)
    merged = F.fold(maps.flatten(1, 2), (padded.shape[-1], 1), (size, 1), stride=(hop, 1)).squeeze(-1) / 2
    merged = merged[..., hop : hop + time]
    outputs = F.conv1d(merged, model.outputs.weight[..., None], model.outputs.bias).unflatten(1, (n, -1))
    outputs = outputs.flatten(0, 1)
    value = F.conv1d(outputs, model.value.weight[..., None], model.value.bias).tanh()
    gate = F.conv1d(outputs, model.gate.weight[..., None], model.gate.bias).sigmoid()
    masks = F.conv1d(value * gate, model.mask.weight[..., None]).sigmoid().unflatten(0, (-1, n))
    masked = (masks * frames[:, None]).flatten(1, 2)
    return F.conv_transpose1d(masked, model.decoder.flatten(0, 1)[:, None], stride=model.stride, groups=n)


@for_each("n_outputs", [1, 2, 3])
def test_it_is_the_textbook_network(n_outputs):
    model = tiny(n_outputs).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    waveform = torch.randn(3, 4 + 2 * 40, dtype=torch.float64)
    expected = textbook(model, waveform)
    torch.testing.assert_close(model(waveform).hypotheses, expected, atol=1e-10, rtol=1e-8)


def test_gradients_are_those_of_the_textbook_network():
    model = tiny().double()
    waveform = torch.randn(2, 4 + 2 * 31, dtype=torch.float64)
    direction = torch.randn(2, 2, waveform.shape[-1], dtype=torch.float64)
    gradients = torch.autograd.grad((model(waveform).hypotheses * direction).sum(), list(model.parameters()))
    # The copied LSTMs of the textbook version hold their own parameters, so theirs are left out.
    shared = [(name, p) for name, p in model.named_parameters() if "bilstm" not in name]
    expected = torch.autograd.grad((textbook(model, waveform) * direction).sum(), [p for _, p in shared])
    found = dict(zip((name for name, _ in model.named_parameters()), gradients, strict=True))
    for (name, _), gradient in zip(shared, expected, strict=True):
        torch.testing.assert_close(found[name], gradient, atol=1e-10, rtol=1e-7, msg=name)


def test_the_paper_configuration_has_between_3_6_and_3_7_million_parameters():
    n_parameters = sum(parameter.numel() for parameter in DPRNN(n_outputs=2).parameters())
    assert 3.6e6 < n_parameters < 3.7e6


@hypothesis.given(length=st.integers(1, 90), n_outputs=st.integers(1, 4))
def test_any_length_comes_out_as_long_as_it_went_in(length, n_outputs):
    answers = tiny(n_outputs, n_blocks=1)(torch.randn(2, length))
    assert isinstance(answers, mcl.Predictions)
    assert answers.hypotheses.shape == (2, n_outputs, length)
    assert answers.hypotheses.isfinite().all()
    assert answers.score_logits is None


@hypothesis.given(n_segments=st.integers(1, 9), hop=st.integers(1, 5), n_hops=st.integers(1, 4))
def test_segments_add_up_to_the_sequence_they_were_cut_from(n_segments, hop, n_hops):
    size = hop * n_hops
    time = size + hop * (n_segments - 1)
    frames = torch.randn(2, time, 3, dtype=torch.float64)
    segments = segment(frames, size, hop)
    assert segments.shape == (2, n_segments, size, 3)
    covered = overlap_add(segment(torch.ones_like(frames), size, hop), hop)
    torch.testing.assert_close(overlap_add(segments, hop) / covered, frames)
    for index in range(n_segments):
        torch.testing.assert_close(segments[:, index], frames[:, index * hop : index * hop + size])


def test_gradients_of_a_tiny_instance_pass_the_numerical_check():
    model = tiny(2, n_filters=3, segment_size=4, hidden_size=2, n_blocks=1, scores=True).double()
    waveform = torch.randn(1, 14, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in model.named_parameters()]

    def answers(waveform, *parameters):
        return tuple(torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (waveform,)))

    assert torch.autograd.gradcheck(answers, (waveform, *model.parameters()), atol=1e-5, fast_mode=True)


@for_each("scale", [0.0, 1e-30, 1e-4, 1e3])
def test_silence_whispers_and_thunder_give_finite_waveforms_and_gradients(scale):
    model = tiny(2, scores=True)
    waveform = (scale * torch.randn(2, 200)).requires_grad_()
    answers = model(waveform)
    (answers.hypotheses.square().mean() + answers.score_logits.sum()).backward()
    assert answers.hypotheses.isfinite().all()
    assert waveform.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    if scale == 0:
        assert (answers.hypotheses == 0).all()


def test_a_sample_does_not_depend_on_its_batch():
    model = tiny()
    waveform = torch.randn(3, 120)
    torch.testing.assert_close(model(waveform[:1]).hypotheses, model(waveform).hypotheses[:1])


def test_a_new_network_gives_the_mixture_to_every_output():
    model = tiny(3, n_filters=9).double()
    nn.init.zeros_(model.mask.weight)  # masks of one half
    waveform = torch.randn(2, 4 + 2 * 50, dtype=torch.float64)
    inner = slice(2, -2)  # samples at the ends are in one frame instead of two
    expected = waveform.unsqueeze(1).expand(-1, 3, -1) / 2
    torch.testing.assert_close(model(waveform).hypotheses[..., inner], expected[..., inner], atol=1e-5, rtol=0)


def test_the_lstm_can_be_replaced():
    class TimeLastInMemory(nn.LSTM):
        """Another layout of the result, the same numbers."""

        def __init__(self, input_size, hidden_size):
            super().__init__(input_size, hidden_size, bidirectional=True, batch_first=True)

        def forward(self, sequences):
            hidden = super().forward(sequences.flatten(0, 1))[0]
            return hidden.unflatten(0, sequences.shape[:2]).contiguous()

    model, other = tiny(), tiny(bilstm=TimeLastInMemory)
    other.load_state_dict(model.state_dict())
    waveform = torch.randn(2, 100)
    torch.testing.assert_close(other(waveform).hypotheses, model(waveform).hypotheses)


def test_global_norm_has_zero_mean_and_unit_variance_over_each_sample():
    features = 5 + torch.tensor([1.0, 30.0]).view(2, 1, 1, 1) * torch.randn(2, 4, 50, 8)
    normed = GlobalLayerNorm(8)(features)
    torch.testing.assert_close(normed.mean((1, 2, 3)), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(normed.var((1, 2, 3), correction=0), torch.ones(2))
    residual = torch.randn_like(features)
    torch.testing.assert_close(GlobalLayerNorm(8)(features, residual), normed + residual)


def test_more_outputs_than_speakers_train_with_every_rule():
    model = tiny(4, scores=True)
    batch = mcl.Batch(torch.randn(2, 100), torch.randn(2, 3, 100), torch.tensor([[True] * 3, [True, True, False]]))
    for rule in (mcl.PIT(), mcl.WTA(), mcl.RelaxedWTA(0.05), mcl.AnnealedWTA(0.1), mcl.Sinkhorn(0.1)):
        output = mcl.mcl_step(model, batch, rule, cost_fn=mcl.pairwise_neg_si_sdr)
        model.zero_grad()
        output.loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        assert model.decoder.grad.abs().sum() > 0


@pytest.mark.slow
def test_it_compiles_into_one_graph():
    torch.compiler.reset()
    model = tiny(n_blocks=1)
    waveform = torch.randn(2, 30)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(compiled(waveform).hypotheses, model(waveform).hypotheses)


def test_recomputed_blocks_give_the_same_bits_and_keep_less():
    kept = {}
    for recompute in (0, 1, 2):
        torch.manual_seed(0)
        model = tiny(recompute=recompute)
        sizes: list[int] = []

        def count(saved, sizes=sizes):
            sizes.append(saved.numel())
            return saved

        with torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
            out = model(torch.ones(2, 50)).hypotheses
        out.square().sum().backward()
        kept[recompute] = sum(sizes), [out, *(parameter.grad for parameter in model.parameters())]
    assert kept[2][0] < kept[1][0] < kept[0][0]
    for part in (1, 2):
        assert all(torch.equal(mine, plain) for mine, plain in zip(kept[part][1], kept[0][1], strict=True))


@for_each(
    "options, message",
    [
        ({"n_outputs": 0}, "DPRNN: `n_outputs`"),
        ({"kernel_size": 5}, "DPRNN: `kernel_size`"),
        ({"segment_size": 7}, "DPRNN: `segment_size`"),
        ({"recompute": -1}, "DPRNN: `recompute`"),
        ({"recompute": 3}, "DPRNN: `recompute`"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tiny(**options)


@for_each("dtype, tolerance", [(torch.bfloat16, 5e-2), (torch.float16, 5e-3), (torch.float64, 1e-5)])
@for_each("scores", [False, True])
def test_the_whole_model_runs_in_another_precision(dtype, tolerance, scores):
    torch.manual_seed(0)
    model = DPRNN(n_outputs=2, n_filters=8, segment_size=10, hidden_size=6, n_blocks=2, scores=scores)
    waveform = torch.randn(2, 400)
    expected = model(waveform).hypotheses
    model.to(dtype)
    for recording in (waveform, waveform.to(dtype)):
        predictions = model(recording)
        assert predictions.hypotheses.dtype == dtype
        torch.testing.assert_close(predictions.hypotheses.float(), expected, atol=tolerance, rtol=tolerance)
    targets = torch.randn(2, 2, 400, dtype=dtype)
    mcl.mcl_step(
        model, mcl.Batch(waveform, targets), mcl.AnnealedWTA(1.0), cost_fn=mcl.pairwise_neg_si_sdr
    ).loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == dtype for p in model.parameters())
