"""Data sets of the studies: public files in the user's cache, from a pinned address and verified by checksum."""

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

__all__ = ["cache_folder", "cached_download", "checksums"]


def cache_folder(name: str) -> Path:
    """Return a folder in the user's cache, which may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torchmcl" / name


def checksums(package: str, name: str) -> dict[str, str]:
    """Return file -> SHA-256 checksum, from a list stored beside the modules of a package."""
    return dict(line.split() for line in (files(package) / name).read_text().splitlines())


def cached_download(
    owner: str, folder: str, base_url: str, file_name: str, known: Mapping[str, str], *, advice: str
) -> Path:
    """Return a file in the user's cache, downloaded if it is missing.

    Args:
        owner: named in messages.
        folder: below the cache of torchmcl.
        base_url: of the files, ending in a slash.
        file_name: appended to the URL, and used in the cache.
        known: file -> sha256.
        advice: what to do without a network connection.

    Raises:
        OSError: if it cannot be downloaded, or has a different checksum.
    """
    import pooch

    options = {"base_url": base_url, "registry": {file_name: f"sha256:{known[file_name]}"}, "retry_if_failed": 1}
    try:
        shelf = pooch.create(path=cache_folder(folder), **options)
        return Path(shelf.fetch(file_name, downloader=pooch.HTTPDownloader(timeout=30)))
    except ValueError as error:  # pooch: the checksum differs
        text = f"{owner}: {file_name} from {base_url} does not have the known checksum and was not kept. {error}"
        raise OSError(text) from error
    except OSError as error:  # including those of requests
        text = f"{owner}: {file_name} could not be downloaded from {base_url} ({type(error).__name__}). {advice}"
        raise OSError(text) from error
