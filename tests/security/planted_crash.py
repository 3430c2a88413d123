"""An edge that ends its process, for the test of the fuzzer."""

import ctypes


def crash(feed):
    if feed.content[:1] > b"\x80":
        ctypes.string_at(0)
