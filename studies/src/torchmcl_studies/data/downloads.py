"""Downloads: over https, from the pinned host and no other, within a size, and kept only with the known checksum."""

import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from torchmcl._progress import Progress
from torchmcl.persistence.limits import check_limit

__all__ = ["PinnedDownloader", "RefusedDownload", "cache_folder", "cached_download", "check_address"]

# This machine itself needs no encryption to be reached.
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MAX_REDIRECTS = 3
_PIECE = 1 << 16


class RefusedDownload(OSError):  # noqa: N818  (what happened to it)
    """A download that was not begun or not finished, because it would not have been safe."""


def check_address(address: str) -> None:
    """Check that an address is one of https.

    Raises:
        RefusedDownload: if it is not.
    """
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise RefusedDownload(f"the address must begin with https://, got {address}")
    if not parts.hostname or "@" in parts.netloc:
        raise RefusedDownload(f"the address must name a host and no credentials, got {address}")


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache, which need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torchmcl" / name


def cached_download(
    owner: str,
    what: str,
    folder: str,
    base_url: str,
    file_name: str,
    sha256: str,
    *,
    advice: str,
    progress: bool = True,
) -> Path:
    """Return a file of the user's cache, downloaded when it is not there; the checksum decides whether it is kept.

    Args:
        owner: named in messages.
        what: that is downloaded, in messages.
        folder: below the cache of torchmcl.
        base_url: of the file, ending in a slash.
        file_name: behind it, and in the cache.
        sha256: of its contents.
        advice: what to do without a network.
        progress: show a bar.

    Raises:
        OSError: if it cannot be had.
    """
    import pooch

    try:
        check_address(base_url)
        registry = {file_name: f"sha256:{sha256}"}
        shelf = pooch.create(path=cache_folder(folder), base_url=base_url, registry=registry, retry_if_failed=2)
        return Path(shelf.fetch(file_name, downloader=PinnedDownloader(progress=progress)))
    except ValueError as error:  # pooch: the checksum differs
        raise OSError(
            f"{owner}: {what} from {base_url} does not have the known checksum and was not kept. {error}"
        ) from error
    except RefusedDownload as error:
        raise OSError(f"{owner}: the download of {what} from {base_url} was refused: {error}.") from error
    except Exception as error:
        raise OSError(f"{owner}: {what} could not be downloaded from {base_url}: {error}. {advice}") from error


class PinnedDownloader:
    """Fetch one file for pooch, which compares its checksum afterwards.

    Args:
        progress: show a bar.
        timeout: seconds without a byte before giving up.
        max_seconds: in all, for a server that sends a byte now and then.
    """

    def __init__(self, *, progress: bool = True, timeout: float = 30.0, max_seconds: float = 600.0) -> None:
        self.progress, self.timeout, self.max_seconds = progress, timeout, max_seconds

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """Write what is at `url` into a file.

        Raises:
            RefusedDownload: if the address, a redirection, the size or the time is not acceptable.
            requests.RequestException: if the server does not answer well.
        """
        import requests

        ends = time.monotonic() + self.max_seconds
        check_address(url)
        address = url
        for _ in range(_MAX_REDIRECTS + 1):
            with requests.get(address, stream=True, timeout=self.timeout, allow_redirects=False) as answer:
                if not answer.is_redirect:
                    answer.raise_for_status()
                    self._write(answer, Path(output_file), ends)
                    return
                address = _redirected(address, answer.headers["Location"])
        raise RefusedDownload(f"{url} was redirected more than {_MAX_REDIRECTS} times")

    def _write(self, answer: Any, path: Path, ends: float) -> None:
        said = answer.headers.get("Content-Length", "")
        total = int(said) if said.isdecimal() else 0
        _check_size(total)
        n_bytes = 0
        with path.open("wb") as file, Progress(total, "download", show=self.progress, unit="B") as bar:
            for piece in answer.iter_content(_PIECE):
                n_bytes += len(piece)
                _check_size(n_bytes)
                if time.monotonic() > ends:
                    raise RefusedDownload(f"it took more than {self.max_seconds:g} s")
                file.write(piece)
                bar.step(len(piece))


def _redirected(address: str, location: str) -> str:
    """Return where a redirection leads, if that is the same host."""
    target = urljoin(address, location)
    check_address(target)
    here, there = urlsplit(address), urlsplit(target)
    if (here.scheme, here.hostname, here.port) != (there.scheme, there.hostname, there.port):
        raise RefusedDownload(f"the server redirects to another host, {there.scheme}://{there.netloc}")
    return target


def _check_size(n_bytes: int) -> None:
    try:
        check_limit("download", "file", "file_bytes", n_bytes)
    except ValueError as error:  # pooch would take it for a wrong checksum
        raise RefusedDownload(str(error)) from error
