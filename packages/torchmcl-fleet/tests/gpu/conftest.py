"""Tests of Triton kernels, interpreted on machines without a GPU."""

from interpreted import pytest_pyfunc_call  # noqa: F401
