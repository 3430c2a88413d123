"""Data sets of the studies: public files in the user's cache, from a pinned URL and verified by checksum."""

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
    """Return the SHA-256 checksum of each file from a list that is stored in a package."""
    return dict(line.split() for line in (files(package) / name).read_text().splitlines())


def cached_download(
    owner: str, folder: str, base_url: str, file_name: str, known: Mapping[str, str], *, advice: str
) -> Path:
    """Return a file in the user's cache, downloaded if it is missing.

    Args:
        owner: Name of the calling function in error messages.
        folder: Folder below the cache of torchmcl.
        base_url: URL of the files, ending in a slash.
        file_name: File name, which is appended to the URL and used in the cache.
        known: SHA-256 checksum of each file.
        advice: Advice in the error message if there is no network connection.

    Raises:
        OSError: If the file cannot be downloaded, or has a different checksum.
    """
    import pooch

    options = {"base_url": base_url, "registry": {file_name: f"sha256:{known[file_name]}"}, "retry_if_failed": 1}
    try:
        shelf = pooch.create(path=cache_folder(folder), **options)
        return Path(shelf.fetch(file_name, downloader=pooch.HTTPDownloader(timeout=30)))
    except ValueError as error:  # pooch: the checksum differs
        text = f"{owner}: {file_name} from {base_url} does not have the known checksum and was not kept. {error}"
        raise OSError(text) from error
    except OSError as error:  # including errors of requests
        text = f"{owner}: {file_name} could not be downloaded from {base_url} ({type(error).__name__}). {advice}"
        raise OSError(text) from error
