"""Exported networks give the answers of the network, for other batches and lengths than the example's."""

import warnings

import pytest
import torch

import torchmcl
from grids import for_each
from torchmcl.exporting import ONNX, AOTInductor, ExportedProgram, ExportForm
from torchmcl.nn import EmbeddedLatent, LatentHypotheses, NormalLatent

MODELS = {
    "scores": lambda: torchmcl.MultiHypothesisMLP(6, 1, 5, hidden=(8,)),
    "sequences, scales": lambda: torchmcl.MultiHypothesisMLP(6, (3, 2), 4, hidden=(8,), scales=True, scores=False),
    "dropout, head apart": lambda: torchmcl.MultiHypothesisMLP(6, 2, 3, hidden=(8,), dropout=0.5, detach_scores=True),
}


class Deep(torch.nn.Module):
    """Sequences of any length, with their lengths."""

    def __init__(self):
        super().__init__()
        self.head = torchmcl.MultiHypothesisHead(4, 2, 3)

    def forward(self, sequences, offset):
        frames, lengths = sequences
        return self.head(frames.cumsum(dim=1)[torch.arange(frames.shape[0]), lengths - 1] + offset)


def sequences(n_rows, length):
    return (torch.randn(n_rows, length, 4), torch.randint(1, length + 1, (n_rows,))), torch.randn(n_rows, 4)


def fields(result):
    return [one for one in (result if isinstance(result, tuple | list) else [result]) if one is not None]


def exported(model, path, example, form=None):
    with warnings.catch_warnings():  # torch's own
        warnings.simplefilter("ignore")
        return torchmcl.export(model, path, example, form)


def check_equal(model, run, *inputs):
    with torch.no_grad():
        expected = fields(model.eval()(*inputs))
    for got, want in zip(fields(run(*inputs)), expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want, atol=1e-5, rtol=1e-5)


def onnx_runner(path):
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = [one.name for one in session.get_inputs()]
    return session, lambda *x: session.run(
        None, {n: v.numpy() for n, v in zip(names, torch.utils._pytree.tree_leaves(x), strict=True)}
    )


@for_each("kind, dtype", list(zip(MODELS, [torch.float64, torch.float32, torch.float32], strict=True)))
def test_a_program_runs_for_every_batch_and_returns_the_same_type(kind, dtype, tmp_path):
    model = MODELS[kind]().to(dtype)
    path = exported(model, tmp_path / "model.pt2", torch.randn(1, 6, dtype=dtype))
    loaded = torch.export.load(path).module()
    assert type(loaded(torch.randn(2, 6, dtype=dtype))) is type(model(torch.randn(2, 6, dtype=dtype)))
    for n_rows in (1, 2, 33):
        check_equal(model, loaded, torch.randn(n_rows, 6, dtype=dtype))


def test_onnx_has_the_names_of_arguments_and_fields_and_free_axes(tmp_path):
    pytest.importorskip("onnxscript")
    model = Deep()
    path = exported(model, tmp_path / "model.onnx", sequences(2, 5))
    session, run = onnx_runner(path)
    assert [one.name for one in session.get_inputs()] == ["sequences_0", "sequences_1", "offset"]
    assert [one.name for one in session.get_outputs()] == ["hypotheses", "score_logits"]
    assert [one.shape for one in session.get_inputs()] == [["batch", "length", 4], ["batch"], ["batch", 4]]
    assert session.get_outputs()[0].shape[0] == "batch"
    for n_rows, length in ((1, 1), (3, 17)):
        check_equal(model, run, *sequences(n_rows, length))


LATENTS = {
    "embedded": lambda: LatentHypotheses(torch.nn.Linear(6 + 2, 1), 3, EmbeddedLatent(3, 2)),
    "normal": lambda: LatentHypotheses(torch.nn.Linear(6 + 2, 1), 3, NormalLatent(2)),
    "distributions": lambda: LatentHypotheses(
        torchmcl.MultiHypothesisMLP(6 + 2, 2, 1, hidden=(4,), scales=True), 3, EmbeddedLatent(3, 2)
    ),
}


@for_each("suffix", [".pt2", ".ts"])
@for_each("kind", LATENTS)
def test_sampled_hypotheses_run_for_every_batch(kind, suffix, tmp_path):
    model = LATENTS[kind]()
    path = exported(model, tmp_path / f"model{suffix}", (torch.randn(3, 6), model.draw(3)))
    alone = exported(model, tmp_path / f"alone{suffix}", torch.randn(3, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load = torch.jit.load if suffix == ".ts" else lambda path: torch.export.load(path).module()
        check_equal(model, load(path), torch.randn(7, 6), model.draw(7))
        if kind == "normal":
            assert fields(load(alone)(torch.randn(7, 6)))[0].shape == (7, 3, 1)
        else:
            check_equal(model, load(alone), torch.randn(7, 6))


@for_each("kind", ["sequences", "sequences, scales"])
def test_a_trace_runs_for_every_batch(kind, tmp_path):
    model, example, inputs = Deep(), sequences(3, 5), sequences(7, 5)
    if kind != "sequences":
        model, example, inputs = MODELS[kind](), torch.randn(3, 6), (torch.randn(7, 6),)
    path = exported(model, tmp_path / "model.ts", example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_equal(model, torch.jit.load(path), *inputs)


@pytest.mark.slow
def test_a_package_of_machine_code_runs_for_every_batch(tmp_path):
    model = MODELS["scores"]()
    path = exported(model, tmp_path / "model.pt2", torch.randn(3, 6), AOTInductor())
    run = torch._inductor.aoti_load_package(str(path))
    for n_rows in (1, 40):
        check_equal(model, run, torch.randn(n_rows, 6))


def test_export_leaves_the_mode_of_the_model(tmp_path):
    model = MODELS["dropout, head apart"]().train()
    model.trunk.eval()
    exported(model, tmp_path / "model.pt2", torch.randn(2, 6), ExportedProgram())
    assert model.training
    assert not model.trunk.training


@for_each(
    "path, example, form, message",
    [
        ("model.pth", torch.randn(2, 6), None, "export: `path`"),
        ("model.onnx", torch.randn(2, 6), "onnx", "export: `form`"),
        ("model.onnx", 3.0, None, "export: `example`"),
        ("model.onnx", ((torch.randn(2, 6), 4),), None, r"got \(\(\(2, 6\), 'int'\),\)"),
        ("model.onnx", (torch.randn(2, 6), torch.randn(2)), None, "An argument that is itself a tuple"),
        ("model.onnx", torch.tensor(3.0), ONNX(), "export: `example`"),
    ],
)
def test_bad_arguments_are_named(path, example, form, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        torchmcl.export(MODELS["scores"](), path if "pth" in path else tmp_path / path, example, form)
    assert issubclass(ONNX, ExportForm)
