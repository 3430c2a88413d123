"""Serve an exported estimator: Python's standard library, onnxruntime and NumPy, nothing else.

python server.py model.onnx            then open http://127.0.0.1:8000
curl -d '{"rows": [{"size": 30, "city": "Ulm"}]}' http://127.0.0.1:8000/predict

A model of an array takes rows of numbers: {"rows": [[1.5, null], [2, 3]]}. A missing value is null, a date a text,
2024-02-29 or 2024-02-29T13:00. Bad requests are answered with status 4xx and the reason. The server accepts
connections from the same computer only; put a proxy with encryption, passwords and limits of connections in front of it
to serve others. It also serves the files of its folder, which `separate.html` needs.
"""

import argparse
import contextlib
import json
import math
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime

ROWS_AT_ONCE, MOST_ROWS = 200, 10_000
MOST_BYTES, SECONDS = 10_000_000, 30


class RequestError(ValueError):
    """A request that cannot be answered, with the status and the reason."""

    def __init__(self, reason, status=400):
        super().__init__(reason)
        self.status = status


class Model:
    """An exported estimator."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # blocks of rows are split across threads, not the operators of a block
        self.session = onnxruntime.InferenceSession(str(path), options)
        self.pool = ThreadPoolExecutor(os.cpu_count())
        metadata = self.session.get_modelmeta().custom_metadata_map
        dates, self.classes = (json.loads(metadata.get(name, "[]")) for name in ("dates", "classes"))
        inputs = self.session.get_inputs()
        # A column of a frame has one axis, an array two.
        self.width = inputs[0].shape[1] if len(inputs[0].shape) == 2 else None
        kinds = {one.name: "text" if one.type == "tensor(string)" else "number" for one in inputs}
        self.inputs = kinds | dict.fromkeys(dates, "date")
        self.outputs = [one.name for one in self.session.get_outputs()]

    def feeds(self, rows, first=0):
        """Return rows from JSON as arrays in double precision or of texts; `first` is the number of the first."""
        for at, row in enumerate(rows, first):
            self._check(row, at)
        if self.width is not None:
            return {"X": np.array([[_number(x, f"row {at}") for x in row] for at, row in enumerate(rows, first)])}
        feeds = {}
        for name, kind in self.inputs.items():
            read = READERS[kind]
            cells = [read(row[name], f"column {name!r} of row {at}") for at, row in enumerate(rows, first)]
            feeds[name] = np.array(cells, dtype=object if kind == "text" else np.float64)
        return feeds

    def _check(self, row, at):
        if self.width is not None:
            if not isinstance(row, list) or len(row) != self.width:
                raise RequestError(f"row {at} must be a list of {self.width} numbers, got {_short(row)}")
            return
        if not isinstance(row, dict):
            raise RequestError(f"row {at} must be an object with a value for each column, got {_short(row)}")
        for name in self.inputs:
            if name not in row:
                raise RequestError(f"row {at} has no column {name!r}; send null for a missing value")
        for name in row:
            if name not in self.inputs:
                raise RequestError(f"row {at} has an unknown column {_short(name)}; known are {', '.join(self.inputs)}")

    def __call__(self, asked):
        """Return a list for each output; NaN is None."""
        rows, names = _rows_of(asked), _outputs_of(asked, self.outputs)
        starts = range(0, len(rows), ROWS_AT_ONCE)
        blocks = [self.feeds(rows[start : start + ROWS_AT_ONCE], start) for start in starts]
        parts = list(self.pool.map(lambda block: self.session.run(names, block), blocks))
        lists = ([row for part in found for row in _plain(part.tolist())] for found in zip(*parts, strict=True))
        return dict(zip(names, lists, strict=True))


def _rows_of(asked):
    rows = asked.get("rows") if isinstance(asked, dict) else None
    if not isinstance(rows, list) or not rows:
        raise RequestError('the body must be an object {"rows": [...]} with at least one row')
    if len(rows) > MOST_ROWS:
        raise RequestError(f"there may be at most {MOST_ROWS} rows in a request, got {len(rows)}", 413)
    return rows


def _outputs_of(asked, known):
    names = asked.get("outputs", known)
    if not isinstance(names, list) or not names or any(name not in known for name in names):
        raise RequestError(f'"outputs" must be a list of some of {", ".join(known)}, got {_short(names)}')
    return [name for name in known if name in names]


def _number(cell, place):
    """Return a number, NaN for null."""
    if cell is None:
        return math.nan
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        raise RequestError(f"{place} must be a number or null, got {_short(cell)}")
    if abs(cell) > sys.float_info.max:
        raise RequestError(f"{place} must be finite, got {_short(cell)}")
    return float(cell)


def _date(cell, place):
    """Return the days since 1970, NaN for null."""
    if cell is None:
        return math.nan
    days = None
    # NumPy also reads "30" and "2020010512" as years.
    if isinstance(cell, str) and re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", cell):
        with contextlib.suppress(ValueError, OverflowError):
            days = np.datetime64(cell, "us").astype(np.int64) / 86_400e6
    if days is None:
        raise RequestError(f"{place} must be a date like 2024-02-29 or null, got {_short(cell)}")
    return days


def _text(cell, place):
    """Return a text, empty for null."""
    if isinstance(cell, list | dict):
        raise RequestError(f"{place} must be a text or null, got {_short(cell)}")
    text = "" if cell is None else json.dumps(cell) if isinstance(cell, bool) else str(cell)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{place} must be a text that can be encoded, got {_short(cell)}") from None
    return text


def _refuse_constant(name):
    raise ValueError(f"{name} is not JSON; send null for a missing value")


READERS = {"number": _number, "date": _date, "text": _text}


def _short(value):
    """Return a value as JSON, at most 60 characters of it."""
    text = json.dumps(value) if not isinstance(value, list | dict) else f"{type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plain(value):
    """Return nested lists without NaN and infinity, which JSON does not have."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Handler(SimpleHTTPRequestHandler):
    """The page, its files, and answers."""

    model: Model | None
    timeout = SECONDS  # of a connection that sends nothing

    def do_POST(self):
        """Answer rows."""
        try:
            status, answer = 200, self._answer()
        except RequestError as error:
            status, answer = error.status, {"error": str(error)}
        except TimeoutError:
            status, answer = 408, {"error": f"the body did not arrive within {SECONDS} seconds"}
        except Exception as error:  # details are not sent to the client
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            status, answer = 500, {"error": "the model could not answer"}
        self._send(status, answer)

    def _answer(self):
        if self.path != "/predict" or self.model is None:
            raise RequestError("send rows to /predict of a server that was started with a model", 404)
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise RequestError("the request must have a Content-Length", 411)
        if len(length) > 15 or int(length) > MOST_BYTES:
            raise RequestError(f"the body may have at most {MOST_BYTES} bytes; send fewer rows at a time", 413)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RequestError(f"the body has {len(body)} bytes, but Content-Length is {int(length)}")
        try:
            asked = json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body must be JSON: {error}") from None
        return self.model(asked)

    def do_GET(self):
        """Send the inputs and outputs of the model, or a file."""
        if self.path != "/model":
            super().do_GET()
        elif self.model is None:
            self._send(404, {"error": "the server was started without a model"})
        else:
            model = self.model
            attributes = {"inputs": model.inputs, "outputs": model.outputs, "classes": model.classes}
            self._send(200, attributes | {"array": model.width is not None})

    def send_head(self):
        """Send the headers of a file; a path that cannot be a file's name is not found."""
        try:
            return super().send_head()
        except ValueError:  # a null byte, for example
            self.send_error(404, "File not found")
            return None

    def list_directory(self, path):
        """Refuse to list files."""
        self.send_error(404, "File not found")

    def _send(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        """Write nothing."""


class Server(ThreadingHTTPServer):
    """A server that does not report connections closed by the client."""

    def handle_error(self, request, client_address):
        """Write errors other than those of connections."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def make_server(model, port, folder):
    """Return a server that is not running yet."""

    class Own(Handler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(folder))

    Own.model = Model(model) if model else None
    return Server(("127.0.0.1", port), Own)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="written by model.export")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    given = parser.parse_args()
    print(f"http://127.0.0.1:{given.port}")
    make_server(given.model, given.port, given.folder).serve_forever()
