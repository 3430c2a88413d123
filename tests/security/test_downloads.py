"""Downloads are refused unless they come over https, from the pinned host, in the expected size."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("pooch", reason="pooch is not installed")

from torchmcl_studies.data.downloads import PinnedDownloader, RefusedDownload, check_address
from torchmcl_studies.data.uci import BASE_URL, UCI_SETS, UciSet, read_rows

GOOD = b"1 2 3\n" * 50


class Answers(BaseHTTPRequestHandler):
    """Redirections here and elsewhere, a file, and one that never ends."""

    def do_GET(self):
        self.server.seen.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.server.targets[self.path])
            self.end_headers()
            return
        self.send_response(200)
        if self.path.startswith("/endless"):
            self.end_headers()
            try:
                while not self.server.closing.is_set():
                    self.wfile.write(b"0" * 65536)
            except OSError:
                pass
            return
        self.send_header("Content-Length", self.server.lengths.get(self.path, str(len(GOOD))))
        self.end_headers()
        self.wfile.write(GOOD)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    http.daemon_threads = True
    http.seen, http.targets, http.lengths, http.closing = [], {}, {}, threading.Event()
    http.base = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield http
    http.closing.set()
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHMCL_DATA", raising=False)
    return tmp_path / "cache"


def fetched(base_url):
    entry = UciSet("tiny", "tiny-set", 50, 2, 1, hashlib.sha256(GOOD).hexdigest(), base_url=base_url)
    return read_rows(entry, progress=False)


def kept(cache):
    return [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org/data.txt",
        "ftp://example.org/data.txt",
        "file:///etc/passwd",
        "http://127.0.0.1.example.org/",
        "//example.org/",
        "",
    ],
)
def test_only_https_is_an_address(address):
    with pytest.raises(RefusedDownload, match="must begin with https"):
        check_address(address)


def test_an_address_with_a_password_is_refused():
    with pytest.raises(RefusedDownload, match="no credentials"):
        check_address("https://me:secret@example.org/")


def test_the_pinned_address_is_https_at_a_commit():
    check_address(BASE_URL)
    assert "6eb4497628d12b0f300f4b4f6bdc386bebad565c" in BASE_URL
    assert all(len(entry.sha256) == 64 for name, entry in UCI_SETS.items() if name != "year")


def test_plain_http_is_refused_before_anything_is_asked(cache):
    with pytest.raises(OSError, match=r"download of the set tiny from http://example.org/.* was refused: .*https"):
        fetched("http://example.org/")
    assert kept(cache) == []


def test_a_redirection_to_another_host_is_refused(server, cache):
    server.targets["/to/tiny-set/data/data.txt"] = f"http://localhost:{server.server_port}/there"
    with pytest.raises(OSError, match=r"was refused: .*another host, http://localhost"):
        fetched(f"{server.base}/to/")
    assert server.seen == ["/to/tiny-set/data/data.txt"]
    assert kept(cache) == []


def test_a_redirection_to_another_scheme_is_refused(server, cache):
    server.targets["/to/tiny-set/data/data.txt"] = "file:///etc/passwd"
    with pytest.raises(OSError, match=r"was refused: .*https"):
        fetched(f"{server.base}/to/")
    assert kept(cache) == []


def test_a_redirection_on_the_same_host_is_followed(server, cache):
    server.targets["/to/tiny-set/data/data.txt"] = "/elsewhere"
    inputs, targets = fetched(f"{server.base}/to/")
    assert (inputs.shape, set(targets)) == ((50, 2), {3.0})
    assert [path.read_bytes() for path in kept(cache)] == [GOOD]


def test_redirections_in_a_circle_end(server, cache):
    server.targets["/to/tiny-set/data/data.txt"] = "/to/tiny-set/data/data.txt"
    with pytest.raises(OSError, match="redirected more than 3 times"):
        fetched(f"{server.base}/to/")


def test_an_announced_size_beyond_the_limit_is_refused(server, cache):
    server.lengths["/tiny-set/data/data.txt"] = str(10**12)
    with pytest.raises(OSError, match=r"was refused: .*268,435,456 bytes of another file.*LIMIT_FILE_BYTES"):
        fetched(f"{server.base}/")
    assert kept(cache) == []


def test_a_body_without_end_is_cut_at_the_limit(server, cache, monkeypatch):
    monkeypatch.setenv("TORCHMCL_LIMIT_FILE_BYTES", "1M")
    with pytest.raises(OSError, match=r"was refused: .*1,048,576 bytes"):
        fetched(f"{server.base}/endless/")
    assert kept(cache) == []


def test_a_server_that_takes_for_ever_is_given_up(server, tmp_path):
    with pytest.raises(RefusedDownload, match="took more than 0 s"):
        PinnedDownloader(progress=False, max_seconds=0)(f"{server.base}/endless", tmp_path / "file", None)
