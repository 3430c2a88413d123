"""A real headless browser for the pages; tests that need it skip where it is not installed, and fail in CI."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def opened(page: Path, width: int = 1200) -> Iterator[object]:
    """Open a page in headless Chromium and yield the selenium driver."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        missing = "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-dev-shm-usage"
    )
    for flag in f"{flags} disable-component-update disable-sync window-size={width},1600".split():
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    try:
        driver.get(page.resolve().as_uri())
        yield driver
    finally:
        driver.quit()


def console_errors(driver: object) -> list[str]:
    """Return what the console holds beyond information."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
