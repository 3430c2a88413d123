"""Exported separators give the sounds of the separator, for recordings of any length."""

import warnings

import pytest
import torch

import torchmcl
from torchmcl_speech.nn import DPRNN

LENGTHS = [(1, 1000), (3, 801), (1, 1600), (2, 5000)]


@pytest.fixture(scope="module")
def separator():
    torch.manual_seed(0)
    return DPRNN(n_outputs=3, n_filters=8, segment_size=10, hidden_size=8, n_blocks=1, scores=True).eval()


def exported(model, path):
    with warnings.catch_warnings():  # torch's own
        warnings.simplefilter("ignore")
        return torchmcl.export(model, path, torch.randn(2, 1234))


def error_in_db(got, want):
    """Return the level of the difference relative to the sound."""
    return float(10 * ((got - want).square().sum() / want.square().sum()).log10())


def check(separator, run, shape):
    mixture = torch.randn(shape)
    with torch.no_grad():
        hypotheses, logits = separator(mixture)
        found = run(mixture)
    assert error_in_db(torch.as_tensor(found[0]), hypotheses) < -80  # 1e-3 dB would be at -79 dB
    torch.testing.assert_close(torch.as_tensor(found[1]), logits, atol=1e-5, rtol=1e-5)


def test_onnx_separates_recordings_of_any_length(separator, tmp_path):
    pytest.importorskip("onnxscript")
    session = pytest.importorskip("onnxruntime").InferenceSession(exported(separator, tmp_path / "separator.onnx"))
    assert [one.name for one in session.get_outputs()] == ["hypotheses", "score_logits"]
    for shape in [*LENGTHS, (1, 3)]:
        check(separator, lambda mixture: session.run(None, {"waveform": mixture.numpy()}), shape)
