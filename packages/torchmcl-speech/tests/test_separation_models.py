"""Long recordings keep one order of their outputs, and models come back from disk as they went."""

import pytest
import torch

import torchmcl as mcl
from forged import forge
from grids import for_each
from torchmcl_speech.nn import DPRNN
from torchmcl_speech.nn.long_recordings import StreamingSeparator, separate_long
from torchmcl_speech.nn.saving import load_model, save_model


class ShufflingOracle:
    """A perfect separator that changes order, sign and level from chunk to chunk."""

    def __init__(self, sources, seed=0):
        self.sources = sources  # [sources, length]
        self.mixture = sources.sum(0)
        self.generator = torch.Generator().manual_seed(seed)
        self.orders = []

    def __call__(self, piece):
        n = len(self.sources)
        windows = self.mixture.unfold(0, piece.shape[-1], 1)
        start = int((windows == piece).all(-1).nonzero()[0])
        order = torch.randperm(n, generator=self.generator)
        self.orders.append(tuple(order.tolist()))
        level = torch.randn(n, 1, generator=self.generator)
        outputs = level * self.sources[order, start : start + piece.shape[-1]]
        return mcl.Predictions(outputs.unsqueeze(0), order.float().unsqueeze(0))


@for_each("length, chunk, overlap", [(1000, 300, None), (1000, 300, 100), (300, 300, 100), (50, 300, 100)])
def test_chunks_are_joined_in_one_order_at_the_level_of_the_mixture(length, chunk, overlap):
    sources = torch.randn(3, length) * torch.tensor([[1.0], [2.0], [0.5]])
    oracle = ShufflingOracle(sources)
    hypotheses, score_logits = separate_long(oracle, oracle.mixture.unsqueeze(0), chunk=chunk, overlap=overlap)
    first = torch.tensor(oracle.orders[0])
    if length > chunk:
        assert len(set(oracle.orders)) > 1, "the oracle never changed its order"
    cost = mcl.pairwise_neg_si_sdr(hypotheses=hypotheses[0], targets=sources[first])
    assert (cost.diagonal() < -5).all(), cost
    assert (cost.argmin(-1) == torch.arange(3)).all()
    level = hypotheses[0].norm(dim=-1) / sources[first].norm(dim=-1)
    assert ((level > 0.6) & (level < 1.6)).all()
    torch.testing.assert_close(score_logits[0], first.float())


@for_each("sizes", [[1000], [1] * 7 + [993], [300, 300, 300, 100], [299, 2, 699], [90] * 11 + [10]])
@for_each("overlap, fade", [(None, None), (100, 100), (200, 30), (10, 1)])
def test_a_stream_gives_what_the_whole_recording_gives_however_it_is_divided(sizes, overlap, fade):
    model = scored().eval()
    sound = torch.randn(2, 1000)
    with torch.inference_mode():
        stream = StreamingSeparator(model, chunk=300, overlap=overlap, fade=fade)
        at_once = [stream.push(sound), stream.finish()]
        logits = stream.score_logits
        if fade is None or fade == overlap:
            offline = separate_long(model, sound, chunk=300, overlap=overlap)
            assert torch.equal(torch.cat(at_once, dim=-1), offline.hypotheses)
            assert torch.equal(logits, offline.score_logits)
        given, pushed = [], 0
        for piece in sound.split(sizes, dim=-1):  # the same object again: it is ready for another recording
            given.append(stream.push(piece))
            pushed += piece.shape[-1]
            assert pushed - sum(part.shape[-1] for part in given) < max(stream.delay, stream.chunk)
            if pushed >= stream.chunk:
                assert pushed - sum(part.shape[-1] for part in given) < stream.delay
        given.append(stream.finish())
    given = [part for part in given if part.numel()]
    torch.testing.assert_close(torch.cat(given, dim=-1), torch.cat(at_once, dim=-1))
    torch.testing.assert_close(stream.score_logits, logits)
    assert torch.cat(given, dim=-1).shape == (2, 3, 1000)


def test_a_stream_keeps_no_more_than_two_chunks():
    stream = StreamingSeparator(lambda x: mcl.Predictions(x.unsqueeze(1)), chunk=100)
    for _ in range(500):
        stream.push(torch.randn(1, 30))
        assert stream._heard.untyped_storage().nbytes() <= 4 * 200
        assert stream.score_logits is None


def scored():
    torch.manual_seed(3)
    return DPRNN(3, n_filters=6, kernel_size=4, stride=2, segment_size=6, hidden_size=5, n_blocks=1, scores=True)


def small():
    return DPRNN(3, n_filters=6, kernel_size=4, stride=2, segment_size=6, hidden_size=5, n_blocks=1, scores=True)


def test_a_model_comes_back_as_it_was_saved(tmp_path):
    model = small().eval()
    save_model(tmp_path / "model", model, notes={"sample_rate": 8000})
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.safetensors"]
    again, notes = load_model(tmp_path / "model")
    assert notes == {"sample_rate": 8000}
    assert not again.training
    waveform = torch.randn(1, 77)
    torch.testing.assert_close(again(waveform), model(waveform), rtol=0, atol=0)


def test_a_shared_model_gives_the_same_sounds(tmp_path):
    model, waveform = small().eval(), torch.randn(1, 77)
    model.save_pretrained(tmp_path, about="Untrained.")
    torch.testing.assert_close(DPRNN.from_pretrained(tmp_path)(waveform), model(waveform), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"MultiHypothesisMLP\.load: `folder`"):
        mcl.MultiHypothesisMLP.from_pretrained(tmp_path)


def test_folders_without_an_intact_model_are_refused(tmp_path):
    with pytest.raises(ValueError, match="load_model: `folder`"):
        load_model(tmp_path)
    save_model(tmp_path, small())
    forge(tmp_path, config__n_outputs=2)
    with pytest.raises(ValueError, match="load_model: `folder`"):
        load_model(tmp_path)
