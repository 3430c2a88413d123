"""Shared set-up: every test starts from the same random state, property tests are repeatable, whole files are slow."""

import importlib.util

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "torchmcl", max_examples=50, deadline=None, derandomize=True, database=None, print_blob=False
)
hypothesis.settings.load_profile("torchmcl")

# Files that cannot be read without a package that only `make test-all` installs.
NEEDED = (
    ("skpro", "*of_skpro.py"),
    ("sktime", "*of_sktime.py"),
    ("triton", "*/accel/triton/*.py"),
    ("triton", "*/kernels/*.py"),
)

# Programs train when they are read.
collect_ignore_glob = [*(files for name, files in NEEDED if importlib.util.find_spec(name) is None), "*program.py"]

# Files and folders that only `make test-all` runs; single slow tests of other files have the marker themselves.
SLOW = (
    *("contracts/test_compiled_schedules", "estimators/test_coverage"),
    *("fleet/test_awkward_modules", "fleet/test_fleet_combinations", "integration/"),
    *(
        "triton/",
        "test_cluster",
        "test_demo",
        "test_fine_tuning",
        "test_every_flag",
        "test_estimator_combinations",
        "test_missing_packages",
    ),
    *("kernels/", "of_skpro", "of_sktime", "test_exported_density", "test_exported_separators", "test_of_skpro"),
    "test_serving",
    *("test_figures", "test_gallery", "test_kernels_of_networks", "test_lightning_nodes", "test_numerical_soak"),
    *("test_separation_study", "test_table_cli", "test_table_report"),
    *("test_trajectory_study", "theory/test_critical", "theory/test_quantizers"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow files."""
    for item in items:
        place = item.path.as_posix()
        if any(f"/{name}" in place for name in SLOW) or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start from the same random state."""
    torch.manual_seed(0)
