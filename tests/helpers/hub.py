"""A server with as much of the Hugging Face Hub's interface as one upload and one download ask for."""

import base64
import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Handler(BaseHTTPRequestHandler):
    def _answer(self, content, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _address(self):
        return f"http://{self.headers['Host']}"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        files = self.server.files
        if "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            self._answer(
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
            )
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer(
                {"commitUrl": f"{self._address()}/user/model/commit/{COMMIT}", "commitOid": COMMIT, "success": True}
            )
        elif "validate-yaml" in self.path:
            self._answer({"errors": [], "warnings": []})
        else:
            self._answer({"url": f"{self._address()}/user/model", "name": "user/model", "id": "user/model"})

    def do_GET(self):
        name = self.path.partition("?")[0].rpartition("/")[2]
        if "/resolve/" in self.path and name in self.server.files:
            content = self.server.files[name]
            tag = hashlib.sha256(content).hexdigest()
            self._answer(content, ETag=f'"{tag}"', X_Repo_Commit=COMMIT, Accept_Ranges="bytes")
        elif "/api/models/" in self.path:
            siblings = [{"rfilename": name} for name in self.server.files]
            self._answer({"id": "user/model", "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
        else:
            self.send_error(404)

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def local_hub():
    """Yield the address of a server, and its files by name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.files = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.files
    finally:
        server.shutdown()
        server.server_close()
