"""Shared set-up: every test starts from the same random state, and property tests are repeatable."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "torchmcl", max_examples=50, deadline=None, derandomize=True, database=None, print_blob=False
)
hypothesis.settings.load_profile("torchmcl")


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(0)
