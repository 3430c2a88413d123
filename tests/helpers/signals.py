"""Sending a signal to the test itself, when it is in the middle of something."""

import os
import threading
import time


def signal_when(it_is_time, number):
    """Start a thread that waits until `it_is_time()`, then sends the signal to this process."""

    def wait_and_send():
        ends = time.monotonic() + 120
        while not it_is_time() and time.monotonic() < ends:
            time.sleep(0.002)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait_and_send, daemon=True)
    thread.start()
    return thread
