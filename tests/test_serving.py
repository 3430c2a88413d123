"""The examples of serving: a server of the standard library, its page, a stream, and separation in the browser."""

import contextlib
import json
import os
import re
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import torchmcl
from browser import console_errors, opened
from grids import for_each
from places import ROOT
from torchmcl_speech.nn import DPRNN, StreamingSeparator
from torchmcl_tables import DensityRegressor, MCLRegressor

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
        assert described(address)["array"]
        answer = asked(address, {"rows": [[0.5, None], [1.0, 2.0]]})
        np.testing.assert_allclose(answer["mean"], regressor.predict([[0.5, np.nan], [1.0, 2.0]]), rtol=1e-5)
        assert list(asked(address, {"rows": [[0.5, 1.0]], "outputs": ["mean"]})) == ["mean"]


def refused(address, body, path="/predict", **headers):
    """Return the status and the reason of a refused request."""
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(urllib.request.Request(address + path, body, headers))
    with found.value as answer:
        return answer.code, json.load(answer)["error"]


@pytest.fixture(scope="module")
def of_a_frame(tmp_path_factory):
    """Return the address of a served model of a frame with numbers, texts and dates, and the model."""
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(90), unit="D")
    frame = pd.DataFrame({"size": X[:, 0], "city": np.where(X[:, 1] > 0, "Ulm", "Bonn"), "built": days})
    model = DensityRegressor(n_epochs=2, hidden=(4,), n_restarts=1, random_state=0).fit(frame, X[:, 0])
    folder = tmp_path_factory.mktemp("frame")
    with served(folder, model.export(folder / "model.onnx")) as address:
        yield address, model


def test_the_server_answers_rows_of_a_frame(of_a_frame):
    address, model = of_a_frame
    row = {"size": 0.5, "city": "Rom", "built": "2020-02-29T13:00"}
    rows = [row, {"size": 1, "city": "Ulm", "built": None}, {"size": None, "city": None, "built": "2020-01-05"}]
    expected = pd.DataFrame(rows).assign(built=pd.to_datetime([one["built"] for one in rows], format="ISO8601"))
    np.testing.assert_allclose(asked(address, {"rows": rows})["mean"], model.predict(expected), rtol=1e-5, atol=1e-6)
    many = asked(address, {"rows": [row] * 450})["mean"]
    assert len(many) == 450
    assert set(many) == {asked(address, {"rows": [row]})["mean"][0]}


def of_texts():
    """Return a model of a frame whose only column has the name of an array."""
    frame = pd.DataFrame({"X": np.where(X[:, 1] > 0, "Ulm", "Bonn")})
    return DensityRegressor(n_epochs=2, hidden=(4,), n_restarts=1, random_state=0).fit(frame, X[:, 0])


def test_a_column_of_texts_may_be_called_like_an_array(tmp_path):
    model, rows = of_texts(), [{"X": "Ulm"}, {"X": "Bonn"}, {"X": None}]
    with served(tmp_path, model.export(tmp_path / "model.onnx")) as address:
        assert described(address)["inputs"] == {"X": "text"}
        assert not described(address)["array"]
        means = asked(address, {"rows": rows})["mean"]
    np.testing.assert_allclose(means, model.predict(pd.DataFrame(rows)), rtol=1e-5, atol=1e-6)


def described(address):
    with urllib.request.urlopen(f"{address}/model") as answer:
        return json.load(answer)


GOOD = {"size": 1, "city": "Ulm", "built": "2020-01-05"}


@for_each(
    "document, reason",
    [
        ({"rows": []}, "at least one row"),
        ({"rows": "all"}, "at least one row"),
        ({"rows": [None]}, "row 0 must be an object .*, got null"),
        ({"rows": [GOOD, [1, 2, 3]]}, "row 1 must be an object .*, got list of 3"),
        ({"rows": [{**GOOD, "sise": 1}]}, "row 0 has an unknown column .*sise.*; known are size, city, built"),
        ({"rows": [{"size": 1, "city": "Ulm"}]}, "row 0 has no column 'built'; send null"),
        ({"rows": [{**GOOD, "size": "30"}]}, "column 'size' of row 0 must be a number or null, got .*30"),
        ({"rows": [{**GOOD, "size": float("inf")}]}, "must be JSON: Infinity is not JSON; send null"),
        ({"rows": [{**GOOD, "size": 10**400}]}, r"must be finite, got 1000.*\.\.\.$"),
        ({"rows": [{**GOOD, "city": ["Ulm"]}]}, "column 'city' of row 0 must be a text or null, got list of 1"),
        ({"rows": [{**GOOD, "built": "yesterday!"}]}, "column 'built' of row 0 must be a date like"),
        ({"rows": [{**GOOD, "city": "\ud800"}]}, "'city' of row 0 must be a text that can be encoded, got .*ud800"),
        ({"rows": [{**GOOD, "built": 2020}]}, "must be a date like 2024-02-29 or null, got 2020"),
        ({"rows": [GOOD], "outputs": ["median"]}, '"outputs" must be a list of some of mean'),
        ({"rows": [GOOD], "outputs": "mean"}, '"outputs" must be a list of some of mean, got .*mean'),
    ],
)
def test_bad_rows_are_refused_with_the_reason(of_a_frame, document, reason):
    status, said = refused(of_a_frame[0], json.dumps(document).encode())
    assert status == 400
    assert re.search(reason, said)


