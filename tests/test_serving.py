"""The examples of serving: a server of the standard library, its page, a stream, and separation in the browser."""

import contextlib
import json
import os
import shutil
import sys
import threading
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import torchmcl
from browser import console_errors, opened
from places import ROOT
from torchmcl.sklearn import MCLRegressor
from torchmcl_speech.nn import DPRNN, StreamingSeparator

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
SERVE = ROOT / "examples" / "serve"
# Where `npm install onnxruntime-web` was run.
NODE = Path(os.environ.get("TORCHMCL_NODE_MODULES", SERVE / "node_modules"))
X = np.random.default_rng(0).normal(size=(90, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a copy of the example with a separator and an estimator."""
    folder = tmp_path_factory.mktemp("serve")
    for path in SERVE.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    with warnings.catch_warnings():  # torch's own
        warnings.simplefilter("ignore")
        torchmcl.export(separator(), folder / "separator.onnx", torch.randn(1, 3000))
    return folder


def separator():
    torch.manual_seed(0)
    return DPRNN(n_outputs=2, n_filters=8, segment_size=20, hidden_size=16, n_blocks=1).eval()


@pytest.fixture(scope="module")
def regressor():
    return MCLRegressor(n_epochs=3, hidden=(4,), n_restarts=1, random_state=0).fit(X, X[:, 0] * 3)


@contextlib.contextmanager
def served(folder, model=None):
    sys.path.insert(0, str(SERVE))
    try:
        import server
    finally:
        sys.path.remove(str(SERVE))
    running = server.make_server(model, 0, folder)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()


def asked(address, document):
    request = urllib.request.Request(f"{address}/predict", json.dumps(document).encode())
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request) as answer:
        return json.load(answer)
    return None


def test_the_server_answers_rows(folder, regressor):
    with served(folder, regressor.export(folder / "model.onnx")) as address:
        answer = asked(address, {"rows": [[0.5, None], [1.0, 2.0]]})
        np.testing.assert_allclose(answer["mean"], regressor.predict([[0.5, np.nan], [1.0, 2.0]]), rtol=1e-5)
        assert list(asked(address, {"rows": [[0.5, 1.0]], "outputs": ["mean"]})) == ["mean"]
        assert asked(address, {"rows": [[0.5]]}) is None  # an error of the sender
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"{address}/predict", b'{"rows": []}'))
        assert "at least one row" in json.load(refused.value)["error"]


@pytest.mark.slow
def test_the_page_asks_the_server(folder, regressor):
    with served(folder, regressor.export(folder / "model.onnx")) as address, opened(folder / "index.html") as driver:
        driver.get_log("browser")
        driver.get(address)
        wait(driver, "ready")
        driver.execute_script("document.forms[0].elements[0].value = '0.5, 1'; document.getElementById('ask').click()")
        wait(driver, "mean")
        shown = float(driver.find_element("id", "said").text.split()[1].rstrip(";"))
        assert shown == pytest.approx(regressor.predict([[0.5, 1.0]])[0], rel=1e-3)
        assert len(driver.find_elements("tag name", "tr")) == 5


def wait(driver, text):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 60).until(lambda d: text in d.find_element("id", "said").text)


@pytest.mark.slow
def test_the_page_separates_in_the_browser(folder):
    if not (NODE / "onnxruntime-web").exists():
        pytest.skip(f"onnxruntime-web is not in {NODE} (npm install onnxruntime-web)")
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(NODE)
    mixture = torch.randn(1, 2500)
    with served(folder) as address, opened(folder / "separate.html") as driver:
        driver.get_log("browser")
        driver.get(f"{address}/separate.html")
        wait(driver, "ready")
        script = "const done = arguments[1]; separate(arguments[0]).then(v => done(v.map(x => Array.from(x))))"
        voices = torch.tensor(driver.execute_async_script(script, mixture[0].tolist()))
        assert console_errors(driver) == []
    with torch.no_grad():
        expected = separator()(mixture).hypotheses[0]
    noise = (voices - expected).square().sum() / expected.square().sum()
    assert 10 * noise.log10() < -79  # below 1e-3 dB


@pytest.mark.slow
def test_the_page_says_what_is_missing(folder, tmp_path):
    shutil.copy(folder / "separate.html", tmp_path)
    with served(tmp_path) as address, opened(tmp_path / "separate.html") as driver:
        driver.get(f"{address}/separate.html")
        wait(driver, "npm install onnxruntime-web")


@pytest.mark.parametrize("length", [300, 1000, 2600])
def test_the_stream_is_that_of_the_library_whatever_the_blocks(folder, length):
    sys.path.insert(0, str(SERVE))
    try:
        from stream import OnnxStream
    finally:
        sys.path.remove(str(SERVE))
    mixture = torch.randn(1, length)
    ours = OnnxStream(folder / "separator.onnx", chunk=1000, overlap=400, fade=100)
    found = [part for part in (ours.push(block.numpy()) for block in mixture[0].split(170)) if part.size]
    found = np.concatenate([*found, ours.finish()], axis=-1)
    theirs = StreamingSeparator(separator(), chunk=1000, overlap=400, fade=100)
    assert ours.delay == theirs.delay == 700
    with torch.inference_mode():
        first = theirs.push(mixture)
        rest = theirs.finish()
    expected = (torch.cat([first, rest], dim=-1) if first.numel() else rest)[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
