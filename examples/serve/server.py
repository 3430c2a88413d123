"""Serve an exported estimator: Python's standard library, onnxruntime and NumPy, nothing else.

python server.py model.onnx            then open http://127.0.0.1:8000
curl -d '{"rows": [{"size": 30, "city": "Ulm"}]}' http://127.0.0.1:8000/predict

A model of an array takes rows of numbers: {"rows": [[1.5, null], [2, 3]]}. Dates are texts, 2024-02-29 or
2024-02-29T13:00. The same server gives the files of its folder to the page that separates speech, separate.html.
"""

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime

ROWS_AT_ONCE = 200


class Model:
    """An exported estimator."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # blocks of rows are split across threads, not the operators of a block
        self.session = onnxruntime.InferenceSession(str(path), options)
        self.pool = ThreadPoolExecutor(os.cpu_count())
        self.inputs = {one.name: one.type for one in self.session.get_inputs()}
        self.outputs = [one.name for one in self.session.get_outputs()]

    def feeds(self, rows):
        """Return rows from JSON as arrays."""
        if list(self.inputs) == ["X"]:
            return {"X": np.array(rows, dtype=float)}  # None becomes NaN
        columns = {name: [row.get(name) for row in rows] for name in self.inputs}
        return {name: self._column(columns[name], self.inputs[name]) for name in self.inputs}

    @staticmethod
    def _column(cells, kind):
        if kind == "tensor(string)":
            texts = ["" if cell is None else str(cell) for cell in cells]
            return np.array([text.lower() if text in ("True", "False") else text for text in texts], dtype=object)
        return np.array([_number(cell) for cell in cells])

    def __call__(self, rows, outputs=None):
        """Return a list for each output; NaN is None."""
        if not rows:
            raise ValueError("`rows` must have at least one row")
        names = [name for name in self.outputs if outputs is None or name in outputs]
        blocks = [rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE)]
        parts = list(self.pool.map(lambda block: self.session.run(names, self.feeds(block)), blocks))
        lists = ([row for part in found for row in _plain(part.tolist())] for found in zip(*parts, strict=True))
        return dict(zip(names, lists, strict=True))


def _number(cell):
    """Return a number, or the days since 1970 of a date."""
    if isinstance(cell, str):
        return np.datetime64(cell, "us").astype(np.int64) / 86_400e6
    return np.nan if cell is None else float(cell)


def _plain(value):
    """Return nested lists without NaN and infinity, which JSON does not have."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


class Handler(SimpleHTTPRequestHandler):
    """The page, its files, and answers."""

    model: Model

    def do_POST(self):
        """Answer rows."""
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = 200, self.model(asked["rows"], asked.get("outputs"))
        except Exception as error:  # whatever was wrong with the rows, the sender is told
            status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
        self._send(status, answer)

    def do_GET(self):
        """Send the inputs and outputs of the model, or a file."""
        if self.path == "/model":
            self._send(200, {"inputs": self.model.inputs, "outputs": self.model.outputs})
        else:
            super().do_GET()

    def _send(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        """Write nothing."""


def make_server(model, port, folder):
    """Return a server that is not running yet."""

    class Own(Handler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(folder))

    Own.model = Model(model) if model else None
    return ThreadingHTTPServer(("127.0.0.1", port), Own)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="written by model.export")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    given = parser.parse_args()
    print(f"http://127.0.0.1:{given.port}")
    make_server(given.model, given.port, given.folder).serve_forever()
