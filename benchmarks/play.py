"""Frames a second of the page to play with, in a headless Chromium, beside those of the same page at rest.

python benchmarks/play.py [--out results/play-cpu.json]     (needs chromium, chromedriver and selenium)

Chromium draws on the processor here; with a GPU the drawing is free. The load of the machine is recorded.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from selenium import webdriver

from _common import parser, report
from torchmcl.demo.play_page import write_play_page

_CASES = {"1 panel": "annealed", "2 panels": "wta,annealed", "3 panels": "wta,relaxed,annealed"}
_FRAMES = """
const done = arguments[0];
let n = 0, begin = performance.now();
const next = () => (++n < 180 ? requestAnimationFrame(next) : done((1000 * n) / (performance.now() - begin)));
requestAnimationFrame(next);
"""
# The shortest of many calls: what the page itself needs when nothing else interferes.
_OWN_SHARE = """
const page = torchmclPlay.page, times = [];
page.playing = true;
for (let i = 0; i < 120; i++) { const t = performance.now(); page.frame(); times.push(performance.now() - t); }
times.sort((a, b) => a - b);
return [times[6], times[60]];
"""


def browser() -> Any:
    """Return a driver of headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1600"):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def measured(driver: Any, address: str) -> dict[str, float]:
    """Return frames a second at rest and playing, and the milliseconds of the page's own work in a frame."""
    driver.get("about:blank")
    driver.get(address)
    time.sleep(3)  # the floor of the charts is computed first
    rest = driver.execute_async_script(_FRAMES)
    driver.execute_script("torchmclPlay.page.playing = true")
    playing = driver.execute_async_script(_FRAMES)
    quick, median = driver.execute_script(_OWN_SHARE)
    return {"at_rest": rest, "playing": playing, "frame_ms_5_percent": quick, "frame_ms_median": median}


if __name__ == "__main__":
    options = parser(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = write_play_page(Path(folder) / "play.html").as_uri()
        driver = browser()
        try:
            rows = [
                {
                    "name": f"5000 points, 50 hypotheses, {name}",
                    **measured(driver, f"{page}#points=5000&k=50&rules={rules}&steps=3000"),
                    "load": os.getloadavg()[0],
                    "must_show": "playing >= 60",
                }
                for name, rules in _CASES.items()
            ]
        finally:
            driver.quit()
    report("play", "cpu", rows, options.out)