@for_each(
    "body, status, reason",
    [
        (b"", 400, "must be JSON"),
        (b"rows", 400, "must be JSON"),
        (b"\xff\xfe\x00", 400, "must be JSON"),
        (b"[" * 100_000, 400, "must be JSON|at least one row"),
        (b'{"rows": [{"size": 1e999, "city": "Ulm", "built": null}]}', 400, "column 'size' of row 0 must be finite"),
        (b'{"rows": [' + b"1," * 10_000 + b"1]}", 413, "at most 10000 rows"),
        (b" " * 10_000_001, 413, "at most 10000000 bytes"),
    ],
)
def test_bad_bodies_are_refused_with_the_reason(of_a_frame, body, status, reason):
    got, said = said_to_a_socket(of_a_frame[0], f"Content-Length: {len(body)}", body)
    assert got == status
    assert re.search(reason, said)


@for_each("length", ["X: 1", "Content-Length: -1", "Content-Length: 1e3", "Transfer-Encoding: chunked"])
def test_a_body_needs_a_length(of_a_frame, length):
    assert said_to_a_socket(of_a_frame[0], length, b"{}")[0] == 411


def test_a_short_body_is_refused(of_a_frame):
    status, said = said_to_a_socket(of_a_frame[0], "Content-Length: 500", json.dumps({"rows": [GOOD]}).encode())
    assert status == 400
    assert re.search("the body has .* bytes, but Content-Length is 500", said)


def said_to_a_socket(address, header, body):
    """Return status and reason of a request with any header; a server may answer before it has read all."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(f"POST /predict HTTP/1.0\r\n{header}\r\n\r\n".encode() + body)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    head, _, said = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(said)["error"]


def test_rows_of_numbers_are_checked(folder, regressor):
    with served(folder, regressor.export(folder / "model.onnx")) as address:
        for row, reason in (
            ([0.5], "row 0 must be a list of 2 numbers, got list of 1"),
            ([1, "a"], "row 0 must be a num"),
        ):
            assert re.search(reason, refused(address, json.dumps({"rows": [row]}).encode())[1])
        assert refused(address, b"{}", path="/elsewhere")[0] == 404


def test_files_are_not_listed_and_others_not_found(folder):
    with served(folder) as address:
        outside = ("/../test_serving.py", "/%2e%2e/%2e%2e/etc/passwd")
        for path in ("/node_modules/", *outside, "/%00", "/%ed%a0%80", "/model"):
            with pytest.raises(urllib.error.HTTPError) as found:
                urllib.request.urlopen(address + path)
            with found.value as answer:
                assert answer.code == 404
        assert refused(address, b"{}")[0] == 404  # no model


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
        driver.execute_script("document.forms[0].elements[0].value = '1e999,1'; document.getElementById('ask').click()")
        wait(driver, "must be a number or null")  # JSON.stringify writes infinity as null


@pytest.mark.slow
def test_the_page_sends_a_column_called_like_an_array(tmp_path):
    model = of_texts()
    shutil.copy(SERVE / "index.html", tmp_path)
    with served(tmp_path, model.export(tmp_path / "model.onnx")) as address, opened(tmp_path / "index.html") as driver:
        driver.get(address)
        wait(driver, "ready")
        driver.execute_script("document.forms[0].elements[0].value = 'Ulm'; document.getElementById('ask').click()")
        wait(driver, "mean")
        shown = float(driver.find_element("id", "said").text.split()[1].rstrip(";"))
        assert shown == pytest.approx(float(model.predict(pd.DataFrame({"X": ["Ulm"]}))[0]), rel=1e-3)


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


@for_each("length", [300, 1000, 2600])
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
