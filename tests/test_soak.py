"""The benchmarks of load and growth: a tiny soak is flat, a leak is seen, a line is found."""

import sys
import time
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from scaling import fitted, line
from soak import answered, drift, estimator_round

pytestmark = pytest.mark.filterwarnings("default")


def least(count, enough=-1, seconds=3.0):
    """Return the least count of some seconds, or the first that is `enough`: helpers of a thread end a moment later."""
    end, lowest = time.monotonic() + seconds, count()
    while lowest > enough and time.monotonic() < end:
        time.sleep(0.1)
        lowest = min(lowest, count())
    return lowest


@pytest.mark.slow
def test_fits_saves_loads_and_answers_from_8_threads_leave_no_files_or_threads_open(tmp_path):
    process = psutil.Process()
    for number in range(2):  # the first makes what later ones share
        assert estimator_round(number, tmp_path) == 8 * 15
    files, threads = least(process.num_fds, seconds=1.0), least(process.num_threads, seconds=1.0)
    assert estimator_round(2, tmp_path) == 8 * 15
    # Fewer is fine: what other tests of this process left to end may end here.
    assert least(process.num_fds, files) <= files
    assert least(process.num_threads, threads) <= threads


def test_answers_that_depend_on_the_thread_are_seen():
    numbers = iter(range(1000))
    with pytest.raises(AssertionError):
        answered(lambda: [next(numbers)])


def test_a_leak_is_seen_and_noise_is_not():
    assert drift([100.0 + 0.2 * i for i in range(41)]) == pytest.approx(8 / 104)
    assert abs(drift([100.0, 101.0] * 20)) < 0.02
    assert drift([5.0] * 10) == 0
    assert drift([0.0, 0.0]) == 0


def test_the_line_is_that_of_relative_errors_and_never_below_zero():
    assert line([(n, 2 + 3 * n) for n in (1, 10, 1000)]) == pytest.approx((2, 3))
    assert line([(1, 1.0), (10, 10.0), (100, 101.0)])[0] >= 0
    assert line([(1, 5.0), (10, 5.0), (100, 4.9)])[1] == 0
    *points, found = fitted("rows", [{"n": 1, "seconds": 5.0}, {"n": 2, "seconds": 8.0}], ("seconds",))
    assert found["seconds"] == pytest.approx({"fixed": 2, "each": 3})
    assert [point["seconds_of_the_line"] for point in points] == pytest.approx([5, 8])
